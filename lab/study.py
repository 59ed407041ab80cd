"""Paired runs: every arm with the same seeds, data and number of updates; a table with intervals.

    python lab/study.py                                       # what of it is done, and its table
    python lab/study.py --run                                 # first the runs that are missing
    python lab/study.py --run --seeds=3 --flags="['config/sudoku_tiny.py','--max_iters=500']"

An arm is a name and flags of train.py. Each run is one folder, OUT/ARM_SEED, which an interruption
leaves with its checkpoint: the same command goes on. Finished runs are judged by several samplers,
(tokens a step, tau), on the held-out examples. Differences are of pairs with the same seed: mean
and 95 % interval (Student's t). Eight pairs make a claim, fewer do not.
"""

import json
import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

import policies  # noqa: E402
import sample  # noqa: E402
from configurator import configure  # noqa: E402

flags = ["config/sudoku_tiny.py"]  # of train.py, for all arms
arms = {"puma_plus": "--method=puma_plus", "mdm": "--method=mdm", "puma": "--method=puma"}
against = "mdm"  # the arm that the others are compared with
seeds = 8
out = "out/study"
samplers = [(1, 1.0), (2, 1.0), (4, 1.0), (1, 0.9)]  # tokens a step, or all above tau
run = False  # train what is missing; else only the table
jobs = 2  # at a time, on a core each
T = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201]  # 97.5 %, df 1..


def main():
    pairs = [(arm, seed) for seed in range(1, seeds + 1) for arm in arms]
    if run:
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(train, *zip(*pairs, strict=True)))
    found = {pair: judged(folder(*pair)) for pair in pairs}
    for index, (tokens, tau) in enumerate(samplers):
        how = f"above {tau}, else {tokens}" if tau < 1 else f"{tokens} a step"
        print(f"\n{how}, % solved: mean [95 % interval], by seed; difference to {against}")
        for arm in arms:
            shares = {s: found[arm, s][index] for a, s in found if a == arm and found[a, s]}
            base = {s: found[against, s][index] for a, s in found if a == against and found[a, s]}
            gaps = [shares[s] - base[s] for s in shares if s in base]
            by_seed = " ".join(f"{100 * share:.1f}" for share in shares.values())
            gap = "" if arm == against else f"; {interval(gaps)}, {len(gaps)} pairs"
            print(f"  {arm:10} {interval([*shares.values()])} ({by_seed}){gap}")


def folder(arm, seed):
    return ROOT / out / f"{arm}_{seed}"


def train(arm, seed):
    """Run train.py to its end, unless that has been done; what it prints goes to a file."""
    where = folder(arm, seed)
    where.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "train.py", *flags, *arms[arm].split(), f"--seed={seed}"]
    if not finished(where):
        print(f"{arm}, seed {seed}: {where}", flush=True)
        with open(f"{where}.log", "w") as log:
            subprocess.run([*command, f"--out_dir={where}", "--resume"], cwd=ROOT, stdout=log,
                           stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"})  # fmt: skip


def finished(where):
    if not (where / "ckpt.pt").exists():
        return False
    saved = sample.load_checkpoint(where)
    return saved["iteration"] == saved["config"]["max_iters"]


def judged(where):
    """The share solved with each sampler, kept in eval.json; None if the run is not finished."""
    path = where / "eval.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    if not finished(where):
        return None
    for sampler in samplers:
        if str(sampler) not in kept:
            kept[str(sampler)] = share_solved(where, *sampler)
            path.write_text(json.dumps(kept))
    return [kept[str(sampler)] for sampler in samplers]


def share_solved(where, tokens, tau):
    model, config = sample.load(where, "cpu")
    problem = sample.module(config["task"]).load(ROOT / config["data"], config["test_examples"])
    generate = sample.hook(config["method"], "generate", sample.generate)
    x0, prompt = problem.test[: config["test_examples"]]
    solved = 0
    for at in range(0, len(x0), 64):
        rows = torch.as_tensor(x0[at : at + 64]).long()
        hidden = ~torch.as_tensor(prompt[at : at + 64])
        x, _ = generate(model, rows, hidden, policies.POLICIES[config["policy"]], tokens, tau)
        judge = problem.judge(x.numpy(), x0[at : at + 64], prompt[at : at + 64])
        solved += judge.sum().item()
    return solved / len(x0)


def interval(values):
    """Mean and 95 % interval, in percent."""
    n = len(values)
    if not n:
        return "-"
    mean = sum(values) / n
    if n == 1:
        return f"{100 * mean:.1f}"
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1))
    half = T[min(n - 2, len(T) - 1)] * deviation / math.sqrt(n)
    return f"{100 * mean:.1f} [{100 * (mean - half):.1f}, {100 * (mean + half):.1f}]"


if __name__ == "__main__":
    configure(globals())
    main()
