"""Example Z_m of the paper: its law, what a learner sees of it, and what tells theta.

Latents U_1..U_d and noise E are independent, Y = theta + sum_j U_j + E (mod m). The U_j are uniform
on the subgroup H of the multiples of Delta, E = 0 with probability 1 - eta, else uniform, and theta
is in Theta = H; the paper has |H| = 2, Delta = m/2. L = d + 1. Laws are integers over a common
denominator, or Fractions.
"""

import itertools
from collections import Counter
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from exact import Data
from irrational import BITS, LEVELS, Surd, power_bracket, times

# -- the model -----------------------------------------------------------


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


def joint(model, theta):
    """P_theta(u, y) as integers over their sum; axes u_1 .. u_d, y: (|H|,) * d + (m,)."""
    *u, y = np.indices((model.size,) * model.d + (model.m,))
    law = model.weights[(y - theta - model.thetas.step * sum(u)) % model.m]
    for u_j in u:
        law = law * np.array(model.latent)[u_j]
    assert int(law.sum()) ** 2 < 2**63, "integers too large: choose eta with a smaller denominator"
    return law


def subsets(axes):
    return itertools.chain.from_iterable(
        itertools.combinations(axes, k) for k in range(len(axes) + 1)
    )


@lru_cache
def data(model):
    """p_data at theta = 0. Y stands first, where no tie can make it come last."""
    law = joint(model, 0)
    step, whole = model.thetas.step, int(law.sum())
    p = {
        (y, *(step * u_j for u_j in u)): Fraction(int(weight), whole)
        for (*u, y), weight in np.ndenumerate(law)
    }
    return Data(p, model.m)


# -- collapse, order, and which masks tell theta -------------------------


def pi_0(model):
    """The noise, shifted by a uniform element of H; integers (m,)."""
    return sum(np.roll(model.weights, shift) for shift in model.thetas)


def collapses(model):
    """Given any strict subset of the latents, Y has the law pi_0, for every theta."""
    expected = pi_0(model)
    return all(
        (law * expected.sum() == expected * law.sum(-1, keepdims=True)).all()
        for theta in model.thetas
        for missing in subsets(range(model.d))
        if missing
        for law in [joint(model, theta).sum(missing)]  # (.., m), unnormalised
    )


def early_confidence(model):
    """Of Y while a latent is hidden; (1 - eta)/2 + eta/(m-1)/2 if |H| = 2."""
    return (1 - model.eta + (model.size - 1) * model.noise[1]) / model.size


def latents_come_first(model):
    """True confidences given u_S: of each hidden latent above Y's, of Y as in the paper's formulas.

    Laws given u_S are left unnormalised: all have the same sum P(u_S), so they compare as they are.
    """
    laws = [joint(model, theta) for theta in model.thetas]
    return early_confidence(model) < 1 - model.eta and all(
        latents_are_surer(model, law, missing) if missing else has_confidence(law, 1 - model.eta)
        for law in laws
        for missing in subsets(range(model.d))
    )


def latents_are_surer(model, law, missing):
    y = law.sum(missing)
    latents = (alone(law, (*missing, model.d), j).max(-1) for j in missing)
    return has_confidence(y, early_confidence(model)) and all(
        (confidence > y.max(-1)).all() for confidence in latents
    )


def has_confidence(law, confidence):
    """Whether max / sum over the last axis is this Fraction, everywhere."""
    return (law.max(-1) * confidence.denominator == law.sum(-1) * confidence.numerator).all()


def alone(law, hidden, target):
    """Sum out the hidden positions other than the target, and put the target's axis last."""
    others = tuple(i for i in hidden if i != target)
    return np.moveaxis(law.sum(others), target - sum(i < target for i in others), -1)


def tells(laws, hidden, target):
    """Whether the law of a hidden target given the visible tokens depends on theta."""
    given = [alone(law, hidden, target) for law in laws]  # (.., values)
    first, *rest = [(law, law.sum(-1, keepdims=True)) for law in given]
    return any((law * first[1] != first[0] * total).any() for law, total in rest)


def informative_masks(model, targets):
    """Hidden sets under which the prediction of a hidden one of the targets depends on theta."""
    laws = [joint(model, theta) for theta in model.thetas]
    return [
        hidden
        for hidden in subsets(range(model.d + 1))
        if any(tells(laws, hidden, i) for i in hidden if i in targets)
    ]


def same_evidence(model):
    """What is visible when one position is hidden does not depend on theta.

    So the ratio of the predictions is P_theta(x0) / P_theta'(x0), whichever position is hidden.
    """
    laws = [joint(model, theta) for theta in model.thetas]
    return all((law.sum(i) == laws[0].sum(i)).all() for law in laws for i in range(model.d + 1))


# -- identifiability -----------------------------------------------------
def chernoff_bracket(noise, shift):
    """Rational (low, high) around inf over s in (0, 1) of sum_z P(z)^(1-s) Q(z)^s.

    P is the noise and Q the shifted noise. Each term is monotone in s, so that on a cell it is at
    least its smaller end; the sum at any s gives `high`.
    """
    pairs = Counter(zip(noise, np.roll(noise, shift), strict=True))
    cells = 2**LEVELS
    powers = [
        [times(power_bracket(p, cells - k), power_bracket(q, k)) for p, q in pairs]
        for k in range(cells + 1)
    ]
    low = min(
        sum(n * min(a[0], b[0]) for n, a, b in zip(pairs.values(), left, right, strict=True))
        for left, right in itertools.pairwise(powers)
    )
    high = min(sum(n * p[1] for n, p in zip(pairs.values(), at, strict=True)) for at in powers)
    return Fraction(low, 2**BITS), Fraction(high, 2**BITS)


def bhattacharyya(model):
    """B = 2 sqrt(p r) + (m-2) r with p = 1 - eta, r = eta / (m-1)."""
    p, r = model.noise[:2]
    return Surd((model.m - 2) * r, Fraction(2), p * r)


def chernoff_is_minus_log_b(model):
    """The Chernoff information of every pair of thetas is -log B, and positive.

    Exactly: the pairs (P(z), Q(z)) are a (p, r), an (r, p) and m-2 times (r, r) for each u, and
    p^(1-s) r^s + r^(1-s) p^s >= 2 sqrt(p r), the geometric mean, met at s = 1/2. Independently:
    a search over s encloses the infimum, and B lies inside.
    """
    p, *_, r = (int(w) for w in model.weights)
    n = model.size**model.d
    expected = Counter({(p, r): n}) + Counter({(r, p): n}) + Counter({(r, r): (model.m - 2) * n})
    laws = [joint(model, theta).ravel().tolist() for theta in model.thetas]
    pairs = all(
        Counter(zip(P, Q, strict=True)) == expected for P, Q in itertools.permutations(laws, 2)
    )
    low, high = chernoff_bracket(model.noise, model.thetas.step)
    B = bhattacharyya(model)
    inside = B.at_least(low) and not B.above(high) and high - low < Fraction(1, 100)
    return pairs and inside and not B.at_least(1)
