"""Exact comparisons with exponentials and square roots of rationals, enclosed by rationals."""

from fractions import Fraction
from math import isqrt


def below_exp(y, x):
    """Whether y < exp(-x), decided; y rational, x > 0 rational, so exp(-x) is irrational."""
    term, low = Fraction(1), Fraction(0)  # of the Taylor sum of exp(x), which is below it
    k = 0
    while True:
        low, k = low + term, k + 1
        term = term * x / k
        if y * low >= 1:
            return False
        if k >= x and y * (low + term / (1 - x / (k + 1))) <= 1:  # with a bound on the remainder
            return True


def sqrt_bracket(x, bits=64):
    """Rational (low, high) around the square root of x, 2^-bits apart; equal if x is a square."""
    low = Fraction(isqrt(int(x * 4**bits)), 2**bits)
    return low, low + Fraction(low**2 != x, 2**bits)
