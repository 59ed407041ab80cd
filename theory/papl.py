"""PAPL: the loss weighted by 1 + alpha w^i, w^i = f_i(x0^i) / sum over hidden j of f_j(x0^j).

The weight looks at the target through the model f. Is f = posterior still stationary? Exactly, with
w detached or differentiated.
"""

from fractions import Fraction
from itertools import pairwise, product
from math import isclose, log

import exact
import logarithms
import torch
from exact import hidden, instances, normalised
from shipped import losses


def weights_of(f, x0):
    """w^i of the hidden positions i, the keys of f."""
    chance = {i: f[i][x0[i]] for i in f}
    return {i: chance[i] / sum(chance.values()) for i in f}


def consistent(data, z):
    return [(x0, p / data.mass[z]) for x0, p in data.p.items() if exact.agrees(x0, z)]


def minimiser(data, z, f, alpha):
    """The minimiser under the weights of f, ~ p_i(v) (1 + alpha E[w^i | x0^i = v])."""
    C = {i: [0] * data.V for i in f}
    for x0, p in consistent(data, z):
        for i, w in weights_of(f, x0).items():
            C[i][x0[i]] += p * (1 + alpha * w)
    return {i: normalised(c) for i, c in C.items()}


def detached_moves(data, z, alpha=1):
    return minimiser(data, z, data.posterior[z], alpha) != data.posterior[z]


def differentiated_moves(data, z, alpha=1):
    """Whether the whole gradient in the logits is nonzero at f = posterior.

    With l_i = log f_i(x0^i): d loss / d l_i = -(1 + alpha w_i) - alpha w_i (l_i - sum_k w_k l_k),
    and d l_i / d logit_v = 1{x0^i = v} - f_i(v). A rational plus logarithms of rationals is zero
    only if both parts are (e^r is transcendental for every rational r but 0).
    """
    f = data.posterior[z]
    return any(gradient(data, z, f, i, v, alpha) != (0, {}) for i in f for v in range(data.V))


def gradient(data, z, f, i, v, alpha):
    """(rational part, logarithms) of d loss / d logit_v at position i."""
    rational, logs = Fraction(0), []
    for x0, p in consistent(data, z):
        w, slope = weights_of(f, x0), p * ((x0[i] == v) - f[i][v])
        rational -= slope * (1 + alpha * w[i])
        for k in f:
            share = slope * alpha * w[i] * ((k == i) - w[k])
            logs.append(logarithms.times_log(-share, f[k][x0[k]]))
    return rational, logarithms.total(logs)


def weights_vary(data, z):
    """Whether w^i at f = posterior depends on the hidden tokens of x0, for some i."""
    weights = [weights_of(data.posterior[z], x0) for x0, _ in consistent(data, z)]
    return any(w != weights[0] for w in weights)


def rows(rng, n, V, L):
    """The posterior is stationary where w^i is the same for all x0 that agree, and only there."""
    uniform = exact.Data(dict.fromkeys(product(range(V), repeat=L), Fraction(1, V**L)), V)
    data = [*instances(rng, n, V, L), uniform]
    return [row(f"PAPL, {name}", data, vary) for name, vary in CASES.items()]


CASES = {"w the same for all x0: stays": False, "w differs: moves": True}


def row(claim, data, moves, vary=None):
    """Both gradients vanish nowhere (`moves`) or everywhere in the states where w varies or not."""
    vary = moves if vary is None else vary
    states = [(d, z) for d in data for z in d.mass if hidden(z) and weights_vary(d, z) == vary]
    single = sum(len(hidden(z)) == 1 for _, z in states)
    detached = sum(detached_moves(d, z) for d, z in states)
    whole = sum(differentiated_moves(d, z) for d, z in states)
    found = f"{len(states)} states ({single} of one hidden), moved {detached} (w detached), {whole}"
    return claim, found, {detached, whole} == {len(states) * moves}


def shipped_weights(rng, n, V, L, alpha=3, weigh=losses.papl_weights):
    """1 + alpha w^i of losses.py, at f = posterior, for every state and every x0 that agrees."""
    checked, equal = 0, True
    for data in instances(rng, n, V, L):
        for z in filter(hidden, data.mass):
            for x0, _ in consistent(data, z):
                f = data.posterior[z]
                exactly = {i: float(1 + alpha * w) for i, w in weights_of(f, x0).items()}
                nll = [-log(f[i][x0[i]]) if i in f else 0 for i in range(L)]
                nll = torch.tensor([nll], dtype=torch.float64)
                found = weigh(nll, torch.tensor([[i in f for i in range(L)]]), alpha)[0].tolist()
                equal &= all(isclose(found[i], w, rel_tol=1e-12) for i, w in exactly.items())
                checked += 1
    return "losses.papl_weights are 1 + alpha w", f"{checked} pairs of z and x0", equal


def by_hand(alphas=(1, 3, 5)):
    """Two independent positions, p = (2/3, 1/3), w detached: p(0) rises, the more so with alpha."""
    p = {x0: Fraction(4, 9) / 2 ** sum(x0) for x0 in product((0, 1), repeat=2)}
    data, z = exact.Data(p, 2), (exact.MASK,) * 2
    first = minimiser(data, z, data.posterior[z], 1)[0][0]
    fixed = [fixed_point(data, z, alpha) for alpha in alphas]
    found = f"p(0) 2/3, after a step {first}, fixed point "
    found += ", ".join(
        f"{float(low):.4f} (alpha={a})" for (low, _), a in zip(fixed, alphas, strict=True)
    )
    rising = [Fraction(2, 3), *(end for bracket in fixed for end in bracket)]
    holds = first == Fraction(56, 81) and all(a < b for a, b in pairwise(rising))
    return "PAPL by hand: sharpens", found, holds


def fixed_point(data, z, alpha, halvings=20):
    """Rational (low, high) around a fixed point p(0) > 2/3 of `minimiser`, the same everywhere.

    One step raises low and lowers high; in between it is continuous. Near 1 it lowers always.
    """
    low, high = Fraction(2, 3), Fraction(1)
    for _ in range(halvings):
        middle = (low + high) / 2
        f = dict.fromkeys(hidden(z), (middle, 1 - middle))
        raised = minimiser(data, z, f, alpha)[0][0] > middle
        low, high = (middle, high) if raised else (low, middle)
    return low, high
