"""When the chain collapses: fast-forward ends it at its first visit, and the rest is forgotten.

Fast-forward reveals all positions with confidence above tau. The surer a model, the shorter chains:

    share of the visits that are at the start = 1 / mean visits per chain

because a chain is at its start once. Both are exactly 1 if every confidence at the start exceeds
tau, for any K and policy; and only if, except for positions that the first step reveals anyway.
Then only starts are trained on: Proposition 2 pins no other prediction. What training does to the
others depends on the weights they share with the start, and with two weights they go from right to
wrong.

Exact, in fractions: the laws of the buffer, and what is pinned. Where training runs (collapse.py)
the margins are floats, but which states a batch holds follows from the stages: half of its rows are
at the start, and all of them once the confidence there exceeds tau. So these runs do not depend on
the seed, except where half of the rows are random masks.
"""

import functools
import random
from fractions import Fraction
from itertools import pairwise, product
from math import exp

import collapse
import exact
import minimizer
import report
from chi_square import LEVEL
from collapse import BETA, LEARNING_RATE, START, TABLE, TAU, probability, sharpened
from exact import MASK, NOTHING, ONE, hidden
from minimizer import coefficients, per_hidden
from shipped import Buffer, chain_lengths, losses, puma

from studies.ablations import Bounded

EPS = [Fraction(k, 100) for k in (50, 40, 30, 25, 20, 19, 10, 1)]
KS = 1, 2, 3
LONG_KS = 1, 4, 16  # with 64 tokens
Mixed = functools.partial(puma.ProgressiveUnmasking, random_share=0.5)
POLICIES = "top_k", "left_to_right", "random"
FIRST_GIVEN = {(0,): ONE}

# -- the law ---------------------------------------------------------------


def noise_laws(rng, n, L):
    """Laws of sequences with full support; the first is uniform."""
    sequences = list(product(range(2), repeat=L))
    uniform = dict.fromkeys(sequences, Fraction(1, 2**L))
    return [uniform, *(exact.random_law(rng, sequences, zeros=False) for _ in range(n - 1))]


def length(noise):
    return len(next(iter(noise)))


def one_answer(noise, eps):
    return sharpened(noise, [(0,) * length(noise)], eps)


def buffers(noise, eps, tau=TAU, policies=POLICIES):
    """One for each policy and K, with nothing given."""
    data = one_answer(noise, eps)
    return [Buffer(data, policy, K, NOTHING, tau) for policy, K in product(policies, KS)]


def share_row(noises):
    """In the long run a share 1 / visits is at the start: a chain has one such visit."""
    laws = [
        collapse.law_of_visits(buffer)
        for noise, eps in product(noises[-2:], EPS[::2])
        for buffer in buffers(noise, eps)
    ]
    equal = all(visits * share == 1 for visits, share in laws)
    return "share at the start = 1 / visits", f"{len(laws)} laws", equal


def at_once(noise):
    """The eps at which the lowest confidence at the start equals tau.

    It is 1 - eps (1 - u), with u the probability of the position's token under the noise.
    """
    tokens = range(length(noise))
    u = min(sum(q for x0, q in noise.items() if x0[i] == 0) for i in tokens)
    return (1 - TAU) / (1 - u)


def count_collapsed(noises, share, policies):
    """(how many of the laws with eps = share * `at_once` have one visit, how many there are)."""
    cases = [
        buffer
        for noise in noises
        for buffer in buffers(noise, at_once(noise) * share, TAU, policies)
    ]
    return sum(collapse.law_of_visits(buffer) == (1, 1) for buffer in cases), len(cases)


def below_row(noises, share=Fraction(99, 100)):
    ones, total = count_collapsed(noises, share, POLICIES)
    return f"all at the start, eps = {share} eps*", f"{ones} of {total} laws", ones == total


def above_row(noises):
    """At eps* itself one confidence equals tau, and does not exceed it.

    top_k reveals that position last, and `random` may do so, so neither completes all rows in the
    first step. `left_to_right` may, see `anyway_row`.
    """
    ones, total = count_collapsed(noises, ONE, ("top_k", "random"))
    eps = ", ".join(f"{float(at_once(noise)):.3f}" for noise in noises)
    claim = "not at eps* = (1 - tau) / (1 - u), top_k, random"
    return claim, f"{ones} of {total} laws, eps* {eps}", ones == 0


def anyway_row(noises, one_visit=collapse.completes):
    """Above eps* a first step may itself reveal all positions with confidence up to tau.

    For instance `left_to_right`, if only the first token is uncertain.
    """
    L = length(noises[0])
    first_unsure = {(a,) + (0,) * (L - 1): ONE / 2 for a in (0, 1)}
    cases = [
        buffer
        for noise, percent in product([first_unsure, *noises], (100, 110))
        for buffer in buffers(noise, at_once(noise) * percent / 100)
    ]
    one = [collapse.law_of_visits(buffer) == (1, 1) for buffer in cases]
    found = f"{sum(one)} of {len(cases)} laws have one visit"
    claim = "eps >= eps*: one iff the rest is revealed anyway"
    return claim, found, one == list(map(one_visit, cases))


def given_row(noises):
    """Two answers, the first token tells which: each start has its own confidences (top_k)."""
    answers = [(a,) * length(noises[0]) for a in (0, 1)]
    cases = [
        Buffer(sharpened(noise, answers, eps), "top_k", K, FIRST_GIVEN, TAU)
        for noise, eps, K in product(noises, EPS, KS)
    ]
    sure = [collapse.sure_of_all(buffer) for buffer in cases]
    one = [collapse.law_of_visits(buffer) == (1, 1) for buffer in cases]
    found = f"{sum(sure)} of {len(cases)} laws sure of all"
    return "first token given: one visit iff all starts are sure", found, sure == one


def visits_row(L, K, noise=None):
    """Uniform noise: visits fall with eps to 1 (`falls`), and equal those of the formula.

    Proof that they fall: let one uniform number, the same for all eps, make x0 the answer or noise.
    With smaller eps more x0 are the answer, and fewer of its tokens lift all others above tau.
    """
    visits = [collapse.mean_visits(L, K, eps) for eps in EPS]
    found = ", ".join(f"{float(v):.2f} ({float(e)})" for v, e in zip(visits, EPS, strict=True))
    off = collapse.mean_visits(L, K, ONE, None)
    found += f"; tau off {float(off):.2f}"
    holds = falls([off, *visits])
    if noise:
        cases = [Buffer(one_answer(noise, eps), "top_k", K, NOTHING, TAU) for eps in EPS]
        holds &= visits == [collapse.law_of_visits(buffer)[0] for buffer in cases]
    how = "enumerated" if noise else "formula"
    return f"visits (eps), L={L}, K={K}, {how}", found, holds


def falls(visits):
    """For tau off, then for EPS: never rising, and 1 exactly where the start exceeds tau."""
    falling = all(after <= before for before, after in pairwise(visits))
    return falling and [v == 1 for v in visits[1:]] == [1 - eps / 2 > TAU for eps in EPS]


def off_row(noise, tau=None):
    """Without fast-forward the length of a chain depends on neither data nor policy."""
    L, holds, found = length(noise), True, []
    for k, K in enumerate(KS):
        visits = sum(n * p for n, p in chain_lengths(L, K).items())
        found.append(f"{float(1 / visits):.3f} (K={K})")
        laws = [collapse.law_of_visits(buffers(noise, eps, tau)[k]) for eps in EPS]
        holds &= set(laws) == {(visits, 1 / visits)}
    return f"tau {tau and float(tau)}: share for all eps", ", ".join(found), holds


# -- the buffer of puma.py -------------------------------------------------


def settings(rng, L):
    """{name: buffer}. No confidence equals tau, so no rounding decides."""
    noise = noise_laws(rng, 2, L)[1]
    two = sharpened(noise, [(a,) * L for a in (0, 1)], Fraction(1, 50))
    return {
        "eps=0.4, K=1": Buffer(one_answer(noise, EPS[1]), "left_to_right", 1, NOTHING, 0.901),
        "eps=0.25, K=2": Buffer(one_answer(noise, EPS[3]), "random", 2, NOTHING, 0.901),
        "eps=0.02, K=1, first token given": Buffer(two, "top_k", 1, FIRST_GIVEN, 0.901),
    }


def buffer_row(claim, buffer, size, objective_of=losses.Objective):
    seen, chains, dof, p = buffer.compare(size, objective_of)
    visits, share = collapse.law_of_visits(buffer)
    found = f"{seen / chains:.4f} visits per chain, exactly {float(visits):.4f}, share "
    found += f"{float(share):.3f}; {chains} chains, {dof} dof, p {p:.2g}"
    return f"buffer, {claim}", found, p > LEVEL


class Unsure(losses.Objective):
    """Against the rules: no confidence, so no fast-forward."""

    def forward(self, x, x0, is_hidden):
        loss, score, confidence = super().forward(x, x0, is_hidden)
        return loss, score, 0 * confidence


def slow_buffer(args):
    (name, buffer), *_ = reversed(settings(random.Random(args.seed), args.L).items())
    return buffer_row(f"{name}, no fast-forward", buffer, report.size(args), Unsure)


# -- Proposition 2 ---------------------------------------------------------


def pinned_row(noise, policy, as_before=False):
    """Only the predictions at the start are pinned; `as_before`: as many as with tau off."""
    data = one_answer(noise, at_once(noise) / 2)
    total = sum(len(hidden(z)) for z in data.mass)
    on, off = (
        coefficients(minimizer.visits(data, policy, 1, tau), per_hidden) for tau in (TAU, None)
    )
    shifted = any(shift for C in (on, off) for shift in minimizer.shifts(data, C).values())
    found = f"{len(on)} of {total} pinned, {len(off)} with tau off; free {total - len(on)}, "
    found += f"{total - len(off)}"
    start = (MASK,) * data.L
    wanted = off.keys() if as_before else {(start, i) for i in range(data.L)}
    return f"collapsed, {policy}: what is pinned", found, on.keys() == wanted and not shifted


# -- a model that forgets --------------------------------------------------

# Why it is inevitable. Let s and l be the margins at the start and later. While batches have both
# states, gradient descent on separable data raises s without bound (by small steps; the runs show
# it for these), past log(tau / (1 - tau)). From then on batches are starts, each step adds
# lr sigmoid(-s) phi_start to w, and so
#     s += 2 lr sigmoid(-s),    l -= (beta - 1) lr sigmoid(-s):    l falls by (beta - 1)/2 per s.
# As sigmoid(-s) >= exp(-s) / 2, a step adds at least lr to exp(s): s grows without bound, and l is
# negative once s has grown by 2 l / (beta - 1), after (exp of that s - exp(s)) / lr steps or less.


def first(true, curve):
    return next((step for step, point in enumerate(curve) if true(point)), None)


def collapsed(point):
    return point.share == 1


def all_right(point):
    return min(point.start, point.later) > 0


def ends_in(curve, name):
    """The mean of `name` over the last quarter."""
    values = [getattr(point, name) for point in curve[-len(curve) // 4 :]]
    return sum(values) / len(values)


def story(curve):
    """(what happened, probability of the truth at the later state at its best and at the end)."""
    later = [probability(point.later) for point in curve]
    best, share = max(later), ends_in(curve, "share")
    found = f"P later {best:.3f} at step {later.index(best)}, {later[-1]:.3f} at the end; loss "
    found += f"{curve[-1].loss:.4f}, visits per chain {1 / ends_in(curve, 'starts'):.0f}, "
    return found + f"{share:.0%} at the start", best, later[-1]


def forgets(claim, seed, steps, kind=puma.ProgressiveUnmasking, tau=float(TAU), **features):
    """The row: right, then wrong, while the loss of the batches falls."""
    curve = collapse.train(kind, tau, steps, seed, **features)
    found, best, end = story(curve)
    since = first(collapsed, curve) or 0
    holds = best > 0.9 and end < 0.1 and curve[-1].loss < curve[since].loss
    return (f"{claim}: right, then wrong", found, holds), curve


def remembers(claim, seed, steps, kind=puma.ProgressiveUnmasking, tau=float(TAU), **features):
    """The row: right from the moment both states are, to the end."""
    curve = collapse.train(kind, tau, steps, seed, **features)
    found, _, end = story(curve)
    holds = end > 0.9 and all(map(all_right, curve[first(all_right, curve) :]))
    return (f"{claim}: right to the end", found, holds), curve


def when_row(tau, steps, seed):
    """From the collapse on, the later state goes wrong no later than as derived above."""
    curve = collapse.train(puma.ProgressiveUnmasking, tau, steps, seed)
    since = first(collapsed, curve)
    start, later, *_ = curve[since]
    most = (exp(start + 2 * later / (BETA - 1)) - exp(start)) / LEARNING_RATE
    wrong = first(lambda point: point.later < 0, curve[since:])
    found = f"collapse at step {since}, wrong {wrong} steps on, at most {most:.0f}"
    return f"PUMA, tau={tau}: when", found, wrong is not None and wrong <= most


def slope_row(steps, seed, betas=(0.5, 1.0, 2.0, 4.0)):
    """The later margin per unit of the start's: -(beta - 1) / 2, the product of the features."""
    worst, slopes = 0.0, []
    for beta in betas:
        features = START, (1.0, -beta)
        curve = collapse.train(puma.ProgressiveUnmasking, float(TAU), steps, seed, features)
        before, after = curve[first(collapsed, curve)], curve[-1]
        rise, change = after.start - before.start, after.later - before.later
        slopes.append(f"{change / rise:+.2f} (beta={beta})")
        worst = max(worst, abs(change + (beta - 1) / 2 * rise))
    return "collapsed: later margin per unit of the start's", ", ".join(slopes), worst < 1e-9


RUNS = {  # name: (whether it forgets, the rest)
    "PUMA, tau=0.9": (forgets, {}),
    "tau off": (remembers, {"tau": None}),
    "half random masks": (remembers, {"kind": Mixed}),
    "bounded": (remembers, {"kind": Bounded}),
    "PUMA, a table": (remembers, {"features": TABLE}),
}


# -- the whole -------------------------------------------------------------


def claims(args):
    rng = random.Random(args.seed)
    noises = noise_laws(rng, args.worlds, args.L)
    runs = {name: kind(name, args.seed, args.steps, **rest) for name, (kind, rest) in RUNS.items()}
    rows = [
        share_row(noises),
        *(visits_row(args.L, K, noises[0]) for K in KS),
        *(visits_row(64, K) for K in LONG_KS),
        below_row(noises),
        above_row(noises),
        anyway_row(noises),
        given_row(noises),
        off_row(noises[-1]),
        *(buffer_row(name, b, report.size(args)) for name, b in settings(rng, args.L).items()),
        *(pinned_row(noises[-1], policy) for policy in POLICIES),
        *(row for row, _ in runs.values()),
        *(when_row(tau, args.steps, args.seed) for tau in (0.8, 0.9, 0.95)),
        slope_row(args.steps // 4, args.seed),
    ]
    return rows, panels({name: curve for name, (_, curve) in runs.items()})


def panels(curves):
    grid = [Fraction(k, 50) for k in range(1, 26)]
    x = list(map(float, grid))
    shares = {
        f"K={K}": ("-", x, [float(1 / collapse.mean_visits(64, K, eps)) for eps in grid])
        for K in LONG_KS
    } | {
        f"K={K}, tau off": (":", x, [float(1 / collapse.mean_visits(64, K, ONE, None))] * len(x))
        for K in LONG_KS
    }
    later = {
        name: (style, range(len(curve)), [probability(point.later) for point in curve])
        for (name, curve), style in zip(curves.items(), ("-", "-", "-", "--", "-"), strict=True)
    }
    return [
        report.Panel("eps", "share of visits at the start", shares, yscale="log"),
        report.Panel("training steps", "P(truth) at the later state", later),
    ]


def forgetting(**rest):
    return lambda args: [forgets("broken", args.seed, args.steps, **rest)[0]]


def noises_of(args):
    return noise_laws(random.Random(args.seed), args.worlds, args.L)


CONTROLS = {
    "tau-off": forgetting(tau=None),
    "mixed": forgetting(kind=Mixed),
    "bounded": forgetting(kind=Bounded),
    "table": forgetting(features=TABLE),
    "unsure": lambda args: [below_row(noises_of(args), ONE)],
    "anyway": lambda args: [anyway_row(noises_of(args), collapse.sure_of_all)],
    "tau-on": lambda args: [off_row(noises_of(args)[-1], TAU)],
    "pinned": lambda args: [pinned_row(noises_of(args)[-1], p, as_before=True) for p in POLICIES],
    "slow-buffer": lambda args: [slow_buffer(args)],
}

if __name__ == "__main__":
    report.main(__doc__, claims, CONTROLS, worlds=3, L=6, steps=400, rows=4096, calls=60)
