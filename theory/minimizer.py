"""The minimizer of the masked cross-entropy in closed form, from the joint law of x0 and contexts.

The loss E[w(z) sum over hidden i of -log f_i(x0^i | z)] is least at C_i(z, .) / sum of C_i(z, .),
with C_i(z, v) the sum over x0 with x0^i = v of P(x0, z) w(z).
"""

from collections import Counter, defaultdict
from fractions import Fraction
from itertools import chain

import exact
from exact import hidden


def coefficients(joints, weight):
    """C {(z, i): {v: sum of P(x0, z, n) w(z, n)}} over the hidden positions of reached states.

    joints: laws {(x0, z, n): probability} that are added up.
    """
    C = defaultdict(Counter)
    for (x0, z, n), p in chain.from_iterable(joint.items() for joint in joints):
        for i in hidden(z):
            C[z, i][x0[i]] += p * weight(z, n)
    return C


def shifts(data, C):
    """{(z, i): total variation between the minimizer and the posterior of p_data}."""
    posteriors = {(z, i): Counter(dict(enumerate(data.posterior[z][i]))) for z, i in C}
    return {at: exact.total_variation(minimizer(c), posteriors[at]) for at, c in C.items()}


def minimizer(c):
    """Of one prediction, {v: probability}."""
    return Counter({v: share / sum(c.values()) for v, share in c.items()})


def per_hidden(z, n):
    """The weight in losses.row_mean."""
    return Fraction(1, len(hidden(z)))


def iid_loss(data, weigh):
    """C of i.i.d. masks, weigh(h, L) = E[weight * P(these h positions hidden)]."""
    joint = {(x0, z, 0): p for x0, p in data.p.items() for z in exact.contexts(x0)}
    return coefficients([joint], lambda z, n: weigh(len(hidden(z)), data.L))


def grid_loss(data, moves, steps, weight):
    """C of a chain on the grid t_j = 1 - j / steps, with t uniform on the grid."""
    laws = exact.teacher_forced(data, moves, steps)[:-1]  # at t = 0 there is nothing to predict
    return coefficients(laws, weight)
