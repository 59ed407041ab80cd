"""Exact arithmetic with logarithms of rationals: sums of q log r with q, r rational, r > 0.

Such a sum is kept as {prime: coefficient}. The logarithms of the primes are linearly independent
over the rationals (unique factorisation), so two sums are the same number exactly when they are
the same dictionary, and the sign is that of an integer comparison. No floats are involved.
"""

from collections import Counter
from fractions import Fraction
from math import lcm, log, prod


def times_log(q, r):
    """q log r."""
    terms = Counter({p: q * k for p, k in factors(r.numerator).items()})
    for p, k in factors(r.denominator).items():
        terms[p] -= q * k
    return without_zeros(terms)


def total(terms):
    out = Counter()
    for term in terms:
        for p, q in term.items():
            out[p] += q
    return without_zeros(out)


def minus(a, b):
    return total([a, {p: -q for p, q in b.items()}])


def positive(a):
    """Whether the sum is greater than zero: compares two products of prime powers."""
    scale = lcm(*(Fraction(q).denominator for q in a.values()))
    up = prod(p ** int(q * scale) for p, q in a.items() if q > 0)
    down = prod(p ** int(-q * scale) for p, q in a.items() if q < 0)
    return up > down


def value(a):
    return float(sum(float(q) * log(p) for p, q in a.items()))


def without_zeros(terms):
    return {p: q for p, q in terms.items() if q}


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
