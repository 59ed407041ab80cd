"""Time a recipe to 90 % of the 200 held-out 9x9 puzzles, and check it: an entry of records.md.

    python -m studies.record --flags="--carry --window=2"

Trains each seed until an evaluation reaches the target; another process solves the puzzles again,
with the weights at the stop, some updates later.
"""

import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import mean

from configurator import configure, errors_as_messages
from engine.files import read_json
from engine.log import read_metrics

flags = ""  # of train.py: the recipe
config = "config/sudoku_nine.py"  # with the settings that the recipe leaves alone
seeds = [1, 2, 3]  # 0..:
target = 0.9  # 0..1: the share of puzzles to solve
out_dir = "out/record"  # runs go to out_dir/<seed>

PUZZLES = [200, 4223490903]  # how many are held out, and their checksum
SAME = '--eval_policies=["top_k"]', "--eval_reveal=2", "--eval_tau=None", "--log_interval=1"


def main():
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with errors_as_messages():
        if Path(out_dir).exists():
            raise ValueError(f"{out_dir} exists: move it away, or give another --out_dir")
        times = [race(seed, Path(out_dir, str(seed))) for seed in seeds]
    print(f"{flags or config}: {mean(times):.0f} s, mean of seeds {seeds}")


def race(seed, folder):
    """Seconds of training to the first evaluation that reaches the target. ValueError if none."""
    command = [sys.executable, "train.py", config, *shlex.split(flags), *SAME, f"--seed={seed}"]
    with subprocess.Popen([*command, f"--out_dir={folder}"]) as run:
        try:
            while run.poll() is None and not reached(folder):
                time.sleep(1)
        finally:
            run.terminate()  # it writes a checkpoint
    if not (found := reached(folder)):
        raise ValueError(f"seed {seed}: train.py has ended without solving {target:.0%}")
    subprocess.run([sys.executable, "eval.py", f"--out_dir={folder}"], check=True)
    checked = read_json(folder / "eval.json")[-1]["accuracy"]
    print(f"seed {seed}: {found}, {checked:.1%} when solved again")
    if checked < target:
        raise ValueError("no entry")
    return found["seconds"]


def reached(folder):
    """Commit, updates and seconds of the first evaluation that reaches the target, or None."""
    for row in read_metrics(folder / "metrics.jsonl"):
        if row["type"] == "config":
            commit = row["commit"]
            own = row["config"]["data"]["validation"]
            if own != PUZZLES:
                raise ValueError(f"{folder} solves other puzzles, {own}: expected {PUZZLES}")
            if row["config"]["init_from"] != "scratch":
                raise ValueError(f"{folder} began from other weights: no entry")
        elif row["type"] == "train":
            seconds = row["seconds"]
        elif row["accuracy"]["top_k"] >= target:
            return {"commit": commit, "updates": row["iter"], "seconds": seconds}
    return None


if __name__ == "__main__":
    configure(globals())
    main()
