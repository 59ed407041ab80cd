"""Proposition 3 and Example Z_m (paper, section 3.3 and appendix A), checked exactly.

Latents U_1..U_d and noise E are independent, Y = theta + sum_j U_j + E (mod m). The U_j are uniform
on the subgroup H of the multiples of Delta, E = 0 with probability 1 - eta, else uniform, and theta
is in Theta = H; the paper has |H| = 2, Delta = m/2. L = d + 1. The statements:

  collapse     given any strict subset of the latents, Y has the same law pi_0 for every theta
  Chernoff     C(P_theta, P_theta') >= -log B, B = 2 sqrt((1-eta) eta/(m-1)) + (m-2) eta/(m-1)
  order        the true confidence of a hidden latent exceeds that of Y until no latent is hidden
  random masks P(error) >= (1 - 1/|Theta|) (1-a)^n, a = P(all latents visible, Y hidden) = q(1-q)^d.
               The paper goes on with (1-a)^n >= exp(-an), which is the wrong way round; right is
               exp(-an/(1-a)) <= (1-a)^n < exp(-an). Under t ~ U(0, 1), a = 1/((d+1)(d+2)).
  oracle       P(error) <= (|Theta| - 1) B^T after T chains of d + 1 steps

The paper says that no other mask tells theta. That is so for the prediction of Y alone; the loss
also predicts a latent that is hidden alone, and that prediction depends on theta as much. Both
counts are shown: "Y only" and "every prediction". Of the optimal (MAP) estimator, ties are broken
by a fair coin.

Laws are integers over a common denominator, or Fractions. There is no tolerance: square roots are
compared by their squares, powers x^s are enclosed by integer square roots, exp by Taylor sums with
remainder, refined until the comparison is decided. Only the runs of the shipped buffer are random.
"""

import itertools
import math
import sys
from collections import Counter
from fractions import Fraction
from typing import NamedTuple

import program
import shipped
from bounds import chernoff_bound, lower_bounds_hold, oracle_bound_holds, order_is_one_over_a
from chi_square import LEVEL, chi_square
from estimator import bayes_error, least, map_errors, mixture, samples_needed
from exact import MASK, hidden
from example_zm import (
    Model,
    bhattacharyya,
    chernoff_bracket,
    chernoff_is_minus_log_b,
    collapses,
    data,
    early_confidence,
    informative_masks,
    latents_come_first,
    same_evidence,
)
from irrational import below_exp
from masks import fixed, informative_probability, uniform_count, uniform_t

# -- the shipped buffer --------------------------------------------------


class Chains(NamedTuple):
    """What the buffer hands out: how many chains, and of their contexts those .."""

    number: int
    lengths: Counter  # {number of contexts: chains}
    informative: int  # with Y alone hidden; at most one per chain, as each reveals a token
    y_visible: int


def shipped_chains(model, policy, tau, size):
    """Runs the shipped buffer at K = 1 with the true posterior for a model; Y leftmost."""
    buffer = shipped.Buffer(data(model), policy, 1, {(): Fraction(1)}, tau)
    seen, number = buffer.run(size)
    visits, informative, y_visible = Counter(), 0, 0
    for (visit, _, z), count in seen.items():
        visits[visit] += count
        informative += count * (hidden(z) == (0,))
        y_visible += count * (z[0] != MASK)
    ended = {v + 1: n - visits[v + 1] for v, n in sorted(visits.items())}
    lengths = Counter({length: n for length, n in ended.items() if n})
    return Chains(number, lengths, informative, y_visible)


def y_is_last(chains):
    """Y is hidden in every context, and each chain has exactly one with all latents visible."""
    return chains.y_visible == 0 and chains.informative == chains.number


def length_p_value(chains, law):
    return chi_square(chains.lengths, law, chains.number)[2]


def mean_length(law):
    return sum(length * p for length, p in law.items())


def chain_lengths(d):
    """The exact law at K = 1."""
    return shipped.chain_lengths(d + 1, d + 1)


# -- what is verified ----------------------------------------------------
#
# Each function yields (holds, line of the table).


def verify_example(args):
    yield True, f"{'m':>3} {'|H|':>3} {'eta':>5} {'d':>5}   C from the search     -log B"
    cases = [(m, args.d, (1, 1)) for m in args.m] + [(m, min(args.d, 4), (1, 1, 1)) for m in (6, 9)]
    for (m, most, latent), eta in itertools.product(cases, args.eta):
        models = [Model(m, d, eta, latent) for d in range(1, most + 1)]
        holds = all(f(model) for model in models for f in EXAMPLE_CLAIMS)
        low, high = chernoff_bracket(models[0].noise, models[0].thetas.step)
        interval = f"[{-math.log(high):.5f}, {-math.log(low):.5f}]"
        minus_log_b = -math.log(bhattacharyya(models[0]))
        yield holds, f"{m:>3} {len(latent):>3} {eta!s:>5}  1..{most}  {interval}  {minus_log_b:.5f}"


def masks_that_tell(model, targets, informative):
    return informative_masks(model, targets) == informative


def only_y_hidden_tells(model):
    """For the prediction of Y, as in the paper."""
    return masks_that_tell(model, [model.d], [(model.d,)])


def one_hidden_tells(model):
    """For every prediction that the loss makes; and the evidence is that of a prediction of Y."""
    single = [(i,) for i in range(model.d + 1)]
    return masks_that_tell(model, range(model.d + 1), single) and same_evidence(model)


EXAMPLE_CLAIMS = (
    collapses,
    latents_come_first,
    chernoff_is_minus_log_b,
    only_y_hidden_tells,
    one_hidden_tells,
)


def occurs_with(d, law, expected):
    return informative_probability(d, law) == expected


def verify_probabilities(args):
    for name, law, formula in (
        ("q(1-q)^d at fixed q", fixed(args.q), lambda d: args.q * (1 - args.q) ** d),
        ("1/((d+1)(d+2)) under t ~ U(0,1)", uniform_t, lambda d: Fraction(1, (d + 1) * (d + 2))),
        ("1/(d+1)^2 under a uniform count", uniform_count, lambda d: Fraction(1, (d + 1) ** 2)),
    ):
        holds = all(occurs_with(d, law, formula(d)) for d in range(1, 65))
        yield holds, f"Y alone is hidden with probability {name}, d = 1..64"


def mask_laws(q):
    """Name -> the law of masks for d latents."""
    return {
        f"q = {q}": lambda d: fixed(q),
        "q = 1/(d+1)": lambda d: fixed(Fraction(1, d + 1)),
        "t ~ U(0,1)": lambda d: uniform_t,
        "count": lambda d: uniform_count,
    }


def map_is_optimal(model, q, most, a=None):
    """The closed form equals the least error of all estimators, by enumeration of n samples."""
    a, errors = a or q * (1 - q) ** model.d, map_errors(model, most)
    return all(mixture(a, n, errors)[0] == bayes_error(model, q, n) for n in range(most + 1))


def verify_random_masks(args):
    small = [
        Model(4, 1, args.eta[0]),
        Model(4, 2, args.eta[0]),
        Model(6, 1, args.eta[0], (1, 1, 1)),
    ]
    holds = all(map_is_optimal(model, args.q, 2) for model in small)
    yield holds, "closed form of the MAP error = least error of any estimator, n = 0..2, enumerated"
    cases = itertools.product(args.eta, range(1, args.d + 1), mask_laws(args.q).values())
    holds = all(
        lower_bounds_hold(Model(4, d, eta), informative_probability(d, law(d)), args.n)
        for eta, d, law in cases
    )
    yield holds, f"error >= 1/2 (1-a)^n >= 1/2 exp(-an/(1-a)): d = 1..{args.d}, n = 1..{args.n}"
    rates = [args.q * (1 - args.q) ** d for d in range(1, args.d + 1)]
    wrong_way = [below_exp((1 - a) ** n, a * n) for a in rates for n in range(1, args.n + 1)]
    yield (
        all(wrong_way),
        f"(1-a)^n < exp(-an), not >=, in {sum(wrong_way)} of {len(wrong_way)} cases",
    )
    yield from reversed_inequality()


def reversed_inequality(eta=Fraction(1, 100), q=Fraction(1, 2), d=2):
    """The exact error beside the bounds: with little noise it is below what the paper allows."""
    model, a = Model(4, d, eta), q * (1 - q) ** d
    errors = map_errors(model, 30)
    yield True, f"q={q} d={d} m=4 eta={eta}; the last column: the n that the paper deems necessary"
    yield True, f"{'n':>4}   error  (1-a)^n/2  exp(-an/(1-a))/2  paper: exp(-an)/2"
    for n in (1, 2, 5, 10, 20, 30):
        error = mixture(a, n, errors)[0]
        necessary = least(lambda k, error=error: not below_exp(2 * error, a * k))
        bounds = float((1 - a) ** n) / 2, math.exp(-a * n / (1 - a)) / 2, math.exp(-a * n) / 2
        line = f"{n:>4}  {float(error):.4f}  {bounds[0]:>9.4f}  {bounds[1]:>16.4f}"
        yield necessary > n, f"{line}  {bounds[2]:>17.4f}  VIOLATED: {necessary} > {n}"


def verify_oracle(args):
    yield (
        True,
        f"{'m':>3} {'|H|':>3} {'eta':>5}  e_T <= (|H|-1) B^T; least T to error {args.delta}",
    )
    cases = itertools.product([(m, (1, 1)) for m in args.m] + [(6, (1, 1, 1))], args.eta)
    for (m, latent), eta in cases:
        model = Model(m, 1, eta, latent)
        errors = map_errors(model, args.n)
        falls = all(a >= b for a, b in itertools.pairwise(errors))
        exact = next(T for T, error in enumerate(errors) if error <= args.delta)
        bound = least(lambda T, model=model: not chernoff_bound(model, T).above(args.delta))
        yield (
            falls and exact <= bound and oracle_bound_holds(model, args.n),
            f"{m:>3} {model.size:>3} {eta!s:>5}  T = 0..{args.n}; exact {exact}, bound {bound}",
        )


INFORMATIVE = 100  # the MAP error is exact up to so many informative samples; beyond, a bracket


def needed_by_masks(model, q, delta, every=False):
    """Regime -> (a, samples needed to error delta)."""
    errors, needed = map_errors(model, INFORMATIVE), {}
    for name, law in mask_laws(q).items():
        a = informative_probability(model.d, law(model.d), every)
        needed[name] = a, samples_needed(a, errors, delta)
    return needed


def needed_by_chains(model, delta):
    """(the paper's chains of d + 1 steps, the shipped buffer's at K = 1, on average)."""
    errors = map_errors(model, INFORMATIVE)
    chains = next(T for T, error in enumerate(errors) if error <= delta)
    return (model.d + 1) * chains, mean_length(chain_lengths(model.d)) * chains


def verify_regimes(args):
    names = list(mask_laws(args.q))
    yield True, f"samples to error {args.delta}: m=4 eta={args.eta[0]}; in brackets if every"
    yield True, "prediction counts, not that of Y alone; chains: one informative sample each"
    header = "".join(f"{name:>16}" for name in names)
    yield True, f"{'d':>3}{header}{'oracle d+1':>12}{'buffer K=1':>12}"
    for d in range(1, args.d + 1):
        model = Model(4, d, args.eta[0])
        counts = [needed_by_masks(model, args.q, args.delta, every) for every in (False, True)]
        holds = all(
            order_is_one_over_a(model, a, args.delta, n) for c in counts for a, n in c.values()
        )
        cells = "".join(f"{f'{counts[0][k][1]} ({counts[1][k][1]})':>16}" for k in names)
        oracle, shipped = needed_by_chains(model, args.delta)
        yield holds, f"{d:>3}{cells}{oracle:>12}{float(shipped):>12.1f}"


def between(model):
    """A threshold between the confidence of Y while a latent is hidden, and that of a latent."""
    return float(early_confidence(model) + Fraction(1, model.size)) / 2


def verify_shipped(args):
    d, size = args.shipped_d, (args.rows, args.calls, args.seed)
    yield True, f"shipped buffer, m=4 eta=1/20 d={d} K=1, Y in the leftmost place"
    yield (
        True,
        f"{'policy':>8} {'tau':>6} {'chains':>7} {'informative':>12} {'Y visible':>10}  "
        "contexts per chain (exact)  p-value",
    )
    model = Model(4, d, Fraction(1, 20))
    for policy, tau in itertools.product(("top_k", "entropy"), (None, 0.9, between(model))):
        chains = shipped_chains(model, policy, tau, size)
        law = {2: Fraction(1)} if tau and tau < 1 / 2 else chain_lengths(d)
        p_value = length_p_value(chains, law)
        mean = mean_length(chains.lengths) / chains.number
        yield (
            y_is_last(chains) and p_value > LEVEL,
            f"{policy:>8} {tau and round(tau, 3)!s:>6} {chains.number:>7} "
            f"{chains.informative:>12} {chains.y_visible:>10}  "
            f"{mean:>14.4f} ({float(mean_length(law)):.4f})  {p_value:>9.3f}",
        )
    yield baseline_informs(d, args.rows * args.calls, args.seed)


def baseline_informs(d, n, seed, law=uniform_count):
    """The masks of the shipped baseline have that law."""
    seen, _, p_value = shipped.baseline_masks(d + 1, n, seed, law)
    share, exactly = seen[(True,) + (False,) * d] / n, law(1, d + 1)
    text = f"shipped random masks, {n}: Y alone hidden in {share:.4f}, exactly {exactly}"
    return p_value > LEVEL, f"{text} = {float(exactly):.4f}; p-value {p_value:.3f}"


# -- what must fail ------------------------------------------------------


TENTH = Fraction(1, 10)


def few_chains(args, policy="top_k", tau=None):
    return shipped_chains(Model(4, 3, Fraction(1, 20)), policy, tau, (64, 60, args.seed))


def quadratic(args):
    model = Model(4, 8, TENTH)
    needed = needed_by_masks(model, Fraction(1, 2), TENTH / 10)["q = 1/2"][1]
    return order_is_one_over_a(model, Fraction(1, 90), TENTH / 10, needed)


BREAK = {  # name: (what is broken, the check that must notice)
    "biased-latents": (
        "posterior collapse with latents that are not uniform on H",
        lambda args: collapses(Model(4, 3, TENTH, (2, 1))),
    ),
    "uniform-noise": (
        "Chernoff information with noise that is uniform on Z_m",
        lambda args: chernoff_is_minus_log_b(Model(4, 2, Fraction(3, 4))),
    ),
    "two-symbols": (
        "latents surer than Y at m = 2, where both have confidence 1/2",
        lambda args: latents_come_first(Model(2, 2, TENTH)),
    ),
    "y-only": (
        "only the mask that hides Y alone tells theta, though every prediction counts",
        lambda args: masks_that_tell(Model(4, 2, TENTH), range(3), [(2,)]),
    ),
    "biased-evidence": (
        "one hidden position tells theta, and no other mask, with latents not uniform on H",
        lambda args: one_hidden_tells(Model(4, 2, TENTH, (2, 1))),
    ),
    "other-estimator": (
        "the least error as if every mask that hides Y were informative",
        lambda args: map_is_optimal(Model(4, 1, TENTH), Fraction(1, 2), 2, a=Fraction(1, 2)),
    ),
    "reversed": (
        "the paper's lower bound with exp(-an)",
        lambda args: lower_bounds_hold(
            Model(4, 2, Fraction(1, 100)), Fraction(1, 8), 10, ["exp(-an)"]
        ),
    ),
    "double-chernoff": (
        "the oracle bound with twice the Chernoff information",
        lambda args: oracle_bound_holds(Model(4, 1, TENTH), 10, power=2),
    ),
    "mean-rate": (
        "t ~ U(0,1) as if it were fixed at its mean 1/2",
        lambda args: occurs_with(3, uniform_t, Fraction(1, 16)),
    ),
    "quadratic-at-fixed-q": ("order d^2 at fixed q = 1/2", quadratic),
    "left-to-right": (
        "shipped chains in an order that reveals Y first",
        lambda args: y_is_last(few_chains(args, "left_to_right")),
    ),
    "margin": (
        "shipped chains by margin, which is 0 for latents and Y alike: the leftmost, Y, goes first",
        lambda args: y_is_last(few_chains(args, "margin")),
    ),
    "low-tau": (
        "shipped chains with tau below the confidence of Y: it is revealed with the latents",
        lambda args: y_is_last(few_chains(args, tau=0.3)),
    ),
    "one-token-per-step": (
        "shipped chains as if each had exactly d + 1 contexts",
        lambda args: length_p_value(few_chains(args), {4: Fraction(1)}) > LEVEL,
    ),
    "masks": (
        "the masks of the shipped baseline as if they were i.i.d. with t ~ U(0,1)",
        lambda args: baseline_informs(3, 10_000, args.seed, uniform_t)[0],
    ),
}


def control(text, check):
    return lambda args: [(text, "", check(args))]


CONTROLS = {name: control(*broken) for name, broken in BREAK.items()}

# -- the figure and the program ------------------------------------------


def plot(args):
    import matplotlib.pyplot as plt

    axes = plt.figure(figsize=(7, 4.5)).subplots()
    d = range(1, args.d + 1)
    models = [Model(4, each, args.eta[0]) for each in d]
    for every, style in ((False, "o-"), (True, "x--")):
        needed = [needed_by_masks(model, args.q, args.delta, every) for model in models]
        for name, color in (("q = " + str(args.q), "C3"), ("t ~ U(0,1)", "C1")):
            label = f"{name}, {'every prediction' if every else 'Y only'}"
            axes.semilogy(d, [n[name][1] for n in needed], style, color=color, label=label)
    oracle = [needed_by_chains(model, args.delta)[0] for model in models]
    axes.semilogy(d, oracle, "s-", color="C0", label="oracle chains, d + 1 steps each")
    title = f"samples to error {args.delta} (MAP, exact), m = 4, eta = {args.eta[0]}"
    axes.set(xlabel="latents d", ylabel="samples", title=title)
    axes.legend()
    axes.figure.savefig(args.plot, dpi=150, bbox_inches="tight")


SECTIONS = {
    "Example Z_m: collapse, order, Chernoff information, masks that tell theta": verify_example,
    "An informative mask": verify_probabilities,
    "Random masks: the lower bound": verify_random_masks,
    "Oracle chains: the upper bound": verify_oracle,
    "Samples needed": verify_regimes,
    "Shipped code": verify_shipped,
}


def arguments():
    parser = program.arguments(__doc__, CONTROLS)
    add = parser.add_argument
    add("--m", type=int, nargs="+", default=[4, 6, 8], help="sizes of Z_m, even")
    add("--d", type=int, default=8, help="1..d latents")
    etas = [Fraction(1, 5), Fraction(1, 20), Fraction(2, 5)]
    add("--eta", type=Fraction, nargs="+", default=etas, help="noise; the first for the figure")
    add("--q", type=Fraction, default=Fraction(1, 2), help="fixed masking rate")
    add("--n", type=int, default=30, help="bounds are checked for up to n samples, or chains")
    add("--delta", type=Fraction, default=Fraction(1, 100), help="error that the counts refer to")
    add("--shipped-d", type=int, default=6, help="latents in the runs of the shipped buffer")
    add("--rows", type=int, default=512, help="rows per batch in these runs")
    add("--calls", type=int, default=100, help="batches in these runs")
    args = parser.parse_args()
    if any(m % 2 or m < 4 for m in args.m):
        parser.error("--m: even numbers, at least 4")
    return args


def main():
    args = arguments()
    if args.broken:
        return program.run_controls(CONTROLS, args)
    failures = 0
    for title, verify in SECTIONS.items():
        print(f"\n{title}")
        for holds, line in verify(args):
            failures += not holds
            print(line if holds else f"{line}   FAILS")
    if args.plot:
        plot(args)
    print(f"\n{failures} failures" if failures else "\nall hold")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
