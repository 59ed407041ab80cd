"""The figures of lab/study.py, drawn with matplotlib: curves, samplers side by side, many tasks."""

import numpy as np
from matplotlib.figure import Figure

from lab.tables import average, label, learned, mean, short, spread, values


def curves(of_arms, what, most, title, file):
    """Values over updates, {arm: [{update: value} of a seed]}: means and 95 % bands."""
    page = Figure(figsize=(6, 4), layout="constrained")
    axes = page.subplots()
    for arm, own in of_arms.items():
        if not own:
            continue
        updates = sorted(set.intersection(*map(set, own)))  # as far as the shortest
        found = [spread([points[update] for points in own]) for update in updates]
        middle, half = np.reshape(found, (-1, 2)).T
        axes.plot(updates, middle, label=f"{label(arm)}, mean of {len(own)} seeds, 95 % interval")
        axes.fill_between(updates, middle - half, middle + half, alpha=0.15)
    axes.set(xlabel="updates", ylabel=what, xlim=(0, None), ylim=(0, most))
    axes.set_title(title, fontsize="medium", wrap=True)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    save(page, file, 150)


def by_sampler(found, tasks, arms, samplers, title, file):
    """What each sampler solves, a panel for each task: means of the seeds, 95 % intervals."""
    page = Figure(figsize=(3 * len(tasks), 3), layout="constrained")
    row = page.subplots(1, len(tasks), sharey=True)
    fixed = [index for index, (_, tau, *_) in enumerate(samplers) if tau == 1]
    for axes, task in zip(row, tasks, strict=True):
        for index, arm in enumerate(arms):
            shares = [[*values(found, task, arm, sampler).values()] for sampler in samplers]
            if not all(shares):
                continue
            middle, half = np.transpose([spread([100 * x for x in own]) for own in shares])
            x = np.arange(len(samplers)) + 0.12 * (index - (len(arms) - 1) / 2)  # side by side
            ends = np.minimum(half, middle), np.minimum(half, 100 - middle)
            how = {"fmt": "os^D"[index % 4], "capsize": 2, "label": label(arm)}
            points = axes.errorbar(x, middle, ends, **how)
            axes.plot(x[fixed], middle[fixed], color=points[0].get_color())
        names = [f"all {short(*each)}" if each[1] < 1 else short(*each) for each in samplers]
        axes.set_xticks(range(len(samplers)), names)
        axes.set(title=task, xlabel="tokens a step", ylim=(0, 102))
        axes.grid(alpha=0.3)
    row[0].set_ylabel("held-out problems solved, %")
    page.suptitle(title)
    how = {"loc": "outside lower center", "ncols": len(arms), "frameon": False}
    page.legend(*row[0].get_legend_handles_labels(), **how)
    save(page, file, 150)


def over_tasks(found, tasks, arms, against, samplers, title, file):
    """Means over tasks against forward passes an answer; a star: all above tau at once."""
    known = learned(found, tasks, arms, samplers)
    page = Figure(figsize=(9, 3.6), layout="constrained")
    page.suptitle(title)
    left, right = page.subplots(1, 2)
    for axes, what, of in (left, "solved", known), (right, "right", tasks):
        for arm in arms:
            seeds = [[*values(found, t, each, samplers[0])] for each in (arm, against) for t in of]
            if seeds[: len(of)] != seeds[len(of) :]:  # of other tasks or seeds: not comparable
                continue
            points = {each: point(found, of, arm, each, what) for each in samplers}
            fixed = sorted(points[each] for each in samplers if each[1] == 1)
            (line,) = axes.plot(*zip(*fixed, strict=True), marker="o", label=label(arm))
            for sampler in samplers:
                if sampler[1] < 1:
                    axes.plot(*points[sampler], marker="*", markersize=12, color=line.get_color())
        axes.set(xlabel="forward passes an answer", xscale="log")
        axes.set_xticks([1, 3, 10, 30], labels=["1", "3", "10", "30"])
        axes.grid(alpha=0.3)
    left.set_ylabel(f"held-out answers solved, %\n(the {len(known)} tasks learned)")
    right.set_ylabel(f"answer tokens right, %\n(all {len(tasks)} tasks)")
    left.legend(frameon=False)
    save(page, file, 110)


def point(found, tasks, arm, sampler, what):
    """Forward passes an answer, and % solved or right: means over tasks."""
    cost, share = (
        mean([average(found, task, arm, sampler, each) for task in tasks])
        for each in ("steps", what)
    )
    return cost, 100 * share


def save(page, file, dpi):
    page.savefig(file, dpi=dpi)
    print(f"wrote {file}")
