"""The paper's bounds on the error of a learner of theta in example Z_m, and the corrected ones.

Each is decided for every n up to a given one, against the exact error of the MAP estimator.
"""

from fractions import Fraction

from estimator import least, map_errors, mixture
from example_zm import bhattacharyya
from irrational import Surd, below_exp


def chernoff_bound(model, T, power=1):
    """(|Theta| - 1) B^(power T)."""
    B = bhattacharyya(model)
    bound = Surd(Fraction(model.size - 1), Fraction(0), B.D)
    for _ in range(power * T):
        bound = B * bound
    return bound


def oracle_bound_holds(model, most, power=1):
    errors = map_errors(model, most)
    return all(chernoff_bound(model, T, power).at_least(e) for T, e in enumerate(errors))


LOWER_BOUNDS = {  # whether y, the error over that of guessing, is at least ..
    "(1-a)^n": lambda y, a, n: y >= (1 - a) ** n,
    "exp(-an/(1-a))": lambda y, a, n: not below_exp(y, a * n / (1 - a)),
    "exp(-an)": lambda y, a, n: not below_exp(y, a * n),
}


def lower_bounds_hold(model, a, most, bounds=("(1-a)^n", "exp(-an/(1-a))")):
    """P(error) >= (1 - 1/|Theta|) bound(n) for n up to `most`."""
    chance, errors = 1 - Fraction(1, model.size), map_errors(model, most)
    relative = [mixture(a, n, errors)[0] / chance for n in range(most + 1)]
    return all(
        LOWER_BOUNDS[bound](y, a, n) for bound in bounds for n, y in enumerate(relative) if n
    )


def order_is_one_over_a(model, a, delta, needed):
    """(1-a)/a log((1-1/|Theta|)/delta) <= needed <= ceil(log((|Theta|-1)/delta) / (a (1-B))).

    Above: the error is at most (|Theta|-1) (1-a+aB)^n, and (1-x)^n <= exp(-xn). B is rounded up.
    """
    chance, wrong = 1 - Fraction(1, model.size), model.size - 1
    B = bhattacharyya(model)
    above_B = Fraction(least(lambda k: not B.above(Fraction(k, 1 << 20))), 1 << 20)
    enough = least(lambda n: not below_exp(delta / wrong, n * a * (1 - above_B)))
    return not below_exp(delta / chance, needed * a / (1 - a)) and needed <= enough
