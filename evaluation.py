"""What a sampler achieves on held-out problems and what it costs, and tables of several samplers.

A row of a table is a flat dictionary: its origin, the fields of its sampler, accuracy with a 95 %
interval, number of examples, tokens per step, forward passes, seconds.
"""

import itertools
import json
import time
from pathlib import Path
from typing import NamedTuple

import torch

import backend
import policies
from record import table, write, write_json
from sample import generate
from tasks.programs import interval


class Sampler(NamedTuple):
    """What `sample.generate` asks for."""

    policy: str
    reveal: int = 2
    tau: float | None = None
    tau_entropy: float | None = None
    temperature: float = 0.0

    def check(self):
        """Raise ValueError for what cannot be."""
        policies.get(self.policy)
        policies.threshold(self.tau, self.tau_entropy)
        if not isinstance(self.reveal, int) or self.reveal < 1:
            raise ValueError(f"reveal {self.reveal!r}: expected tokens per step, at least 1")
        if not isinstance(self.temperature, int | float) or self.temperature < 0:
            raise ValueError(f"temperature {self.temperature!r}: expected a number, at least 0")

    def __str__(self):
        words = f"{self.reveal} per step"
        if self.tau is not None:
            words = f"surer than {self.tau:g}, else {words}"
        if self.tau_entropy is not None:
            words = f"entropy below {self.tau_entropy:g}, else {words}"
        heat = f", T = {self.temperature:g}" if self.temperature else ""
        return f"{self.policy}, {words}{heat}"


def grid(names, reveals, taus, tau_entropies, temperatures):
    """A sampler for every combination; each has one threshold, of taus or of tau_entropies.

    Raises ValueError where one cannot be or there is none.
    """
    thresholds = [(tau, None) for tau in taus] + [(None, nats) for nats in tau_entropies]
    samplers = [
        Sampler(name, reveal, *threshold, temperature)
        for name, temperature, threshold, reveal in itertools.product(
            names, temperatures, thresholds, reveals
        )
    ]
    if not samplers:
        raise ValueError("an empty grid: each list needs a value; taus=[None] is no threshold")
    for sampler in samplers:
        sampler.check()
    return samplers


def on_device(example, device):
    """x0 and prompt (n, L), from numpy, as tensors of ids and bools."""
    x0, prompt = (torch.as_tensor(part).to(device) for part in example)
    return x0.long(), prompt


def solve(model, x0, prompt, sampler, seed, batch_size, rank):
    """Answers to this process's problems x0, prompt (n, L): tokens (n, L) as a numpy array.

    Also what it cost over all processes: tokens per step, forward passes, seconds.
    """
    torch.manual_seed(seed + rank)
    begin = time.perf_counter()
    tokens, revealed_at, passes = generate(
        model, x0, ~prompt, policies.get(sampler.policy), sampler.reveal, sampler.tau,
        sampler.temperature, batch_size, progress=rank == 0, tau_entropy=sampler.tau_entropy,
    )  # fmt: skip
    tokens = tokens.cpu().numpy()
    seconds = max(backend.gather(time.perf_counter() - begin))
    hidden, steps = (~prompt).sum().item(), revealed_at.amax(1).sum().item()
    hidden, steps, passes = backend.total([hidden, steps, passes])
    rate = hidden / max(1, steps)
    return tokens, {"tokens_per_step": rate, "forward_passes": int(passes), "seconds": seconds}


def share(correct, n):
    """The part of a row that says how many of n problems are solved."""
    return {"accuracy": correct / n, "interval": interval(correct, n), "examples": n}


class Table:
    """Rows in <path>.json, and in <path>.md those of `origin`; written after each row.

    Opened anew, it still has the rows of all origins. Raises ValueError for a damaged file.
    """

    def __init__(self, path, origin):
        self.path, self.origin = Path(path), origin
        file = self.path.with_suffix(".json")
        try:
            self.rows = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
        except ValueError as error:
            raise ValueError(f"{file} is damaged, move it away: {error}") from None

    def find(self, sampler):
        """The row of that sampler and this origin, None where there is none."""
        wanted = self.origin | sampler._asdict()
        return next((row for row in self.rows if wanted.items() <= row.items()), None)

    def add(self, sampler, result):
        self.rows.append(self.origin | sampler._asdict() | result)
        write_json(self.path.with_suffix(".json"), self.rows)
        write(self.path.with_suffix(".md"), self.markdown())

    def markdown(self):
        return markdown([row for row in self.rows if self.origin.items() <= row.items()])


def markdown(rows):
    lines = []
    for row in rows:
        sampler = Sampler(*(row[field] for field in Sampler._fields))
        low, high = row["interval"]
        lines.append([
            str(sampler), f"{row['accuracy']:.1%} [{low:.1%}, {high:.1%}]",
            f"{row['tokens_per_step']:.2f}", str(row["forward_passes"]), f"{row['seconds']:.1f}",
        ])  # fmt: skip
    head = ["sampler", "accuracy [95 %]", "tokens per step", "forward passes", "seconds"]
    return table(head, lines) + "\n"
