"""Laws of random masks: law(h, L) = P(h given positions of L are hidden, and no other).

With the weights of a loss for the predictions under such a mask: E[weight 1{these h hidden}].
"""

from fractions import Fraction
from math import comb


def fixed(q):
    """Each position hidden with probability q."""
    return lambda hidden, L: q**hidden * (1 - q) ** (L - hidden)


def uniform_t(hidden, L):
    """Each position hidden with probability t ~ U(0, 1): the integral of t^h (1 - t)^(L - h)."""
    return Fraction(1, (L + 1) * comb(L, hidden))


def uniform_count(hidden, L):
    """The shipped baseline: a count uniform in 1..L, then that many random positions."""
    return Fraction(1, L * comb(L, hidden)) if hidden else Fraction(0)


def paper_weight(hidden, L):
    """t ~ U(0, 1) with weight 1/t: the integral of t^(h - 1) (1 - t)^(L - h)."""
    return uniform_t(hidden - 1, L - 1)


def shipped_weight(hidden, L):
    """The shipped baseline, with the weight 1/hidden of losses.row_mean."""
    return uniform_count(hidden, L) / hidden


def informative_probability(d, law, every=False):
    """P(exactly Y is hidden) of d + 1 positions; or exactly one, if every prediction counts."""
    return law(1, d + 1) * (d + 1 if every else 1)
