"""The chain collapses if fast-forward ends it at its first visit: laws, and a model that forgets.

`sharpened` is p_eps = (1 - eps) (one answer) + eps (noise): a model that knows it gets more
confident as eps falls. `Shared` has two weights for all its states; its world is (a, a, a), a in
{0, 1} with equal chances, the first token given and K = 2: two stages of one token.
"""

import math
from fractions import Fraction
from typing import NamedTuple

import exact
import shipped
import torch
import torch.nn as nn
from exact import MASK, ONE
from shipped import Buffer

TAU = Fraction(9, 10)


# -- the law ---------------------------------------------------------------------------------------
def sharpened(noise, eps):
    """p_data of bits: 0, 0, .., or with probability eps the law `noise` {x0: probability}."""
    p = {x0: eps * q for x0, q in noise.items()}
    p[(0,) * len(next(iter(noise)))] += 1 - eps
    return exact.Data(p, 2)


# -- a model that forgets --------------------------------------------------------------------------
SHARED = (1.0, 1.0), (1.0, -4.0)
TABLE = (1.0, 0.0), (0.0, 1.0)  # a weight for each state, as a lookup table has
LEARNING_RATE, ROWS = 1.0, 64


class Shared(nn.Module):
    """The margin (log-odds) of token a over the other is w . phi, the same at all hidden positions.

    features: phi at the start, and phi once a token is revealed. States x (B, 3) -> margins of
    token 1 (B,) -> logits (B, 3, 2).
    """

    def __init__(self, features):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2, dtype=torch.float64))
        self.features = torch.tensor(features, dtype=torch.float64)

    def forward(self, x):
        later = (x[:, 1:] != MASK).any(1)
        return (self.features[later.long()] @ self.w) * (2 * x[:, 0] - 1)

    def logits(self, margin):
        return torch.stack([-margin / 2, margin / 2], -1)[:, None].expand(-1, 3, -1)

    def margins(self):
        """Of the true token, at the start and later."""
        return (self.features @ self.w).tolist()


class Point(NamedTuple):
    """Before a step: the margins of the true tokens, and loss and share of starts in the batch."""

    start: float
    later: float
    loss: float
    share: float


def world(tau):
    data = exact.Data({(a,) * 3: ONE / 2 for a in (0, 1)}, 2)
    return Buffer(data, "left_to_right", 2, tau, {(0,): ONE})


def train(kind, tau, steps, seed, features=SHARED):
    """[Point] of gradient descent from w = 0, by the shipped loss on a stream of that kind."""
    buffer, curve = world(tau), []
    objective = shipped.losses.Objective(Shared(features), buffer.policy)
    optimizer = torch.optim.SGD(objective.parameters(), lr=LEARNING_RATE)
    stream = buffer.stream((ROWS, steps, seed), kind)
    for _, is_hidden, loss in shipped.training_steps(stream, objective, steps):
        share = (is_hidden.sum(1) == 2).double().mean().item()
        curve.append(Point(*objective.model.margins(), loss.item(), share))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return curve


def probability(margin):
    return 1 / (1 + math.exp(-margin))
