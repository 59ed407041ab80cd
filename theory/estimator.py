"""The optimal (MAP) estimator of theta in example Z_m: its exact error, samples needed, bounds.

Theta is uniform, ties are broken by a fair coin. A sample is informative with probability a.
"""

import itertools
from collections import defaultdict
from fractions import Fraction
from functools import cache

import numpy as np
from example_zm import bhattacharyya


@cache
def map_errors(model, most):
    """e_0 .. e_most: the error of the MAP estimator given k informative samples.

    The likelihood of theta grows with the number of residuals y - sum u equal to it, as 1 - eta >
    eta/(m-1). The state: how often each wrong theta was hit, less how often the true one.
    """
    others, (true, wrong) = model.size - 1, model.weights[:2].tolist()
    steps = {(-1,) * others: true, (0,) * others: (model.m - model.size) * wrong}
    steps |= {tuple(row): wrong for row in np.eye(others, dtype=int).tolist()}
    law, errors = {(0,) * others: 1}, []
    for _ in range(most + 1):
        error = sum(weight * chance_of_error(state) for state, weight in law.items())
        errors.append(Fraction(error) / sum(law.values()))
        law = convolve(law, steps)
    return tuple(errors)


def chance_of_error(state):
    """1 if a wrong theta leads, else that of a fair draw among the thetas tied with the true."""
    level = state.count(0)
    return 1 if max(state) > 0 else Fraction(level, level + 1)


def convolve(law, steps):
    after = defaultdict(int)
    for (state, weight), (step, chance) in itertools.product(law.items(), steps.items()):
        after[tuple(a + b for a, b in zip(state, step, strict=True))] += weight * chance
    return after


def mixture(a, n, errors):
    """(low, high) around sum_k Bin(n, a)(k) e_k; equal if n < len(errors).

    e_k falls with k, so the rest of the sum lies between 0 and its probability times the last e_k.
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


def order_is_one_over_a(model, a, delta, needed):
    """(1-a)/a log((1-1/|Theta|)/delta) <= needed <= ceil(log((|Theta|-1)/delta) / (a (1-B))).

    Above: the error is at most (|Theta|-1) (1-a+aB)^n, and (1-x)^n <= exp(-xn). B is rounded up.
    """
    chance, wrong = 1 - Fraction(1, model.size), model.size - 1
    enough = least(lambda n: not below_exp(delta / wrong, n * a * (1 - bhattacharyya(model)[1])))
    return not below_exp(delta / chance, needed * a / (1 - a)) and needed <= enough


def below_exp(y, x):
    """Whether y < exp(-x), decided; y rational, x > 0 rational, so exp(-x) is irrational."""
    term, low = Fraction(1), Fraction(0)  # of the Taylor sum of exp(x), which is below it
    k = 0
    while True:
        low += term
        k += 1
        term = term * x / k
        if y * low >= 1:
            return False
        if k >= x and y * (low + term / (1 - x / (k + 1))) <= 1:  # with a bound on the remainder
            return True
