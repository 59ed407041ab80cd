"""Figures and tables of runs, from their metrics.jsonl. One figure, one function.

    python -m studies.plot --runs="out/puma_*,out/mdm_*" --out=curves.png
    python -m studies.plot --runs="out/clues*" --figure=final --targets="[0.9]"

A figure shows the mean over the seeds of each group of runs, with a 95 % interval of Student's t,
that of an accuracy cut off at 0 and 1; curves have thin lines for the seeds. Tables (comparison.py)
go to the terminal, in markdown.
"""

import contextlib
import itertools
import math
import re
import sys
import textwrap
import zlib
from pathlib import Path

import numpy as np

from configurator import configure, errors_as_messages
from studies import comparison, labels, records
from studies.comparison import SHARE, curves_of, interval

runs = ""  # comma-separated folders of runs, patterns of folders, or archives (records.py)
figure = "curves"  # final, visits, tasks
targets = [0.5, 0.8, 0.9, 0.95, 0.97]  # 0..1: the accuracies to which iterations are counted
out = ""  # the file of the figure; "" = out/<figure>.png

POSITIVE = 0, math.inf
FEW = 4  # groups that intervals leave room for in a figure


@contextlib.contextmanager
def panels(file, groups, titles=("",), size=(4.6, 3.4), rows=1):
    """Axes of that size (inches), one for each title, in rows, under what is compared.

    Lines are named where they end, or, in several panels, below. The figure is written at the end.
    """
    from matplotlib.figure import Figure

    columns = math.ceil(len(titles) / rows)
    page = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
    all_axes = page.subplots(rows, columns, squeeze=False).ravel()[: len(titles)]
    yield all_axes
    for axes, name in zip(all_axes, titles, strict=True):
        axes.set_title(name, fontsize="medium")
        axes.grid(alpha=0.3)
    seeds = seeds_of(groups)
    if len(all_axes) == 1:
        name_lines(page, all_axes[0], seeds)
    else:
        pairs = (zip(*axes.get_legend_handles_labels(), strict=True) for axes in all_axes)
        handles = {label: handle for handle, label in itertools.chain.from_iterable(pairs)}
        how = {"loc": "outside lower center", "ncols": 2, "handlelength": 2.6}
        page.legend(handles.values(), handles, frameon=False, **how)
    members = [run.config for group in groups for run in group.seeds.values()]
    words = ": ".join(filter(None, (labels.title(members), labels.compared(members)))) + seeds
    page.suptitle(textwrap.fill(words, int(12 * page.get_figwidth())), fontsize="medium")
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    drawn = [line.get_xydata().round(6).tolist() for axes in all_axes for line in axes.lines]
    digest = f"data {zlib.crc32(repr(drawn).encode()):08x}"  # whatever draws it, and where
    page.savefig(file, dpi=150, metadata={"Title": digest})
    print(f"wrote {file}", file=sys.stderr)  # the tables alone go to the standard output


def seeds_of(groups):
    """How all labels end, " (3 seeds)", or "" where the groups differ: the title then says it."""
    ends = {group.label[group.label.rindex(" (") :] for group in groups}
    return ends.pop() if len(ends) == 1 else ""


def name_lines(page, axes, seeds):
    """Write the labels beside the axes, each tied to the end of its line."""
    handles, _ = axes.get_legend_handles_labels()
    found = [line for line in handles if hasattr(line, "get_xydata")]
    found.sort(key=lambda line: line.get_ydata()[-1])
    names = [in_lines(line.get_label().removesuffix(seeds), 26) for line in found]
    height = np.ptp(axes.get_ylim()) * 0.075  # of a line of text
    places = apart(
        [line.get_ydata()[-1] for line in found],
        [height * (1 + name.count("\n")) for name in names],
    )
    for line, name, place in zip(found, names, places, strict=True):
        look = {"color": line.get_color(), "linestyle": line.get_linestyle()}
        where = {"xytext": (1.07, place), "textcoords": axes.get_yaxis_transform(), "va": "center"}
        axes.annotate(name, line.get_xydata()[-1], arrowprops={"arrowstyle": "-"} | look, **where)
    longest = max((len(part) for name in names for part in name.split("\n")), default=0)
    page.set_figwidth(page.get_figwidth() + 0.08 * longest)


def apart(middles, heights):
    """Middles (n,), ascending, of labels of these heights, moved so that they do not overlap.

    The mean of two ways to do it: push up from the lowest one, push down from the highest.
    """
    gaps = (np.array(heights[1:]) + heights[:-1]) / 2
    offsets = np.concatenate([[0], np.cumsum(gaps)])
    free = np.array(middles) - offsets
    up = np.maximum.accumulate(free)
    down = np.minimum.accumulate(free[::-1])[::-1]
    return (up + down) / 2 + offsets


def draw_curves(axes, groups, key, within):
    """The mean of each group, as far as its shortest curve goes; each seed's is a thin line.

    within: where values, and so their intervals, can lie; many groups, and two seeds, are drawn
    without intervals. Where an update is several forward passes, the x axis counts passes.
    """
    configs = [next(iter(group.seeds.values())).config for group in groups]
    costs = [config.get("window", 1) * config.get("loops", 1) for config in configs]
    for group, cost in zip(groups, costs, strict=True):
        own = curves_of(group, key).values()
        curves = [{cost * i: value for i, value in points} for points in own]
        shared = sorted(set.intersection(*map(set, curves)))
        stats = [interval([points[i] for points in curves], within) for i in shared]
        middle, low, high = np.reshape(stats, (-1, 3)).T
        axes.plot(shared, middle, label=group.label, **group.look)
        color = group.look["color"]
        for points in curves if len(curves) > 1 else ():
            axes.plot(*zip(*points.items(), strict=True), color=color, alpha=0.3, linewidth=0.5)
        if len(groups) <= FEW and len(curves) > 2:
            axes.fill_between(shared, low, high, alpha=0.15, linewidth=0, color=color)
    axes.set(xlabel="updates" if {*costs} == {1} else "forward passes", xlim=(0, None))


# -- figures of metrics.jsonl ----------------------------------------------------------------------
def learning_curves(groups, file):
    """Accuracy against iterations, and the tables."""
    accuracy(groups, print_comparisons(groups), file)


def accuracy(groups, metric, file):
    with panels(file, groups) as (axes,):
        draw_curves(axes, groups, metric, SHARE)
        axes.set(ylabel=f"share solved, {metric}", ylim=(0, 1.01))


def visits(groups, file):
    """Training contexts: visits per example and hidden share; and the loss under random masks."""
    print_comparisons(groups)
    names = {
        "visits": "visits per example used up",
        "hidden": "share of a row that is hidden",
        "val_loss": "loss under random masks",
    }
    with panels(file, groups, names.values(), size=(3.4, 2.8)) as all_axes:
        for axes, key in zip(all_axes, names, strict=True):
            draw_curves(axes, groups, key, SHARE if key == "hidden" else POSITIVE)
        all_axes[0].set(ylim=(0, None))
        all_axes[1].set(ylim=(0, 1.01))


def final_accuracy(groups, file):
    """The accuracy at the end: one line for each group, seeds as dots, their mean, its interval."""
    metric = print_comparisons(groups)
    values = [[points[-1][1] for points in curves_of(group, metric).values()] for group in groups]
    seeds = seeds_of(groups)
    names = [in_lines(group.label.removesuffix(seeds), 42) for group in groups]
    with panels(file, groups, size=(7, 1.2 + 0.4 * len(groups))) as (axes,):
        for y, (group, own) in enumerate(zip(groups, values, strict=True)):
            middle, low, high = interval(own, SHARE)
            color = labels.method_color(group.method)
            axes.plot(own, [y] * len(own), ".", color=color, alpha=0.5)
            ends = [[middle - low], [high - middle]]
            axes.errorbar(middle, y, xerr=ends, fmt="o", capsize=3, color=color)
        axes.set_yticks(range(len(groups)), names)
        axes.set(xlabel=f"share solved, {metric} at the end", ylim=(len(groups) - 0.5, -0.5))


def in_lines(label, width):
    """A label beside the axes, broken after a comma or before the number of seeds."""
    return textwrap.fill(re.sub(r"(?<!,) (?!\()", "\N{NO-BREAK SPACE}", label), width)


def tasks(groups, file):
    """Runs of several tasks: the accuracy on each, and where random masks make the model sure."""
    found = {}
    for run in (run for group in groups for run in group.seeds.values()):
        found.setdefault(labels.title([run.config]), []).append(run)
    found = {task: comparison.groups_of(runs) for task, runs in found.items()}
    print(comparison.task_table(found), comparison.decoding_table(found), sep="\n\n")
    rows = math.ceil(len(found) / 3)
    with panels(file, groups, found, size=(3.2, 2.5), rows=rows) as all_axes:
        for axes, own in zip(all_axes, found.values(), strict=True):
            draw_curves(axes, own, next(iter(own[0].seeds.values())).metric, SHARE)
            masks = next(group for group in own if group.method == "mdm")
            look = {"label": "random masks: share of hidden tokens that they are sure of"}
            look |= {"look": {"color": masks.look["color"], "linestyle": ":"}}
            draw_curves(axes, [masks._replace(**look)], "sure", SHARE)
            axes.set(ylim=(0, 1.01))
        for axes in all_axes[::3]:
            axes.set_ylabel("share solved")


def print_comparisons(groups):
    """The tables of the first policy that the first run evaluates, which is returned."""
    metric = next(iter(groups[0].seeds.values())).metric
    tables = comparison.comparisons(groups, metric, targets)
    if comparison.timed(groups):
        tables.append(comparison.seconds_table(groups, metric, targets))
    print("\n\n".join(tables))
    return metric


# -- command line ----------------------------------------------------------------------------------
FIGURES = {
    "curves": learning_curves, "final": final_accuracy, "visits": visits, "tasks": tasks,
}  # fmt: skip


def main():
    if figure not in FIGURES:
        raise SystemExit(f"figure {figure!r}: expected {', '.join(FIGURES)}")
    if not runs:
        raise SystemExit('no runs: give folders or patterns, like --runs="out/puma_*"')
    with errors_as_messages(), records.folders(runs) as folders:
        groups = comparison.groups_of([*map(comparison.load_run, folders)])
        FIGURES[figure](groups, out or f"out/{figure}.png")


if __name__ == "__main__":
    configure(globals())
    main()
