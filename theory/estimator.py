"""The optimal (MAP) estimator of theta in example Z_m, and its exact error.

Of theta uniform; ties are broken by a fair coin. A sample is informative with probability a.
"""

import itertools
import math
from collections import defaultdict
from fractions import Fraction
from functools import lru_cache

import numpy as np
from example_zm import joint, subsets
from masks import fixed


@lru_cache
def map_errors(model, most):
    """e_0 .. e_most: the error of the MAP estimator given k informative samples, theta uniform.

    The likelihood of theta grows with the number of residuals y - sum u equal to it, as 1 - eta >
    eta/(m-1). The state: how often each wrong theta was hit, less how often the true one.
    """
    total, steps = int(model.weights.sum()), moves(model)
    law, errors = {(0,) * (model.size - 1): 1}, []
    for k in range(most + 1):
        wrong = sum(weight * chance_of_error(state) for state, weight in law.items())
        errors.append(Fraction(wrong) / total**k)
        law = convolve(law, steps)
    return tuple(errors)


def moves(model):
    """(step of the state, integer weight): the true theta is hit, or a wrong one, or none."""
    others, (true, wrong) = model.size - 1, model.weights[:2].tolist()
    one_wrong = [tuple(row) for row in np.eye(others, dtype=int).tolist()]
    steps = [(-1,) * others, *one_wrong, (0,) * others]
    weights = [true, *[wrong] * others, (model.m - model.size) * wrong]
    return list(zip(steps, weights, strict=True))


def chance_of_error(state):
    """1 if a wrong theta leads, else a fair draw among the theta level with the true one."""
    if max(state) > 0:
        return 1
    level = state.count(0)
    return Fraction(level, level + 1)


def convolve(law, steps):
    after = defaultdict(int)
    for state, weight in law.items():
        for step, chance in steps:
            after[tuple(a + b for a, b in zip(state, step, strict=True))] += weight * chance
    return after


def mixture(a, n, errors):
    """(low, high) around sum_k Bin(n, a)(k) e_k; equal if n < len(errors).

    e_k falls in k, so what lies past the last is between 0 and its probability times the last.
    """
    hit, miss = a.numerator, a.denominator - a.numerator
    weight, mass, low = miss**n, 0, Fraction(0)  # integers over a.denominator**n
    for k, error in enumerate(errors[: n + 1]):
        low += weight * error
        mass += weight
        weight = weight * (n - k) * hit // ((k + 1) * miss)
    whole = a.denominator**n
    return low / whole, (low + (whole - mass) * errors[-1]) / whole


def samples_needed(a, errors, delta):
    """The least n whose error is at most delta, decided by the bracket."""

    def reached(n):
        low, high = mixture(a, n, errors)
        assert high <= delta or low > delta, "undecided: allow more informative samples"
        return high <= delta

    return least(reached)


def least(holds):
    """The least n >= 1 for which a monotone statement holds."""
    high = 1
    while not holds(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def observation_law(model, theta, q):
    """Law of what a random mask shows to a learner of Y: visible latents, and Y where hidden."""
    law = defaultdict(Fraction)
    P = joint(model, theta)
    for hidden in subsets(range(model.d + 1)):
        chance = fixed(q)(len(hidden), model.d + 1) / int(P.sum())
        for x0, weight in np.ndenumerate(P):
            seen = tuple("?" if i in hidden else token for i, token in enumerate(x0[:-1]))
            y = x0[-1] if model.d in hidden else "visible"
            law[(*seen, y)] += chance * int(weight)
    return law


def bayes_error(model, q, n):
    """The least error that any estimator can have from n samples, by enumerating all of them."""
    laws = [observation_law(model, theta, q) for theta in model.thetas]
    samples = itertools.product(laws[0], repeat=n)
    correct = sum(max(math.prod(law[o] for o in sample) for law in laws) for sample in samples)
    return 1 - Fraction(correct) / model.size
