"""Figures and tables of runs, from their metrics.jsonl and result files. One figure, one function.

    python -m studies.plot --runs="out/puma_*,out/mdm_*" --out=curves.png
    python -m studies.plot --runs="out/clues*" --figure=ratio --against=clues --targets="[0.9]"
    python -m studies.plot --runs="out/puma_*" --figure=distance
    python -m studies.plot --runs="out/puma_*,out/mdm_*" --axis=seconds

A figure shows the mean over the seeds of each group of runs, with a 95 % interval of Student's t;
curves have thin lines for the seeds.
Tables go to the terminal, in markdown; comparison.py says what they compare.
"""

import contextlib
import math
import sys
from pathlib import Path
from statistics import mean

from configurator import configure
from record import number, whole
from studies import records
from studies.comparison import (
    AXES,
    ERRORS,
    NOTE,
    band,
    comparisons,
    curve,
    default_metric,
    group_runs,
    load_run,
    place,
    ratio_table,
    ratios,
    read_result,
    sampled_accuracy,
    sampler_table,
    shared_samplers,
    strata_of,
    strata_tables,
    student_interval,
    target_headings,
    training_curve,
    trajectories,
    with_seed_count,
)

runs = ""  # comma-separated folders of runs, patterns of folders, or archives (records.py)
figure = (
    "curves"  # final, ratio, visits, strata; nelbo, policies, distance, order, contexts, states
)
axis = "iter"  # of curves and their tables: iter, epoch (passes over the data), seconds
metric = ""  # an accuracy by its policy, or val_loss; "" = the first policy that was evaluated
against = ""  # the x axis of --figure=ratio: a setting of train.py, like clues
targets = [0.5, 0.8, 0.9, 0.95, 0.97]  # the accuracies to which iterations are counted
out = ""  # the file of the figure; "" = out/<figure>.png

LIMITS = """
    0 < targets <= 1    # shares of solved problems, like [0.5, 0.9]
"""
LOSS = "val_loss"  # the only metric that is not an accuracy


@contextlib.contextmanager
def panels(file, titles=("",), rows=1, size=(6, 4)):
    """Axes of that size (inches), one for each title, in rows; the figure is written at the end."""
    from matplotlib.figure import Figure

    columns = len(titles) // rows
    page = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
    all_axes = page.subplots(rows, columns, squeeze=False).ravel()
    yield all_axes
    for axes, title in zip(all_axes, titles, strict=True):
        axes.set_title(title, fontsize="medium")
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize="small")
    try:
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        page.savefig(file, dpi=110)
    except (OSError, ValueError) as error:  # ValueError: an unknown suffix
        raise SystemExit(f"{file}: {error}") from None
    print(f"wrote {file}", file=sys.stderr)  # the tables alone go to the standard output


def draw_band(axes, curves, label):
    """The mean of the seeds' curves and its interval, as far as the shortest curve goes.

    Each seed's curve is a thin line.
    """
    x, middle, half = band(curves)
    (line,) = axes.plot(x, middle, label=label)
    low = [m - h for m, h in zip(middle, half, strict=True)]
    high = [m + h for m, h in zip(middle, half, strict=True)]
    axes.fill_between(x, low, high, alpha=0.15, linewidth=0)
    if len(curves) > 1:
        draw_thin(axes, curves, line.get_color())


def draw_mean(axes, curves, label):
    """The mean of the seeds' curves, and each of them."""
    x, middle, _ = band(curves)
    (line,) = axes.plot(x, middle, label=label)
    draw_thin(axes, curves, line.get_color())


def draw_thin(axes, curves, color):
    for points in curves:
        axes.plot(*zip(*points, strict=True), color=color, alpha=0.5, linewidth=0.5)


def draw_points(axes, points, label):
    """[(place on the x axis, (middle, low, high))] as points with intervals."""
    places, stats = zip(*points, strict=True) if points else ((), ())
    middle = [m for m, _, _ in stats]
    ends = [[0 if math.isnan(low) else m - low for m, low, _ in stats]]
    ends.append([0 if math.isnan(high) else high - m for m, _, high in stats])
    axes.errorbar(places, middle, ends, fmt="o-", capsize=3, label=label)


def learning_curves(runs, file, metric):
    """Accuracy (or val_loss) against iterations, epochs or seconds.

    Seeds take different seconds to an iteration: the mean curve is drawn at their mean.
    """
    with panels(file) as (axes,):
        for label, members in group_runs(runs).items():
            name = with_seed_count(label, members)
            if axis == "iter":
                draw_band(axes, [curve(run, metric) for run in members], name)
                continue
            iterations, middle, _ = band([curve(run, metric) for run in members])
            x = [mean(place(run, i, axis) for run in members) for i in iterations]
            (line,) = axes.plot(x, middle, label=name)
            draw_thin(axes, [curve(run, metric, axis) for run in members], line.get_color())
        axes.set(xlabel=AXES[axis], ylabel=meaning(metric))
        axes.set(xlim=(0, None), **{"ylim": (0, 1.01)} if metric != LOSS else {})


def visits(runs, file, metric):
    """Training contexts: visits per example and hidden share; and the loss under random masks."""
    keys = {"visits": "visits per example used up", "hidden": "share of a row that is hidden"}
    with panels(file, [*keys.values(), meaning(LOSS)], size=(4.5, 3.5)) as all_axes:
        for label, members in group_runs(runs).items():
            name = with_seed_count(label, members)
            for key, axes in zip(keys, all_axes, strict=False):
                draw_band(axes, [training_curve(run, key) for run in members], name)
            draw_band(all_axes[-1], [curve(run, LOSS) for run in members], name)
        all_axes[0].set(ylim=(0, None))
        all_axes[1].set(ylim=(0, 1.01))
        for axes in all_axes:
            axes.set(xlabel="iteration", xlim=(0, None))


def final_accuracy(runs, file, metric):
    """The accuracy at the end of each group: ablations of tau, K, start, refill."""
    value_per_group(runs, file, lambda run: curve(run, metric)[-1][1], f"final {meaning(metric)}")


def strata(runs, file, metric):
    """The accuracy at the end in each stratum of the problems: seeds as dots, and their mean."""
    groups = group_runs(runs)
    names = strata_of(runs[0], metric)
    print("\n\n".join(strata_tables(groups, metric)))
    with panels(file, size=(7, 4)) as (axes,):
        for n, (label, members) in enumerate(groups.items()):
            places = [
                place + (n - len(groups) / 2) / (len(groups) + 2) for place in range(len(names))
            ]
            ends = [[curve(run, name)[-1][1] for run in members] for name in names]
            (line,) = axes.plot(
                places, [mean(values) for values in ends], "_", ms=10,
                label=with_seed_count(label, members),
            )  # fmt: skip
            for place, values in zip(places, ends, strict=True):
                axes.plot([place] * len(values), values, ".", ms=3, color=line.get_color())
        axes.set_xticks(range(len(names)), names)
        axes.set(ylabel="solved")


def meaning(metric):
    return "loss under random masks" if metric == LOSS else f"accuracy ({metric})"


def nelbo(runs, file):
    """The bound on the negative log-likelihood of each group, from nelbo.json."""
    value_per_group(
        runs, file, lambda run: read_result(run, "nelbo.json")["per_token"], "NELBO, nats per token"
    )


def value_per_group(runs, file, value, name):
    """One line for each group: value(run) of its seeds as dots, their mean and its interval."""
    groups = {label: list(map(value, members)) for label, members in group_runs(runs).items()}
    with panels(file, size=(6, 1 + 0.4 * len(groups))) as (axes,):
        for y, values in enumerate(groups.values()):
            middle, half = student_interval(values)
            axes.plot(values, [y] * len(values), ".", color="gray")
            axes.errorbar(middle, y, xerr=None if math.isnan(half) else half, fmt="o", capsize=3)
        axes.set_yticks(range(len(groups)), groups, fontsize="small")
        axes.invert_yaxis()
        axes.set(xlabel=name)


def ratio_against(runs, file, metric, variable, targets):
    """Baseline over each method against a variable: iterations to accuracies, final errors."""
    columns = ratios(runs, metric, variable, targets)  # {(method, value): a ratio per panel}
    with panels(file, [*target_headings(targets), ERRORS]) as all_axes:
        for n, axes in enumerate(all_axes):
            for method in dict.fromkeys(method for method, _ in columns):
                points = [(str(v), column[n]) for (m, v), column in columns.items() if m == method]
                draw_points(axes, [(v, ratio) for v, ratio in points if ratio], method)
            axes.axhline(1, color="black", linewidth=0.8)
            axes.set(xlabel=variable, ylabel="random masks / method")
            axes.set_yscale("log", base=2)
            axes.yaxis.set_major_formatter("{x:g}")


def sampler_grid(runs, file):
    """Accuracy of samplers against tau, tokens per step, temperature (eval.json), and a table."""
    title_of = {
        "tau": "confidence above tau",
        "reveal": "tokens per step",
        "temperature": "temperature",
    }
    groups = {
        with_seed_count(label, members): shared_samplers(members)
        for label, members in group_runs(runs).items()
    }
    print(sampler_table(groups))
    with panels(file, list(title_of.values())) as all_axes:
        for key, axes in zip(title_of, all_axes, strict=True):
            for name, samplers in groups.items():
                draw_ablation(axes, key, samplers, name)
            axes.set(xlabel=key, ylabel="accuracy")


def draw_ablation(axes, key, samplers, name):
    """The accuracy of the samplers that vary the key, one line for each policy."""
    points = {}
    for rows in sorted(
        (rows for rows in samplers.values() if ablation_of(rows[0]) == key),
        key=lambda rows: rows[0][key],
    ):
        point = rows[0][key], sampled_accuracy(rows)
        points.setdefault(rows[0]["policy"], []).append(point)
    for policy, line in points.items():
        draw_points(axes, line, f"{name}, {policy}")


def ablation_of(sampler):
    """Which of the paper's three ablations of the sampler (table 1) it belongs to, or None."""
    changed = [key for key in ("tau", "tau_entropy", "temperature") if sampler.get(key)]
    if sampler["reveal"] != 2:
        changed.append("reveal")
    return None if len(changed) > 1 else (changed or ["reveal"])[0]


def trajectory_distance(runs, file):
    """d_abs to the last weights along training, from trajectories.json."""
    with panels(file, ["teacher-forced chain", "sampler"]) as all_axes:
        for name, axes in zip(("chain", "sampler"), all_axes, strict=True):
            for label, members in group_runs(runs).items():
                found = [trajectories(run, "d_abs", number) for run in members]
                curves = [zip(iterations, d[name], strict=True) for iterations, d in found]
                draw_band(axes, curves, with_seed_count(label, members))
            axes.set(xlabel="iteration", ylabel="distance to the last order, steps", ylim=(0, None))


def reveal_order(runs, file):
    """The step at which each cell of a puzzle is revealed, at five checkpoints; chain, sampler."""
    iterations, steps = trajectories(runs[0], "steps", [[whole]])
    last = len(iterations) - 1
    times = sorted({last * n // 4 for n in range(5)})
    pictures = [(name, t) for name in ("chain", "sampler") for t in times]
    titles = [f"{name}, {iterations[t]}" for name, t in pictures]
    with panels(file, titles, rows=2, size=(2, 2.2)) as all_axes:
        for axes, (name, t) in zip(all_axes, pictures, strict=True):
            draw_grid(axes, steps[name][t][0])  # of the first puzzle


def draw_grid(axes, steps):
    """A square puzzle with the step of each cell; 0, a clue, as a dot."""
    side = math.isqrt(len(steps))
    rows = [steps[start : start + side] for start in range(0, len(steps), side)]
    axes.imshow([[step or math.nan for step in row] for row in rows], cmap="YlGn")
    for cell, step in enumerate(steps):
        axes.text(cell % side, cell // side, step or ".", ha="center", va="center", size=6)
    axes.set(xticks=[], yticks=[])


def contexts(runs, file):
    """Hidden cells one deduction away: by their number at the end, and along training."""
    with panels(file, ["last weights", "along training", "along training"]) as all_axes:
        for label, members in group_runs(runs).items():
            results = [read_result(run, "contexts.json")["rows"] for run in members]
            for stream in ("chains", "random"):
                seeds = [[row for row in rows if row["contexts"] == stream] for rows in results]
                if [] in seeds:
                    folder = members[seeds.index([])].folder
                    raise SystemExit(f"{folder}/contexts.json has no contexts {stream!r}")
                draw_contexts(all_axes, seeds, f"{label}: {stream}")
        all_axes[0].set(xlabel="hidden cells", ylabel="share one deduction away")
        all_axes[1].set(xlabel="iteration", ylabel="share one deduction away")
        all_axes[2].set(xlabel="iteration", ylabel="loss from cells further away")


def draw_contexts(all_axes, seeds, label):
    """The contexts of one stream: of each seed a row for each iteration."""
    by_hidden = [[(h, share) for h, _, share in rows[-1]["by_hidden"]] for rows in seeds]
    draw_band(all_axes[0], by_hidden, label)
    for axes, key in zip(all_axes[1:], ("one_away", "loss_far"), strict=True):
        draw_band(axes, [[(row["iteration"], row[key]) for row in rows] for rows in seeds], label)


BANDS = {"1 to 20 % hidden": (0, 1), "40 to 60 %": (4, 5), "90 to 100 %": (9,)}  # tenths


def states(runs, file):
    """Errors in the states of the sampler, by the share hidden, and calibration at tau."""
    last = "too sure: confidence less share right, above tau"
    titles = [f"the next token is wrong: {band}" for band in BANDS]
    with panels(file, [*titles, last], rows=2, size=(5.5, 3.5)) as all_axes:
        for label, members in group_runs(runs).items():
            name = with_seed_count(label, members)
            results = [read_result(run, "states.json")["rows"] for run in members]
            seeds = [[row for row in rows if row["states"] == "own"] for rows in results]
            for tenths, axes in zip(BANDS.values(), all_axes, strict=False):
                draw_mean(axes, [along(rows, tenths, "wrong") for rows in seeds], name)
            draw_mean(all_axes[-1], [along(rows, range(10), "excess") for rows in seeds], name)
        for axes in all_axes:
            axes.set(xlabel="iteration")
        for axes in all_axes[:-1]:
            axes.set_yscale("symlog", linthresh=0.001)
            axes.set(ylim=(0, 1))


def along(rows, tenths, key):
    """[(iteration, mean over states of these tenths)] of errors ("wrong") or overconfidence."""
    found = {}
    for row in rows:
        if row["tenth"] in tenths and (key == "wrong" or row["confidence"] is not None):
            value = 1 - row["next"] if key == "wrong" else row["confidence"] - row["sure_right"]
            found.setdefault(row["iteration"], []).append((value, row["met"]))
    return [
        (iteration, sum(v * n for v, n in pairs) / sum(n for _, n in pairs))
        for iteration, pairs in found.items()
    ]


FIGURES = {  # from metrics.jsonl
    "curves": learning_curves, "final": final_accuracy, "ratio": ratio_against, "visits": visits,
    "strata": strata,
}  # fmt: skip
RESULTS = {  # from result files
    "nelbo": nelbo, "policies": sampler_grid, "distance": trajectory_distance,
    "order": reveal_order, "contexts": contexts, "states": states,
}  # fmt: skip


def check(figure, metric, against):
    """Raise SystemExit for settings that do not make a figure."""
    if figure not in FIGURES | RESULTS:
        raise SystemExit(f"figure {figure!r}: expected {', '.join([*FIGURES, *RESULTS])}")
    if axis not in AXES:
        raise SystemExit(f"axis {axis!r}: expected {', '.join(AXES)}")
    if figure == "ratio" and not against:
        raise SystemExit("--figure=ratio needs --against, a key of train.py")
    if figure == "ratio" and metric == LOSS:
        raise SystemExit("--figure=ratio compares accuracies: --metric must be a sampling policy")


def main():
    check(figure, metric, against)
    if not runs:
        raise SystemExit('no runs: give folders or patterns, like --runs="out/puma_*,out/mdm_*"')
    with records.folders(runs) as folders:
        draw([load_run(folder) for folder in folders], out or f"out/{figure}.png")


def draw(loaded, file):
    if figure in RESULTS:
        RESULTS[figure](loaded, file)
    elif figure == "strata":
        strata(loaded, file, metric or default_metric(loaded))
    elif figure == "ratio":
        draw_ratios(loaded, file, metric or default_metric(loaded))
    else:
        draw_accuracies(loaded, file, metric or default_metric(loaded))


def draw_ratios(loaded, file, metric):
    if not any(against in run.config for run in loaded):
        raise SystemExit(f"--against={against}: no run has such a key")
    print(ratio_table(loaded, metric, against, targets), NOTE, sep="\n", end="")
    ratio_against(loaded, file, metric, against, targets)


def draw_accuracies(loaded, file, metric):
    if metric != LOSS:
        tables = comparisons(group_runs(loaded), metric, targets, axis)
        print("\n\n".join(tables), NOTE, sep="\n", end="")
    FIGURES[figure](loaded, file, metric)


if __name__ == "__main__":
    configure(globals())
    main()
