"""Comparisons of rationals with numbers that are not, decided without a tolerance.

Square roots are compared by their squares, powers x^s are enclosed by integer square roots, exp by
Taylor sums with remainder, refined until the comparison is decided. Sums of logarithms: see
logarithms.py.
"""

import itertools
import math
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple


def exp_brackets(x):
    """Ever closer rational (low, high) around exp(x), x >= 0: Taylor sums with remainder."""
    term, low = Fraction(1), Fraction(0)
    for k in itertools.count(1):
        low += term
        term = term * x / k
        if k >= x:
            yield low, low + term / (1 - x / (k + 1))


def below_exp(y, x):
    """Whether y < exp(-x), decided; y rational, x > 0 rational, so exp(-x) is irrational."""
    close = (b for b in exp_brackets(x) if y * b[1] <= 1 or y * b[0] >= 1)
    return y * next(close)[1] <= 1


BITS = 64  # powers are enclosed by multiples of 2^-BITS
LEVELS = 9  # of the search over s: 2^LEVELS cells


@lru_cache(maxsize=4096)
def power_bracket(x, k):
    """Integers low <= 2^BITS x^s <= high, for 0 < x <= 1 and s = k / 2^LEVELS in [0, 1]."""
    low, high = math.floor(x * 2**BITS), math.ceil(x * 2**BITS)
    product_low = product_high = 1 << BITS
    for bit in f"{k:0{LEVELS + 1}b}":  # x, then x^(1/2), x^(1/4), ..
        if bit == "1":
            product_low, product_high = times((product_low, product_high), (low, high))
        low, high = math.isqrt(low << BITS), math.isqrt(high << BITS) + 1
    return product_low, product_high


def times(a, b):
    return a[0] * b[0] >> BITS, -(-a[1] * b[1] >> BITS)


class Surd(NamedTuple):
    """x + y sqrt(D), rational x, D >= 0 and y >= 0; products are of numbers with the same D."""

    x: Fraction
    y: Fraction
    D: Fraction

    def __mul__(self, other):
        x = self.x * other.x + self.y * other.y * self.D
        return Surd(x, self.x * other.y + self.y * other.x, self.D)

    def above(self, value):
        return value < self.x or (value - self.x) ** 2 < self.y**2 * self.D

    def at_least(self, value):
        return value <= self.x or (value - self.x) ** 2 <= self.y**2 * self.D

    def __float__(self):
        return float(self.x) + float(self.y) * math.sqrt(self.D)
