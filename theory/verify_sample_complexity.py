"""Proposition 3 and Example Z_m (paper, section 3.3 and appendix A), checked exactly.

The example and its estimator are in example_zm.py. Samples needed are counted twice: if
the prediction of Y informs about theta alone and, in brackets, if every prediction does.
"""

from fractions import Fraction
from itertools import pairwise, product

import example_zm
import masks
import report
from exact import MASK, hidden
from example_zm import Model, below_exp, least, map_errors, mixture
from shipped import LEVEL, Buffer, chain_lengths, chi_square, lengths

TWO, THREE = (1, 1), (1, 1, 1)  # |H|, as the weights of a uniform latent
ETAS = Fraction(1, 5), Fraction(1, 20), Fraction(2, 5)
HALF, TENTH, DELTA = Fraction(1, 2), Fraction(1, 10), Fraction(1, 100)  # DELTA: the error to reach
INFORMATIVE = 100  # the MAP error is exact up to this many informative samples, then a bracket
MASKS = {
    "q = 1/2": masks.fixed(HALF),
    "q = 1/(d+1)": lambda hidden, L: masks.fixed(Fraction(1, L))(hidden, L),
    "t ~ U(0,1)": masks.uniform_t,
    "uniform count": masks.uniform_count,
}

# -- the example -----------------------------------------------------------------------------------

EXAMPLE = {
    "Chernoff information = -log B > 0": example_zm.chernoff_is_minus_log_b,
    "latents are surer than Y": example_zm.latents_come_first,
    "posterior collapse, unless one position is hidden": example_zm.alone_informs,
}


def example_rows(models, claims=EXAMPLE):
    found = f"{len(models)} models, d up to {max(model.d for model in models)}"
    return [(claim, found, all(map(EXAMPLE[claim], models))) for claim in claims]


def family(most):
    """Models with two hypotheses for d = 1 .. most, and with three for d = 1 .. 4."""
    settings = [(m, TWO, most) for m in (4, 6, 8)] + [(m, THREE, min(most, 4)) for m in (6, 9)]
    return [
        Model(m, d, eta, latent)
        for (m, latent, most), eta in product(settings, ETAS)
        for d in range(1, most + 1)
    ]


RATES = {  # how often Y alone is hidden: (law of masks, formula)
    "t ~ U(0,1): 1/((d+1)(d+2))": (masks.uniform_t, lambda d: Fraction(1, (d + 1) * (d + 2))),
    "uniform count: 1/(d+1)^2": (masks.uniform_count, lambda d: Fraction(1, (d + 1) ** 2)),
}


def probability_row(name, law, formula):
    holds = all(masks.informative_probability(d, law) == formula(d) for d in range(1, 65))
    return f"P(Y alone is hidden), {name}", "d = 1..64", holds


# -- random masks and oracle chains ----------------------------------------------------------------

BOUNDS = {  # whether y, the error over that of guessing, is at least ..
    "(1-a)^n": lambda y, a, n: y >= (1 - a) ** n,
    "exp(-an)": lambda y, a, n: not below_exp(y, a * n),  # the paper's, wrong
}


def lower_bound_row(bound, etas, laws, most, n):
    cases = [
        (Model(4, d, eta), masks.informative_probability(d, law), k)
        for eta, d, law, k in product(etas, range(1, most + 1), laws, range(1, n + 1))
    ]
    errors = ((mixture(a, k, map_errors(model, n))[0], a, k) for model, a, k in cases)
    holds = all(BOUNDS[bound](2 * error, a, k) for error, a, k in errors)
    return f"random masks: error >= {bound} / 2", f"d = 1..{most}, n = 1..{n}", holds


def reversed_row(most, n):
    """The step of the paper's proof, (1-a)^n >= exp(-an), is never true; what is true instead."""
    cases = [(HALF ** (d + 1), k) for d, k in product(range(1, most + 1), range(1, n + 1))]
    holds = all(below_exp((1 - a) ** k, a * k) for a, k in cases)
    holds &= not any(below_exp((1 - a) ** k, a * k / (1 - a)) for a, k in cases)
    return "exp(-an/(1-a)) <= (1-a)^n < exp(-an), not >=", f"{len(cases)} cases", holds


def chains_needed(model):
    return least(lambda T: map_errors(model, T)[-1] <= DELTA)


def oracle_row(model, most, power=1):
    """error <= (|H| - 1) B^T; another power of B is for a control."""
    errors, (low, high) = map_errors(model, most), example_zm.bhattacharyya(model)
    wrong, exact = model.size - 1, chains_needed(model)
    enough = least(lambda T: wrong * high ** (power * T) <= DELTA)
    holds = all(error <= wrong * low ** (power * T) for T, error in enumerate(errors))
    holds &= all(a >= b for a, b in pairwise(errors)) and exact <= enough
    claim = f"oracle, m={model.m} |H|={model.size} eta={model.eta}: error <= (|H|-1) B^T"
    return claim, f"T = 0..{most}; to error {DELTA}: T = {exact}, bound {enough}", holds


# -- samples needed --------------------------------------------------------------------------------
def needed_row(model, rate=lambda a: a):
    """By masks if Y only (every prediction) counts, of order 1 / rate(a); contexts of chains.

    The chains: the paper's, of d + 1 steps, and the shipped buffer's at K = 1, on average. A false
    rate is for a control.
    """
    errors, holds, found = map_errors(model, INFORMATIVE), True, ""
    for name, law in MASKS.items():
        needed = []
        for every in (False, True):
            a = masks.informative_probability(model.d, law, every)
            needed.append(example_zm.samples_needed(a, errors, DELTA))
            holds &= example_zm.order_is_one_over_a(model, rate(a), DELTA, needed[-1])
        found += f"{name}: {needed[0]} ({needed[1]}), "
    chains = chains_needed(model)
    shipped = float(mean_length(chain_lengths(model.d + 1)) * chains)
    found += f"oracle: {(model.d + 1) * chains}, buffer: {shipped:.1f}"
    return f"samples to error {DELTA}, d = {model.d}: of order 1/a", found, holds


# -- the shipped buffer ----------------------------------------------------------------------------
def mean_length(law):
    return sum(length * p for length, p in law.items())


def buffer_row(model, policy, tau, size, law=None):
    """Y is hidden in every context, and each chain has exactly one with all latents visible.

    Buffer at K = 1, true posteriors, Y leftmost; law {number of contexts of a chain: probability}.
    """
    law = law or chain_lengths(model.d + 1)
    seen = Buffer(example_zm.data(model), policy, 1, tau).run(size)
    contexts = [(z, n) for counts in seen for (z, _), n in counts.items()]
    informative = sum(n for z, n in contexts if hidden(z) == (0,))
    y_visible = sum(n for z, n in contexts if z[0] != MASK)
    chains = seen[0].total()
    observed = lengths([counts.total() for counts in seen])
    _, p = chi_square(observed, law, chains)
    mean, exactly = (float(mean_length(counts)) for counts in (observed, law))
    found = f"{chains} chains, {informative} informative, Y visible {y_visible}; "
    found += f"{mean / chains:.4f} contexts per chain, exactly {exactly:.4f}, p {p:.3f}"
    claim = f"buffer, {policy}, tau={tau and round(tau, 3)}, d={model.d}: Y is last"
    return claim, found, informative == chains and y_visible == 0 and p > LEVEL


def buffer_rows(model, size):
    """tau off, tau without effect, and tau between the confidences of Y and of a hidden latent."""
    between = float(example_zm.early_confidence(model) + HALF) / 2
    laws = {None: None, 0.9: None, between: {2: 1}}
    return [
        buffer_row(model, policy, tau, size, law)
        for policy, (tau, law) in product(("top_k", "entropy"), laws.items())
    ]


# -- the whole -------------------------------------------------------------------------------------
def claims(args):
    oracles = product([(4, TWO), (6, TWO), (8, TWO), (6, THREE)], ETAS)
    shipped = Model(4, min(args.d, 6), Fraction(1, 20))
    return [
        "Proposition 3, Example Z_m: Y tells of theta only where all latents are visible.",
        *example_rows(family(args.d)),
        *(probability_row(name, *of) for name, of in RATES.items()),
        "Proposition 3, random masks: the error falls only as fast as (1-a)^n, not exp(-an).",
        lower_bound_row("(1-a)^n", ETAS, MASKS.values(), args.d, args.n),
        reversed_row(args.d, args.n),
        "Proposition 3, oracle chains: the error is at most (|Theta| - 1) B^T.",
        *(oracle_row(Model(m, 1, eta, latent), args.n) for (m, latent), eta in oracles),
        "Proposition 3: samples that random masks need, beside contexts that chains need.",
        *(needed_row(Model(4, d, ETAS[0])) for d in range(1, args.d + 1)),
        "The buffer as shipped reveals Y last, so each chain has its one informative context.",
        *buffer_rows(shipped, report.size(args)),
    ]


def few_chains(seed, policy="top_k", tau=None, law=None):
    return [buffer_row(Model(4, 3, Fraction(1, 20)), policy, tau, (64, 60, seed), law)]


CHERNOFF, ORDER, COLLAPSE = EXAMPLE
CONTROLS = {
    "biased-latents": lambda args: example_rows([Model(4, 2, TENTH, (2, 1))], [COLLAPSE]),
    "uniform-noise": lambda args: example_rows([Model(4, 2, Fraction(3, 4))], [CHERNOFF]),
    "two-symbols": lambda args: example_rows([Model(2, 2, TENTH)], [ORDER]),
    "mean-rate": lambda args: [
        probability_row("t as if fixed at 1/2", masks.uniform_t, lambda d: HALF ** (d + 1))
    ],
    "reversed": lambda args: [
        lower_bound_row("exp(-an)", [Fraction(1, 100)], [MASKS["q = 1/2"]], 4, 10)
    ],
    "double-chernoff": lambda args: [oracle_row(Model(4, 1, TENTH), 10, power=2)],
    "order": lambda args: [needed_row(Model(4, 8, TENTH), rate=lambda a: a * a)],
    "margin": lambda args: few_chains(args.seed, "margin"),  # 0 for latents and Y: leftmost first
    "low-tau": lambda args: few_chains(args.seed, tau=0.3),  # below the confidence of Y
    "one-token-per-step": lambda args: few_chains(args.seed, law={4: 1}),
}

if __name__ == "__main__":
    report.main(__doc__, claims, CONTROLS, d=8, n=30, rows=512, calls=100)
