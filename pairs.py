"""Eight pairs of today's PUMA+: each method at its own rate, and all at one rate.

    python pairs.py sudoku products:one     # train and judge what is missing of these tasks
    python pairs.py                     # the tables of what is there
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from scipy import stats

ARMS = {
    "mdm": "--method=mdm",
    "puma": "--method=puma",
    "puma_plus": "--method=puma_plus",
    "fourth": "--method=puma_plus --variant=lab.fourth",  # at the rate of puma_plus
}
TASKS = {  # flags, the rates that are tried, updates between evaluations
    "sudoku": ("config/sudoku_tiny.py", ["4e-3", "8e-3", "1.6e-2"], 100),
    "products": ("config/products.py", ["2e-3", "4e-3", "8e-3"], 150),
    "run_lengths": (
        "config/gym.py --task=lab.run_lengths --data=32 --k_schedule=[(0,6)]",
        ["2e-3", "4e-3", "8e-3"],
        120,
    ),
}
TUNED = 201, 202
SEEDS = range(1, 9)
SURE = "(1, 0.99)"
SAMPLERS = [(1, 1.0), (1, 0.9), (1, 0.95), (1, 0.98), (1, 0.99), (1, 0.995)]


def folder(task, arm, rate, seed):
    return Path("out/pairs", task, f"{arm}_{rate}_{seed}")


def records(*run):
    path = folder(*run) / "eval.json"
    return json.loads(path.read_text()) if path.exists() else {}


def do(task, arm, rate, seed, samplers, interval):
    where = folder(task, arm, rate, seed)
    if {*map(str, samplers)} <= {*records(task, arm, rate, seed)}:
        return
    where.mkdir(parents=True, exist_ok=True)
    flags = f"{TASKS[task][0]} {ARMS[arm]} --lr={rate} --seed={seed} --eval_interval={interval}"
    end = f"--test_examples=256 --dtype=float32 --resume --out_dir={where}"
    judge = ["lab/evaluate.py", f"--out_dir={where}", f"--samplers={samplers}"]
    with open(f"{where}.log", "a") as log:
        for command in (["train.py", *flags.split(), *end.split()], judge):
            env = os.environ | {"OMP_NUM_THREADS": "1"}
            subprocess.run([sys.executable, *command], stdout=log, stderr=log, env=env, check=True)
    kept = records(task, arm, rate, seed)
    print(task, arm, rate, seed, *(f"{100 * kept[str(s)]['solved']:.1f}" for s in samplers), flush=True)


def tuned(task):
    """{arm: its rate}, and the one rate of all: by the mean of both seeds above 0.99."""
    rates = TASKS[task][1]
    mean = {
        (arm, rate): np.mean([records(task, arm, rate, seed)[SURE]["solved"] for seed in TUNED])
        for arm in ("mdm", "puma", "puma_plus")
        for rate in rates
    }
    own = {arm: max(rates, key=lambda rate: mean[arm, rate]) for arm in ("mdm", "puma", "puma_plus")}
    one = max(rates, key=lambda rate: sum(mean[arm, rate] for arm in own))
    print(task, {k: round(100 * v, 1) for k, v in mean.items()}, own, "one rate", one, flush=True)
    return own | {"fourth": own["puma_plus"]}, one


def everything(task):
    _, rates, interval = TASKS[task]
    for seed in TUNED:
        for rate in rates:
            for arm in ("mdm", "puma", "puma_plus"):
                do(task, arm, rate, seed, [(1, 0.99)], 0)
    own, one = tuned(task)
    for seed in SEEDS:
        for arm in ARMS:
            if arm != "puma_plus" or seed < 5:
                do(task, arm, own[arm], seed, SAMPLERS, interval)
    for seed in SEEDS:
        for arm in ("mdm", "puma", "fourth"):
            do(task, arm, one, seed, SAMPLERS, interval)


def at_one_rate(task, arms=("mdm", "puma", "fourth"), rate="4e-3"):
    """The rate that an earlier study chose for all methods on both tasks."""
    for seed in SEEDS:
        for arm in arms:
            do(task, arm, rate, seed, SAMPLERS, TASKS[task][2])


def fourth(task):
    own, _ = tuned(task)
    for seed in SEEDS:
        do(task, "fourth", own["fourth"], seed, SAMPLERS, TASKS[task][2])


def interval(values):
    mean, half = np.mean(values), stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
    return f"{mean:+.1f} [{mean - half:.1f}, {mean + half:.1f}]"


def table(task, rate_of, arms, baseline="mdm"):
    for sampler in map(str, SAMPLERS):
        print(f"  {sampler:12}", end="")
        solved = {}
        for arm in arms:
            kept = {s: records(task, arm, rate_of[arm], s).get(sampler) for s in SEEDS}
            solved[arm] = {s: 100 * k["solved"] for s, k in kept.items() if k}
            if not solved[arm]:
                continue
            passes = np.mean([k["steps"] for k in kept.values() if k])
            print(f"  {arm} {len(solved[arm])}: {np.mean([*solved[arm].values()]):.1f} ({passes:.1f})", end="")
            both = [s for s in solved[arm] if s in solved[baseline]]
            if arm != baseline and len(both) > 1:
                print("", interval([solved[arm][s] - solved[baseline][s] for s in both]), end="")
        print()


def reached(task, arm, rate, seed, share):
    """The update at which this share is solved, between evaluations on a line; None: never."""
    lines = (folder(task, arm, rate, seed) / "metrics.jsonl").read_text().split("\n")[:-1]
    rows = [(row["iter"], row["solved"]) for row in map(json.loads, lines) if "solved" in row]
    for (u, a), (v, b) in zip([(0, 0.0), *rows], rows):
        if b >= share:
            return u + (v - u) * (share - a) / (b - a)


def speeds(task, rate):
    for arm in ("puma", "puma_plus"):
        for share in (0.5, 0.9):
            pairs = [(reached(task, "mdm", rate, s, share), reached(task, arm, rate, s, share)) for s in SEEDS]
            both = [a / b for a, b in pairs if a and b]
            missing = [sum(not x for x in side) for side in zip(*pairs)]
            if len(both) > 1:
                logs = np.log(both)
                mean, half = logs.mean(), stats.t.ppf(0.975, len(both) - 1) * stats.sem(logs)
                print(f"  {arm} to {share:.0%}: mdm's updates over its {np.exp(mean):.2f} "
                      f"[{np.exp(mean - half):.2f}, {np.exp(mean + half):.2f}], {len(both)} pairs, "
                      f"never: mdm {missing[0]}, {arm} {missing[1]}")


if __name__ == "__main__":
    for task in sys.argv[1:]:
        name, _, how = task.partition(":")
        {"": everything, "fourth": fourth, "one": at_one_rate}[how](name)
    for task in TASKS if len(sys.argv) == 1 else []:
        try:
            own, one = tuned(task)
        except KeyError:
            continue
        table(task, own, ARMS)
        print(" all at", one)
        table(task, dict.fromkeys(ARMS, one), ["mdm", "puma", "puma_plus"])
        try:
            speeds(task, one)
        except FileNotFoundError:
            pass
