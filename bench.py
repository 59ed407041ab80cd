"""Speed on this machine, as ratios: ours against a conventional implementation, side by side.

    python bench.py --reference=PATH/conventional.py

step       PUMA training steps at the paper's Sudoku shape (batch 32): sequences/s over the
           reference's, and the seconds of a PUMA step over those of a baseline step
sample     solving 9x9 puzzles of about 24 clues, 2 cells per step: puzzles/s over the reference's
attention  seconds of a PUMA step with the fused CPU kernel over those with plain products
text_step  PUMA training steps at the paper's text shape (batch 2, 125M parameters): sequences/s
           and peak memory over the reference's, and the seconds over those of the baseline

The reference is a script: `REFERENCE step --shape sudoku|tinygsm --method puma` and `REFERENCE
sample --shape sudoku` print a JSON line with sequences_per_second and peak_gb. Absolute speed
drifts with the machine, so what is compared alternates, and medians of ratios are printed, one
JSON line each.
"""

import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

import backend
import model as transformer
import policies
from configurator import configure, errors_as_messages
from data.sudoku.generate import make_puzzles
from example_queue import ExampleQueue
from losses import ChunkedObjective, Objective
from model import Transformer
from puma import Batch, ProgressiveUnmasking, RandomMasking, choose_random, stages_of
from record import origin
from sample import Sampler, generate

# -- what ----------------------------------------------------------------------------------------
parts = ["step", "sample", "attention", "text_step"]
reference = ""  # the script to compare with; "" = leave its ratios out
rounds = 5  # how often ours and theirs alternate
# -- system --------------------------------------------------------------------------------------
device = ""  # cpu, cuda, mps; "" = the best there is
dtype = ""  # bfloat16 or float32; "" = chosen by the hardware
compile: bool | None = None  # True or False; None = where there is a compiler

LIMITS = """
    1 <= rounds <= 10**6
"""
BOX, BATCH = (3, 3), 32
TEXT_WORDS, TEXT_LENGTH, TEXT_PROMPT, TEXT_BATCH = 151_645, 512, 100, 2
K = 42  # of the text's chains: the first of the paper's schedule
STAGES = stages_of(TEXT_LENGTH, K)


class Puzzles:
    """256 generated puzzles as a data set."""

    def __init__(self):
        self.puzzles, self.solutions = make_puzzles(256, BOX)

    def __len__(self):
        return len(self.puzzles)

    def __getitem__(self, indices):
        return self.solutions[indices] - 1, self.puzzles[indices] > 0


def check():
    """Raise ValueError for settings that nothing can be measured with."""
    if not parts:
        raise ValueError(f"parts is empty: expected some of {', '.join(PARTS)}")
    if strange := [part for part in parts if part not in PARTS]:
        raise ValueError(f"parts {strange}: expected {', '.join(PARTS)}")
    if reference and not Path(reference).is_file():
        raise FileNotFoundError(f"reference {reference}: no such script")
    backend.precision(torch.device("cpu"), dtype)


def main():
    with errors_as_messages():
        check()
        _, _, where = backend.start(device)
    print(json.dumps({"device": str(where)} | origin()))
    torch.manual_seed(0)
    for part in parts:
        for name, ratio in PARTS[part](where):
            print(json.dumps({"part": part, "ratio of": name} | ratio), flush=True)


def step(where):
    trainers = {method: sudoku_trainer(method, where) for method in ("puma", "mdm")}
    for trainer in trainers.values():
        trainer.seconds(10)  # compiles, and lets the buffer mix
    ours, methods = [], []
    for _ in range(rounds):
        puma = trainers["puma"].seconds(8)
        methods.append(puma / trainers["mdm"].seconds(8))
        if reference:
            theirs = run(reference, "step", "--shape", "sudoku", "--method", "puma", "--steps", "8")
            ours.append(BATCH / puma / theirs["sequences_per_second"])
    if reference:
        yield "sequences/s, ours over reference", summary(ours)
    yield "seconds, puma over mdm", summary(methods)


def text_step(where):
    if reference:
        rates, peaks = [], []
        for _ in range(rounds):  # each in a process of its own, for its peak memory
            ours = run(
                __file__,
                "--parts=['text_alone']",
                f"--{device=!s}",
                f"--{dtype=!s}",
                f"--{compile=!s}",
            )
            theirs = run(reference, "step", "--shape", "tinygsm", "--method", "puma")
            rates.append(ours["sequences_per_second"] / theirs["sequences_per_second"])
            peaks.append(ours["peak_gb"] / theirs["peak_gb"])
        yield "sequences/s, ours over reference", summary(rates)
        yield "peak memory, ours over reference", summary(peaks)
    puma, mdm = text_trainer("puma", where), text_trainer("mdm", where)
    pairs = []
    for _ in range(2 + STAGES * rounds):
        seconds = timed(puma.step)
        mdm.stream.count = puma.counts
        pairs.append(seconds / timed(mdm.step))
    yield "seconds, puma over mdm at the same number of hidden tokens", summary(pairs[2:])


def text_alone(where):
    """A round through the buffer: all stages, so half of the tokens are hidden in the mean."""
    trainer = text_trainer("puma", where)
    trainer.step()
    steps = STAGES // TEXT_BATCH
    seconds = statistics.mean(timed(trainer.step) for _ in range(steps))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    yield "", {"sequences_per_second": TEXT_BATCH / seconds, "peak_gb": peak}


class Trainer:
    """Training steps, as train.py takes them but for the averaged weights, with either stream."""

    def __init__(self, model, objective, stream):
        self.model, self.objective, self.stream = model, objective, stream
        self.where = next(model.parameters()).device
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
        if backend.compiles(self.where, compile, iterations=10**6):
            objective.compile()
        self.autocast = backend.autocast(self.where, dtype)

    def seconds(self, steps):
        """Median over steps."""
        return statistics.median(timed(self.step) for _ in range(steps))

    def step(self):
        batch = self.stream.batch(0)
        with self.autocast:
            loss, score, confidence = self.objective(*batch)
        loss.backward()
        self.stream.advance(score, confidence)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.counts = batch.hidden.sum(1)


def sudoku_trainer(method, where):
    """The hidden tokens of a batch do not change the cost: every position is scored."""
    model = sudoku_model().to(where)
    queue, generator = ExampleQueue(Puzzles(), BATCH, where), torch.Generator(where)
    if method == "puma":
        stream = ProgressiveUnmasking(queue, 9, generator, [(0, 10)], tau=0.9, buffer=8)
    else:
        stream = RandomMasking(queue, 9, generator)
    return Trainer(model, Objective(model, policies.top_k), stream)


def text_trainer(method, where):
    model = Transformer(
        TEXT_WORDS, TEXT_WORDS - 1, TEXT_LENGTH, dim=512, layers=14, heads=8, mlp=1536, tied=True
    ).to(where)
    queue, generator = ExampleQueue(Noise(), TEXT_BATCH, where), torch.Generator(where)
    if method == "puma":
        batches = STAGES // TEXT_BATCH  # one chain for each stage
        stream = ProgressiveUnmasking(queue, TEXT_WORDS - 1, generator, [(0, K)], 0.9, batches)
    else:
        stream = GivenCounts(queue, TEXT_WORDS - 1, generator)
    return Trainer(model, ChunkedObjective(model, policies.top_k), stream)


class GivenCounts(RandomMasking):
    """The baseline with as many hidden tokens per row as `count` says."""

    def batch(self, iteration):
        self.queue.top_up()
        x0, prompt, _ = self.queue.take(self.every_row)
        hidden = choose_random(~prompt, self.count, self.generator)
        return Batch(x0.masked_fill(hidden, self.mask_token), x0, hidden)


class Noise:
    """Random ids after prompts of TEXT_PROMPT tokens."""

    def __len__(self):
        return 1000

    def __getitem__(self, indices):
        shape = len(indices), TEXT_LENGTH
        x0 = np.random.default_rng(0).integers(TEXT_WORDS - 1, size=shape)
        return x0, np.tile(np.arange(TEXT_LENGTH) < TEXT_PROMPT, (len(indices), 1))


def sample(where):
    model = sudoku_model().to(where).eval()
    data = Puzzles()
    x0, prompt = (torch.as_tensor(part, device=where) for part in data[range(len(data))])
    x = x0.long().masked_fill(~prompt, model.mask_token)
    ratios = []

    def solve():
        with backend.autocast(where, dtype):
            generate(model, x, ~prompt, Sampler(), batch_size=128)

    for _ in range(rounds if reference else 0):
        theirs = run(reference, "sample", "--shape", "sudoku", "--reveal", "2")
        ratios.append(len(data) / timed(solve) / theirs["sequences_per_second"])
    if reference:
        yield "puzzles/s, ours over reference", summary(ratios)


def attention(where):
    """Of the compiled step: the kernel is chosen when it is traced."""
    plain = sudoku_trainer("puma", where)
    plain.seconds(10)
    short, transformer.SHORT = transformer.SHORT, 0
    fused = sudoku_trainer("puma", where)
    fused.seconds(10)
    ratios = [fused.seconds(8) / plain.seconds(8) for _ in range(rounds)]
    transformer.SHORT = short
    yield "seconds of a step, fused over plain", summary(ratios)


def sudoku_model():
    return Transformer(10, 9, 81, dim=256, layers=8, heads=8, mlp=768)


def timed(run):
    synchronise()
    start = time.perf_counter()
    run()
    synchronise()
    return time.perf_counter() - start


def synchronise():
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def run(*command):
    """The last line of JSON that a script prints."""
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def summary(ratios):
    low, high = min(ratios), max(ratios)
    return {
        "median": round(statistics.median(ratios), 3),
        "from": round(low, 3),
        "to": round(high, 3),
    }


PARTS = {part.__name__: part for part in (step, sample, attention, text_step, text_alone)}

if __name__ == "__main__":
    configure(globals())
    main()
