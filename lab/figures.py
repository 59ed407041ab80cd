"""The figures of lab/study.py, by matplotlib: learning curves, and accuracy over parallelism."""

import numpy as np
from matplotlib.figure import Figure

from lab.tables import label, points, spread

RATE = "tokens per forward pass"


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
    save(page, file)


def over_rate(found, tasks, arms, samplers, title, file):
    """What each sampler solves over its tokens per pass, a panel a task: means, 95 % intervals.

    Samplers of a fixed number are joined by a line, those above tau by a dotted one.
    """
    page = Figure(figsize=(max(6, 4 * len(tasks)), 4), layout="constrained")
    for axes, task in zip(page.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
        for index, arm in enumerate(arms):
            own = [kept for (t, a, _), kept in found.items() if (t, a) == (task, arm)]
            runs = np.array([points(kept, samplers) for kept in own])  # (seeds, samplers, 2)
            if runs.ndim < 3:
                continue
            x = runs[..., 0].mean(0)
            middle, half = np.transpose([spread([*shares]) for shares in runs[..., 1].T])
            ends = np.minimum(half, middle), np.minimum(half, 100 - middle)
            how = {"color": f"C{index}", "fmt": "os^Dv"[index % 5], "capsize": 2}
            axes.errorbar(x, middle, ends, label=label(arm), **how)
            fixed = np.array([sampler[1] == 1 for sampler in samplers])
            axes.plot(x[fixed], middle[fixed], "-", color=f"C{index}")
            axes.plot(x[~fixed], middle[~fixed], ":", color=f"C{index}")
        axes.set(title=task, xlabel=RATE, xlim=(0, None), ylim=(0, 102))
        axes.set_ylabel("held-out problems solved, %")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, loc="lower left")
    page.suptitle(title)
    save(page, file)


def save(page, file):
    page.savefig(file, dpi=150)
    print(f"wrote {file}")
