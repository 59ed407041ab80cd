"""PUMA+ beside random masks: two runs of train.py on the same data, with the same seed.

    python lab/race.py                                            # 6x6 Sudoku, a few minutes
    python lab/race.py config/sudoku_tiny.py --seed=2             # with any settings of train.py

A line for each evaluation, as soon as both have it. Ctrl-C stops both with a checkpoint, and the
same command goes on. One seed decides nothing: see results/.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
METHODS = {"puma_plus": "PUMA+", "mdm": "random masks"}
WIDTH = 24  # of a bar


def main(flags):
    if "--help" in flags:
        raise SystemExit(__doc__)
    if not any(flag.endswith(".py") for flag in flags):
        flags = ["config/sudoku_tiny.py", *flags]
        folder = ROOT / "data/sudoku/minimal_6x6"
        if not folder.exists():
            make = "data/sudoku/prepare.py", "--box=(2,3)", f"--out={folder}"
            subprocess.run([sys.executable, *make], cwd=ROOT, check=True)
    seed = next((flag for flag in flags if flag.startswith("--seed=")), "--seed=1")
    folders = [ROOT / f"out/race_{method}_{seed.removeprefix('--seed=')}" for method in METHODS]
    runs = [start(flags, *pair) for pair in zip(METHODS, folders, strict=True)]
    print("share of held-out puzzles solved; the first line takes half a minute", flush=True)
    for number in signal.SIGTERM, signal.SIGHUP:  # as Ctrl-C
        signal.signal(number, signal.default_int_handler)
    shown = 0
    alive = True
    try:
        while alive:
            time.sleep(0.5)
            alive = any(run.poll() is None for run in runs)
            failed = [folder for run, folder in zip(runs, folders, strict=True) if run.poll()]
            if failed:
                log = Path(f"{failed[0]}.log").read_text().split()
                raise SystemExit(f"a run has stopped; {failed[0]}.log ends: {' '.join(log)[-200:]}")
            curves = [curve(folder) for folder in folders]
            for update in sorted(set(curves[0]) & set(curves[1]))[shown:]:
                print(line(update, [each[update] for each in curves]), flush=True)
                shown += 1
    except KeyboardInterrupt:
        raise SystemExit("stopped, with checkpoints: the same command goes on") from None
    finally:
        for number in signal.SIGINT, signal.SIGTERM, signal.SIGHUP:
            signal.signal(number, signal.SIG_IGN)  # the runs are being stopped
        if alive:
            print("stopping both", flush=True)
        for run in runs:
            run.terminate()
        for run in runs:
            run.wait()


def start(flags, method, folder):
    """A run of train.py, on one core; what it prints goes to a file beside its folder."""
    folder.parent.mkdir(exist_ok=True)
    where = f"--method={method}", f"--out_dir={folder}", "--resume"
    with open(f"{folder}.log", "w") as log:
        return subprocess.Popen(
            [sys.executable, "train.py", *flags, *where], cwd=ROOT, stdout=log, stderr=log,
            env=os.environ | {"OMP_NUM_THREADS": "1"}, start_new_session=True,
        )  # fmt: skip


def curve(folder):
    """{update: share solved} of a run so far."""
    path = folder / "metrics.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return {row["iter"]: row["solved"] for row in map(json.loads, lines) if "solved" in row}


def line(update, shares):
    bars = [
        f"{label} {'#' * round(WIDTH * share):{WIDTH}} {share:6.1%}"
        for label, share in zip(METHODS.values(), shares, strict=True)
    ]
    return f"{update:6}  " + "   ".join(bars)


if __name__ == "__main__":
    main(sys.argv[1:])
