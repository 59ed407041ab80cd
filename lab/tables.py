"""What paired runs say, in tables: means, 95 % intervals, differences of pairs of the same seed.

found {(task, arm, seed): {sampler: record}} holds records as lab/evaluate.py makes them. `what` is
a value of a record: solved, right, tokens, content, steps; older records have only some of them.
"""

import functools
import itertools
import math
import statistics

import numpy as np

LABELS = {
    "puma_plus": "PUMA+",
    "puma": "PUMA",
    "mdm": "random masks",
}


def label(arm):
    return LABELS.get(arm, arm)


def words(tokens, tau, policy="", temperature=0):
    how = f"above {tau}, else {tokens}" if tau < 1 else f"{tokens} a step"
    return ", ".join(filter(None, [how, policy, temperature and f"T = {temperature}"]))


# -- intervals -------------------------------------------------------------------------------------
def mean(numbers):
    return sum(numbers) / len(numbers) if numbers else math.nan


def spread(values):
    """Mean, and half the width of its 95 % interval by Student's t; of one value nan."""
    if len(values) == 1:
        return values[0], math.nan
    return mean(values), student(len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5


@functools.cache
def student(df):
    """The t with P(|T| < t) = 0.95: P is the share of the area under cos^(df - 1) on [0, pi / 2]
    that lies left of arctan(t / sqrt(df)).
    """
    edges = np.linspace(0, np.pi / 2, 10**6)
    middles = (edges[1:] + edges[:-1]) / 2
    area = np.concatenate([[0], np.cumsum(np.cos(middles) ** (df - 1))])
    return math.sqrt(df) * math.tan(np.interp(0.95 * area[-1], area, edges))


def interval(values, text=lambda share: f"{100 * share:.1f}"):
    """Mean and 95 % interval, as text: in percent, unless it says otherwise."""
    if not values:
        return "-"
    mean, half = spread(values)
    return text(mean) + f" [{text(mean - half)}, {text(mean + half)}]" * (len(values) > 1)


# -- one task --------------------------------------------------------------------------------------
def values(found, task, arm, sampler, what="solved"):
    """{seed: value} of the runs whose records have it."""
    own = {seed: kept for (t, a, seed), kept in found.items() if (t, a) == (task, arm)}
    records = {seed: kept[str(sampler)] for seed, kept in own.items()}
    return {seed: record[what] for seed, record in records.items() if what in record}


def gaps(found, task, arm, against, sampler, what="solved"):
    """Differences to an arm, of pairs of the same seed."""
    ours = values(found, task, arm, sampler, what)
    theirs = values(found, task, against, sampler, what)
    return [ours[seed] - theirs[seed] for seed in ours if seed in theirs]


def average(found, task, arm, sampler, what="solved"):
    return mean([*values(found, task, arm, sampler, what).values()])


def per_pass(found, task, arm, sampler, what="tokens"):
    """Tokens (or content) revealed per forward pass, as text; "" where records do not say."""
    if not values(found, task, arm, sampler, what):
        return ""
    tokens, steps = (average(found, task, arm, sampler, each) for each in (what, "steps"))
    return f"{tokens / steps:.2f}"


def points(kept, samplers):
    """[(tokens per forward pass, % solved) of each sampler] of a run; [] where it does not say."""
    records = [kept[str(sampler)] for sampler in samplers]
    return [
        (own["tokens"] / own["steps"], 100 * own["solved"]) for own in records if "tokens" in own
    ]


def aup(points, best):
    """Accuracy under parallelism (AUP, arXiv 2601.07568): the area below accuracy (%) over tokens
    per forward pass, up to where more than 5 points are lost, with less weight for what is lost.

    points [(tokens per forward pass, %)]; best: the highest accuracy on the task, of any method.
    """
    rate, share = np.array(sorted(points)).T
    rate, share = (each[share >= share[0] - 5] for each in (rate, share))
    height = share * np.minimum(1, np.exp(3 * (share / best - 1))) if best else share
    return rate[0] * share[0] + (np.diff(rate) * (height[1:] + height[:-1]) / 2).sum()


def solved(found, task, arms, against, samplers):
    """What each arm solves with each sampler."""
    for sampler in samplers:
        about = "% solved: mean [95 % interval], by seed; difference to"
        print(f"\n{words(*sampler)}, {about} {against}")
        for arm in arms:
            shares = [*values(found, task, arm, sampler).values()]
            by_seed = " ".join(f"{100 * share:.1f}" for share in shares)
            own = gaps(found, task, arm, against, sampler)
            gap = "" if arm == against else f"; {interval(own)}, {len(own)} pairs"
            rate, content = (
                per_pass(found, task, arm, sampler, what) for what in ("tokens", "content")
            )
            cost = f"; {rate} tokens a pass" if rate else ""
            cost += f", {content} without padding" if content != rate else ""
            print(f"  {arm:10} {interval(shares)} ({by_seed}){gap}{cost}")


def parallelism(found, task, arms, against, samplers):
    """The AUP of each arm over all samplers, and differences of pairs."""
    runs = {pair[1:]: points(kept, samplers) for pair, kept in found.items() if pair[0] == task}
    if len(samplers) < 3 or not all(runs.values()):
        return
    best = 100 * max(average(found, task, *way) for way in itertools.product(arms, samplers))
    area = {run: aup(own, best) for run, own in runs.items()}
    print(f"\nAUP over these {len(samplers)} samplers, y_max = {best:.1f}; difference to {against}")
    for arm in arms:
        own = {seed: value for (name, seed), value in area.items() if name == arm}
        pairs = [own[seed] - area[against, seed] for seed in own if (against, seed) in area]
        gap = "" if arm == against else f"; {interval(pairs, '{:.0f}'.format)}"
        print(f"  {arm:10} {interval([*own.values()], '{:.0f}'.format)}{gap}")


# -- updates to a level ----------------------------------------------------------------------------
def crossing(curve, level):
    """The first update at which a curve {update: share} is at or above the level, or None."""
    return min((update for update, share in curve.items() if share >= level), default=None)


def speed(curves, arms, against, levels):
    """Updates to each level (%), by seed, and how many times as fast as `against` an arm is.

    curves {(arm, seed): curve}. The ratio, updates of `against` over updates of the arm, is a
    geometric mean over the pairs of which both get there; the others are counted, not used.
    """
    for level in levels:
        print(f"\nupdates to {level} %, by seed; times as fast as {against} [95 % interval]")
        first = {pair: crossing(curve, level / 100) for pair, curve in curves.items()}
        for arm in arms:
            own = {seed: update for (name, seed), update in first.items() if name == arm}
            by_seed = " ".join(str(update or "never") for update in own.values())
            pairs = [(first[against, seed], own[seed]) for seed in own if (against, seed) in first]
            logs = [math.log(base / mine) for base, mine in pairs if base and mine]
            ratio = interval(logs, lambda log: f"{math.exp(log):.2f}")
            end = "" if arm == against else f"; {ratio}, {len(logs)} of {len(pairs)} pairs"
            print(f"  {arm:10} ({by_seed}){end}")
