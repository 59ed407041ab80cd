"""Paired runs: every arm with the same seeds, data and number of updates; a table with intervals.

    python lab/study.py                                       # what of it is done, and its table
    python lab/study.py --run                                 # first the runs that are missing
    python lab/study.py --figure=curves.png                   # instead, learning curves
    python lab/study.py --figure=steps.png --panels="{'6x6 Sudoku': 'out/study'}"    # by sampler
    python lab/study.py --run --seeds=3 --out=out/nine --flags="['config/sudoku_nine.py']"

An arm is a name and flags of train.py. Each run is one folder, OUT/ARM_SEED, which an interruption
leaves with its checkpoint: the same command goes on. Finished runs are judged by several samplers,
(tokens a step, tau), on the held-out examples; records without weights, as results/pairs.zip, give
the same table. Differences are of pairs with the same seed: mean and 95 % interval (Student's t).
Eight pairs make a claim, fewer do not.
"""

import contextlib
import functools
import json
import math
import os
import shlex
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from tqdm import tqdm

import checkpoint
import policies
import sample
from configurator import configure, fit, pick, read
from data import files
from lab.evaluate import fill, open_run

flags = ["config/sudoku_tiny.py"]  # of train.py, for all arms
arms = {"puma_plus": "--method=puma_plus", "mdm": "--method=mdm", "puma": "--method=puma"}
against = "mdm"  # the arm that the others are compared with
seeds = 8
out = "out/study"
samplers = [(1, 1.0), (2, 1.0), (4, 1.0), (1, 0.9)]  # tokens a step, or all above tau
run = False  # train what is missing; else only the table
jobs = 2  # at a time, on a core each
figure = ""  # instead of the table, a file for learning curves
panels = {}  # {name: folder of a study}: instead, what each sampler solves, in a panel each
title = ""  # of the figure: its finding; "" = the flags


def main():
    pick("against", against, arms)
    if min(seeds, jobs) < 1:
        raise SystemExit("seeds and jobs are 1 or more")
    if not all(type(each) is tuple and len(each) == 2 for each in samplers):
        raise SystemExit(f"samplers: expected pairs (tokens a step, tau), got {samplers}")
    pairs = [(arm, seed) for seed in range(1, seeds + 1) for arm in arms]
    if run:
        side_by_side(train, pairs, jobs)
    if panels:
        draw_samplers()
    elif figure:
        draw()
    else:
        table(pairs)


def table(pairs):
    """The shares solved of all arms, and their differences to `against`."""
    torch.set_num_threads(1)  # of each of the jobs
    with ThreadPoolExecutor(jobs) as pool:
        each = pool.map(judged, *zip(*pairs, strict=True))
        found = dict(zip(pairs, tqdm(each, total=len(pairs), unit="run", leave=False), strict=True))
    if not any(found.values()):
        raise SystemExit(f"{out}: no run is finished; add --run")
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
    return Path(out, f"{arm}_{seed}")


def flags_of(arm, seed):
    return [*flags, *shlex.split(arms[arm]), f"--seed={seed}"]


def start(arm, seed):
    """A run of train.py on one core, what it prints in a file; None if it is finished."""
    where = folder(arm, seed)
    if judged_by_all(records(where)) or finished(arm, seed):
        return None
    where.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "train.py", *flags_of(arm, seed), f"--out_dir={where}", "--resume"]
    return launch(command, f"{where}.log")


def launch(command, log):
    """A process on one core, what it prints in a file; stopped_together ends it."""
    with checkpoint.opened("", log, "a") as file:
        run = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True,
                               env=os.environ | {"OMP_NUM_THREADS": "1"})  # fmt: skip
    launch.runs.append(run)
    return run


launch.runs = []  # all processes that this one has started


def train(arm, seed):
    if run := start(arm, seed):
        print(f"{arm}, seed {seed}: {folder(arm, seed)}", flush=True)
        if run.wait():
            print(f"{arm}, seed {seed} has stopped; {folder(arm, seed)}.log says why", flush=True)


def side_by_side(task, pairs, jobs):
    """task(*pair) of all pairs, `jobs` at a time; an interruption begins no other."""
    pool = ThreadPoolExecutor(jobs)
    with stopped_together():
        try:
            list(pool.map(task, *zip(*pairs, strict=True)))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


@contextlib.contextmanager
def stopped_together():
    """Ctrl-C, SIGTERM or a closed terminal stops all runs, with checkpoints."""
    signals = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    signals = [each for each in signals if signal.getsignal(each) != signal.SIG_IGN]  # by nohup
    before = [signal.signal(number, signal.default_int_handler) for number in signals]
    try:
        yield
    except KeyboardInterrupt:
        print("stopping", flush=True)
        raise SystemExit("stopped, with checkpoints: the same command goes on") from None
    finally:
        for number in signals:
            signal.signal(number, signal.SIG_IGN)
        for run in launch.runs:
            run.terminate()
        for run in launch.runs:
            run.wait()
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)


def finished(arm, seed):
    """Whether the run is there, whole. One of other flags ends the study."""
    where = folder(arm, seed)
    if not (where / "ckpt.pt").exists():
        return False
    saved = checkpoint.load(where)
    made = saved["config"]
    wanted = dict(pair for flag in flags_of(arm, seed) for pair in read(flag))
    wanted.pop("out_dir", None)  # a config file's
    if other := [k for k, v in wanted.items() if fit(k, v, made.get(k)) != made.get(k)]:
        raise SystemExit(f"{where} has another {', '.join(other)}: choose another --out")
    return saved["iteration"] == made["max_iters"]


def judged(arm, seed):
    """The share solved with each sampler, kept in eval.json; None if the run is not finished."""
    where = folder(arm, seed)
    kept = records(where)
    if not finished(arm, seed) and not judged_by_all(kept):
        return None
    for sampler in samplers:
        if str(sampler) not in kept:
            kept[str(sampler)] = share_solved(where, *sampler)
            files.write_json(where / "eval.json", kept)
    return [kept[str(sampler)] for sampler in samplers]


def records(where):
    """What is kept of a run's samplers; without its checkpoint, it stands for the run."""
    path = where / "eval.json"
    return json.loads(path.read_text()) if path.exists() else {}


def judged_by_all(kept):
    return all(str(sampler) in kept for sampler in samplers)


def share_solved(where, tokens, tau):
    model, config, problem, count = open_run(where, None, "cpu")
    if problem.judge is None:
        raise SystemExit(f"task {config['task']} has no judge, so nothing can be solved")
    say_what_is_known(config["task"], config["data"], count)
    generate = checkpoint.of_variant(config["variant"], "generate", sample.generate)
    policy = policies.POLICIES[config["policy"]]
    solved = 0
    for at in range(0, count, 64):
        x0, prompt = problem.test[at : min(at + 64, count)]
        filled, _ = fill(model, generate, x0, prompt, policy, tokens, tau)
        solved += problem.judge(filled, x0, prompt).sum().item()
    return solved / count


@functools.cache
def say_what_is_known(task, data, count):
    """Once for each data: how many held-out rows are among the first 100,000 to train on."""

    def rows(examples, size):
        both = examples[np.arange(min(len(examples), size))]  # x0 and prompt, (n, L)
        return {row.tobytes() for row in np.concatenate(both, 1).astype(np.int32)}

    problem = checkpoint.module(task).load(data, count)
    with contextlib.suppress(SystemExit):  # of a task whose training data is not there
        if known := rows(problem.test, count) & rows(problem.train, 100_000):
            print(f"{data}: {len(known)} of {count} held-out rows are also trained on", flush=True)


def label(arm):
    names = {"puma_plus": "PUMA+", "puma": "PUMA", "mdm": "random masks"}
    return (names | {"lab.carry": "carried state"}).get(arm, arm)


def curve(folder):
    """{update: share solved} of a run so far."""
    path = folder / "metrics.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return {row["iter"]: row["solved"] for row in map(json.loads, lines) if "solved" in row}


def interval(values):
    """Mean and 95 % interval, in percent."""
    if not values:
        return "-"
    mean, half = spread([100 * value for value in values])
    if len(values) == 1:
        return f"{mean:.1f}"
    return f"{mean:.1f} [{mean - half:.1f}, {mean + half:.1f}]"


def spread(values):
    """Mean, and half the width of its 95 % interval by Student's t; of one value nan."""
    n = len(values)
    t = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201]  # df 1..11
    mean = sum(values) / n
    if n == 1:
        return mean, math.nan
    t = t[n - 2] if n < 13 else 1.960 + 2.372 / (n - 1) + 2.82 / (n - 1) ** 2  # its expansion
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1))
    return mean, t * deviation / math.sqrt(n)


def draw():
    """The share solved over updates, as training has logged it: mean of an arm and 95 % band."""
    lines = {}
    for arm in arms:
        curves = [curve(folder(arm, seed)) for seed in range(1, seeds + 1)]
        curves = [points for points in curves if points]
        if not curves:
            continue
        updates = sorted(set.intersection(*map(set, curves)))  # as far as the shortest
        found = [spread([100 * points[update] for points in curves]) for update in updates]
        name = f"{label(arm)}, mean of {len(curves)} seeds, 95 % interval"
        lines[name] = updates, *np.reshape(found, (-1, 2)).T
    if not lines:
        raise SystemExit(f"{out}: no run has a curve yet; add --run")
    draw_lines(lines, "held-out problems solved, %", 100, title or " ".join(flags), figure)


def draw_lines(lines, what, most, title, file):
    """Lines over updates, {name: (updates, values, half the width of a band)}."""
    from matplotlib.figure import Figure

    page = Figure(figsize=(6, 4), layout="constrained")
    axes = page.subplots()
    for name, (updates, values, half) in lines.items():
        axes.plot(updates, values, label=name)
        axes.fill_between(updates, values - half, values + half, alpha=0.15)
    axes.set(xlabel="updates", ylabel=what, xlim=(0, None), ylim=(0, most))
    axes.set_title(title, fontsize="medium", wrap=True)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    page.savefig(file, dpi=150)
    print(f"wrote {file}")


def draw_samplers():
    """What each sampler solves: means of the seeds and 95 % intervals, a panel for each study."""
    from matplotlib.figure import Figure

    page = Figure(figsize=(3 * len(panels), 3), layout="constrained")
    row = page.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    fixed = [index for index, (_, tau) in enumerate(samplers) if tau == 1]
    for axes, (name, where) in zip(row, panels.items(), strict=True):
        for index, arm in enumerate(arms):
            kept = [records(Path(where, f"{arm}_{seed}")) for seed in range(1, seeds + 1)]
            kept = [each for each in kept if judged_by_all(each)]
            if not kept:
                raise SystemExit(f"{where}: no run of {arm} is judged by {samplers}")
            found = [spread([100 * each[str(sampler)] for each in kept]) for sampler in samplers]
            mean, half = np.transpose(found)
            x = np.arange(len(samplers)) + 0.12 * (index - (len(arms) - 1) / 2)  # side by side
            ends = np.minimum(half, mean), np.minimum(half, 100 - mean)
            points = axes.errorbar(
                x, mean, ends, fmt="os^D"[index % 4], capsize=2, label=label(arm)
            )
            axes.plot(x[fixed], mean[fixed], color=points[0].get_color())
        names = [f"all > {tau}" if tau < 1 else str(tokens) for tokens, tau in samplers]
        axes.set_xticks(range(len(samplers)), names)
        axes.set(title=name, xlabel="tokens a step", ylim=(0, 102))
        axes.grid(alpha=0.3)
    row[0].set_ylabel("held-out problems solved, %")
    page.suptitle(title)
    how = {"loc": "outside lower center", "ncols": len(arms), "frameon": False}
    page.legend(*row[0].get_legend_handles_labels(), **how)
    page.savefig(figure, dpi=150)
    print(f"wrote {figure}")


def begin(main):
    """Call main of a script in this folder, from the root."""
    os.chdir(Path(__file__).resolve().parents[1])
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit("stopped: the same command goes on") from None


if __name__ == "__main__":
    configure(globals())
    begin(main)
