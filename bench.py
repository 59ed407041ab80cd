"""Speed on this machine, as ratios: ours against a conventional implementation, side by side.

    python bench.py --reference=PATH/conventional.py

step       PUMA training steps at the paper's Sudoku shape (batch 32): sequences/s over the
           reference's, and the seconds of a PUMA step over those of a baseline step
sample     solving 9x9 puzzles of about 24 clues, 2 cells per step: puzzles/s over the reference's
attention  seconds of the fused CPU kernel over those of the plain products, with the backward pass

The reference is a script: `REFERENCE step --shape sudoku --method puma` and `REFERENCE sample
--shape sudoku` print a JSON line with sequences_per_second. Absolute speed drifts with the
machine, so what is compared alternates, and medians of ratios are printed, one JSON line each.
"""

import json
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F

import backend
import model as transformer
import policies
from configurator import configure
from examples import ExampleQueue
from losses import Objective
from metrics import commit
from model import Transformer
from puma import ProgressiveUnmasking, RandomMasking
from sample import generate
from sudoku_generator import generate as make_puzzles

# -- what ----------------------------------------------------------------------------------------
parts = ["step", "sample", "attention"]
reference = ""  # the script to compare with; "" = leave its ratios out
rounds = 5  # how often ours and theirs alternate
# -- system --------------------------------------------------------------------------------------
device = ""  # cpu, cuda, mps; "" = the best there is
dtype = ""  # bfloat16 or float32; "" = chosen by the hardware
compile: bool | None = None  # True or False; None = where there is a compiler

BOX, BATCH = (3, 3), 32


class Puzzles:
    """256 generated puzzles as a data set."""

    def __init__(self):
        self.puzzles, self.solutions = make_puzzles(256, BOX)

    def __len__(self):
        return len(self.puzzles)

    def __getitem__(self, indices):
        return self.solutions[indices] - 1, self.puzzles[indices] > 0


def main():
    _, _, where = backend.start(device)
    print(json.dumps({"device": str(where), "torch": torch.__version__, "commit": commit()}))
    torch.manual_seed(0)
    for part in parts:
        for name, ratio in {"step": step, "sample": sample, "attention": attention}[part](where):
            print(json.dumps({"part": part, "ratio of": name} | ratio), flush=True)


def step(where):
    trainers = {method: Trainer(method, where) for method in ("puma", "mdm")}
    for trainer in trainers.values():
        trainer.seconds(10)  # compiles, and lets the buffer mix
    ours, methods = [], []
    for _ in range(rounds):
        puma = trainers["puma"].seconds(8)
        methods.append(puma / trainers["mdm"].seconds(8))
        if reference:
            theirs = run_reference("step", "--method", "puma", "--steps", "8")
            ours.append(BATCH / puma / theirs)
    if reference:
        yield "sequences/s, ours over reference", summary(ours)
    yield "seconds, puma over mdm", summary(methods)


class Trainer:
    """Training steps at the paper's shape with one of the two streams.

    The hidden tokens of a batch do not change the cost: every position is scored at this size.
    """

    def __init__(self, method, where):
        self.model = sudoku_model().to(where)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, fused=True)
        self.objective = Objective(self.model, policies.top_k)
        if backend.compiles(where, compile, iterations=10**6):
            self.objective.compile()
        queue, generator = ExampleQueue(Puzzles(), BATCH, where), torch.Generator(where)
        if method == "puma":
            self.stream = ProgressiveUnmasking(queue, 9, generator, [(0, 10)], tau=0.9, batches=8)
        else:
            self.stream = RandomMasking(queue, 9, generator)
        self.autocast = backend.autocast(where, dtype)

    def seconds(self, steps):
        """Median over steps."""
        return statistics.median(timed(self.step) for _ in range(steps))

    def step(self):
        x0, x, hidden = self.stream.batch(0)
        with self.autocast:
            loss, score, confidence = self.objective(x, x0, hidden)
        loss.backward()
        self.stream.advance(score, confidence)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()


def sample(where):
    model = sudoku_model().to(where).eval()
    data = Puzzles()
    x0, prompt = (torch.as_tensor(part, device=where) for part in data[range(len(data))])
    ratios = []

    def solve():
        with backend.autocast(where, dtype):
            generate(model, x0.long(), ~prompt, policies.top_k, 2, batch_size=128)

    for _ in range(rounds if reference else 0):
        ratios.append(len(data) / timed(solve) / run_reference("sample", "--reveal", "2"))
    if reference:
        yield "puzzles/s, ours over reference", summary(ratios)


def attention(where):
    q, k, v = torch.randn(3, BATCH, 8, 81, 32, device=where, requires_grad=True)
    kernels = {
        "fused": lambda: F.scaled_dot_product_attention(q, k, v).sum().backward(),
        "plain": lambda: transformer.attend(q, k, v, False).sum().backward(),
    }
    for run in kernels.values():
        run()
    if where.type == "cpu":
        ratios = [timed(kernels["fused"]) / timed(kernels["plain"]) for _ in range(4 * rounds)]
        yield "seconds, fused over plain", summary(ratios)


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


def run_reference(what, *options):
    """The reference's sequences per second."""
    command = [sys.executable, reference, what, "--shape", "sudoku", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["sequences_per_second"]


def summary(ratios):
    low, high = min(ratios), max(ratios)
    return {
        "median": round(statistics.median(ratios), 3),
        "from": round(low, 3),
        "to": round(high, 3),
    }


if __name__ == "__main__":
    configure(globals())
    main()
