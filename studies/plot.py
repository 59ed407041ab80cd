"""Figures and tables of runs, from their metrics.jsonl and result files. One figure, one function.

    python -m studies.plot --runs="out/puma_*,out/mdm_*" --out=curves.png
    python -m studies.plot --runs="out/clues*" --figure=final --targets="[0.9]"

A figure shows the mean over the seeds of each group of runs, with a 95 % interval of Student's t,
that of an accuracy cut off at 0 and 1; curves have thin lines for the seeds. Colours and words are
those of labels.py. Tables go to the terminal, in markdown; comparison.py says what they compare.
"""

import contextlib
import itertools
import math
import sys
from pathlib import Path

from configurator import configure, printable
from studies import comparison, labels, records
from studies.comparison import SHARE, band, curve, group_runs, read_result, with_seed_count

runs = ""  # comma-separated folders of runs, patterns of folders, or archives (records.py)
figure = "curves"  # final, visits; nelbo, policies, distance
metric = ""  # an accuracy by its policy, or val_loss; "" = the first policy that was evaluated
targets = [0.5, 0.8, 0.9, 0.95, 0.97]  # 0..1: the accuracies to which iterations are counted
out = ""  # the file of the figure; "" = out/<figure>.png

LOSS = "val_loss"  # the only metric that is not an accuracy
POSITIVE = 0, math.inf
FEW = 4  # groups that a legend, and intervals, leave room for in a figure


@contextlib.contextmanager
def panels(file, runs, titles=("",), rows=1, size=(6, 4)):
    """Axes of that size (inches), one for each title, in rows, under the title of the runs.

    The figure is written at the end.
    """
    from matplotlib.figure import Figure

    columns = len(titles) // rows
    page = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
    page.suptitle(labels.title(runs))
    all_axes = page.subplots(rows, columns, squeeze=False).ravel()
    yield all_axes
    for axes, name in zip(all_axes, titles, strict=True):
        axes.set_title(name, fontsize="medium")
        axes.grid(alpha=0.3)
    pairs = (zip(*axes.get_legend_handles_labels(), strict=True) for axes in all_axes)
    handles = {label: handle for handle, label in itertools.chain.from_iterable(pairs)}
    if len(all_axes) == 1 and 0 < len(handles) <= FEW and max(map(len, handles)) < 30:
        all_axes[0].legend(frameon=False, handlelength=2.6)
    elif handles:  # below the axes, for which room is added
        width = 0.7 + 0.08 * max(map(len, handles))  # inches
        across = min(len(handles), max(1, int(size[0] * columns / width)))
        page.set_figheight(size[1] * rows + 0.25 * math.ceil(len(handles) / across))
        how = {"loc": "outside lower center", "ncols": across, "handlelength": 2.6}
        page.legend(handles.values(), handles, frameon=False, **how)
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    page.savefig(file, dpi=110)
    print(f"wrote {file}", file=sys.stderr)  # the tables alone go to the standard output


def drawn(runs):
    """The members of each group, and how it is drawn: its colour, line style and label.

    Where more than half of the groups have a setting in common it goes without saying.
    """
    groups, keys = [*group_runs(runs).values()], comparison.telling(runs)
    first = [members[0] for members in groups]

    def says(run, key):
        values = [other.config.get(key) for other in first if comparison.matters(key, other)]
        common = values.count(run.config.get(key)) > len(values) / 2
        return comparison.matters(key, run) and not common

    words = [labels.in_words(run.config, [key for key in keys if says(run, key)]) for run in first]
    arms = [str(run.config.get("method")) for run in first]
    styles = labels.looks([(arm, more) for arm, (_, more) in zip(arms, words, strict=True)])
    for members, word, (color, style) in zip(groups, words, styles, strict=True):
        label = with_seed_count(", ".join(filter(None, word)), members)
        yield members, {"label": label, "color": color, "linestyle": style}


def draw_band(axes, curves, look, within):
    """The mean of the seeds' curves, as far as the shortest goes; each seed's is a thin line.

    within: where values can lie, and so their interval; None = draw no interval.
    """
    x, stats = band(curves, within or POSITIVE)
    middle, low, high = zip(*stats, strict=True) if stats else ((), (), ())
    axes.plot(x, middle, **look)
    for points in curves if len(curves) > 1 else ():
        axes.plot(*zip(*points, strict=True), color=look["color"], alpha=0.5, linewidth=0.5)
    if within:
        axes.fill_between(x, low, high, alpha=0.15, linewidth=0, color=look["color"])


def draw_points(axes, points, look):
    """[(place on the x axis, (middle, low, high))] as points with intervals."""
    places, stats = zip(*points, strict=True) if points else ((), ())
    middle = [m for m, _, _ in stats]
    ends = [[0 if math.isnan(low) else m - low for m, low, _ in stats]]
    ends.append([0 if math.isnan(high) else high - m for m, _, high in stats])
    axes.errorbar(places, middle, ends, capsize=3, **{"marker": "o"} | look)


def in_a_few(runs, within):
    """`within`, if a figure of these runs has room for intervals; else None."""
    return within if len(group_runs(runs)) <= FEW else None


# -- figures of metrics.jsonl ----------------------------------------------------------------------
def learning_curves(runs, file, metric):
    """Accuracy (or val_loss) against iterations."""
    print_comparisons(runs, metric)
    within = in_a_few(runs, POSITIVE if metric == LOSS else SHARE)
    with panels(file, runs) as (axes,):
        for members, look in drawn(runs):
            draw_band(axes, [curve(run, metric) for run in members], look, within)
        axes.set(xlabel="updates", ylabel=meaning(metric), xlim=(0, None))
        if metric != LOSS:
            axes.set(ylim=(0, 1.01))


def print_comparisons(runs, metric):
    if metric != LOSS:
        tables = comparison.comparisons(group_runs(runs), metric, targets)
        print("\n\n".join(tables), comparison.NOTE, sep="\n", end="")
        for label, members in group_runs(runs).items():
            if len(commits := {run.config["commit"] for run in members}) > 1:
                print(printable(f"\nOf different commits, {label}: {', '.join(sorted(commits))}"))


def visits(runs, file, metric):
    """Training contexts: visits per example and hidden share; and the loss under random masks."""
    print_comparisons(runs, metric)
    keys = "visits", "hidden", LOSS
    names = ["visits per example used up", "share of a row that is hidden", meaning(LOSS)]
    with panels(file, runs, names, size=(4.5, 3.5)) as all_axes:
        for members, look in drawn(runs):
            for axes, key, within in zip(all_axes, keys, (POSITIVE, SHARE, POSITIVE), strict=True):
                of = curve if key == LOSS else comparison.training_curve
                draw_band(axes, [of(run, key) for run in members], look, in_a_few(runs, within))
        all_axes[0].set(ylim=(0, None))
        all_axes[1].set(ylim=(0, 1.01))
        for axes in all_axes:
            axes.set(xlabel="updates", xlim=(0, None))


def final_accuracy(runs, file, metric):
    """The accuracy at the end of each group: ablations of tau, K, start, refill."""
    print_comparisons(runs, metric)
    name = f"{meaning(metric)} at the end"
    value_per_group(runs, file, lambda run: curve(run, metric)[-1][1], name, SHARE)


def meaning(metric):
    return "loss under random masks" if metric == LOSS else f"share solved, {metric}"


def value_per_group(runs, file, value, name, within=(-math.inf, math.inf)):
    """One line for each group: value(run) of its seeds as dots, their mean and its interval."""
    groups = [(look, [*map(value, members)]) for members, look in drawn(runs)]
    with panels(file, runs, size=(7, 1.2 + 0.4 * len(groups))) as (axes,):
        for y, (look, values) in enumerate(groups):
            middle, low, high = comparison.interval(values, within)
            ends = None if math.isnan(low) else [[middle - low], [high - middle]]
            axes.plot(values, [y] * len(values), ".", color=look["color"], alpha=0.5)
            axes.errorbar(middle, y, xerr=ends, fmt="o", capsize=3, color=look["color"])
        axes.set_yticks(range(len(groups)), [look["label"] for look, _ in groups])
        axes.invert_yaxis()
        axes.set(xlabel=name)


# -- figures of other results ----------------------------------------------------------------------
def nelbo(runs, file, metric):
    """The bound on the negative log-likelihood of each group, from nelbo.json."""
    name = "NELBO, nats per token"
    value_per_group(runs, file, lambda run: read_result(run, "nelbo.json")["per_token"], name)


def sampler_grid(runs, file, metric):
    """Accuracy of samplers against tau, tokens per step, temperature (eval.json), and a table."""
    names = {"tau": "tau, of confidence", "reveal": "tokens per step", "temperature": "temperature"}
    groups = {
        with_seed_count(label, members): comparison.shared_samplers(members)
        for label, members in group_runs(runs).items()
    }
    print(comparison.sampler_table(groups))
    with panels(file, runs, ["" for _ in names], size=(4.5, 4)) as all_axes:
        for (key, name), axes in zip(names.items(), all_axes, strict=True):
            for (_, look), samplers in zip(drawn(runs), groups.values(), strict=True):
                draw_ablation(axes, key, samplers, look)
            axes.set(xlabel=name, ylabel="share solved")


MARKERS = {"top_k": "o", "margin": "s", "entropy": "^", "random": "x"}


def draw_ablation(axes, key, samplers, look):
    """The accuracy of the samplers that vary the key, one line for each policy."""
    points = {}
    varied = [rows for rows in samplers.values() if ablation_of(rows[0]) == key]
    for rows in sorted(varied, key=lambda rows: rows[0][key]):
        point = rows[0][key], comparison.sampled_accuracy(rows)
        points.setdefault(rows[0]["policy"], []).append(point)
    for policy, line in points.items():
        name = {"label": f"{look['label']}, {policy}", "marker": MARKERS.get(policy, "d")}
        draw_points(axes, line, look | name)


def ablation_of(sampler):
    """Which of the paper's three ablations of the sampler (table 1) it belongs to, or None."""
    changed = [key for key in ("tau", "tau_entropy", "temperature") if sampler.get(key)]
    if sampler["reveal"] != 2:
        changed.append("reveal")
    return None if len(changed) > 1 else (changed or ["reveal"])[0]


def trajectory_distance(runs, file, metric):
    """d_abs to the last weights along training, from trajectories.json."""
    with panels(file, runs, ["teacher-forced chain", "sampler"]) as all_axes:
        for name, axes in zip(("chain", "sampler"), all_axes, strict=True):
            for members, look in drawn(runs):
                results = [
                    read_result(run, "trajectories.json", "iterations", "d_abs") for run in members
                ]
                curves = [[*zip(iterations, d[name], strict=True)] for iterations, d in results]
                draw_band(axes, curves, look, POSITIVE)
            axes.set(xlabel="updates", ylabel="distance to the last order, steps", ylim=(0, None))


# -- command line ----------------------------------------------------------------------------------
FIGURES = {
    "curves": learning_curves, "final": final_accuracy, "visits": visits,
    "nelbo": nelbo, "policies": sampler_grid, "distance": trajectory_distance,
}  # fmt: skip


def main():
    if figure not in FIGURES:
        raise SystemExit(f"figure {figure!r}: expected {', '.join(FIGURES)}")
    if not runs:
        raise SystemExit('no runs: give folders or patterns, like --runs="out/puma_*"')
    with records.folders(runs) as folders:
        loaded = [comparison.load_run(folder) for folder in folders]
        chosen = metric or comparison.default_metric(loaded)
        FIGURES[figure](loaded, out or f"out/{figure}.png", chosen)


if __name__ == "__main__":
    configure(globals())
    main()
