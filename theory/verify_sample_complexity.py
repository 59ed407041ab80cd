"""Proposition 3 and Example Z_m (paper, section 3.3 and appendix A), by enumeration.

Latents U_1..U_d and noise E are independent, Y = theta + sum_j U_j + E (mod m). The U_j are uniform
on the subgroup H of the multiples of m / |H|, E = 0 with probability 1 - eta, else uniform, and
theta is in Theta = H; the paper has |H| = 2. L = d + 1. A learner of theta gets samples; the best
errs as little as the likeliest theta does. Errors are exact.

Samples needed are counted twice: if the prediction of Y informs about theta alone and, in brackets,
if every prediction does.
"""

import math
from bisect import bisect_left
from collections import Counter
from fractions import Fraction
from functools import cache
from itertools import pairwise, product
from typing import NamedTuple

import exact
import numpy as np
from exact import LEVEL, MASK, ONE, Buffer, hidden, subsets

TWO, THREE = (1, 1), (1, 1, 1)  # |H|, as the weights of a uniform latent
ETAS = Fraction(1, 5), Fraction(1, 20), Fraction(2, 5)
DELTA = Fraction(1, 100)  # the error to reach
MASKS = {  # name: (law of random masks, P(exactly Y hidden) in closed form)
    "q = 1/2": (exact.fixed(ONE / 2), lambda d: ONE / 2 ** (d + 1)),
    "q = 1/(d+1)": (
        lambda positions: exact.fixed(Fraction(1, len(positions)))(positions),
        lambda d: Fraction(d**d, (d + 1) ** (d + 1)),
    ),
    "t ~ U(0,1)": (exact.uniform_t, lambda d: Fraction(1, (d + 1) * (d + 2))),
    "uniform count": (exact.uniform_count, lambda d: Fraction(1, (d + 1) ** 2)),
}


# -- the example -----------------------------------------------------------------------------------
class Model(NamedTuple):
    """`latent` holds the weights of U_j over H, so |H| = |Theta| = len(latent)."""

    m: int
    d: int
    eta: Fraction
    latent: tuple = TWO

    @property
    def thetas(self):
        return range(0, self.m, self.m // len(self.latent))

    @property
    def noise(self):
        """P(E = e) for e in Z_m, as integers over their sum, (m,)."""
        rest = self.eta.numerator
        return np.array([(self.eta.denominator - rest) * (self.m - 1)] + [rest] * (self.m - 1))

    @property
    def B(self):
        """The Bhattacharyya coefficient 2 sqrt(p r) + (m-2) r, p = 1 - eta, r = eta / (m-1)."""
        p, r = self.noise[:2] / self.noise.sum()
        return 2 * math.sqrt(p * r) + (self.m - 2) * r


@cache
def laws(model):
    """[P_theta(u, y)] as integers over their sum; axes u_1 .. u_d, y: (|H|,) * d + (m,)."""
    *u, y = np.indices((len(model.latent),) * model.d + (model.m,))
    weight = math.prod(np.array(model.latent)[u_j] for u_j in u)
    step = model.thetas.step
    return [weight * model.noise[(y - theta - step * sum(u)) % model.m] for theta in model.thetas]


def alone_informs(model):
    """A prediction depends on theta if and only if no position but its own is hidden.

    What is visible then does not depend on theta: all such predictions are as good evidence as Y.
    """
    positions = range(model.d + 1)
    first, *rest = laws(model)
    same_evidence = all((law.sum(i) == first.sum(i)).all() for law in rest for i in positions)
    return same_evidence and all(
        (hides != (i,))
        == all(np.allclose(prediction(law, hides, i), prediction(first, hides, i)) for law in rest)
        for hides in subsets(positions)
        for i in hides
    )


def prediction(law, hides, target):
    """The law of a hidden target given what is visible; the other hidden positions summed out."""
    law = law.sum(tuple(i for i in hides if i != target), keepdims=True)
    return law / law.sum(target, keepdims=True)


def collapse_row(models):
    found = f"{len(models)} models, d up to {max(model.d for model in models)}"
    claim = "posterior collapse, unless one position is hidden"
    return claim, found, all(map(alone_informs, models))


def family(most):
    """Models with two and three hypotheses, d = 1 .. most (4 at most for three)."""
    sizes = product((4, 6, 8), range(1, most + 1), ETAS, [TWO])
    return [
        Model(*s) for s in [*sizes, *product((6, 9), range(1, min(most, 4) + 1), ETAS, [THREE])]
    ]


def rate_row(name, most, law=None):
    """Y alone is hidden, of d + 1 positions: enumerated or integrated, against a closed form."""
    usual, formula = MASKS[name]
    law = law or usual
    holds = all(law(range(d + 1))[d,] == formula(d) for d in range(1, most + 1))
    return f"P(Y alone is hidden), {name}", f"d = 1..{most}", holds


# -- learners --------------------------------------------------------------------------------------
def evidence(observations):
    """((likelihoods of the thetas, up to a factor), weight), ..) of what one sample may show.

    observations: lists of arrays, one array for each theta, integers over a common sum.
    """
    law = Counter()
    for arrays in observations:
        for likelihoods in zip(*(array.ravel().tolist() for array in arrays), strict=True):
            factor = math.gcd(*likelihoods)
            law[tuple(p // factor for p in likelihoods)] += factor
    return tuple(law.items())


@cache
def errors(sample, most):
    """[The least error of any estimator of a uniform theta] from 0 .. most samples.

    All data sets are enumerated, and merged where the likelihoods are equal up to a factor.
    """
    law = {(1,) * len(sample[0][0]): 1}
    out = []
    for _ in range(most + 1):
        right = sum(weight * max(likelihoods) for likelihoods, weight in law.items())
        out.append(1 - Fraction(right, sum(w * sum(likelihoods) for likelihoods, w in law.items())))
        after = Counter()
        for (old, weight), (new, w) in product(law.items(), sample):
            both = [a * b for a, b in zip(old, new, strict=True)]
            factor = math.gcd(*both)
            after[tuple(p // factor for p in both)] += weight * w * factor
        law = after
    return out


def informative(model):
    return evidence([laws(model)])


def random_mask(model, law):
    """What a random mask shows to one who learns from Y: the visible latents, and Y if hidden."""
    masks = law(range(model.d + 1))
    whole = math.lcm(*(p.denominator for p in masks.values()))
    shown = []
    for S, p in masks.items():
        axes = S[:-1] if model.d in S else (*S, model.d)
        shown.append([int(p * whole) * law.sum(axes) for law in laws(model)])
    return evidence(shown)


def mixture(a, n, known):
    """sum_k Bin(n, a)(k) known[k]: the error if a sample is informative with probability a."""
    terms = enumerate(known[: n + 1])
    return sum(math.comb(n, k) * a**k * (1 - a) ** (n - k) * error for k, error in terms)


def random_mask_rows(models, names, most, bound=lambda a, n: (1 - a) ** n):
    """The enumerated error of a learner from random masks, against two that have no masks."""
    same = 0
    above = 0
    cases = 0
    for model, name in product(models, names):
        law, formula = MASKS[name]
        a = formula(model.d)
        known = errors(informative(model), most)
        guess = known[0]
        for n, error in enumerate(errors(random_mask(model, law), most)):
            cases += 1
            same += error == mixture(a, n, known)
            above += error >= bound(a, n) * guess
    claims = "the error is sum_k Bin(n, a)(k) e_k", "error >= (1-a)^n (1 - 1/|Theta|)"
    counts = zip(claims, (same, above), strict=True)
    return [(f"random masks: {c}", f"{k} of {cases} cases", k == cases) for c, k in counts]


def exponential_row(most, n):
    """The step of the paper's proof, (1-a)^n >= exp(-an), is never true; what is true instead."""
    cases = [(0.5 ** (d + 1), k) for d, k in product(range(1, most + 1), range(1, n + 1))]
    holds = all(-a / (1 - a) * k < k * math.log1p(-a) < -a * k for a, k in cases)
    return "exp(-an/(1-a)) < (1-a)^n < exp(-an), not >=", f"{len(cases)} cases", holds


def chains_needed(model):
    return bisect_left(errors(informative(model), 64), True, key=lambda error: error <= DELTA)


def oracle_row(model, most, power=1):
    """error <= (|H| - 1) B^T; another power of B is for a control."""
    known = errors(informative(model), most)
    wrong = len(model.latent) - 1
    holds = all(error <= wrong * model.B ** (power * T) for T, error in enumerate(known))
    holds &= all(a >= b for a, b in pairwise(known))
    enough = math.ceil(math.log(DELTA / wrong) / math.log(model.B))
    claim = f"oracle, m={model.m} |H|={wrong + 1} eta={model.eta}: error <= (|H|-1) B^T"
    found = f"T = 0..{most}; to error {DELTA}: T = {chains_needed(model)}, bound {enough}"
    return claim, found, holds and chains_needed(model) <= enough


# -- samples needed --------------------------------------------------------------------------------
def needed_row(model, rate=lambda a: a):
    """By random masks; contexts of the paper's chains, d + 1 each, and of the buffer's at K = 1.

    A false rate is for a control.
    """
    known = [float(error) for error in errors(informative(model), 100)]  # the rest is next to 0
    holds = True
    found = ""
    for name, (_, formula) in MASKS.items():
        a = float(formula(model.d))
        needed = [samples_needed(chance, known) for chance in (a, (model.d + 1) * a)]
        holds &= is_of_order(needed[0], rate(a), model)
        found += f"{name}: {needed[0]} ({needed[1]}), "
    chains = chains_needed(model)
    alone = exact.Data({(0,) * (model.d + 1): ONE}, 1)  # the length depends on no data or policy
    length = sum(sum(joint.values()) for joint in Buffer(alone, "left_to_right", 1).joints)
    found += f"oracle: {(model.d + 1) * chains}, buffer: {float(length * chains):.1f}"
    return f"samples to error {DELTA}, d = {model.d}: of order 1/a", found, holds


def samples_needed(a, known):
    return bisect_left(range(1 << 13), True, key=lambda n: mixture(a, n, known) <= DELTA)


def is_of_order(needed, a, model):
    """(1-a)/a log((1-1/|H|)/DELTA) <= needed <= log((|H|-1)/DELTA) / (a (1-B)), rounded up."""
    wrong = len(model.latent) - 1
    least = (1 - a) / a * math.log(wrong / (wrong + 1) / DELTA)
    return least <= needed <= math.ceil(math.log(wrong / DELTA) / (a * (1 - model.B)))


# -- the shipped buffer ----------------------------------------------------------------------------
def buffer_row(model, policy, tau, args):
    """By its exact law: Y is hidden in every context, and all latents are visible in one a chain.

    Buffer at K = 1, true posteriors; Y stands first, where no tie can make it come last.
    """
    p = {}
    for (*u, y), weight in np.ndenumerate(laws(model)[0]):
        x0 = (y, *(model.thetas.step * u_j for u_j in u))
        p[x0] = Fraction(int(weight), int(laws(model)[0].sum()))
    buffer = Buffer(exact.Data(p, model.m), policy, 1, tau)
    law = exact.mixture([1] * buffer.stages, map(exact.marginal, buffer.joints))
    informative = sum(p for (z, _), p in law.items() if hidden(z) == (0,))
    y_visible = sum(p for (z, _), p in law.items() if z[0] != MASK)
    dof, p = exact.running(buffer, (args.rows, args.calls, args.seed))
    found = (
        f"{float(sum(law.values())):.3f} contexts per chain, {float(informative):.3g} informative"
    )
    found += f", Y visible in {float(y_visible):.3g}; {dof} dof, p {p:.2g}"
    claim = f"buffer, {policy}, tau={tau}, d={model.d}: Y is last"
    return claim, found, informative == 1 and y_visible == 0 and p > LEVEL


# -- the whole -------------------------------------------------------------------------------------
def claims(args):
    small = [Model(4, d, eta) for d in range(1, min(args.d, 4) + 1) for eta in ETAS]
    oracles = product([(4, TWO), (6, TWO), (8, TWO), (6, THREE)], ETAS)
    shipped = Model(4, min(args.d, 4), Fraction(1, 20))
    return [
        "Proposition 3, Example Z_m: Y tells of theta only where all latents are visible.",
        collapse_row(family(args.d)),
        *(rate_row(name, args.d) for name in MASKS),
        "Proposition 3, random masks: the error falls only as fast as (1-a)^n, not exp(-an).",
        *random_mask_rows([*small, Model(6, 2, ETAS[0], THREE)], MASKS, min(args.n, 12)),
        exponential_row(args.d, args.n),
        "Proposition 3, oracle chains: the error is at most (|Theta| - 1) B^T.",
        *(oracle_row(Model(m, 1, eta, latent), args.n) for (m, latent), eta in oracles),
        "Proposition 3: samples that random masks need, beside contexts that chains need.",
        *(needed_row(Model(4, d, ETAS[0])) for d in range(1, args.d + 1)),
        "The buffer as shipped reveals Y last, so each chain has its one informative context.",
        *(  # tau between the confidences of Y, 0.483 here, and of a hidden latent, 0.5
            buffer_row(shipped, policy, tau, args)
            for policy, tau in product(("top_k", "entropy"), (math.inf, 0.9, 0.49))
        ),
    ]


TENTH = Fraction(1, 10)
CONTROLS = {
    "biased-latents": lambda args: [collapse_row([Model(4, 2, TENTH, (2, 1))])],
    "mean-rate": lambda args: [rate_row("t ~ U(0,1)", args.d, exact.fixed(ONE / 2))],
    "reversed": lambda args: random_mask_rows(
        [Model(4, 2, DELTA)], ["q = 1/2"], 10, lambda a, n: math.exp(-a * n)
    )[1:],
    "double-chernoff": lambda args: [oracle_row(Model(4, 1, TENTH), 10, power=2)],
    "order": lambda args: [needed_row(Model(4, 8, TENTH), rate=lambda a: a * a)],
    "margin": lambda args: [buffer_row(Model(4, 2, TENTH), "margin", math.inf, args)],  # all tie
    "low-tau": lambda args: [buffer_row(Model(4, 2, TENTH), "top_k", 0.3, args)],
}

if __name__ == "__main__":
    exact.main(__doc__, claims, CONTROLS, d=8, n=30, rows=10_000, calls=10)
