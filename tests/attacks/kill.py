"""Kill -9 runs of all kinds at random moments, resume them, and compare what they end in.

    python -m tests.attacks.kill --count=100
    python -m tests.attacks.kill --kind=puma,ddp --count=20 --commit=HEAD~5

A trial is a run that is killed one to three times, at a moment that is uniform in its time or, half
of the time, while it writes a file; then it goes on to its end. It holds if its checkpoint, its
kept weights and its record are those of a run that nobody disturbed, to the bit. After each kill
every file that is not temporary must be whole.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import tempfile
import time
from pathlib import Path

from tqdm import tqdm

from configurator import configure
from tests.attacks.command import ROOT
from tests.attacks.lab import TEXT, TINY, Lab, contents, same
from tests.attacks.report import TRACEBACK, last_line, write_line

count = 100  # trials
kind = ""  # of run, with commas between; "" = all
seed = 1
patience = 120.0  # seconds for a run to end
repository = ""  # which to attack; "" = this one
commit = ""  # which version of it; "" = its files as they are
out = "out/attacks/kill.jsonl"

RUN = [*TINY, "--max_iters=60", "--eval_interval=20", "--checkpoint_interval=4", "--keep_every=10"]
WORDS = [*TEXT, "--max_iters=16", "--eval_interval=8", "--checkpoint_interval=2"]
LORA = ["--lora_rank=4", "--ema=0", "--init_from=hf:{hf}", "--gradient_checkpointing=True"]
KINDS = {  # flags of train.py
    "puma": RUN,
    "mdm": [*RUN, "--method=mdm"],
    "ar": [*RUN, "--method=ar"],
    "blocks": [*RUN, "--block_schedule=[(0,6),(20,12),(40,36)]", "--k_schedule=[(0,3),(30,2)]"],
    "later": [*RUN, "--chains_from=25", "--micro_batch=4"],
    "papl": [*RUN, "--papl=3", "--muon=True"],
    "reverse": [*RUN, "--method=puma_reverse"],
    "mixed": [*RUN, "--random_share=0.5"],
    "random_start": [*RUN, "--method=puma_random_start"],
    "late_refill": [*RUN, "--method=puma_late_refill"],
    "explore": [*RUN, "--method=puma_explore"],
    "no_ema": [*RUN, "--ema=0", "--policy=random", "--eval_policies=['random']"],
    "text": [*WORDS, "--data_dir={corpus}"],
    "lora": [*WORDS, "--data_dir={corpus}", *LORA],
    "ddp": [*RUN, "--max_iters=40"],
}
RESUME = "--init_from=resume"


def main():
    kinds = kind.split(",") if kind else [*KINDS]
    os.nice(10)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that all is put away
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    if "lora" in kinds:
        import peft  # noqa: F401 - takes seconds; the forks have it then
    rng, rows = random.Random(seed), []
    with tempfile.TemporaryDirectory(prefix="kill-") as folder, open(out, "w") as file:
        lab = Lab(folder, repository or ROOT, commit, patience)
        places = {"corpus": lab.corpus, "hf": lab.hugging_face}
        known = {name: Undisturbed(lab, name, places) for name in kinds}
        for number in tqdm(range(count), unit="trial", disable=None):
            row = trial(lab, known[kinds[number % len(kinds)]], rng)
            rows.append(row)
            write_line(file, row)
            if row["wrong"]:
                tqdm.write(json.dumps(row))
    print(table(rows))


class Undisturbed:
    """A kind of run, what it gives where nobody kills it, and how long that takes."""

    def __init__(self, lab, name, places):
        self.name, self.processes = name, 2 if name == "ddp" else 1
        self.flags = [flag.format(**places) for flag in KINDS[name]]
        self.folder = lab.folder / "whole" / name
        begin = time.perf_counter()
        for process in self.start(lab, self.folder):
            ended = process.wait(lab.patience)
            if ended.status != 0:
                raise RuntimeError(f"{name}: {ended.errors}")
        self.seconds = time.perf_counter() - begin

    def start(self, lab, folder, *more):
        with socket.socket() as own:
            own.bind(("127.0.0.1", 0))
            port = own.getsockname()[1]
        env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": self.processes}
        words = ("train.py", f"--out_dir={folder}", *self.flags, *more)
        return [
            lab.start(*words, env=env | {"RANK": rank, "LOCAL_RANK": rank})
            for rank in range(self.processes)
        ]


def trial(lab, run, rng):
    """Kills of one run, and its end; what is wrong with it, "" for nothing."""
    folder = lab.folder / "trial"
    shutil.rmtree(folder, ignore_errors=True)
    moments, wrong, begin = [], "", time.perf_counter()
    wanted = rng.choice((1, 1, 1, 2, 3))
    while len(moments) < wanted:
        moment = killed(lab, run, folder, rng)
        if moment:
            moments.append(moment)
        elif moments:
            break
        else:  # it ended before its time
            shutil.rmtree(folder)
        wrong = wrong or torn(folder)
    wrong = wrong or finished(lab, run, folder) or difference(run.folder, folder)
    seconds = round(time.perf_counter() - begin, 2)
    return {"kind": run.name, "moments": moments, "seconds": seconds, "wrong": wrong}


def resume_flag(folder):
    return [RESUME] if (folder / "checkpoint.pt").exists() else []


def killed(lab, run, folder, rng):
    """Start or go on, and kill -9 every process of the run; the moment, "" if it ended before."""
    processes = run.start(lab, folder, *resume_flag(folder))
    try:
        moment = wait_to_kill(run, folder, processes, rng)
        alive = all(process.alive() for process in processes)
        partial = [path.name for path in folder.glob("**/*.tmp")] if folder.exists() else []
        for process in processes:
            process.kill()
    finally:
        for process in processes:
            process.wait(10)
    if not alive:
        return ""
    written = [path.name for path in folder.glob("**/*.tmp")]
    return f"{moment}{', while it wrote' if partial or written else ''}"


def wait_to_kill(run, folder, processes, rng):
    """Until a uniform moment, or until the n-th time that there is a temporary file."""
    end = time.monotonic() + run.seconds * rng.uniform(0.05, 1)
    if rng.random() < 0.5:
        while time.monotonic() < end and processes[0].alive():
            time.sleep(0.002)
        return "at any moment"
    writes, seen = rng.randrange(1, 14), False
    delay = rng.choice((0, 0.0002, 0.0005, 0.001, 0.003))
    while processes[0].alive():
        now = writing(folder)
        writes -= now and not seen
        if now and not writes:
            time.sleep(delay)
            break
        seen = now
        time.sleep(0.0003)
    return "aimed at a write"


def writing(folder):
    names = []
    for each in (folder, folder / "weights"):
        with contextlib.suppress(OSError):
            names += os.listdir(each)
    return any(name.endswith(".tmp") for name in names)


def torn(folder):
    """The files that are not whole after a kill; a record may lack the end of its last line."""
    for path in folder.glob("**/*.pt"):
        try:
            contents(path)
        except Exception as error:
            return f"{path.name}: {error!r}"
    return ""


def finished(lab, run, folder):
    """Go on to the end; what went wrong."""
    ended = [each.wait(lab.patience) for each in run.start(lab, folder, *resume_flag(folder))]
    for each in ended:
        if each.status != 0 or TRACEBACK in each.errors:
            return f"resume: {each.status} {last_line(each)}"
    return ""


def difference(whole, folder):
    """What differs between two finished runs."""
    names = sorted(path.name for path in whole.glob("weights/*.pt"))
    if names != sorted(path.name for path in folder.glob("weights/*.pt")):
        return "other files in weights"
    for name in ["checkpoint.pt", *(f"weights/{name}" for name in names)]:
        if not same(contents(whole / name), contents(folder / name)):
            return f"another {name}"
    return "" if lines(whole) == lines(folder) else "another metrics.jsonl"


def lines(folder):
    """The record without times, configurations, and versions."""
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for each in found:
        each.pop("seconds", None)
        each.pop("examples_per_second", None)
    return [each for each in found if each["type"] != "config"]


def table(rows):
    head = ["kind", "trials", "equal to the bit", "kills", "while writing", "seconds"]
    groups = {name: [r for r in rows if r["kind"] == name] for name in KINDS}
    cells = [cells_of(name, members) for name, members in groups.items() if members]
    cells = [head, ["---"] * len(head), *cells, cells_of("all", rows)]
    held = sum(not row["wrong"] for row in rows)
    text = "\n".join(f"| {' | '.join(each)} |" for each in cells)
    return f"{text}\n\n{held} of {len(rows)} ended as an undisturbed run"


def cells_of(name, rows):
    kills = [moment for row in rows for moment in row["moments"]]
    held = sum(not row["wrong"] for row in rows)
    writing = sum("while it wrote" in moment for moment in kills)
    seconds = sum(row["seconds"] for row in rows)
    return [name, *map(str, (len(rows), held, len(kills), writing)), f"{seconds:.0f}"]


if __name__ == "__main__":
    configure(globals())
    main()
