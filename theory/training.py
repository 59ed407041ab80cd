"""A table of logits, trained by the shipped loss on the shipped buffer and on random masks."""

import random

import exact
import masks
import shipped
import torch
import torch.nn as nn
from exact import NOTHING
from minimizer import buffer_loss, iid_loss

ENOUGH = 1e-3  # the KL divergence to reach


class Table(shipped.Lookup):
    """A softmax for each state and position: it can represent every predictor."""

    def __init__(self, L, V):
        super().__init__(nn.Parameter(torch.zeros((V + 1) ** L, L, V, dtype=torch.float64)), V)


def divergences(log_p, model):
    """KL(posterior | model) for every state and position."""
    return (log_p.exp() * (log_p - model.table.detach().log_softmax(-1))).sum(-1)


def places(data, keys):
    """The index of (z, i) pairs into what `divergences` returns."""
    z, i = zip(*keys, strict=True)
    return shipped.state_code(torch.tensor(z), data.V), torch.tensor(i)


def train(data, stream, calls, objective_of=shipped.losses.Objective, every=5):
    """[(step, divergences)] of a table under the shipped loss, by Adagrad from zero logits."""
    log_p = shipped.log_table(data).log_softmax(-1)
    objective = objective_of(Table(data.L, data.V), shipped.policies.top_k)
    optimizer = torch.optim.Adagrad(objective.parameters(), lr=0.05)
    curve = []
    for step, *_, loss in shipped.training_steps(stream, objective, calls):
        if step % every == 0:
            curve.append((step, divergences(log_p, objective.model)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [*curve, (calls, divergences(log_p, objective.model))]


def mean(data, curve, C):
    """[(step, KL averaged as the loss C weighs it)]: the loss minus its least value."""
    weight = torch.tensor([float(sum(c.values())) for c in C.values()], dtype=torch.float64)
    where = places(data, C)
    return [(step, float(weight @ kl[where] / weight.sum())) for step, kl in curve]


def row(name, curve):
    needed = next((step for step, kl in curve if kl < ENOUGH), None)
    last = curve[-1][1]
    found = f"mean KL {last:.2g}, first below {ENOUGH} at step {needed}"
    return f"trained, {name}", found, last < ENOUGH


def on_chain(seed, size, objective_of):
    """PUMA with its own policy: (p_data, divergences, C of the chain)."""
    data = exact.random_data(random.Random(seed), 2, 4)
    stream = shipped.Buffer(data, "top_k", 1, NOTHING).stream(size)
    return data, train(data, stream, size[1], objective_of), buffer_loss(data, "top_k")


def peeking(seed, size):
    """Negative control: the chain reveals by the hidden tokens."""
    return row("a score that peeks at x0", mean(*on_chain(seed, size, shipped.Peeking)))


def rows(seed, size):
    """(rows, {name: curve}) of PUMA and of random masks."""
    data, chain, C = on_chain(seed, size, shipped.losses.Objective)
    masked = train(data, shipped.random_masking(data, size), size[1])
    C_masks = iid_loss(data, masks.shipped_weight)
    curves = {
        "PUMA, on its chain": mean(data, chain, C),
        "random masks, on the chain": mean(data, masked, C),
        "random masks, on random masks": mean(data, masked, C_masks),
    }
    missed = C_masks.keys() - C.keys()
    worst = float(chain[-1][1][places(data, missed)].max())
    free = "trained, PUMA: not pinned", f"{len(missed)} predictions, KL {worst:.2g}", worst > ENOUGH
    return [*(row(name, curve) for name, curve in curves.items()), free], curves
