"""Two arms of train.py side by side: what a change does as it happens, and by how many points.

    python lab/race.py                                    # PUMA+ and random masks, a few minutes
    python lab/race.py config/X.py --against="--policy=mine" --seeds=8
    python lab/race.py config/X.py --variant=lab.mine --against="--variant=" --seeds=8

The first arm has the flags as they are, the second those of --against added; both have the same
seeds, data and updates. A line for each evaluation, as soon as both have it; at the end both are
judged at 1, 2, 4 tokens a step and above 0.9 (lab/study.py). Eight seeds make a claim, fewer do
not. Ctrl-C stops both with a checkpoint, and the same command goes on.
"""

import shlex
import subprocess
import sys
import time
import zlib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from configurator import read
from lab import study


def main(flags):
    if {"--help", "-h"} & {*flags}:
        sys.exit(print(__doc__))
    against = option(flags, "--against", "--method=mdm")
    seeds = option(flags, "--seeds", "1")
    if not seeds.isdigit() or seeds == "0":
        raise SystemExit(f"--seeds={seeds}: expected a number from 1")
    if not any(flag.endswith(".py") for flag in flags):
        flags = ["config/sudoku_tiny.py", *flags]
        folder = "data/sudoku/minimal_6x6"
        if not Path(folder).exists():
            make = "data/sudoku/prepare.py", "--box=(2,3)", f"--out={folder}"
            subprocess.run([sys.executable, *make], check=True)
    methods = method_of(flags), method_of([*flags, *shlex.split(against)])
    names = methods if methods[0] != methods[1] else ("as_it_is", "changed")
    name = zlib.crc32(repr((flags, against)).encode())
    study.out = f"out/race/{Path(flags[0]).stem}_{name:08x}"
    study.flags = flags
    study.arms = dict(zip(names, ("", against), strict=True))
    study.against = names[1]
    print(f"{names[0]}: {' '.join(flags)}; {names[1]}: the same with {against}; in {study.out}")
    print("share of held-out problems solved; the first line takes half a minute", flush=True)
    pairs = [(arm, seed) for seed in range(1, int(seeds) + 1) for arm in names]
    for seed in range(1, int(seeds) + 1):
        with study.stopped_together():
            race(seed)
    study.table(pairs)
    if int(seeds) < 8:
        print(f"\n{seeds} of eight seeds: this decides nothing; --seeds=8 goes on")


def option(flags, name, default):
    """The value of a flag of this script, taken out of the flags."""
    for flag in [flag for flag in flags if flag.startswith(f"{name}=")]:
        flags.remove(flag)
        default = flag.partition("=")[2]
    return default


def method_of(flags):
    return dict(pair for flag in flags for pair in read(flag)).get("method", "puma")


def race(seed):
    """Both arms with one seed, a line for each evaluation."""
    runs = [study.start(arm, seed) for arm in study.arms]
    folders = [study.folder(arm, seed) for arm in study.arms]
    shown = 0
    alive = True
    while alive:
        time.sleep(0.5)
        alive = any(run and run.poll() is None for run in runs)
        for run, folder in zip(runs, folders, strict=True):
            if run and run.poll():
                last = Path(f"{folder}.log").read_text().split()
                raise SystemExit(f"a run has stopped; {folder}.log ends: {' '.join(last)[-200:]}")
        curves = [study.curve(folder) for folder in folders]
        for update in sorted(set(curves[0]) & set(curves[1]))[shown:]:
            print(line(update, seed, [each[update] for each in curves]), flush=True)
            shown += 1


def line(update, seed, shares):
    bars = [
        f"{study.label(arm)} {'#' * round(24 * share):24} {share:6.1%}"
        for arm, share in zip(study.arms, shares, strict=True)
    ]
    return f"{update:6}  " + "   ".join(bars) + (f"   seed {seed}" if seed > 1 else "")


if __name__ == "__main__":
    study.begin(lambda: main(sys.argv[1:]))
