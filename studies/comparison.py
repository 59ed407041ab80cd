"""Compare runs over seeds: curves, intervals, iterations to an accuracy, ratios, tables.

Runs whose configurations differ only in IGNORED keys are the seeds of one group. The tables compare
each group with a reference: see reference_of.
"""

import math
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

from configurator import errors_as_messages, printable
from engine.files import read_json
from engine.log import read_metrics
from runs.results import table

# 0.975 quantiles of Student's t for 1, 2, ... degrees of freedom; beyond 20 that of 20, which
# makes the interval slightly too wide
T_QUANTILES = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
)  # fmt: skip

NOTE = """
Values are means over seeds [95 % interval, Student's t]. Iterations are those of the first
evaluation that reaches the accuracy, interpolated linearly from the evaluation before it; "<="
means that a seed's first evaluation is already there, so the crossing lies before it. Ratios are
reference / other, above 1 in favour of the other: the geometric mean over pairs of runs with the
same seed, with the interval of Student's t on the logarithms; "-" where a pair has no ratio.
Points are percentage points of accuracy, the mean of the pairs' differences.
"""

IGNORED = (
    "seed", "out_dir", "keep_every", "checkpoint_interval", "log_interval", "eval_batch_size",
    "deterministic", "patience", "track", "commit",
)  # fmt: skip
ERRORS = "errors at the end"
SHARE = 0, 1  # where an accuracy lies
# The fields of sample.Sampler, repeated: to import it would load torch, which takes seconds.
SAMPLER = "policy", "reveal", "tau", "tau_entropy", "temperature"
GRID = "weights", "examples", "seed", "dtype", "set", "file"  # what samplers of a grid share
# Random masks do not use these keys, so one baseline serves all their values.
PUMA_ONLY = "k_schedule", "tau", "buffer", "chains_from", "policy", "random_share", "second_visit"


class Run(NamedTuple):
    folder: str
    config: dict
    evaluations: dict  # iteration -> {policy: accuracy}, and val_loss
    training: list  # its lines of type train


# -- reading ---------------------------------------------------------------------------------------
def load_run(folder):
    """The run in a folder. Raises SystemExit if its record is damaged or too short."""
    with errors_as_messages():
        records = read_metrics(Path(folder) / "metrics.jsonl")
    starts = [r for r in records if r["type"] == "config"]
    evaluations = {
        r["iter"]: r["accuracy"] | {"val_loss": r["val_loss"]}
        for r in records
        if r["type"] == "eval"
    }
    if not starts or not evaluations:
        raise SystemExit(f"{folder}: metrics.jsonl has no {'evaluation' if starts else 'config'}")
    commits = ", ".join(dict.fromkeys(str(r.get("commit")) for r in starts))
    config = starts[-1]["config"] | {"commit": commits} | changes_in(records)
    if str(start := config.get("init_from")).endswith(".pt"):
        config["init_from"] = start.replace(f"_{config.get('seed')}/", "_SEED/")
    training = [r for r in records if r["type"] == "train"]
    return Run(str(folder), config, evaluations, training)


def changes_in(records):
    """{"continued": [[iteration, {setting: [before, after]}]]} of a run that changed; else {}."""
    found, was, iteration = [], {}, 0
    for row in records:
        iteration = row.get("iter", iteration)
        if row["type"] == "config":
            now = row["config"]
            keys = [key for key in was and now if key not in IGNORED and was.get(key) != now[key]]
            found += [[iteration, {key: [was.get(key), now[key]] for key in keys}]] * bool(keys)
            was = now
    return {"continued": found} if found else {}


def read_result(run, name, *keys):
    """The values of these keys in the JSON that a script wrote to the run's folder, or all of it.

    Raises SystemExit if it lacks a key: the records in results/ leave some out.
    """
    file = Path(run.folder, name)
    with errors_as_messages():
        result = read_json(file)
    if missing := [key for key in keys if key not in result]:
        raise SystemExit(f"{file} has no {missing[0]}")
    return [result[key] for key in keys] if keys else result


def shared_samplers(runs):
    """{values of SAMPLER: the sampler's row of each run} of the samplers that all runs have.

    From eval.json; only rows of the weights and problems of a run's latest evaluation.
    """
    grids = []
    for rows in (read_result(run, "eval.json") for run in runs):
        last = [rows[-1].get(key) for key in GRID]
        rows = [row for row in rows if [row.get(key) for key in GRID] == last]
        grids.append({tuple(row[key] for key in SAMPLER): row for row in rows})
    shared = [sampler for sampler in grids[0] if all(sampler in grid for grid in grids)]
    return {sampler: [grid[sampler] for grid in grids] for sampler in shared}


def default_metric(runs):
    """The first policy that the first run evaluates."""
    return next(iter(next(iter(runs[0].evaluations.values()))))


def curve(run, metric):
    """[(iteration, accuracy)], sorted."""
    points = sorted((i, acc[metric]) for i, acc in run.evaluations.items() if metric in acc)
    if not points:
        known = sorted({policy for acc in run.evaluations.values() for policy in acc})
        raise SystemExit(f"{run.folder}: no accuracy {metric!r}, only {', '.join(known)}")
    return points


def training_curve(run, key):
    """[(iteration, value)] of a number in the lines of type train."""
    points = [(line["iter"], line[key]) for line in run.training if line.get(key) is not None]
    if not points:
        raise SystemExit(f"{run.folder}: metrics.jsonl has no {key}")
    return points


def group_runs(runs):
    """{label: runs}. The label states the method and all other keys that matter and differ."""
    keys, groups = telling(runs), {}
    for run in runs:
        parts = [f"{key}={run.config.get(key)}" for key in keys if matters(key, run)]
        groups.setdefault(", ".join(parts), []).append(run)
    for members in groups.values():
        by_seed(members)
    return groups


def telling(runs):
    """The settings that distinguish the groups: the method, and those that matter and differ."""
    keys = dict.fromkeys(key for run in runs for key in run.config)
    return [key for key in keys if key == "method" or differs(key, runs)]


def matters(key, run):
    return key not in IGNORED and not (key in PUMA_ONLY and is_baseline(run))


def differs(key, runs):
    values = [run.config.get(key) for run in runs if matters(key, run)]
    return any(value != values[0] for value in values)


def by_seed(runs):
    """{seed: run}. A seed twice would count as two samples and make the intervals too narrow."""
    seeds = {}
    for run in runs:
        first = seeds.setdefault(run.config.get("seed"), run)
        if first is not run:
            message = f"{first.folder} and {run.folder}: same configuration and seed"
            raise SystemExit(printable(message))
    return seeds


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
    middle, half = mean(values), t * stdev(values) / math.sqrt(len(values))
    return middle, max(middle - half, within[0]), min(middle + half, within[1])


def band(curves, within):
    """The iterations that all curves have, and the `interval` at each."""
    curves = [dict(points) for points in curves]
    iterations = sorted(set.intersection(*map(set, curves)))
    return iterations, [interval([points[i] for points in curves], within) for i in iterations]


def sampled_accuracy(rows):
    """Mean over runs and the ends of its interval; for a single run, that over its examples."""
    if len(rows) == 1:
        return rows[0]["accuracy"], *rows[0]["interval"]
    return interval([row["accuracy"] for row in rows], SHARE)


def mean_ratio(pairs):
    """Geometric mean of reference / other over (other, reference) pairs, and the interval's ends.

    None if a pair has no ratio.
    """
    if not pairs or not all(a and b for a, b in pairs):
        return None
    return tuple(map(math.exp, interval([math.log(b / a) for a, b in pairs])))


def ratios_of(pairs, targets):
    """mean_ratio of the iterations to each target and of the final errors of pairs of curves."""
    reached = [[[resolved_iterations(p, t) for p in pair] for pair in pairs] for t in targets]
    errors = [[1 - points[-1][1] for points in pair] for pair in pairs]
    return [mean_ratio(numbers) for numbers in (*reached, errors)]


def is_baseline(run):
    return run.config["method"] == "mdm"


# -- tables ----------------------------------------------------------------------------------------
def target_headings(targets):
    return [f"iterations to {target:g}" for target in targets]


def comparisons(groups, metric, targets):
    """Markdown tables with a row for each group: what it reached, and the reference over it."""
    curves = {label: curves_by_seed(runs, metric) for label, runs in groups.items()}
    reached, compared = [], {}  # compared: {reference: rows}
    for label, seeds in curves.items():
        group = list(seeds.values())
        accuracy = with_ends(*interval([points[-1][1] for points in group], SHARE), ".4f")
        cells = [accuracy, end_cell(group), *(reach_cell(group, t) for t in targets)]
        reached.append([with_seed_count(label, seeds), *cells])
        if label != (reference := reference_of(label, groups)):
            pairs = seed_pairs(seeds, curves[reference])
            cells = *map(ratio_cell, ratios_of(pairs, targets)), difference_cell(pairs)
            rows = compared.setdefault(reference, [])
            rows.append([f"{label}, pairs: {len(pairs)}", *cells])
    heads = target_headings(targets)
    tables = [table([f"{metric} accuracy", "at the end", "at iter", *heads], reached)]
    for reference, rows in compared.items():
        more = [f"{reference} over", *heads, ERRORS, f"points at the end, less {reference}"]
        tables.append(table(more, rows))
    return tables


def reference_of(label, groups):
    """The label of the group that a group is compared with: random masks with the same settings.

    If there are none, or for random masks, the first group of these; without any, the last group.
    """
    first = {name: runs[0] for name, runs in groups.items()}
    told = [key for key in telling(first.values()) if key not in ("method", *PUMA_ONLY)]
    baselines = [name for name, run in first.items() if is_baseline(run)]
    own = {key: first[label].config.get(key) for key in told}
    for name in () if label in baselines else baselines:
        if own == {key: first[name].config.get(key) for key in told}:
            return name
    return [*baselines, [*groups][-1]][0]


def curves_by_seed(runs, metric):
    return {seed: curve(run, metric) for seed, run in by_seed(runs).items()}


def seed_pairs(ours, theirs):
    return [(ours[seed], theirs[seed]) for seed in ours if seed in theirs]


def with_seed_count(label, members):
    return f"{label} ({len(members)} seed{'s' * (len(members) > 1)})"


def resolved_iterations(points, target):
    """iterations_to, but None if the first evaluation is already there: only an upper bound."""
    return None if points[0][1] >= target else iterations_to(points, target)


def reach_cell(group, target):
    reached = [iterations_to(points, target) for points in group]
    missing = reached.count(None)
    if missing == len(group):
        return "not reached"
    if missing:
        return f"not reached by {missing} of {len(group)} seeds"
    bound = "<= " if any(points[0][1] >= target for points in group) else ""
    return bound + with_ends(*interval(reached), ".0f")


def end_cell(group):
    ends = [points[-1][0] for points in group]
    return " to ".join(map(str, sorted({min(ends), max(ends)})))


def difference_cell(pairs):
    """Points of accuracy by which a curve ends above the reference, mean over the pairs."""
    gained = [100 * (ours[-1][1] - theirs[-1][1]) for ours, theirs in pairs]
    return with_ends(*interval(gained), "+.1f") if gained else "-"


def ratio_cell(ratio):
    return with_ends(*ratio, ".2f") if ratio else "-"


def sampler_table(groups):
    """Markdown table of {name of a group: its `shared_samplers`}; costs are means over runs."""
    lines = []
    samplers = dict.fromkeys(sampler for group in groups.values() for sampler in group)
    for sampler in sorted(samplers, key=lambda values: [(v is not None, v) for v in values]):
        settings = ["-" if value is None else str(value) for value in sampler]
        for name, group in groups.items():
            if sampler in group:
                lines.append([*settings, name, *sampler_cells(group[sampler])])
    return table([*SAMPLER, "runs", "accuracy", "tokens per step", "forward passes"], lines)


def sampler_cells(rows):
    tokens = mean(row["tokens_per_step"] for row in rows)
    passes = [row["forward_passes"] for row in rows]  # null: the evaluation was interrupted
    cost = "-" if None in passes else f"{mean(passes):.0f}"
    return [with_ends(*sampled_accuracy(rows), ".4f"), f"{tokens:.2f}", cost]


def with_ends(middle, low, high, spec):
    ends = "" if math.isnan(low) else f" [{low:{spec}}, {high:{spec}}]"
    return f"{middle:{spec}}{ends}"
