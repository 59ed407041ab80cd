"""PUMA beside random masks, on the same data and with the same seed: which one is ahead?

    python -m studies.race config/sudoku_race.py               a few minutes
    python -m studies.race config/sudoku_race.py --seed=2      with any settings of train.py

Two runs of train.py, in out/race/<name>_<method>_<seed> (--out_dir: in place of out/race), on one
core each, at the same time if there are two. Ctrl-C stops them with a checkpoint, and the same
command goes on; a finished race it only shows. With other settings a run starts anew, and the old
one moves aside.
"""

import importlib.util
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np

from configurator import configure, errors_as_messages
from data.processes import cores
from engine.log import read_metrics
from studies import plot
from studies.comparison import groups_of, load_run
from studies.labels import METHODS
from studies.run import Run, make_runs, settings_of

SIGNS = {"mdm": "o", "puma": "#"}  # what draws the curve of a method
WIDTH, HEIGHT = 52, 16  # characters of the area in which they are drawn


def main():
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    print("PUMA beside random masks: a line per evaluation, Ctrl-C keeps what is done", flush=True)
    with errors_as_messages():
        config = prepare()
        runs = []
        for method in SIGNS:
            folder = "{}/{name}_{}_{seed}".format(config["out_dir"] or "out/race", method, **config)
            flags = [*sys.argv[1:], f"--method={method}"]
            runs.append(Run(Path(folder), flags, settings_of(flags)))
        done = threading.Event()
        reporter = threading.Thread(target=report, args=[runs, done], daemon=True)
        reporter.start()
        make_runs(runs, min(len(runs), cores()))
        done.set()
        reporter.join()
        show([load_run(run.folder) for run in runs])


def prepare():
    """The settings, whose mistakes end this here, once the data are there: both runs need them."""
    import tasks  # not at the top: torch takes seconds to load
    import train

    own = {"__doc__": __doc__, "__spec__": __spec__}
    config = configure(vars(train) | own, fields=tasks.settings_of)
    if not config["eval_policies"] or config["init_from"] != "scratch":
        raise ValueError("a race needs eval_policies, and begins from scratch")
    for method in SIGNS:
        vars(train).update(config, method=method)
        train.check()
    task = tasks.get(config["dataset"]).load(config)
    if not task.test.judged:
        raise ValueError(f"dataset {config['dataset']}: nothing tells whether an answer is right")
    return config


def report(runs, done):
    """Print a line for each new evaluation, and look once more when done."""
    begin, said = time.time(), set()
    ended = False
    while not ended:
        ended = done.wait(0.5)
        for method, run in zip(SIGNS, runs, strict=True):
            path = run.folder / "metrics.jsonl"
            fresh = path.exists() and path.stat().st_mtime > begin
            for row in read_metrics(path) if fresh else ():
                if row["type"] == "eval" and (method, row["iter"]) not in said:
                    said.add((method, row["iter"]))
                    share = next(iter(row["accuracy"].values()))
                    name = METHODS[method]
                    print(f"{name:>12}: update {row['iter']:,}, {share:.1%} solved", flush=True)


def show(runs):
    """The curves, as a picture too where there is matplotlib, and both numbers in words."""
    curves = {run.config["method"]: [*run.curves[run.metric].items()] for run in runs}
    of = f"of {runs[0].config['test_examples']} held-out problems"
    print(f"\nshare {of} solved, against updates\n\n{as_text(curves)}\n", flush=True)
    if importlib.util.find_spec("matplotlib"):
        plot.accuracy(groups_of(runs), runs[0].metric, f"{runs[1].folder}.png")
    masks, puma = (points[-1][1] for points in curves.values())
    place = "ahead" if puma > masks else "not ahead"
    print(f"random masks {masks:.1%}, PUMA {puma:.1%} {of} (one seed): PUMA is {place}.")
    print("One seed says little: results/when.md has eight pairs.")


def as_text(curves):
    """The curves {method: [(update, share)]} in characters, each named where it ends."""
    last = max(points[-1][0] for points in curves.values())
    area = np.full((HEIGHT, WIDTH), " ")
    names = [""] * HEIGHT
    for method, points in curves.items():
        updates = np.linspace(last / WIDTH, last, WIDTH)
        shares = np.interp(updates, *zip(*points, strict=True))
        rows = np.rint((1 - shares) * (HEIGHT - 1)).astype(int)
        known = updates >= points[0][0]
        area[rows[known], np.flatnonzero(known)] = SIGNS[method]
        free = [row for row in range(HEIGHT) if not names[row]]
        nearest = min(free, key=lambda row: abs(row - rows[-1]))
        names[nearest] = f" {METHODS[method]} {points[-1][1]:.1%}"
    scale = {0: "100 %", HEIGHT - 1: "0 %"}
    lines = [
        f"{scale.get(n, ''):>5} |{''.join(row)}{name}".rstrip()
        for n, (row, name) in enumerate(zip(area, names, strict=True))
    ]
    return "\n".join([*lines, " " * 6 + "+" + "-" * WIDTH, f"{last:>{WIDTH + 1},} updates"])


if __name__ == "__main__":
    main()
