"""Example Z_m of the paper: its law, what depends on theta, and the best estimator of theta.

Latents U_1..U_d and noise E are independent, Y = theta + sum_j U_j + E (mod m). The U_j are uniform
on the subgroup H of the multiples of Delta, E = 0 with probability 1 - eta, else uniform, and theta
is in Theta = H; the paper has |H| = 2, Delta = m/2. L = d + 1. Laws are integers over a common
denominator, or Fractions.

The estimator (MAP; theta is uniform, ties are broken by a fair coin) gets samples that are
informative with probability a. Its error is exact; so are the comparisons with roots and exp.
"""

import itertools
from collections import Counter, defaultdict
from fractions import Fraction
from functools import cache
from math import isqrt
from typing import NamedTuple

import numpy as np
from exact import Data


class Model(NamedTuple):
    """Example Z_m; `latent` holds the weights of U_j over H, so |H| = |Theta| = len(latent)."""

    m: int
    d: int
    eta: Fraction
    latent: tuple = (1, 1)

    @property
    def size(self):
        return len(self.latent)

    @property
    def thetas(self):
        return range(0, self.m, self.m // self.size)

    @property
    def noise(self):
        """P(E = e) for e in Z_m."""
        return [1 - self.eta] + [self.eta / (self.m - 1)] * (self.m - 1)

    @property
    def weights(self):
        """The noise as integers over their sum, (m,)."""
        denominator = self.eta.denominator * (self.m - 1)
        return np.array([int(p * denominator) for p in self.noise])


@cache
def joint(model, theta):
    """P_theta(u, y) as integers over their sum; axes u_1 .. u_d, y: (|H|,) * d + (m,)."""
    *u, y = np.indices((model.size,) * model.d + (model.m,))
    law = model.weights[(y - theta - model.thetas.step * sum(u)) % model.m]
    for u_j in u:
        law = law * np.array(model.latent)[u_j]
    return law


def joints(model):
    return [joint(model, theta) for theta in model.thetas]


@cache
def data(model):
    """p_data at theta = 0. Y stands first, where no tie can make it come last."""
    law = joint(model, 0)
    step, whole = model.thetas.step, int(law.sum())
    p = {
        (y, *(step * u_j for u_j in u)): Fraction(int(weight), whole)
        for (*u, y), weight in np.ndenumerate(law)
    }
    return Data(p, model.m)


def subsets(axes):
    return itertools.chain.from_iterable(
        itertools.combinations(axes, k) for k in range(len(axes) + 1)
    )


def early_confidence(model):
    """Of Y while a latent is hidden; (1 - eta)/2 + eta/(m-1)/2 if |H| = 2."""
    return (1 - model.eta + (model.size - 1) * model.noise[1]) / model.size


def latents_come_first(model):
    """Every hidden latent has a higher confidence than Y, whose own is as in the paper's formulas.

    Laws given u_S stay unnormalised: all have the same sum P(u_S), so they can be compared.
    """
    early, late = early_confidence(model), 1 - model.eta
    holds = early < late
    for law, missing in itertools.product(joints(model), subsets(range(model.d))):
        y, confidence = law.sum(missing), early if missing else late
        holds &= bool(
            (y.max(-1) * confidence.denominator == y.sum(-1) * confidence.numerator).all()
        )
        for j in missing:
            holds &= bool((alone(law, (*missing, model.d), j).max(-1) > y.max(-1)).all())
    return holds


def alone(law, hidden, target):
    """Sum out the hidden positions other than the target, and put the target's axis last."""
    others = tuple(i for i in hidden if i != target)
    return np.moveaxis(law.sum(others), target - sum(i < target for i in others), -1)


def depends_on_theta(laws, hidden, target):
    """Whether the law of a hidden target given the visible tokens differs between the laws."""
    marginals = [alone(law, hidden, target) for law in laws]  # (.., values)
    first, *rest = [(law, law.sum(-1, keepdims=True)) for law in marginals]
    return any((law * first[1] != first[0] * total).any() for law, total in rest)


def alone_informs(model):
    """A prediction depends on theta if and only if no position but its own is hidden.

    What is visible then does not depend on theta: all such predictions are as good evidence as Y.
    """
    positions, laws = range(model.d + 1), joints(model)
    same_evidence = all((law.sum(i) == laws[0].sum(i)).all() for law in laws for i in positions)
    return same_evidence and all(
        depends_on_theta(laws, hidden, i) == (hidden == (i,))
        for hidden in subsets(positions)
        for i in hidden
    )


def bhattacharyya(model):
    """(low, high) around B = 2 sqrt(p r) + (m-2) r with p = 1 - eta, r = eta / (m-1)."""
    p, r = model.noise[:2]
    return [2 * root + (model.m - 2) * r for root in sqrt_bracket(p * r)]


def sqrt_bracket(x):
    """Rational (low, high) around the square root of x, 2^-64 apart; equal if x is a square."""
    low = Fraction(isqrt(int(x * 4**64)), 2**64)
    return low, low + Fraction(low**2 != x, 2**64)


def chernoff_is_minus_log_b(model):
    """The Chernoff information of every pair of thetas is -log B, and positive.

    The information is -log of the least value over s of the sum of P(z)^(1-s) Q(z)^s. For each u,
    the pairs (P(z), Q(z)) are (p, r), (r, p) and m-2 times (r, r). As p^(1-s) r^s + r^(1-s) p^s is
    at least 2 sqrt(p r), the mean inequality, the least value is B, at s = 1/2.
    """
    p, *_, r = (int(w) for w in model.weights)
    n = model.size**model.d
    expected = Counter({(p, r): n}) + Counter({(r, p): n}) + Counter({(r, r): (model.m - 2) * n})
    laws = [law.ravel().tolist() for law in joints(model)]
    return bhattacharyya(model)[1] < 1 and all(
        Counter(zip(P, Q, strict=True)) == expected for P, Q in itertools.permutations(laws, 2)
    )


# -- the estimator ---------------------------------------------------------------------------------
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
