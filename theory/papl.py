"""PAPL: the loss weighted by 1 + alpha w^i, w^i = f_i(x0^i) / sum over hidden j of f_j(x0^j).

The weight, which is detached, looks at the target through the model f. Is f = posterior still
stationary? Decided exactly.
"""

from fractions import Fraction
from itertools import pairwise, product
from math import isclose, log

import exact
import torch
from exact import hidden, normalised
from shipped import losses


def weights_of(f, x0):
    """w^i of the hidden positions i, which are the keys of f."""
    chance = {i: f[i][x0[i]] for i in f}
    return {i: chance[i] / sum(chance.values()) for i in f}


def minimizer(data, z, alpha):
    """The minimizer under the weights at f = posterior, ~ p_i(v) (1 + alpha E[w^i | x0^i = v])."""
    f = data.posterior[z]
    C = {i: [0] * data.V for i in f}
    for x0, p in data.consistent(z):
        for i, w in weights_of(f, x0).items():
            C[i][x0[i]] += p * (1 + alpha * w)
    return {i: normalised(c) for i, c in C.items()}


def weights_vary(data, z):
    """Whether w^i at f = posterior depends on the hidden tokens of x0, for some i."""
    first, *others = (weights_of(data.posterior[z], x0) for x0, _ in data.consistent(z))
    return any(w != first for w in others)


def row(claim, worlds, vary, moves):
    """Where w varies (or not), the posterior is stationary nowhere (`moves`) or everywhere.

    One world more has uniform posteriors.
    """
    V, L = worlds[0].V, worlds[0].L
    uniform = exact.Data(dict.fromkeys(product(range(V), repeat=L), Fraction(1, V**L)), V)
    states = [
        (d, z) for d in [*worlds, uniform] for z in d.mass
        if hidden(z) and weights_vary(d, z) == vary
    ]  # fmt: skip
    single = sum(len(hidden(z)) == 1 for _, z in states)
    moved = sum(minimizer(d, z, 1) != d.posterior[z] for d, z in states)
    found = f"{len(states)} states ({single} of one hidden), moved {moved}"
    return f"PAPL, {claim}", found, moved == len(states) * moves


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


def worked_example(alphas=(0, 1, 3, 5)):
    """Two independent positions, p = (2/3, 1/3): p(0) rises, the more so with alpha."""
    p = {x0: Fraction(4, 9) / 2 ** sum(x0) for x0 in product((0, 1), repeat=2)}
    data, z = exact.Data(p, 2), (exact.MASK,) * 2
    points = [minimizer(data, z, alpha)[0][0] for alpha in alphas]
    found = ", ".join(f"{p} (alpha={alpha})" for p, alpha in zip(points, alphas, strict=True))
    rises = all(a < b for a, b in pairwise(points))
    return "PAPL, worked example: sharpens", f"p(0) {found}", points[0] == Fraction(2, 3) and rises
