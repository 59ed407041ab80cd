"""PUMA and random masks side by side, on the same data and with the same seed: which is ahead?

    python -m studies.race config/sudoku_race.py               three minutes on two cores
    python -m studies.race config/sudoku_race.py --seed=2      with any flags of train.py

The two are runs of train.py in out/<name>_<method>_<seed>, with one core each, at the same time if
there are two. Ctrl-C stops them with a checkpoint; the same command goes on from there, and shows
finished runs again. With other flags they start anew, and the earlier ones move aside.
"""

import importlib.util
import sys
import threading
import time
from pathlib import Path

import numpy as np

from configurator import configure, errors_as_messages
from data.processes import cores
from engine.log import read_metrics
from studies import plot
from studies.comparison import SHARE, groups_of, load_run
from studies.labels import METHODS
from studies.run import Run, make_runs, settings_of

RACE = {"mdm": "o", "puma": "#"}  # the methods, and what draws their curves
WIDTH, HEIGHT = 52, 16  # characters of the area in which they are drawn


def main():
    print("PUMA and random masks on the same data; first their data, then a line per evaluation.")
    with errors_as_messages("stopped: the same command goes on from there"):
        config = prepare()
        runs = []
        for method in RACE:
            folder = Path("out/{name}_{}_{seed}".format(method, **config))
            flags = [*sys.argv[1:], f"--method={method}"]
            runs.append(Run(folder, flags, settings_of(flags)))
        reporter = threading.Thread(target=report, args=[runs, config["max_iters"]], daemon=True)
        reporter.start()
        make_runs(runs, min(len(runs), cores()))
        show([load_run(run.folder) for run in runs], config)


def prepare():
    """The settings of both runs, whose mistakes end this here, once their data are there."""
    import tasks  # torch takes seconds to load
    import train

    own = {"__doc__": __doc__, "__spec__": __spec__}
    config = configure(vars(train) | own, fields=tasks.settings_of)
    tasks.get(config["dataset"]).load(config)
    return config


# -- as text ---------------------------------------------------------------------------------------
def report(runs, updates):
    """Print a line for each evaluation, as it is written, for as long as the program runs."""
    begin, said = time.time(), set()
    while True:
        time.sleep(0.5)
        for method, run in zip(RACE, runs, strict=True):
            path = run.folder / "metrics.jsonl"
            fresh = path.exists() and path.stat().st_mtime > begin
            for row in read_metrics(path) if fresh else ():
                key = method, row.get("iter")
                if row["type"] == "eval" and key not in said:
                    said.add(key)
                    share = max(row["accuracy"].values(), default=0)
                    done = f"update {row['iter']:,} of {updates:,}"
                    print(f"{METHODS[method]:>12}: {done}, {share:.1%} solved", flush=True)


def text_curves(curves):
    """{(name, sign): [(update, share)]} as lines of text, each named where it ends."""
    last = max(points[-1][0] for points in curves.values())
    places = np.arange(1, WIDTH + 1) * last / WIDTH
    area = [[" "] * WIDTH for _ in range(HEIGHT)]
    names = [""] * HEIGHT
    for (name, sign), points in curves.items():
        for column, share in enumerate(np.interp(places, *zip(*points, strict=True))):
            row = level(share)
            area[row][column] = sign
        free = sorted(range(HEIGHT), key=lambda each: abs(each - row))
        names[next(each for each in free if not names[each])] = f"{name} {points[-1][1]:.1%}"
    ticks = {level(share): f"{share:.0%}" for share in (0, 0.5, 1)}
    lines = [
        f"{ticks.get(row, ''):>5} |{''.join(area[row])} {names[row]}".rstrip()
        for row in range(HEIGHT)
    ]
    return "\n".join([*lines, " " * 6 + "+" + "-" * WIDTH, f"{last:>{WIDTH},} updates"])


def level(share):
    return round((1 - share) * (HEIGHT - 1))


def show(runs, config):
    """The curves as text, as a picture where there is matplotlib, and both numbers in words."""
    curves = [[*run.curves[run.metric].items()] for run in runs]
    names = [(METHODS[method], sign) for method, sign in RACE.items()]
    print(f"\nshare of {config['test_examples']} held-out problems solved, against updates\n")
    print(text_curves(dict(zip(names, curves, strict=True))), end="\n\n", flush=True)
    if importlib.util.find_spec("matplotlib"):
        file = "out/{name}_{seed}.png".format(**config)
        with plot.panels(file, groups := groups_of(runs)) as (axes,):
            plot.draw_curves(axes, groups, runs[0].metric, SHARE)
            axes.set(ylabel="share solved", ylim=(0, 1.01))
    masks, puma = (points[-1][1] for points in curves)
    lead = 100 * (puma - masks)
    side = f"{abs(lead):.1f} points {'ahead' if lead > 0 else 'behind'}"
    print(
        f"random masks {masks:.1%}, PUMA {puma:.1%} of {config['test_examples']} held-out problems"
    )
    print(f"PUMA is {side} here. That is one seed: results/when.md has eight pairs.")


if __name__ == "__main__":
    main()
