"""Exact comparisons with exponentials, square roots and logarithms of rationals. No floats.

exp and square roots are enclosed by rationals, exp as closely as a comparison needs. A sum of
q log r, with q and r rational and r > 0, is kept as {prime: coefficient}: the logarithms of the
primes are linearly independent over the rationals (unique factorisation), so two sums are the same
number exactly when they are the same dictionary, and the sign is that of an integer comparison.
"""

import itertools
from collections import Counter
from fractions import Fraction
from math import isqrt, lcm, prod


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


def sqrt_bracket(x, bits=64):
    """Rational (low, high) around the square root of x, 2^-bits apart; equal if x is a square."""
    low = Fraction(isqrt(int(x * 4**bits)), 2**bits)
    return low, low + Fraction(low**2 != x, 2**bits)


def log_sum(terms):
    """The sum of q log r over the pairs (q, r), as {prime: coefficient} without zeros."""
    out = Counter()
    for q, r in terms:
        for p, k in factors(r.numerator).items():
            out[p] += q * k
        for p, k in factors(r.denominator).items():
            out[p] -= q * k
    return {p: q for p, q in out.items() if q}


def positive(a):
    """Whether such a sum is greater than zero, by comparing two products of prime powers."""
    scale = lcm(*(Fraction(q).denominator for q in a.values()))
    up = prod(p ** int(q * scale) for p, q in a.items() if q > 0)
    down = prod(p ** int(-q * scale) for p, q in a.items() if q < 0)
    return up > down


def factors(n):
    """{prime: exponent} of a positive integer, by trial division."""
    out, p = Counter(), 2
    while p * p <= n:
        while n % p == 0:
            out[p] += 1
            n //= p
        p += 1
    if n > 1:
        out[n] += 1
    return out
