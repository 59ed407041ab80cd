"""Speed on this machine: absolute numbers, and ratios of things measured in turn.

    python -m studies.bench --rounds=3
    python -m studies.bench --parts="['text_step']" --rows=32 > bench.jsonl

step, text_step      training steps of PUMA and of the baseline (random masks, as many hidden), at
                     the paper's Sudoku shape and at that of its text model (125M parameters)
sample               solving 9x9 puzzles of about 24 clues, 2 cells per step

Prints a JSON line for the machine, one per measurement and one per ratio, and tables on stderr.
Things that are compared run in turn, since absolute speed drifts with the machine: PUMA and the
baseline step by step, on one model; on a CPU also studies/conventional.py (`reference`), once a
round. Each part has its own process, for its peak memory: on CUDA that of its tensors, elsewhere
that of the whole process. Numbers are medians; `from` and `to` are the extreme rounds. The model is
untrained: it is confident of nothing, so no chain jumps.
"""

import functools
import itertools
import json
import math
import platform
import re
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

import torch
from torch.utils.data import TensorDataset

from configurator import configure, errors_as_messages
from data.sudoku.generate import make_puzzles
from engine import machine, processes
from engine.files import progress_bar
from engine.log import origin
from engine.queue import ExampleQueue
from losses import DENSE, ChunkedObjective, Objective
from model import Transformer
from puma import Batch, ProgressiveUnmasking, RandomMasking, choose_random, stages_of
from runs.results import table
from sample import Sampler, generate

# -- what ----------------------------------------------------------------------------------------
parts = ["step", "sample"]  # of step, text_step, sample
rows: int | None = None  # 1..: per batch; None = 32 (Sudoku), 2 (text)
rounds = 5  # 1..: how many turns each gets
# -- system --------------------------------------------------------------------------------------
device = ""  # cpu, cuda, mps; "" = the best there is
dtype = ""  # bfloat16 or float32; "" = chosen by the hardware
compile: bool | None = None  # True or False; None = if there is a compiler

STEPS = 8  # of each method in a round, at least
GIB = 2**30
REFERENCES = {"reference": "--bfloat16=False", "reference in bfloat16": "--bfloat16"}


class Shape(NamedTuple):
    """A model and its rows; `words` is the vocabulary, with the mask last. box: of a Sudoku."""

    words: int
    length: int
    dim: int
    layers: int
    heads: int
    mlp: int
    tied: bool
    rows: int
    K: int
    reference: tuple  # flags of a step of studies/conventional.py
    prompt: int = 0
    box: tuple | None = None


SHAPES = {
    "sudoku": Shape(
        10, 81, dim=256, layers=8, heads=8, mlp=768, tied=False, rows=32, K=10, box=(3, 3),
        reference=("--shape=sudoku", "--steps=8"),
    ),
    "text": Shape(
        151_645, 512, dim=512, layers=14, heads=8, mlp=1536, tied=True, rows=2, K=42, prompt=100,
        reference=("--shape=tinygsm",),
    ),
}  # fmt: skip


def main():
    with errors_as_messages():
        if not parts or not {*parts} <= {*PARTS}:
            raise ValueError(f"parts {parts}: expected some of {', '.join(PARTS)}")
        machine.precision(torch.device("cpu"), dtype)  # refuses an unknown one
        where = processes.start(device).device
    if len(parts) == 1:
        measure(parts[0], where)
    else:
        for part in parts:
            command = [sys.executable, "-m", "studies.bench", *sys.argv[1:], f"--parts=['{part}']"]
            if code := subprocess.run(command).returncode:
                raise SystemExit(code)


def measure(part, where):
    """Measure one part in this process, and print what it yields."""
    print(json.dumps(about(where) | origin()), flush=True)
    lines = []
    for line in PARTS[part](where):
        lines.append({"part": part} | line)
        print(json.dumps(lines[-1]), flush=True)
    for is_ratio in (False, True):
        group = [line for line in lines if ("ratio of" in line) == is_ratio]
        head = [*dict.fromkeys(itertools.chain(*group))]
        cells = [[str(line.get(name, "")) for name in head] for line in group]
        print(table(head, cells), file=sys.stderr)


def about(where):
    """Hardware, threads, dtype, whether compiled."""
    name, cpuinfo = platform.processor(), Path("/proc/cpuinfo")
    if where.type == "cuda":
        name = torch.cuda.get_device_name(where)
    elif cpuinfo.is_file():
        name = re.search(r"model name\s*: (.*)|$", cpuinfo.read_text())[1] or name
    return {
        "device": str(where),
        "name": name,
        "threads": torch.get_num_threads(),
        "dtype": str(machine.precision(where, dtype)).removeprefix("torch."),
        "compiled": machine.compiles(where, compile, iterations=10**6),
    }


# -- the parts -------------------------------------------------------------------------------------
def step(shape, where):
    s = SHAPES[shape]._replace(**{"rows": rows} if rows else {})
    trainer = Trainer(s, where)
    trainer.round(2)  # compiles
    taken, theirs = [], []  # of each round
    for _ in progress_bar(range(rounds), shape, unit="round", leave=False):
        taken.append(trainer.round(trainer.steps))
        theirs.append(reference(where, "--what=step", f"--batch={s.rows}", *s.reference))
    peak = peak_memory(where) / GIB
    medians = {name: [median(times[name]) for times, _ in taken] for name in ("puma", "mdm")}
    for name, seconds in medians.items():
        yield {
            "what": name, "rows": s.rows, "stages": trainer.chains.stages if name == "puma" else "",
            "ms_per_step": short(1e3 * median(seconds)),
            "from": short(1e3 * min(seconds)), "to": short(1e3 * max(seconds)),
            "sequences_per_second": short(s.rows / median(seconds)),
            "hidden_per_step": short(mean(hidden for _, hidden in taken)), "peak_gb": short(peak),
        }  # fmt: skip
    yield from against(theirs, "sequences", [s.rows / t for t in medians["puma"]], peak)
    yield ratio("seconds, puma over mdm", medians["puma"], medians["mdm"])


def sample(where):
    s, seconds, theirs = SHAPES["sudoku"], [], []
    model, casts = make_model(s).to(where).eval(), machine.autocast(where, dtype)
    x0, prompt = (part.to(where) for part in examples(s).tensors)
    for _ in progress_bar(range(rounds), "sample", unit="round", leave=False):
        start = mark(where)
        with casts:
            _, _, passes = generate(model, x0, ~prompt, Sampler(), batch_size=128)
        seconds += seconds_between([start, mark(where)])
        theirs.append(reference(where, "--what=sample"))
    rates, peak = [len(x0) / t for t in seconds], peak_memory(where) / GIB
    yield {
        "what": "ours", "puzzles_per_second": short(median(rates)), "passes": passes,
        "ms_per_pass": short(1e3 * median(seconds) / passes), "peak_gb": short(peak),
    }  # fmt: skip
    yield from against(theirs, "puzzles", rates, peak)


def reference(where, *flags):
    """{name: what studies/conventional.py prints}, in float32 and bfloat16; {} unless on a CPU."""
    printed, command = {}, [sys.executable, "-m", "studies.conventional", *flags]
    for name, flag in REFERENCES.items() if where.type == "cpu" else ():
        process = subprocess.run([*command, flag], stdout=subprocess.PIPE, check=True)
        printed[name] = json.loads(process.stdout)
    return printed


def against(theirs, unit, rates, peak):
    """The references' medians over the rounds, and ratios; rates: of `unit` per second."""
    keys = "sequences_per_second", "peak_gb"
    for name in theirs[0]:
        rows = {key: [printed[name][key] for printed in theirs] for key in keys}
        yield {"what": name} | {key: short(median(row)) for key, row in rows.items()}
        yield ratio(f"{unit}/s, ours over {name}", rates, rows["sequences_per_second"])
        yield ratio(f"peak memory, ours over {name}", [peak] * len(theirs), rows["peak_gb"])


PARTS = {
    "step": functools.partial(step, "sudoku"),
    "text_step": functools.partial(step, "text"),
    "sample": sample,
}


# -- what is measured ------------------------------------------------------------------------------
class Trainer:
    """Training steps as in train.py, but without averaged weights; both methods train one model."""

    def __init__(self, s, where):
        self.where, model = where, make_model(s).to(where)
        self.objective = (Objective if s.words <= DENSE else ChunkedObjective)(model)
        if machine.compiles(where, compile, iterations=10**6):
            self.objective.compile()
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
        self.casts = machine.autocast(where, dtype)
        # Enough batches for a chain at each stage, so that half is hidden on average.
        batches = math.ceil(stages_of(s.length, s.K) / s.rows)
        self.steps = batches * math.ceil(STEPS / batches)  # visits each chain equally often
        queue = ExampleQueue(examples(s), s.rows, where)
        args = queue, model.mask_token, torch.Generator(where)
        self.chains = ProgressiveUnmasking(*args, s.K, 0.9, batches)
        self.masks = AsManyHidden(*args)

    def round(self, steps):
        """Steps of both methods in turn: {method: seconds of each}, mean hidden tokens."""
        marks, hidden = [mark(self.where)], []
        for _ in range(steps):
            self.masks.count = self.step(self.chains)  # (B,)
            marks.append(mark(self.where))
            hidden.append(self.step(self.masks))
            marks.append(mark(self.where))
        seconds = seconds_between(marks)
        return {"puma": seconds[::2], "mdm": seconds[1::2]}, sum(hidden).sum().item() / steps

    def step(self, stream):
        """One step of the optimizer; how many tokens of each row were hidden, (B,)."""
        batch = stream.batch(0)
        with self.casts:
            loss, score, confidence = self.objective(*batch)
        loss.backward()
        stream.advance(score, confidence)
        torch.nn.utils.clip_grad_norm_(self.objective.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return batch.hidden.sum(1)


class AsManyHidden(RandomMasking):
    """Random masks that hide `count` (B,) tokens of each row, or all there are."""

    def batch(self, iteration):
        x0, prompt, _ = self.queue.take(self.all)
        hidden = choose_random(~prompt, self.count, self.generator)
        return Batch(x0.masked_fill(hidden, self.mask_token), x0, hidden)


def make_model(s):
    torch.manual_seed(0)
    return Transformer(s.words, s.words - 1, s.length, s.dim, s.layers, s.heads, s.mlp, tied=s.tied)


def examples(s):
    """x0 and prompt, (N, L): 256 puzzles, or 1,000 rows of random ids after prompts."""
    if s.box:
        puzzles, solutions = map(torch.from_numpy, make_puzzles(256, s.box))
        return TensorDataset(solutions.long() - 1, puzzles > 0)
    x0 = torch.randint(s.words - 1, (1000, s.length))
    return TensorDataset(x0, (torch.arange(s.length) < s.prompt).expand_as(x0))


def mark(where):
    """The time at which the device has done all that it was given."""
    if where.type != "cpu":
        torch.accelerator.synchronize()
    return time.perf_counter()


def seconds_between(marks):
    return [after - before for before, after in itertools.pairwise(marks)]


# -- numbers ---------------------------------------------------------------------------------------
def ratio(name, ours, theirs):
    """Ratios of numbers measured in turn."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    numbers = {"median": median(ratios), "from": min(ratios), "to": max(ratios)}
    return {"ratio of": name} | {name: round(number, 3) for name, number in numbers.items()}


def short(number):
    """Rounded to four digits."""
    return float(f"{number:.4g}")


def peak_memory(device):
    """Peak bytes of this process on the device; on a CPU, of all its memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


if __name__ == "__main__":
    configure(globals())
    main()
