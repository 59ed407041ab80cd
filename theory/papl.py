"""PAPL: the loss weighted by 1 + alpha w^i, w^i = f_i(x0^i) / sum over hidden j of f_j(x0^j).

The weight looks at the target through the model f. Is f = posterior still stationary? Decided
exactly, with w detached or differentiated.
"""

from fractions import Fraction
from itertools import pairwise, product
from math import isclose, log

import exact
import irrational
import torch
from exact import hidden, normalised
from shipped import losses


def weights_of(f, x0):
    """w^i of the hidden positions i, which are the keys of f."""
    chance = {i: f[i][x0[i]] for i in f}
    return {i: chance[i] / sum(chance.values()) for i in f}


def minimizer(data, z, f, alpha):
    """The minimizer under the weights of f, ~ p_i(v) (1 + alpha E[w^i | x0^i = v])."""
    C = {i: [0] * data.V for i in f}
    for x0, p in data.consistent(z):
        for i, w in weights_of(f, x0).items():
            C[i][x0[i]] += p * (1 + alpha * w)
    return {i: normalised(c) for i, c in C.items()}


def detached_moves(data, z, alpha=1):
    return minimizer(data, z, data.posterior[z], alpha) != data.posterior[z]


def differentiated_moves(data, z, alpha=1):
    """Whether the whole gradient in the logits is nonzero at f = posterior.

    It is a rational plus logarithms of rationals, and zero only if both parts are: e^r is
    transcendental for every rational r but 0.
    """
    f = data.posterior[z]
    return any(gradient(data, z, f, i, v, alpha) != (0, {}) for i in f for v in range(data.V))


def gradient(data, z, f, i, v, alpha):
    """(rational part, logarithms) of d loss / d logit_v at position i.

    With l_i = log f_i(x0^i): d loss / d l_i = -(1 + alpha w_i) - alpha w_i (l_i - sum_k w_k l_k),
    and d l_i / d logit_v = 1{x0^i = v} - f_i(v).
    """
    rational, logs = Fraction(0), []
    for x0, p in data.consistent(z):
        w, slope = weights_of(f, x0), p * ((x0[i] == v) - f[i][v])
        rational -= slope * (1 + alpha * w[i])
        for k in f:
            share = slope * alpha * w[i] * ((k == i) - w[k])
            logs.append(irrational.times_log(-share, f[k][x0[k]]))
    return rational, irrational.total(logs)


def weights_vary(data, z):
    """Whether w^i at f = posterior depends on the hidden tokens of x0, for some i."""
    first, *others = (weights_of(data.posterior[z], x0) for x0, _ in data.consistent(z))
    return any(w != first for w in others)


def row(claim, worlds, vary, moves):
    """In the states where w varies (or not), both gradients vanish nowhere (`moves`) or everywhere.

    One world more has uniform posteriors.
    """
    V, L = worlds[0].V, worlds[0].L
    uniform = exact.Data(dict.fromkeys(product(range(V), repeat=L), Fraction(1, V**L)), V)
    states = [
        (d, z) for d in [*worlds, uniform] for z in d.mass
        if hidden(z) and weights_vary(d, z) == vary
    ]  # fmt: skip
    single = sum(len(hidden(z)) == 1 for _, z in states)
    detached = sum(detached_moves(d, z) for d, z in states)
    whole = sum(differentiated_moves(d, z) for d, z in states)
    found = f"{len(states)} states ({single} of one hidden), moved {detached} (w detached), {whole}"
    return f"PAPL, {claim}", found, {detached, whole} == {len(states) * moves}


def shipped_weights(worlds, alpha=3, weigh=losses.papl_weights):
    """losses.papl_weights at f = posterior, for every state and every x0 that agrees."""
    checked, equal = 0, True
    for data, z in ((d, z) for d in worlds for z in d.mass if hidden(z)):
        f = data.posterior[z]
        for x0, _ in data.consistent(z):
            exactly = {i: float(1 + alpha * w) for i, w in weights_of(f, x0).items()}
            nll = [[-log(f[i][x0[i]]) if i in f else 0 for i in range(data.L)]]
            is_hidden = torch.tensor([[i in f for i in range(data.L)]])
            found = weigh(torch.tensor(nll, dtype=torch.float64), is_hidden, alpha)[0].tolist()
            equal &= all(isclose(found[i], w, rel_tol=1e-12) for i, w in exactly.items())
            checked += 1
    return "losses.papl_weights are 1 + alpha w", f"{checked} pairs of z and x0", equal


def worked_example(alphas=(1, 3, 5)):
    """Two independent positions, p = (2/3, 1/3), w detached: p(0) rises, the more so with alpha."""
    p = {x0: Fraction(4, 9) / 2 ** sum(x0) for x0 in product((0, 1), repeat=2)}
    data, z = exact.Data(p, 2), (exact.MASK,) * 2
    first = minimizer(data, z, data.posterior[z], 1)[0][0]
    fixed = {alpha: fixed_point(data, z, alpha) for alpha in alphas}
    points = ", ".join(f"{float(low):.4f} (alpha={a})" for a, (low, _) in fixed.items())
    rising = [Fraction(2, 3), *(end for bracket in fixed.values() for end in bracket)]
    holds = first == Fraction(56, 81) and all(a < b for a, b in pairwise(rising))
    found = f"p(0) 2/3, after a step {first}, fixed point {points}"
    return "PAPL, worked example: sharpens", found, holds


def fixed_point(data, z, alpha, halvings=20):
    """Rational (low, high) around a fixed point p(0) > 2/3 of `minimizer`, the same everywhere.

    One step raises low and lowers high; in between it is continuous. Near 1 it always lowers.
    """
    low, high = Fraction(2, 3), Fraction(1)
    for _ in range(halvings):
        middle = (low + high) / 2
        f = dict.fromkeys(hidden(z), (middle, 1 - middle))
        raised = minimizer(data, z, f, alpha)[0][0] > middle
        low, high = (middle, high) if raised else (low, middle)
    return low, high
