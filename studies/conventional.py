"""A conventional masked-diffusion training step and sampler, to measure against (studies/bench.py).

    python -m studies.conventional --what=step --shape=tinygsm
    python -m studies.conventional --what=sample

A straightforward implementation of PUMA, like the authors' public code: eager PyTorch on a CPU, in
float32 unless asked, the Sudoku sequence laid out as 81 clue tokens followed by 81 answer tokens,
logits for every position of the sequence, a full log-softmax kept for the scores, a sampler that
runs the whole batch until its last row is done and picks positions row by row. It shares no model,
loss or sampler with the code it is compared with.

Prints one JSON line: median seconds per step (of sampling: per batch), sequences per second, peak
resident memory (GB). Absolute figures drift with the machine: run it next to what you compare, and
quote the ratio.
"""

import json
import resource
import statistics
import time
from typing import NamedTuple

import torch
import torch.nn as nn
import torch.nn.functional as F

from configurator import configure, errors_as_messages

what = "step"  # step or sample
shape = "sudoku"  # sudoku or tinygsm
batch: int | None = None  # 1..: rows; None = 32 (sudoku), 2 (tinygsm), 16 when puzzles are solved
steps = 12  # 3..: the first two are not counted
puzzles = 32  # 1..: to solve
reveal = 2  # 1..: cells per step of the sampler
bfloat16 = False  # autocast matrix products to it


class Shape(NamedTuple):
    """The last token is the mask. `batch` rows; chains of `stages` stages."""

    vocab: int
    length: int
    prompt: int
    dim: int
    mlp: int
    layers: int
    heads: int
    tied: bool
    batch: int
    stages: int


SHAPES = {
    "sudoku": Shape(11, 162, 81, 256, 768, 8, 8, False, 32, 8),
    "tinygsm": Shape(151_645, 512, 100, 512, 1536, 14, 8, True, 2, 12),
}


class Block(nn.Module):
    def __init__(self, dim, mlp, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(dim, 1e-6), nn.RMSNorm(dim, 1e-6)
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.gate, self.up = nn.Linear(dim, mlp, bias=False), nn.Linear(dim, mlp, bias=False)
        self.down = nn.Linear(mlp, dim, bias=False)

    def forward(self, x, cos, sin):
        B, L, D = x.shape
        h = self.norm1(x)
        q, k, v = (
            f(h).view(B, L, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        x = x + self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, L, D))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def rotate(t, cos, sin):
    first, second = t.chunk(2, -1)
    return t * cos + torch.cat((-second, first), -1) * sin


class Transformer(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.embed = nn.Embedding(s.vocab, s.dim)
        self.blocks = nn.ModuleList(Block(s.dim, s.mlp, s.heads) for _ in range(s.layers))
        self.norm = nn.RMSNorm(s.dim, 1e-6)
        self.head = nn.Linear(s.dim, s.vocab, bias=False)
        if s.tied:
            self.head.weight = self.embed.weight
        d = s.dim // s.heads
        angle = torch.arange(s.length)[:, None] / 1e4 ** (torch.arange(0, d, 2) / d)
        angle = torch.cat((angle, angle), -1)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.head(self.norm(x))


def random_batch(s, rows):
    """x0 and prompt, (rows, L)."""
    x0 = torch.randint(0, s.vocab - 1, (rows, s.length))
    prompt = torch.zeros(rows, s.length, dtype=torch.bool)
    prompt[:, : s.prompt] = True
    return x0, prompt


def random_mask(x0, prompt, mask, count):
    """Hide count[b] random answer positions of each row."""
    order = torch.rand(x0.shape).masked_fill(prompt, 2.0).argsort(1).argsort(1)
    return torch.where(order < count[:, None], mask, x0)


class Chains:
    """A batch of chains that continue from step to step; a row whose chain ends is replaced."""

    def __init__(self, s, rows):
        self.s, self.rows, self.mask, self.answer = s, rows, s.vocab - 1, s.length - s.prompt
        self.x0, self.prompt = random_batch(s, rows)
        self.stage = torch.arange(rows) % s.stages
        revealed = (self.answer * (self.stage + 0.5) / s.stages).long()
        self.x = random_mask(self.x0, self.prompt, self.mask, self.answer - revealed)

    def loss(self, model):
        self.hidden = self.x == self.mask
        self.log_probs = F.log_softmax(model(self.x), -1)
        return chain_loss(self.log_probs, self.x0, self.hidden)

    @torch.no_grad()
    def advance(self):
        score = self.log_probs.amax(-1).masked_fill(~self.hidden, -float("inf"))
        done = self.stage + 1 >= self.s.stages
        self.stage = torch.where(done, 0, self.stage + 1)
        target = (self.answer * (self.stage + torch.rand(self.rows)) / self.s.stages).long()
        shown = next_shown(score, self.hidden, target - (self.answer - self.hidden.sum(1)))
        self.x = torch.where(shown, self.x0, self.x)
        if done.any():
            self.x0[done], self.prompt[done] = random_batch(self.s, int(done.sum()))
            count = self.answer - target[done]
            self.x[done] = random_mask(self.x0[done], self.prompt[done], self.mask, count)


def chain_loss(log_probs, x0, hidden):
    """Mean over the hidden positions of each row, then over the rows; log_probs (B, L, V)."""
    nll = -log_probs.gather(-1, x0[..., None])[..., 0]
    return ((nll * hidden).sum(1) / hidden.sum(1).clamp_min(1)).sum() / len(x0)


def next_shown(score, hidden, count):
    """The count (B,) hidden positions of each row with the highest score, (B, L) bool."""
    rank = score.argsort(1, descending=True).argsort(1)
    return hidden & (rank < count.clamp_min(0)[:, None])


def step_times(s, rows):
    """Seconds of each step but the first two."""
    model = Transformer(s)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.01)
    stream = Chains(s, rows)
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        loss = stream.loss(model)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        stream.advance()
        times.append(time.perf_counter() - start)
    return times[2:]


@torch.no_grad()
def sample_times(s, rows):
    """Seconds of each batch, all answer tokens hidden."""
    mask = s.vocab - 1
    model = Transformer(s).eval()
    times = []
    for _ in range(-(-puzzles // rows)):
        x, prompt = random_batch(s, rows)
        x = torch.where(prompt, x, mask)
        start = time.perf_counter()
        while (x == mask).any():
            hidden = x == mask
            logits = model(x)
            score = F.softmax(logits, -1).amax(-1).masked_fill(~hidden, -float("inf"))
            for b in range(rows):
                k = min(reveal, int(hidden[b].sum()))
                if k:
                    top = score[b].topk(k).indices
                    x[b, top] = logits[b, top, :mask].argmax(-1)
        times.append(time.perf_counter() - start)
    return times


def main():
    with errors_as_messages():
        if what not in TIMES or shape not in SHAPES:
            raise ValueError(f"expected what in {[*TIMES]}, shape in {[*SHAPES]}")
    torch.manual_seed(0)
    s = SHAPES[shape]
    rows = batch or (s.batch if what == "step" else 16)
    with torch.autocast("cpu", torch.bfloat16, bfloat16):
        times = TIMES[what](s, rows)
    median = statistics.median(times)
    print(json.dumps({
        "what": what, "shape": shape, "batch": rows,
        "seconds": round(median, 4), "sequences_per_second": round(rows / median, 3),
        "peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 2**30, 2),
    }))  # fmt: skip


TIMES = {"step": step_times, "sample": sample_times}

if __name__ == "__main__":
    configure(globals())
    main()
