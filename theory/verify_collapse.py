"""When the chain collapses: fast-forward ends it at its first visit, and the rest is forgotten.

README.md says what is claimed. The runs of the model that forgets do not depend on the seed.
"""

import random
from collections import Counter
from fractions import Fraction
from itertools import product

import collapse
import minimizer
import report
from collapse import TAU, probability, sharpened, train
from exact import MASK, ONE, hidden, random_law
from minimizer import coefficients, per_hidden
from shipped import LEVEL, Buffer, bonferroni, published, puma

KS = 1, 2, 3
POLICIES = "top_k", "left_to_right", "random"


# -- the law ---------------------------------------------------------------------------------------
def noise_laws(seed, n, L):
    """Laws of sequences with full support; the first is uniform."""
    rng = random.Random(seed)
    sequences = list(product(range(2), repeat=L))
    uniform = dict.fromkeys(sequences, Fraction(1, 2**L))
    return [uniform, *(random_law(rng, sequences, zeros=False) for _ in range(n - 1))]


def buffers(noise, eps, policies=POLICIES):
    """One for each policy and K, with nothing given."""
    data = sharpened(noise, eps)
    return [Buffer(data, policy, K, TAU) for policy, K in product(policies, KS)]


def threshold(noise):
    """eps*, at which the lowest confidence at the start equals tau.

    It is 1 - eps (1 - u), with 1 - u the probability of another token there under the noise.
    """
    others = [sum(q * x0[i] for x0, q in noise.items()) for i in range(len(min(noise)))]
    return (1 - TAU) / max(others)


def threshold_row(noises, share=Fraction(99, 100)):
    """All chains have one visit below eps*; at eps* none has, by top_k and random.

    There one confidence equals tau, and top_k and random may reveal that position last.
    """
    below = [b for noise in noises for b in buffers(noise, share * threshold(noise))]
    at = [b for noise in noises for b in buffers(noise, threshold(noise), ("top_k", "random"))]
    ones = [sum(buffer.visits() == 1 for buffer in cases) for cases in (below, at)]
    found = f"one visit: {ones[0]} of {len(below)} laws at {share} eps*, {ones[1]} of {len(at)} at "
    found += "eps* = " + ", ".join(f"{float(threshold(noise)):.3f}" for noise in noises)
    return "eps* = (1 - tau) / (1 - u)", found, ones == [len(below), 0]


# -- Proposition 2 ---------------------------------------------------------------------------------
def pinned_row(noise, policy, as_before=False):
    """Only the predictions at the start are pinned; `as_before`: as many as with tau off."""
    data = sharpened(noise, threshold(noise) / 2)
    total = sum(len(hidden(z)) for z in data.mass)
    buffers = (Buffer(data, policy, 1, tau) for tau in (TAU, None))
    on, off = (coefficients(buffer.joints, per_hidden) for buffer in buffers)
    shifted = any(shift for C in (on, off) for shift in minimizer.shifts(data, C).values())
    start = (MASK,) * data.L
    wanted = off.keys() if as_before else {(start, i) for i in range(data.L)}
    found = f"{len(on)} of {total} pinned, {len(off)} with tau off"
    return f"collapsed, {policy}: what is pinned", found, on.keys() == wanted and not shifted


# -- the second visit ------------------------------------------------------------------------------
def second_visits(noise):
    """Buffers of three tokens, from unsure to collapsed."""
    cases = (Fraction(1, 2), "top_k"), (Fraction(3, 10), "random"), (Fraction(1, 20), "top_k")
    return [Buffer(sharpened(noise, eps), policy, 1, TAU) for eps, policy in cases]


def running_row(noise, args, second_visit=True):
    """The shipped buffer, call by call, against its exact law.

    The rows of a call are independent; the chains of one row are not.
    """
    found = []
    for buffer in second_visits(noise):
        seen = buffer.states((args.rows, args.calls, args.seed), puma.ProgressiveUnmasking)
        laws = buffer.calls(args.calls, second_visit)
        found.append(bonferroni(map(Counter, seen), laws, args.rows)[1])
    text = ", ".join(f"p = {p:.2g}" for p in found)
    return "second visit: the running buffer", text, min(found) > LEVEL


def minimizer_row(noise, leak=False):
    """No prediction is shifted, all are pinned; leak: inside depends on hidden tokens."""
    shifted, pinned = 0, set()
    for buffer in second_visits(noise):
        if leak:
            law = Counter({key: p * (1 + key[0][0]) for key, p in buffer.inside().items()})
            buffer.inside = lambda law=law: law
        C = coefficients(buffer.calls(8), per_hidden)
        shifted += sum(shift > 0 for shift in minimizer.shifts(buffer.data, C).values())
        pinned.add(len(C) / sum(len(hidden(z)) for z in buffer.data.mass))
    found = f"{shifted} predictions shifted, {min(pinned):.0%} pinned"
    return "second visit: the minimizer", found, not shifted and pinned == {1}


# -- a model that forgets --------------------------------------------------------------------------
def forgets(curve, later):
    """Right, then wrong, while the loss of the batches falls."""
    since = next((step for step, point in enumerate(curve) if point.share == 1), 0)
    return max(later) > 0.9 and later[-1] < 0.1 and curve[-1].loss < curve[since].loss


def remembers(curve, later):
    """Right from the moment both states are, to the end."""
    right = [min(point.start, point.later) > 0 for point in curve]
    return later[-1] > 0.9 and all(right[right.index(True) :])


CLAIMS = {forgets: "right, then wrong", remembers: "right to the end"}
RUNS = {  # name: (what it does, stream, tau, features)
    "as published, tau=0.9": (forgets, published, 0.9),
    "second visit": (remembers, puma.ProgressiveUnmasking, 0.9),
    "tau off": (remembers, published, None),
    "as published, a table": (remembers, published, 0.9, collapse.TABLE),
}


def run_row(name, args, does=None):
    usual, kind, tau, *features = RUNS[name]
    does = does or usual
    curve = train(kind, tau, args.steps, args.seed, *features)
    later = [probability(point.later) for point in curve]  # of the truth, at the later state
    last = curve[-len(curve) // 4 :]
    share = sum(point.share for point in last) / len(last)
    found = f"P later {max(later):.3f} at step {later.index(max(later))}, {later[-1]:.3f} at the "
    found += f"end; loss {curve[-1].loss:.4f}, {share:.0%} at the start"
    return f"{name}: {CLAIMS[does]}", found, does(curve, later)


# -- the whole -------------------------------------------------------------------------------------
def noises_of(args):
    return noise_laws(args.seed, args.worlds, args.L)


def short_noises(args):
    """Of three tokens: a row of the buffer is followed call by call."""
    return noise_laws(args.seed, 2, 3)


def laws(args):
    noises = noises_of(args)
    return [
        threshold_row(noises),
        *(pinned_row(noises[-1], policy) for policy in POLICIES),
    ]


def second_visit(args):
    laws = short_noises(args)
    return [running_row(laws[1], args), *map(minimizer_row, laws)]


def claims(args):
    return [
        "Not in the paper: once the start is surer than tau, a chain ends at its first visit.",
        *laws(args),
        "The second visit: contexts have the law of its rules, and the minimizer is as before.",
        *second_visit(args),
        "A model of two weights forgets what chains do not show; the second visit prevents it.",
        *(run_row(name, args) for name in RUNS),
    ]


CONTROLS = {
    "tau-off": lambda args: [run_row("tau off", args, forgets)],
    "running": lambda args: [running_row(short_noises(args)[1], args, second_visit=False)],
    "leak": lambda args: [minimizer_row(short_noises(args)[1], leak=True)],
    "second": lambda args: [run_row("second visit", args, forgets)],
    "table": lambda args: [run_row("as published, a table", args, forgets)],
    "unsure": lambda args: [threshold_row(noises_of(args), ONE)],
    "pinned": lambda args: [pinned_row(noises_of(args)[-1], p, as_before=True) for p in POLICIES],
}

if __name__ == "__main__":
    report.main(__doc__, claims, CONTROLS, worlds=3, L=6, steps=400, rows=4096, calls=12)
