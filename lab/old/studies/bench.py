"""Speed of training on this machine's CPU: PUMA, and the baseline (random masks, as many hidden).

    python -m studies.bench --rounds=3                         at the paper's Sudoku shape
    python -m studies.bench --part=text_step > bench.jsonl     of its text model, 125M parameters

Prints a JSON line for the machine, one for the steps of each method and one for their ratio. They
take steps in turn, on one model, since absolute speed drifts with the machine. Numbers are medians
of the rounds; `from` and `to` are the extreme ones. The model is untrained: it is confident of
nothing, so no chain jumps. eval.py says how long sampling takes.
"""

import json
import math
import re
import resource
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
from torch.utils.data import TensorDataset

from configurator import configure, errors_as_messages
from data.sudoku.generate import make_puzzles
from engine import machine
from engine.files import progress_bar
from engine.log import origin
from engine.queue import ExampleQueue
from losses import objective_for
from model import Transformer
from puma import Batch, ProgressiveUnmasking, RandomMasking, choose_random

part = "step"  # step or text_step
rounds = 5  # 1..: how many turns each gets

STEPS = 8  # of each method in a round, at least


class Shape(NamedTuple):
    """Of a model, of a batch of `rows`, and of chains; the last of the `vocab` ids is the mask."""

    vocab: int
    length: int
    prompt: int  # random rows begin with so many given tokens; 0: Sudoku
    dim: int
    layers: int
    heads: int
    mlp: int
    tied: bool
    rows: int
    K: int

    def model(self):
        torch.manual_seed(0)
        sizes = self.dim, self.layers, self.heads, self.mlp
        return Transformer(self.vocab, self.vocab - 1, self.length, *sizes, tied=self.tied)

    def examples(self):
        """x0 and prompt, (N, L)."""
        if self.prompt:
            x0 = torch.randint(self.vocab - 1, (1000, self.length))
            return TensorDataset(x0, (torch.arange(self.length) < self.prompt).expand_as(x0))
        side = math.isqrt(math.isqrt(self.length))
        puzzles, solutions = map(torch.from_numpy, make_puzzles(256, (side, side)))
        return TensorDataset(solutions.long() - 1, puzzles > 0)


SHAPES = {
    "step": Shape(10, 81, 0, 256, 8, 8, 768, tied=False, rows=32, K=10),
    "text_step": Shape(151_645, 512, 100, 512, 14, 8, 1536, tied=True, rows=2, K=42),
}


def main():
    with errors_as_messages():
        if part not in SHAPES:
            raise ValueError(f"part {part!r}: expected {' or '.join(SHAPES)}")
    cpu = machine.open_device("cpu")
    about = {
        "name": re.search(r"model name\s*: (.*)|$", read("/proc/cpuinfo"))[1],
        "threads": torch.get_num_threads(),
        "dtype": str(machine.precision(cpu)).removeprefix("torch."),
        "compiled": machine.compiles(cpu, None, iterations=10**6),
    }
    print(json.dumps(about | origin()), flush=True)
    trainer = Trainer(SHAPES[part], cpu)
    bar = progress_bar(range(rounds), part, unit="round", leave=False)
    for line in report([trainer.turn() for _ in bar]):
        print(json.dumps({"part": part} | line), flush=True)


def report(turns):
    """The medians of each method's costs over the rounds, and the ratio of their seconds."""
    for what, numbers in turns[0].items():
        medians = {key: median(turn[what][key] for turn in turns) for key in numbers}
        yield {"what": what} | {key: float(f"{n:.4g}") for key, n in medians.items()}
    found = [turn["puma"]["seconds"] / turn["mdm"]["seconds"] for turn in turns]
    numbers = {"median": median(found), "from": min(found), "to": max(found)}
    name = {"ratio of": "seconds, puma over mdm"}
    yield name | {key: round(n, 3) for key, n in numbers.items()}


# -- what is measured ------------------------------------------------------------------------------
class Trainer:
    """Training steps as in train.py, but without averaged weights; both methods train one model."""

    def __init__(self, s, cpu):
        self.s = s
        self.casts = machine.autocast(cpu)
        model = s.model()
        self.objective = objective_for(model)(model)
        if machine.compiles(cpu, None, iterations=10**6):
            self.objective.compile()
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
        args = ExampleQueue(s.examples(), s.rows), model.mask_token, torch.Generator()
        # Enough batches for a chain at each stage, so that half is hidden on average.
        batches = math.ceil(s.length / s.K / s.rows)
        self.steps = batches * math.ceil(STEPS / batches)  # visits each chain equally often
        self.chains = ProgressiveUnmasking(*args, s.K, 0.9, batches)
        self.masks = AsManyHidden(*args)
        for _ in range(2):  # compiles
            self.pair()

    def turn(self):
        times = zip(*(self.pair() for _ in range(self.steps)), strict=True)
        costs = [cost(self.s.rows, median(seconds)) for seconds in times]
        return dict(zip(("puma", "mdm"), costs, strict=True))

    def pair(self):
        """A step of each method; the seconds of both."""
        start = time.perf_counter()
        self.masks.count = self.step(self.chains)  # (B,)
        between = time.perf_counter()
        self.step(self.masks)
        return between - start, time.perf_counter() - between

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
        self.hidden = choose_random(~prompt, self.count, self.generator)
        return Batch(x0.masked_fill(self.hidden, self.mask_token), x0, self.hidden)


def cost(rows, seconds):
    """Seconds of so many rows, rows per second, and the peak memory of this process (GiB)."""
    if found := re.search(r"VmHWM:\s*(\d+)", read("/proc/self/status")):
        peak = int(found[1]) * 1024
    else:  # macOS; elsewhere this would include the process that started this one
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": seconds, "rows_per_second": rows / seconds, "peak_gb": peak / 2**30}


def read(name):
    return Path(name).read_text() if Path(name).is_file() else ""


if __name__ == "__main__":
    configure(globals())
    main()
