"""Figures and tables of runs, from their metrics.jsonl and result files. One figure, one function.

    python -m studies.plot out/puma-1 out/puma-2 out/mdm-1 out/mdm-2 --out=curves.png
    python -m studies.plot out/clues*_* --figure=ratio --against=clues --targets=0.9
    python -m studies.plot out/puma-* --figure=distance

A figure shows the mean over the seeds of each group of runs, with a 95 % interval of Student's t.
Tables go to the terminal, in markdown; comparison.py says what they compare.
"""

import argparse
import contextlib
import math
import sys
from pathlib import Path

from studies.comparison import (
    ERRORS,
    NOTE,
    band,
    comparisons,
    curve,
    default_metric,
    group_runs,
    interval,
    load_run,
    named,
    ratio_table,
    ratios,
    result,
    sampled,
    sampled_accuracy,
    sampler_table,
    to_targets,
)

TARGETS = (0.5, 0.8, 0.9, 0.95, 0.97)
LOSS = "val_loss"  # the one metric that is no accuracy


@contextlib.contextmanager
def panels(file, titles=("",), rows=1, size=(6, 4)):
    """Axes of that size (inches), one for each title, in rows; the figure is written at the end."""
    from matplotlib.figure import Figure

    columns = len(titles) // rows
    figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
    all_axes = figure.subplots(rows, columns, squeeze=False).ravel()
    yield all_axes
    for axes, title in zip(all_axes, titles, strict=True):
        axes.set_title(title, fontsize="medium")
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize="small")
    try:
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, dpi=200)
    except (OSError, ValueError) as error:  # a suffix that is no format
        raise SystemExit(f"{file}: {error}") from None
    print(f"wrote {file}", file=sys.stderr)  # the tables alone go to the standard output


def draw_band(axes, curves, label):
    """Curves of seeds as their mean and interval; it ends where the shortest does."""
    x, middle, half = band(curves)
    axes.plot(x, middle, label=label)
    low = [m - h for m, h in zip(middle, half, strict=True)]
    high = [m + h for m, h in zip(middle, half, strict=True)]
    axes.fill_between(x, low, high, alpha=0.2, linewidth=0)


def draw_dots(axes, groups):
    """{label: values over seeds}, one line each: the values, their mean and interval."""
    for y, values in enumerate(groups.values()):
        middle, half = interval(values)
        axes.plot(values, [y] * len(values), ".", color="gray")
        axes.errorbar(middle, y, xerr=None if math.isnan(half) else half, fmt="o", capsize=3)
    axes.set_yticks(range(len(groups)), groups, fontsize="small")
    axes.invert_yaxis()


def draw_ends(axes, points, label):
    """[(name on the x axis, (middle, low, high))] as points with intervals."""
    names, stats = zip(*points, strict=True) if points else ((), ())
    middle = [m for m, _, _ in stats]
    ends = [[0 if math.isnan(low) else m - low for m, low, _ in stats]]
    ends.append([0 if math.isnan(high) else high - m for m, _, high in stats])
    axes.errorbar(names, middle, ends, fmt="o-", capsize=3, label=label)


def learning_curves(runs, file, metric):
    """Accuracy (or val_loss) against iterations."""
    with panels(file) as (axes,):
        for label, members in group_runs(runs).items():
            draw_band(axes, [curve(run, metric) for run in members], named(label, members))
        axes.set(xlabel="iteration", ylabel=meaning(metric))
        axes.set(xlim=(0, None), **{"ylim": (0, 1.01)} if metric != LOSS else {})


def final_accuracy(runs, file, metric):
    """The accuracy at the end of each group: ablations of tau, K, start, refill."""
    groups = group_runs(runs)
    with panels(file, size=(6, 1 + 0.4 * len(groups))) as (axes,):
        ends = {label: [curve(r, metric)[-1][1] for r in runs] for label, runs in groups.items()}
        draw_dots(axes, ends)
        axes.set(xlabel=f"final {meaning(metric)}")


def meaning(metric):
    return "loss under random masks" if metric == LOSS else f"accuracy ({metric})"


def nelbo(runs, file):
    """The bound on the negative log-likelihood of each group, from nelbo.json."""
    groups = group_runs(runs)
    with panels(file, size=(6, 1 + 0.4 * len(groups))) as (axes,):
        bounds = {
            label: [result(run, "nelbo.json")["per_token"] for run in members]
            for label, members in groups.items()
        }
        draw_dots(axes, bounds)
        axes.set(xlabel="NELBO, nats per token")


def ratio_against(runs, file, metric, variable, targets):
    """Baseline over each method against a variable: iterations to accuracies, final errors."""
    found = ratios(runs, metric, variable, targets)
    titles = [*to_targets(targets), ERRORS]
    with panels(file, titles) as all_axes:
        for n, axes in enumerate(all_axes):
            for method in dict.fromkeys(method for method, _ in found):
                points = [(str(v), rows[n]) for (m, v), rows in found.items() if m == method]
                draw_ends(axes, [point for point in points if point[1]], method)
            axes.axhline(1, color="black", linewidth=0.8)
            axes.set(xlabel=variable, ylabel="random masks / method")
            axes.set_yscale("log", base=2)
            axes.yaxis.set_major_formatter("{x:g}")


def policy_table(runs, file):
    """Accuracy of samplers against tau, tokens per step, temperature (grid.json), and a table."""
    panel_of = {"tau": "surer than tau", "reveal": "tokens per step", "temperature": "temperature"}
    groups = group_runs(runs).items()
    found = {named(label, members): sampled(members) for label, members in groups}
    print(sampler_table(found))
    with panels(file, list(panel_of.values())) as all_axes:
        for key, axes in zip(panel_of, all_axes, strict=True):
            for name, samplers in found.items():
                shown = [rows for rows in samplers.values() if varied(rows[0]) == key]
                shown.sort(key=lambda rows: rows[0][key])
                for policy in dict.fromkeys(rows[0]["policy"] for rows in shown):
                    mine = [rows for rows in shown if rows[0]["policy"] == policy]
                    points = [(rows[0][key], sampled_accuracy(rows)) for rows in mine]
                    draw_ends(axes, points, f"{name}, {policy}")
            axes.set(xlabel=key, ylabel="accuracy")


def varied(row):
    """Which of the paper's three ablations of the sampler (table 1) a row belongs to, or None."""
    changed = [key for key in ("tau", "tau_entropy", "temperature") if row.get(key)]
    if row["reveal"] != 2:
        changed.append("reveal")
    return None if len(changed) > 1 else (changed or ["reveal"])[0]


def trajectory_distance(runs, file):
    """d_abs to the last weights along training, from trajectories.json."""
    with panels(file, ["teacher-forced chain", "sampler"]) as all_axes:
        for name, axes in zip(("chain", "sampler"), all_axes, strict=True):
            for label, members in group_runs(runs).items():
                found = [result(run, "trajectories.json") for run in members]
                curves = [zip(f["iterations"], f["d_abs"][name], strict=True) for f in found]
                draw_band(axes, curves, named(label, members))
            axes.set(xlabel="iteration", ylabel="distance to the last order, steps", ylim=(0, None))


def reveal_order(runs, file):
    """The step at which each cell of a puzzle is revealed, at five checkpoints; chain, sampler."""
    found = result(runs[0], "trajectories.json")
    last = len(found["iterations"]) - 1
    times = sorted({last * n // 4 for n in range(5)})
    pictures = [(name, t) for name in found["steps"] for t in times]
    titles = [f"{name}, {found['iterations'][t]}" for name, t in pictures]
    with panels(file, titles, rows=2, size=(2, 2.2)) as all_axes:
        for axes, (name, t) in zip(all_axes, pictures, strict=True):
            steps = found["steps"][name][t][0]  # of the first puzzle
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
            for name in ("chains", "random"):
                rows = [
                    [r for r in result(run, "contexts.json")["rows"] if r["contexts"] == name]
                    for run in members
                ]
                own = f"{label}: {name}"
                by_hidden = [[(h, share) for h, _, share in r[-1]["by_hidden"]] for r in rows]
                draw_band(all_axes[0], by_hidden, own)
                for axes, key in zip(all_axes[1:], ("one_away", "loss_far"), strict=True):
                    draw_band(
                        axes, [[(r["iteration"], r[key]) for r in each] for each in rows], own
                    )
        all_axes[0].set(xlabel="hidden cells", ylabel="share one deduction away")
        all_axes[1].set(xlabel="iteration", ylabel="share one deduction away")
        all_axes[2].set(xlabel="iteration", ylabel="loss from cells further away")


FIGURES = {  # from metrics.jsonl
    "curves": learning_curves, "final": final_accuracy, "ratio": ratio_against,
}  # fmt: skip
RESULTS = {  # from result files
    "nelbo": nelbo, "policies": policy_table, "distance": trajectory_distance,
    "order": reveal_order, "contexts": contexts,
}  # fmt: skip


def accuracies(text):
    return [float(part) for part in text.split(",")]


def arguments(args=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", help="run folders, each with a metrics.jsonl")
    parser.add_argument(
        "--figure", choices=[*FIGURES, *RESULTS], default="curves", help="default: %(default)s"
    )
    parser.add_argument("--metric", help=f"sampling policy (default: the first), or {LOSS}")
    parser.add_argument("--against", help="of the figure ratio: a key of train.py, as clues")
    parser.add_argument("--out", help="file of the figure (default: FIGURE.png)")
    parser.add_argument(
        "--targets", type=accuracies, default=TARGETS, help="accuracies: 0.5,0.8,..."
    )
    args = parser.parse_args(args)
    if args.figure == "ratio" and not args.against:
        parser.error("--figure=ratio needs --against, a key of train.py")
    if args.figure == "ratio" and args.metric == LOSS:
        parser.error("--figure=ratio is of accuracies: --metric names a sampling policy")
    return args


def main():
    args = arguments()
    runs, file = [load_run(folder) for folder in args.folders], args.out or f"{args.figure}.png"
    if args.figure in RESULTS:
        RESULTS[args.figure](runs, file)
        return
    metric, draw = args.metric or default_metric(runs), FIGURES[args.figure]
    if draw is ratio_against:
        if not any(args.against in run.config for run in runs):
            raise SystemExit(f"--against={args.against}: no run has such a key")
        print(ratio_table(runs, metric, args.against, args.targets), NOTE, sep="\n", end="")
        draw(runs, file, metric, args.against, args.targets)
        return
    if metric != LOSS:
        tables = comparisons(group_runs(runs), metric, args.targets)
        print("\n\n".join(tables), NOTE, sep="\n", end="")
    draw(runs, file, metric)


if __name__ == "__main__":
    main()
