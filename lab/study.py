"""Paired runs: arms with the same seeds, data and updates, and how far apart they end.

    python lab/study.py --run                                # a race: PUMA+ against random masks
    python lab/study.py --run --seeds=8 --arms="{'mine': '--policy=gap', 'mdm': '--method=mdm'}"
    python lab/study.py --run --every=100 --levels=[50,90]   # judged on the way, too: how fast
    python lab/study.py mine.py --run --jobs=8     # settings below, written down in a file of yours
    python lab/study.py --curves=curves.png --figure=rate.png      # pictures of what is done

An arm is a name and flags of train.py, as --init=out/pairs/mdm_SEED for a last phase from the run
of the same seed; a run is a folder, OUT/TASK/ARM_SEED. A line comes for each evaluation that all
arms of a seed have. Ctrl-C stops the runs, each with a checkpoint, and the same command goes on. A
finished run is judged by several samplers, as lab/evaluate.py has them, and its records there,
eval.json, stand for it once its weights are gone. Differences are of pairs with the same seed: mean
and 95 % interval (Student's t). Eight pairs make a claim, fewer do not. Updates to a level are
counted to the first evaluation at or above it.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import checkpoint
import policies
import sample
from configurator import configure, fit, pick, read
from lab import evaluate, tables

flags = ["config/sudoku_tiny.py"]  # of all runs
arms = {"puma_plus": "--method=puma_plus", "mdm": "--method=mdm"}
against = "mdm"  # the arm that the others are compared with
tasks = {"": ""}  # a study of several: {folder in OUT: flags}
seeds = 1  # 1..
out = "out/study"
samplers = [(1, 1.0), (2, 1.0), (4, 1.0), (1, 0.9)]  # tokens a step, or all above tau < 1
every = 0  # 0.. updates between weights that are kept and judged, too; 0 = the last alone
levels = []  # %; also the updates until so much is solved, with each sampler
# -- running
run = False  # train and judge what is missing; else only the tables
jobs = 2  # 1.. at a time, on a core each
device = ""  # cpu, cuda; "" = cuda where there is one
weights = True  # False: a run's checkpoint is deleted once it is judged
make = {  # {path: command}: made first where a run's flags name it and it is missing
    "data/sudoku/minimal_6x6": "data/sudoku/prepare.py --box=(2,3) --out=data/sudoku/minimal_6x6",
    "data/wordproblems/tokens": "data/wordproblems/prepare.py",
}
# -- instead of the tables
figure = ""  # a file: accuracy over tokens per forward pass
curves = ""  # a file: learning curves, of studies of one task
title = ""  # of the figure: its finding; "" = the flags


def main():
    check()
    pairs = [(task, arm, seed) for seed in range(1, seeds + 1) for task in tasks for arm in arms]
    if run:
        train(pairs)
    for pair in pairs:
        finished(*pair)  # one of other flags ends the study
    found = {pair: kept for pair in pairs if (kept := judged(folder(*pair)))}
    if not found:
        raise SystemExit(f"{out}: no run is finished; add --run")
    of = [*dict.fromkeys(task for task, _, _ in found)]
    if figure or curves:
        draw(pairs, found, of)
    else:
        for task in of:
            single(task, found)
    if run and seeds == 1:
        example([pair for pair in found if (folder(*pair) / "ckpt.pt").exists()])
    if seeds < 8:
        print(f"\n{seeds} of eight seeds: this decides nothing; --seeds=8 goes on")


def check():
    pick("against", against, arms)
    if not samplers or not all(type(each) is tuple and len(each) > 1 for each in samplers):
        raise SystemExit(f"samplers: expected (tokens a step, tau) of each, got {samplers}")


def single(task, found):
    if task:
        print(f"\n== {task}")
    tables.solved(found, task, arms, against, samplers)
    tables.parallelism(found, task, arms, against, samplers)
    runs = [(arm, seed) for t, arm, seed in found if t == task]
    ways = samplers if every else samplers[:1]
    for sampler in ways if levels else ():
        print(f"\n== {tables.words(*sampler) if every else 'as training has logged it'}")
        curves = {run: curve(folder(task, *run), sampler) for run in runs}
        tables.speed(curves, arms, against, levels)


def example(pairs):
    """The first held-out problem as each run fills it in, all above 0.9 at once."""
    for pair in pairs:
        model, made, problem, _ = evaluate.open_run(folder(*pair), 1, "cpu")
        generate = checkpoint.of_variant(made["variant"], "generate", sample.generate)
        x0, prompt = problem.test[:1]
        x, steps = evaluate.fill(model, generate, x0, prompt, policies.top_k, 1, 0.9)
        verdict = "right" if problem.judge and problem.judge(x, x0, prompt)[0] else "wrong"
        print(f"\n{problem.render(x[0], prompt[0])}")
        print(f"{tables.label(pair[1])}: {steps[0].item()} forward passes, {verdict}", flush=True)


def draw(pairs, found, of):
    from lab import figures  # which needs matplotlib

    if figure:
        figures.over_rate(found, of, arms, samplers, title, figure)
    if curves:
        of_arms = {arm: [] for arm in arms}
        for pair in pairs:
            if points := curve(folder(*pair), samplers[0]):
                of_arms[pair[1]].append({u: 100 * share for u, share in points.items()})
        about = "held-out problems solved, %", 100, title or " ".join(flags)
        figures.curves(of_arms, *about, curves)


# -- runs ------------------------------------------------------------------------------------------
def folder(task, arm, seed):
    return Path(out, task, f"{arm}_{seed}")


def flags_of(task, arm, seed):
    own = shlex.split(f"{tasks[task]} {arms[arm]}".replace("SEED", str(seed)))
    return [*flags, *own, f"--seed={seed}"]


def settings_of(pair):
    return dict(setting for flag in flags_of(*pair) for setting in read(flag))


def train(pairs):
    """All that is missing, `jobs` at a time, a core each; what happens is printed."""
    for number in signal.SIGTERM, signal.SIGHUP:
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
            signal.signal(number, signal.default_int_handler)
    running = {}
    try:
        prepare(pairs)
        watch([pair for pair in pairs if next_command(*pair)], running)
    except KeyboardInterrupt:
        raise SystemExit("stopped, with checkpoints: the same command goes on") from None
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()
        signal.signal(signal.SIGINT, signal.default_int_handler)


def prepare(pairs):
    """Make what the runs read, where it is missing."""
    named = {str(value) for pair in pairs for value in settings_of(pair).values()}
    for path, command in make.items():
        if path in named and not Path(path).exists():
            print(f"python {command}", flush=True)
            if subprocess.run([sys.executable, *shlex.split(command)]).returncode:
                raise SystemExit(f"{path} could not be made")


def watch(waiting, running):
    """Start what waits, {pair: process} running, until all have ended; print lines of theirs."""
    shown = set()
    while waiting or running:
        while waiting and len(running) < jobs:
            pair = waiting.pop(0)
            running[pair] = start(pair)
        time.sleep(0.5)
        begun = [*running]
        for pair in [pair for pair in begun if running[pair].poll() is not None]:
            if running.pop(pair).returncode:
                print(f"{folder(*pair)} has stopped: {last_line(pair)}", flush=True)
            elif next_command(*pair):
                waiting.insert(0, pair)  # it is trained, and now judged
        for text in (text for task, _, seed in begun for text in lines(task, seed)):
            if text not in shown:
                shown.add(text)
                print(text, flush=True)


def start(pair):
    where = folder(*pair)
    where.parent.mkdir(parents=True, exist_ok=True)
    command = next_command(*pair)
    print(f"{where}: {command[0]}; what it prints is in {where}.log", flush=True)
    with checkpoint.opened("", f"{where}.log", "a") as log:
        return subprocess.Popen([sys.executable, *command], stdout=log, stderr=log,
                                start_new_session=True,  # Ctrl-C is for this process
                                env=os.environ | {"OMP_NUM_THREADS": "1"})  # fmt: skip


def last_line(pair):
    return (Path(f"{folder(*pair)}.log").read_text().split("\n")[-2:] or [""])[0][-300:]


def next_command(task, arm, seed):
    """What is to be done with a run, train or judge it; None: nothing is left."""
    where = folder(task, arm, seed)
    trained = finished(task, arm, seed)
    if judged(where):
        return None
    on = [f"--device={device}"] if device else []
    if trained:
        first = next(each for each in folders(where) if not records(each))
        how = [f"--samplers={samplers}", f"--weights={weights}", *on]
        return ["lab/evaluate.py", f"--out_dir={first}", *how]
    if evaluate.records(where) and not (where / "ckpt.pt").exists():
        raise SystemExit(f"{where} has records, but no weights to judge by all {samplers}")
    keep = ["--keep", f"--save_interval={every}"] if every else []
    return ["train.py", *flags_of(task, arm, seed), f"--out_dir={where}", "--resume", *keep, *on]


def finished(task, arm, seed):
    """Whether the run is there, whole. One of other flags ends the study."""
    where = folder(task, arm, seed)
    if not (where / "ckpt.pt").exists():
        return False
    saved = checkpoint.load(where)
    made = saved["config"]
    wanted = settings_of((task, arm, seed))
    wanted.pop("out_dir", None)  # a config file's
    if other := [k for k, v in wanted.items() if fit(k, v, made.get(k)) != made.get(k)]:
        raise SystemExit(f"{where} has another {', '.join(other)}: choose another --out")
    ended = saved["iteration"] == made["max_iters"]
    if ended and every and not (where / "at").exists():
        raise SystemExit(f"{where} has kept no weights on its way: choose another --out")
    return ended


# -- what is known of a run ------------------------------------------------------------------------
def folders(where):
    """Of all weights that are judged; those of the end last."""
    return [*(where.glob("at/*") if every else ()), where]


def records(where):
    """{sampler: record}; {} unless the weights have been judged by all samplers."""
    kept = evaluate.records(where)
    return kept if {*map(str, samplers)} <= {*kept} else {}


def judged(where):
    return records(where) if all(map(records, folders(where))) else {}


def curve(where, sampler):
    """{update: share solved}: of the kept weights by a sampler, else as training has logged it."""
    if not every:
        return log(where)
    found = {int(each.name): evaluate.records(each) for each in where.glob("at/*")}
    return {u: found[u][str(sampler)]["solved"] for u in sorted(found) if str(sampler) in found[u]}


def log(where):
    path = where / "metrics.jsonl"
    rows = path.read_text().split("\n")[:-1] if path.exists() else []
    return {row["iter"]: row["solved"] for row in map(json.loads, rows) if "solved" in row}


def lines(task, seed):
    """A line for each evaluation of training that all arms of a seed have."""
    logs = {tables.label(arm): log(folder(task, arm, seed)) for arm in arms}
    for update in sorted(set.intersection(*map(set, logs.values()))):
        shares = {name: own[update] for name, own in logs.items()}
        bars = [f"{name} {'#' * round(24 * x):24} {x:6.1%}" for name, x in shares.items()]
        yield f"{update:6}  {'   '.join(bars)}   seed {seed} {task}".rstrip()


if __name__ == "__main__":
    os.chdir(Path(__file__).resolve().parents[1])
    configure(globals())
    main()
