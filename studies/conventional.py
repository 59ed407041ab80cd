"""A usual implementation of PUMA's training step and sampler: studies/bench.py measures against it.

    python -m studies.conventional --part=sample

It does what costs time as the authors' public code does: eager PyTorch on a CPU, in float32 unless
asked; a Sudoku is 81 clue tokens followed by 81 answer tokens; logits for every position, and a
full log-softmax kept for the scores; a sampler that runs the whole batch until its last row is done
and picks positions row by row. Layers and chains are the project's.

Prints one JSON line, see bench.cost. Absolute figures drift with the machine: quote the ratio to
what was measured in turn with it.
"""

import json
import time
from statistics import median

import torch
import torch.nn.functional as F

from configurator import configure
from engine.queue import ExampleQueue
from puma import ProgressiveUnmasking
from studies import bench

part = "step"  # step, text_step or sample
bfloat16 = False  # autocast matrix products to it

STEPS, UNCOUNTED = 8, 2  # of training; so many first ones are not counted
BATCHES, REVEAL = 2, 2  # of puzzles to solve; cells per step of the sampler
SHAPES = bench.SHAPES | {
    "step": bench.SUDOKU._replace(vocab=11, length=162, prompt=81, K=20),
    "sample": bench.SUDOKU._replace(vocab=11, length=162, prompt=81, rows=16),
}


def main():
    seconds = sample_times if part == "sample" else step_times
    with torch.autocast("cpu", torch.bfloat16, bfloat16):
        times = seconds(SHAPES[part])
    print(json.dumps(bench.cost(SHAPES[part].rows, median(times))))


def step_times(s):
    """Seconds of each counted step."""
    model = s.model()
    queue = ExampleQueue(s.examples(), s.rows)
    times = []
    chains = ProgressiveUnmasking(queue, s.vocab - 1, torch.Generator(), s.K, tau=None, buffer=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.01)
    for _ in range(STEPS):
        start = time.perf_counter()
        x, x0, hidden, *_ = chains.batch(0)
        log_probs = F.log_softmax(model.lm_head(model(x)), -1)
        loss = mean_loss(log_probs, x0, hidden)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        confidence = log_probs.detach().amax(-1).exp()
        chains.advance(confidence, confidence)
        times.append(time.perf_counter() - start)
    return times[UNCOUNTED:]


def mean_loss(log_probs, x0, hidden):
    """Mean over the hidden positions of each row, then over the rows; log_probs (B, L, V)."""
    nll = -log_probs.gather(-1, x0[..., None])[..., 0]
    return ((nll * hidden).sum(1) / hidden.sum(1).clamp_min(1)).sum() / len(x0)


def sample_times(s):
    """Seconds of each batch."""
    model = s.model().eval()
    times = []
    for _ in range(BATCHES):
        x0, prompt = s.examples()[: s.rows]
        start = time.perf_counter()
        solve(model, x0.masked_fill(~prompt, s.vocab - 1), s.vocab - 1)
        times.append(time.perf_counter() - start)
    return times


@torch.no_grad()
def solve(model, x, mask):
    """Replace all mask tokens of x (B, L), in place."""
    while (x == mask).any():
        hidden = x == mask
        logits = model.lm_head(model(x))
        score = F.softmax(logits, -1).amax(-1).masked_fill(~hidden, -torch.inf)
        for b in range(len(x)):
            top = score[b].topk(min(REVEAL, int(hidden[b].sum()))).indices
            x[b, top] = logits[b, top, :mask].argmax(-1)


if __name__ == "__main__":
    configure(globals())
    main()
