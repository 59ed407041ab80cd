"""Proposition 3 and Example Z_m (paper, section 3.3 and appendix A), by enumeration.

Latents U_1..U_d and noise E are independent, Y = theta + sum_j U_j + E (mod m). The U_j are uniform
on the subgroup H of the multiples of m / |H|, E = 0 with probability 1 - eta, else uniform, and
theta is in Theta = H; the paper has |H| = 2. L = d + 1. A learner of theta gets samples; the best
errs as little as the likeliest theta. Errors are exact.
"""

import math
from bisect import bisect_left
from collections import Counter
from fractions import Fraction
from functools import cache
from itertools import combinations, product
from typing import NamedTuple

import exact
import numpy as np
from exact import LEVEL, MASK, ONE, Buffer, hidden

ETAS = Fraction(1, 5), Fraction(1, 20), Fraction(2, 5)
DELTA = Fraction(1, 100)  # the error to reach
MASKS = {  # name: (law of random masks, P(exactly Y hidden) in closed form)
    "q = 1/2": (exact.fixed(ONE / 2), lambda d: ONE / 2 ** (d + 1)),
    "t ~ U(0,1)": (exact.uniform_t, lambda d: Fraction(1, (d + 1) * (d + 2))),
    "uniform count": (exact.uniform_count, lambda d: Fraction(1, (d + 1) ** 2)),
}


# -- the example -----------------------------------------------------------------------------------
class Model(NamedTuple):
    """`latent` holds the weights of U_j over H, so |H| = |Theta| = len(latent)."""

    m: int
    d: int
    eta: Fraction
    latent: tuple = (1, 1)

    @property
    def step(self):
        return self.m // len(self.latent)

    @property
    def noise(self):
        """P(E = e) for e in Z_m, as integers over their sum, (m,)."""
        rest = self.eta.numerator
        return np.array([(self.eta.denominator - rest) * (self.m - 1)] + [rest] * (self.m - 1))


@cache
def laws(model):
    """[P_theta(u, y)] as integers over their sum; axes u_1 .. u_d, y: (|H|,) * d + (m,)."""
    *u, y = np.indices((len(model.latent),) * model.d + (model.m,))
    weight = math.prod(np.array(model.latent)[u_j] for u_j in u)
    thetas = range(0, model.m, model.step)
    return [weight * model.noise[(y - theta - model.step * sum(u)) % model.m] for theta in thetas]


def rate_row(name, most, law=None):
    """Y alone is hidden, of d + 1 positions: enumerated or integrated, against a closed form."""
    usual, formula = MASKS[name]
    holds = all((law or usual)(range(d + 1))[d,] == formula(d) for d in range(1, most + 1))
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
    same = []
    above = []
    for model, name in product(models, names):
        law, formula = MASKS[name]
        a = formula(model.d)
        known = errors(evidence([laws(model)]), most)
        found = enumerate(errors(random_mask(model, law), most))
        for n, error in found:
            same.append(error == mixture(a, n, known))
            above.append(error >= bound(a, n) * (1 - Fraction(1, len(model.latent))))
    claims = "error = sum_k Bin(n, a)(k) e_k", "error >= (1-a)^n (1 - 1/|Theta|)"
    checks = zip(claims, (same, above), strict=True)
    return [(f"random masks: {c}", f"{sum(k)} of {len(k)} cases", all(k)) for c, k in checks]


def exponential_row(most, n):
    """The step of the paper's proof, (1-a)^n >= exp(-an), is never true; what is true instead."""
    cases = [(0.5 ** (d + 1), k) for d, k in product(range(1, most + 1), range(1, n + 1))]
    holds = all(-a / (1 - a) * k < k * math.log1p(-a) < -a * k for a, k in cases)
    return "exp(-an/(1-a)) < (1-a)^n < exp(-an), not >=", f"{len(cases)} cases", holds


def chernoff(thetas):
    """The least Chernoff information of two laws, over a grid of s; of Z_m -log B, s = 1/2."""
    s = np.linspace(0.01, 0.99, 99)[:, None]
    pairs = combinations([law.ravel() / law.sum() for law in thetas], 2)
    return min(-np.log((p ** (1 - s) * q**s).sum(-1).min()) for p, q in pairs)


def oracle_row(thetas, most, power=1):
    """error <= (|Theta| - 1) exp(-kappa T); another power of it is for a control."""
    kappa = chernoff(thetas)
    known = errors(evidence([thetas]), most)
    wrong = len(thetas) - 1
    holds = all(error <= wrong * math.exp(-kappa * power * T) for T, error in enumerate(known))
    found = f"kappa {kappa:.3f}; to error {DELTA}: T = {sum(error > DELTA for error in known)}"
    claim = f"oracle, {wrong + 1} laws of {thetas[0].size}: error <= (|Theta|-1) exp(-kappa T)"
    return claim, found, holds


def needed_row(name, most, rate=lambda a: a):
    """Samples to error DELTA by random masks, d = 1 .. most; a false rate is for a control.

    (1-a)/a log(1/2/DELTA) <= samples <= log(1/DELTA) / (a (1-B)), rounded up: of order 1/a.
    """
    needed = []
    holds = True
    B = math.exp(-chernoff(laws(Model(4, 1, ETAS[0]))))  # whatever d
    for d in range(1, most + 1):
        a = float(MASKS[name][1](d))
        needed.append(samples_needed(a, Model(4, d, ETAS[0])))
        order = rate(a)
        least = (1 - order) / order * math.log(0.5 / DELTA)
        holds &= least <= needed[-1] <= math.ceil(-math.log(DELTA) / order / (1 - B))
    return f"{name}: of order 1/a", ", ".join(map(str, needed)), holds


def samples_needed(a, model):
    known = [float(error) for error in errors(evidence([laws(model)]), 100)]  # then next to 0
    return bisect_left(range(1 << 13), True, key=lambda n: mixture(a, n, known) <= DELTA)


# -- the shipped buffer ----------------------------------------------------------------------------
def buffer_row(model, policy, tau, args):
    """By its exact law: Y is hidden in every context, and all latents are visible in one a chain.

    K = 1, true posteriors; Y stands first, where no tie makes it come last. Latents are as sure as
    1/2, Y less until all are visible: 0.483 at m = 4, eta = 1/20, where tau = 0.49 reveals them.
    """
    p = {}
    for (*u, y), weight in np.ndenumerate(laws(model)[0]):
        x0 = (y, *(model.step * u_j for u_j in u))
        p[x0] = Fraction(int(weight), int(laws(model)[0].sum()))
    buffer = Buffer(exact.Data(p, model.m), policy, 1, tau)
    law = exact.mixture([1] * buffer.stages, map(exact.marginal, buffer.joints))
    informative = sum(p for (z, _), p in law.items() if hidden(z) == (0,))
    y_visible = sum(p for (z, _), p in law.items() if z[0] != MASK)
    dof, p = exact.running(buffer, args.rows, args.calls, args.seed)
    found = f"{float(law.total()):.3f} contexts per chain, {float(informative):.3g} informative, "
    found += f"Y visible in {float(y_visible):.3g}; {dof} dof, p {p:.2g}"
    claim = f"buffer, {policy}, tau={tau}, d={model.d}: Y is last"
    return claim, found, informative == 1 and y_visible == 0 and p > LEVEL


# -- the whole -------------------------------------------------------------------------------------
def claims(args):
    most = min(args.d, 4)
    learners = [Model(m, d, eta) for m in (4, 6) for d in range(1, most + 1) for eta in ETAS]
    oracles = product([(4, (1, 1)), (6, (1, 1)), (8, (1, 1)), (6, (1, 1, 1))], ETAS)
    settings = product(("top_k", "entropy"), (math.inf, 0.9, 0.49))  # 0.49: see buffer_row
    return [
        "Proposition 3, Example Z_m: random masks seldom hide Y alone, and nothing else tells.",
        *(rate_row(name, args.d) for name in MASKS),
        *random_mask_rows([*learners, Model(6, 2, ETAS[0], (1, 1, 1))], MASKS, min(args.n, 12)),
        exponential_row(args.d, args.n),
        f"Samples of random masks to error {DELTA} for d = 1, 2, ..; m = 4, eta = 1/5.",
        *(needed_row(name, args.d) for name in MASKS),
        "Proposition 3, oracle chains: the error is at most (|Theta| - 1) exp(-kappa T).",
        *(oracle_row(laws(Model(m, 1, eta, latent)), args.n) for (m, latent), eta in oracles),
        oracle_row([*map(np.array, [(1, 2, 9), (4, 4, 4), (7, 3, 2)])], args.n),  # any laws
        "The buffer as shipped reveals Y last, so each chain has its one informative context.",
        *(buffer_row(Model(4, most, Fraction(1, 20)), *setting, args) for setting in settings),
    ]


CONTROLS = {
    "biased-latents": lambda args: random_mask_rows([Model(4, 2, ETAS[1], (2, 1))], MASKS, 9)[:1],
    "mean-rate": lambda args: [rate_row("t ~ U(0,1)", args.d, exact.fixed(ONE / 2))],
    "reversed": lambda args: random_mask_rows(
        [Model(4, 2, DELTA)], ["q = 1/2"], 10, lambda a, n: math.exp(-a * n)
    )[1:],
    "double-chernoff": lambda args: [oracle_row(laws(Model(4, 1, ETAS[1])), 10, 2)],
    "order": lambda args: [needed_row("q = 1/2", args.d, rate=lambda a: a * a)],
    "margin": lambda args: [buffer_row(Model(4, 2, ETAS[1]), "margin", math.inf, args)],  # all tie
    "low-tau": lambda args: [buffer_row(Model(4, 2, ETAS[1]), "top_k", 0.3, args)],
}

if __name__ == "__main__":
    exact.main(__doc__, claims, CONTROLS, d=8, n=30, rows=10_000, calls=10)
