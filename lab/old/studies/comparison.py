"""Compare runs over seeds: groups, intervals, iterations to an accuracy, ratios, tables.

Runs whose configurations differ in IGNORED keys alone are the seeds of one group. A group is
compared with random masks of the same settings. results/README.md says how to read the tables.
"""

import math
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

import numpy as np

from engine.log import read_metrics
from runs.results import how, read_rows, table
from studies import labels

# 0.975 quantiles of Student's t for 1, 2, ... degrees of freedom; the last one for more than 20
T_QUANTILES = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
)  # fmt: skip
IGNORED = (
    "seed", "out_dir", "keep_every", "checkpoint_interval", "log_interval", "eval_batch_size",
    "eval_interval", "deterministic", "patience", "track",
)  # fmt: skip
# Random masks do not use these keys, so one baseline serves all their values.
PUMA_ONLY = "k_schedule", "tau", "buffer", "chains_from", "policy", "random_share", "second_visit"
UNSAID = {"carry": False, "window": 1, "loops": 1}  # a group is named by other values alone
SHARE = 0, 1  # where an accuracy lies


class Run(NamedTuple):
    folder: str
    config: dict
    metric: str  # the first policy that it evaluates
    curves: dict  # {policy, val_loss, or a key of the lines of type train: {iteration: value}}


class Group(NamedTuple):
    label: str  # its settings in words, and the number of seeds
    method: str
    others: dict  # the settings that it must share with its reference
    seeds: dict  # seed -> Run
    look: dict  # its colour and line style in figures


# -- runs and their groups -------------------------------------------------------------------------
def load_run(folder):
    """The run in a folder. Raises ValueError if its record is damaged or has no evaluation."""
    records = read_metrics(path := Path(folder) / "metrics.jsonl")
    for number, row in enumerate(records, start=1):
        check_numbers(f"{path}, line {number}", row)
    curves = {}
    policies = next((row["accuracy"] for row in records if row["type"] == "eval"), None)
    if not policies:
        raise ValueError(f"{folder}: metrics.jsonl has no evaluation")
    config = [row["config"] for row in records if row["type"] == "config"][-1]
    if changes := [row["changes"] for row in records if row.get("changes")]:
        config["changes"] = changes
    if str(start := config.get("init_from")).endswith(".pt"):
        start = start.replace(f"_{config.get('seed')}/", "_SEED/")
        config["init_from"] = start.removesuffix("/checkpoint.pt")
    for row in records:
        for key, value in (row | row.get("accuracy", {})).items():
            if "iter" in row and value is not None:
                curves.setdefault(key, {})[row["iter"]] = value
    return Run(str(folder), config, next(iter(policies)), curves)


def check_numbers(where, row):
    """Raise ValueError for a value of the line that cannot be drawn."""
    shares = row.get("accuracy", {})
    values = [row.get("val_loss", 0), row.get("hidden", 0), row.get("visits") or 0]
    known = isinstance(shares, dict) and isinstance(row.get("config", {}), dict)
    values += shares.values() if known else [None]
    if not all(type(value) in (int, float) for value in values):
        raise ValueError(f"{where}: a value to draw is not a number")


def curves_of(group, key):
    """{seed: [(iteration, value)]}. Raises ValueError if a run has not recorded it."""
    for run in group.seeds.values():
        if key not in run.curves:
            raise ValueError(f"{run.folder}: metrics.jsonl has no {key}")
    return {seed: [*run.curves[key].items()] for seed, run in group.seeds.items()}


def timed(groups):
    """Whether all runs have recorded their seconds."""
    return all("seconds" in run.curves for group in groups for run in group.seeds.values())


def in_seconds(group, metric):
    """{seed: [(seconds of training, value)]}."""
    times, curves = curves_of(group, "seconds"), curves_of(group, metric)
    found = {}
    for seed, points in curves.items():
        iterations, seconds = zip((0, 0), *times[seed], strict=True)
        found[seed] = [(float(np.interp(i, iterations, seconds)), value) for i, value in points]
    return found


def decoded(run):
    """{sampler: share of the held-out problems that it has solved}, from eval.json."""
    rows = read_rows(path := Path(run.folder, "eval.json"))
    rows = [row for row in rows if "accuracy" in row and not (row["set"] or row["file"])]
    check_numbers(path, {"accuracy": (shares := {how(row): row["accuracy"] for row in rows})})
    return shares


def groups_of(runs):
    """The Groups in the order of their first runs. Raises ValueError if a seed is there twice."""
    keys = dict.fromkeys(key for run in runs for key in run.config)
    keys = [key for key in keys if differs(key, runs)]
    found = {}
    for run in runs:
        own = {key: run.config.get(key) for key in ("method", *keys) if matters(key, run)}
        first = found.setdefault(str(own), {}).setdefault(run.config.get("seed"), run)
        if first is not run:
            raise ValueError(f"{first.folder}, {run.folder}: same configuration and seed")
    firsts = [next(iter(seeds.values())) for seeds in found.values()]
    words = [labels.in_words(run.config, told(run, keys, firsts)) for run in firsts]
    looks, groups = labels.looks(words), []
    for run, word, seeds, look in zip(firsts, words, found.values(), looks, strict=True):
        label = f"{', '.join(filter(None, word))} ({len(seeds)} seed{'s' * (len(seeds) > 1)})"
        others = {key: run.config.get(key) for key in keys if key not in ("method", *PUMA_ONLY)}
        groups.append(Group(label, run.config["method"], others, seeds, look))
    return groups


def matters(key, run):
    return key not in IGNORED and not (key in PUMA_ONLY and run.config["method"] == "mdm")


def differs(key, runs):
    values = [run.config.get(key) for run in runs if matters(key, run)]
    return any(value != values[0] for value in values)


def told(run, keys, firsts):
    """The keys to name: a value of UNSAID, or of more than half of the groups, is not said."""
    said = []
    for key in keys:
        value = run.config.get(key, UNSAID.get(key))
        values = [other.config.get(key) for other in firsts if matters(key, other)]
        often = value == UNSAID[key] if key in UNSAID else values.count(value) > len(values) / 2
        if matters(key, run) and not often:
            said.append(key)
    return said


def reference_of(group, groups):
    """Random masks with the same settings, else the first of random masks, else the last group."""
    masks = [other for other in groups if other.method == "mdm"]
    alike = [other for other in masks if group.method != "mdm" and other.others == group.others]
    return [*alike, *masks, groups[-1]][0]


def beside(group, groups, curves, metric):
    """Its reference, the curves {seed: points} of both, pairs of one seed, none with itself.

    curves: of a group and a metric, such as curves_of.
    """
    reference = reference_of(group, groups)
    ours, theirs = curves(group, metric), curves(reference, metric)
    shared = [seed for seed in ours if seed in theirs and reference is not group]
    return reference, ours, theirs, [(ours[seed], theirs[seed]) for seed in shared]


# -- numbers ---------------------------------------------------------------------------------------
def iterations_to(points, target):
    """Where a curve first reaches the target, interpolated linearly; None if it never does."""
    i, low = points[0]
    for j, high in points:
        if high >= target:
            return i + (j - i) * (target - low) / (high - low) if j > i else j
        i, low = j, high
    return None


def interval(values, within=(-math.inf, math.inf)):
    """Mean, and the ends of its 95 % interval, cut off at two values; nan for a single value."""
    if len(values) == 1:
        return values[0], math.nan, math.nan
    t = T_QUANTILES[min(len(values) - 1, len(T_QUANTILES)) - 1]
    middle = mean(values)
    half = t * stdev(values) / math.sqrt(len(values))
    return middle, max(middle - half, within[0]), min(middle + half, within[1])


def mean_ratio(pairs):
    """Mean and interval of reference / other on the logarithms of (other, reference), or None."""
    if not pairs or not all(a and b for a, b in pairs):
        return None
    return tuple(map(math.exp, interval([math.log(b / a) for a, b in pairs])))


# -- tables ----------------------------------------------------------------------------------------
def comparisons(groups, metric, targets):
    """Markdown tables with a row for each group: what it reached, and its reference over it."""
    heads = [f"iterations to {target:g}" for target in targets]
    reached, compared = [], []
    for group in groups:
        reference, ours, _, pairs = beside(group, groups, curves_of, metric)
        ends = sorted({points[-1][0] for points in ours.values()})
        accuracy = with_ends(interval([points[-1][1] for points in ours.values()], SHARE), ".4f")
        cells = [reach_cell([*ours.values()], target) for target in targets]
        reached.append([group.label, accuracy, ", ".join(map(str, ends)), *cells])
        if reference is not group:
            cells = comparison_cells(pairs, targets)
            compared.append([group.label, reference.label, str(len(pairs)), *cells])
    tables = [table([f"{metric} accuracy", "at the end", "at iter", *heads], reached)]
    more = [*heads, "errors at the end", "points at the end"]
    tables.append(table(["reference over group", "reference", "pairs", *more], compared))
    return tables


def seconds_table(groups, metric, targets):
    """Markdown table: seconds of training to each target, and the reference's over the group's.

    Evaluations are not counted; between two lines of training, seconds are interpolated.
    """
    lines = []
    for group in groups:
        _, ours, _, pairs = beside(group, groups, in_seconds, metric)
        cells = [reach_cell([*ours.values()], target) for target in targets]
        lines.append([group.label, *cells, *comparison_cells(pairs, targets)[: len(targets)]])
    heads = [f"{of} to {target:g}" for of in ("seconds", "ratio") for target in targets]
    return table(["training time", *heads], lines)


def task_table(tasks):
    """Markdown table of the groups of each task, {task: groups}, beside random masks.

    The last columns: updates or seconds of training to a share of what random masks end with, of
    random masks over the group's, their ratio, and how many pairs: those in which both get there.
    """
    lines = []
    for task, groups in tasks.items():
        metric = next(iter(groups[0].seeds.values())).metric
        for group in groups:
            _, ours, theirs, pairs = beside(group, groups, curves_of, metric)
            seconds = beside(group, groups, in_seconds, metric)[-1] if timed(groups) else []
            final = mean(points[-1][1] for points in theirs.values())
            goals = (pairs, final / 2), (pairs, 0.9 * final), (seconds, 0.9 * final)
            lines.append([task, group.label, *solved_cells(ours, pairs)])
            lines[-1] += [paired_cell(*goal) for goal in goals]
    head = ["task", "runs", "solved at the end, %", "minus random masks"]
    head += ["updates to half", "updates to 90 %", "seconds to 90 %"]
    return table(head, lines)


def decoding_table(tasks):
    """Markdown table of the samplers with which eval.py has measured all runs; "" if there is none.

    % solved, and minus random masks.
    """
    every = [run for groups in tasks.values() for group in groups for run in group.seeds.values()]
    shares = {run.folder: decoded(run) for run in every}
    first, *others = shares.values()
    samplers = [name for name in first if all(name in other for other in others)]

    def curves(group, sampler):
        return {seed: [(0, shares[run.folder][sampler])] for seed, run in group.seeds.items()}

    lines = []
    for task, groups in tasks.items():
        for group in groups:
            found = [beside(group, groups, curves, name) for name in samplers]
            cells = ["; ".join(solved_cells(ours, pairs)) for _, ours, _, pairs in found]
            lines.append([task, group.label, *cells])
    return table(["task", "runs", *samplers], lines) if samplers else ""


def solved_cells(curves, pairs):
    """% solved at the end, and the difference of the pairs in points."""
    solved = interval([100 * points[-1][1] for points in curves.values()], (0, 100))
    return [with_ends(solved, ".1f"), points_cell(pairs)]


def paired_cell(pairs, target):
    if not (times := [pair for pair in times_to(pairs, target) if None not in pair]):
        return "-"
    ours, theirs = map(mean, zip(*times, strict=True))
    return f"{theirs:.0f}/{ours:.0f}, {with_ends(mean_ratio(times), '.2f')}, {len(times)}"


def reach_cell(curves, target):
    reached = [iterations_to(points, target) for points in curves]
    if missing := reached.count(None):
        return f"not reached by {missing} of {len(curves)}"
    bound = "<= " if any(points[0][1] >= target for points in curves) else ""
    return bound + with_ends(interval(reached), ".0f")


def comparison_cells(pairs, targets):
    """Ratios of the iterations to each target and of the final errors; the difference in points."""
    numbers = [times_to(pairs, target) for target in targets]
    numbers.append([[1 - points[-1][1] for points in pair] for pair in pairs])
    return [*(with_ends(mean_ratio(each), ".2f") for each in numbers), points_cell(pairs)]


def points_cell(pairs):
    gained = [100 * (ours[-1][1] - theirs[-1][1]) for ours, theirs in pairs]
    return with_ends(interval(gained) if gained else None, "+.1f")


def times_to(pairs, target):
    """iterations_to of both, but None if the first evaluation is already there: an upper bound."""
    return [
        [None if points[0][1] >= target else iterations_to(points, target) for points in pair]
        for pair in pairs
    ]


def with_ends(stats, spec):
    """An `interval` as text, "-" for None."""
    if stats is None:
        return "-"
    middle, low, high = stats
    return f"{middle:{spec}}" + ("" if math.isnan(low) else f" [{low:{spec}}, {high:{spec}}]")
