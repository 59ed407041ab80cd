"""When the chain collapses: fast-forward ends it at its first visit, and the rest is forgotten.

p_data is (1 - eps) (zeros) + eps (noise): a model that knows it gets more confident as eps falls.
The model that forgets has two weights for all its states. Its data are (a, a, a), a in {0, 1} with
equal chances; the first token is given, and K = 2: two stages of one token.
"""

import math
import random
from collections import Counter
from fractions import Fraction
from itertools import product

import exact
import torch
from exact import LEVEL, MASK, ONE, Buffer, Data, hidden, shifts

TAU = Fraction(9, 10)
POLICIES = "top_k", "random"


# -- the law ---------------------------------------------------------------------------------------
def sharpened(noise, eps):
    p = {x0: eps * q for x0, q in noise.items()}
    p[(0,) * len(min(noise))] += 1 - eps
    return Data(p, 2)


def pinned_row(noise, policy, eps=Fraction(1, 20)):
    """One visit per chain, and only the predictions at the start are pinned; none is shifted."""
    data = sharpened(noise, eps)
    buffers = [Buffer(data, policy, 1, tau) for tau in (TAU, math.inf)]
    visits = [float(sum(sum(joint.values()) for joint in buffer.joints)) for buffer in buffers]
    on, off = (shifts(data, buffer.joints) for buffer in buffers)
    found = f"visits {visits[0]:.3g}, with tau off {visits[1]:.3g}; pinned {len(on)} and {len(off)}"
    found += f" of {sum(len(hidden(z)) for z in data.mass)}"
    start = {((MASK,) * data.L, i) for i in range(data.L)}
    holds = visits[0] == 1 and on.keys() == start and not any((on | off).values())
    return f"collapsed, {policy}: one visit, the start is pinned", found, holds


def second_visits(noise):
    """Buffers of three tokens, from unsure to collapsed."""
    cases = (Fraction(1, 2), "top_k"), (Fraction(3, 10), "random"), (Fraction(1, 20), "top_k")
    return [Buffer(sharpened(noise, eps), policy, 1, TAU) for eps, policy in cases]


def running_row(noise, args, law=True):
    """The shipped buffer with the second visit against its exact law, or that without."""
    size = args.rows, args.calls, args.seed
    buffers = second_visits(noise)
    p = [exact.running(b, size, True, laws=b.calls(args.calls, law))[1] for b in buffers]
    return "second visit: the running buffer", f"p {min(p):.2g} and more", min(p) > LEVEL


def minimizer_row(noise, leak=False):
    """No prediction is shifted, all are pinned; leak: inside depends on hidden tokens."""
    shifted = 0
    pinned = set()
    for buffer in second_visits(noise):
        if leak:
            law = Counter({key: p * (1 + key[0][0]) for key, p in buffer.inside().items()})
            buffer.inside = lambda law=law: law
        shift = shifts(buffer.data, buffer.calls(8, second_visit=True))
        shifted += sum(s > 0 for s in shift.values())
        pinned.add(len(shift) / sum(len(hidden(z)) for z in buffer.data.mass))
    found = f"{shifted} predictions shifted, {min(pinned):.0%} pinned"
    return "second visit: the minimizer", found, not shifted and pinned == {1}


# -- a model that forgets --------------------------------------------------------------------------
class Shared:
    """The margin (log-odds) of token a over the other is w . phi, the same at all hidden positions.

    features: phi at the start, and phi once a token is revealed. States x (B, 3) -> margins of
    token 1 (B,) -> logits (B, 3, 2).
    """

    vocab_size = 2

    def __init__(self, features):
        self.w = torch.zeros(2, dtype=torch.float64, requires_grad=True)
        self.features = torch.tensor(features, dtype=torch.float64)

    def __call__(self, x):
        later = (x[:, 1:] != MASK).any(1)
        return (self.features[later.long()] @ self.w) * (2 * x[:, 0] - 1)

    def logits(self, margin):
        return torch.stack([-margin / 2, margin / 2], -1)[:, None].expand(-1, 3, -1)


def train(tau, second_visit, features, args):
    """Gradient descent from w = 0, step size 1, with the shipped loss, on batches of 64 chains.

    Returns what held before each step: P(truth) at the start, later; loss and share of fully masked
    rows of the batch; a list of `steps` each.
    """
    data = Data({(a,) * 3: ONE / 2 for a in (0, 1)}, 2)
    buffer = Buffer(data, "top_k", 2, tau, {(0,): ONE})  # all tie: the leftmost is first
    model = Shared(features)
    stream = buffer.stream((64, args.steps, args.seed), second_visit)
    curve = []
    for batch, loss in exact.training_steps(stream, model, buffer.policy, args.steps):
        truth = (model.features @ model.w).sigmoid().tolist()
        share = (batch.hidden.sum(1) == 2).double().mean()
        curve.append((*truth, loss.item(), share.item()))
        (gradient,) = torch.autograd.grad(loss, model.w)
        model.w.data -= gradient
    return map(list, zip(*curve, strict=True))


def forgets(start, later, loss, share):
    """Right, then wrong, while the loss of the batches, then all of fully masked rows, falls."""
    return max(later) > 0.9 and later[-1] < 0.1 and 1 in share and loss[-1] < loss[share.index(1)]


def remembers(start, later, loss, share):
    """Right from the moment both states are, to the end."""
    right = [min(both) > 0.5 for both in zip(start, later, strict=True)]
    return later[-1] > 0.9 and all(right[right.index(True) :])


SHARED = (1.0, 1.0), (1.0, -4.0)
TABLE = (1.0, 0.0), (0.0, 1.0)  # a weight for each state, as a lookup table has
RUNS = {  # name: (what it does, tau, second_visit, features)
    "no second visit, tau=0.9": (forgets, 0.9, False, SHARED),
    "second visit": (remembers, 0.9, True, SHARED),
    "tau off": (remembers, math.inf, False, SHARED),
    "no second visit, a table": (remembers, 0.9, False, TABLE),
}


def run_row(name, args, does=None):
    usual, *setting = RUNS[name]
    does = does or usual
    start, later, loss, share = train(*setting, args)
    found = f"P later {max(later):.3f} at step {later.index(max(later))}, {later[-1]:.3f} at the "
    found += f"end; loss {loss[-1]:.4f}, {sum(share[-100:]) / 100:.0%} at the start"
    return f"{name}: {does.__name__}", found, does(start, later, loss, share)


# -- the whole -------------------------------------------------------------------------------------
def noises(args, L):
    """Laws of bits, {x0: probability}: the uniform one, and one with random weights."""
    sequences = list(product(range(2), repeat=L))
    uniform = dict.fromkeys(sequences, Fraction(1, 2**L))
    return uniform, exact.random_law(random.Random(args.seed), sequences, zeros=False)


def claims(args):
    return [
        "Not in the paper: once the start is surer than tau, a chain ends at its first visit.",
        *(pinned_row(noises(args, args.L)[1], policy) for policy in POLICIES),
        "The second visit: contexts have the law of its rules, and the minimizer is as before.",
        running_row(noises(args, 3)[1], args),
        *map(minimizer_row, noises(args, 3)),
        "A model of two weights forgets what chains do not show; the second visit prevents it.",
        *(run_row(name, args) for name in RUNS),
    ]


CONTROLS = {
    "unsure": lambda args: [pinned_row(noises(args, 3)[1], p, ONE / 3) for p in POLICIES],
    "running": lambda args: [running_row(noises(args, 3)[1], args, law=False)],
    "leak": lambda args: [minimizer_row(noises(args, 3)[1], leak=True)],
    "tau-off": lambda args: [run_row("tau off", args, forgets)],
    "second": lambda args: [run_row("second visit", args, forgets)],
    "table": lambda args: [run_row("no second visit, a table", args, forgets)],
}

if __name__ == "__main__":
    exact.main(__doc__, claims, CONTROLS, L=6, steps=400, rows=4096, calls=12)
