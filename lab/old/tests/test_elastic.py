"""Other processes continue in mid-epoch where earlier ones stopped; no example is lost."""

from collections import Counter

import numpy as np
import pytest
import torch
from toys import MASK, STREAMS, Arrays

from engine.elastic import left_over, redistribute
from engine.queue import ExampleQueue, examples_at, shuffled

N = 1500  # examples; row i holds the number i everywhere
DATA = Arrays(np.arange(N)[:, None].repeat(24, 1), np.zeros(24))


def make_streams(method, world, B, buffer, old=()):
    """Streams of `world` processes, made as train.set_up makes them; old: those they continue."""
    states = [{"queue": s.queue.state_dict(), "stream": s.state_dict()} for s in old]
    shares = redistribute(states, world, N, seed=0) if old else [None] * world
    streams = []
    for rank, share in enumerate(shares):
        queue = ExampleQueue(DATA, B, rank=rank, world=world)
        if share:
            queue.load_state_dict(share[0])
        generator = torch.Generator().manual_seed(rank)
        streams.append(STREAMS[method](queue, MASK, generator, [(0, 6)], 0.9, buffer))
        streams[-1].queue = queue
        if share and share[1]:
            streams[-1].adopt(share[1])
    return streams


def numbers(stream):
    """Examples whose chains a stream holds, (buffer, B)."""
    chains = getattr(stream, "chains", stream)
    return chains.number.clone() if hasattr(chains, "number") else torch.zeros(0, dtype=torch.long)


def run(streams, iterations, used):
    """Train in step. used counts what is finished: a chain that ended, or a masked row."""
    for iteration in iterations:
        noise = torch.Generator().manual_seed(iteration)
        for rank, stream in enumerate(streams):
            x0, before = stream.batch(iteration).x0, numbers(stream)
            score, confidence = torch.rand(2, *x0.shape, generator=noise)
            stream.advance(score, confidence ** (1 / (1 + rank)))  # later ranks are faster
            rows = before.shape[1] if len(before) else 0
            assert set(x0[:rows, 0].tolist()) <= set(before.flatten().tolist())
            used.update(before[numbers(stream) != before].tolist())
            used.update(x0[rows:, 0].tolist())


@pytest.mark.parametrize(
    "parts",
    [
        [("puma", 2, 8, 3), ("puma", 1, 4, 2), ("puma", 3, 16, 1), ("puma", 3, 8, 2)],
        [("mdm", 3, 8, 0), ("mdm", 2, 16, 0)],
        [("mdm", 1, 8, 0), ("blocks", 2, 8, 2), ("mdm", 3, 4, 0), ("puma", 2, 4, 1)],
    ],
    ids=lambda parts: "-".join(f"{method}{world}" for method, world, *_ in parts),
)
def test_no_example_of_the_epoch_is_lost_or_used_twice(parts):
    """(method, processes, batch size, buffer), one after the other, each in mid-epoch."""
    used, streams, iteration = Counter(), [], 0
    for settings in parts:
        streams = make_streams(*settings, old=streams)
        run(streams, range(iteration, iteration + 15), used)
        iteration += 15
    assert 30 < used.total() < N, "the changes were not in mid-epoch"
    assert max(used.values()) == 1, "used twice"
    while min(passes := [stream.queue.passes() for stream in streams]) < 1.1:
        run(streams, [iteration], used)
        iteration += 1
    used.update(number for s in streams for number in numbers(s).flatten().tolist())
    assert len(used) == N, "lost"
    twice = {number for number, times in used.items() if times > 1}
    again = shuffled(np.arange(round(N * (max(passes) - 1))), N, (0, 1))  # of the second epoch
    assert max(passes) < 2 and max(used.values()) == 2 and twice <= {*again.tolist()}


@pytest.mark.parametrize("method, world", [("puma", 1), ("puma", 3), ("as published", 3)])
def test_chains_stay_where_they_were(method, world):
    """With room for all of them; their stages follow from what they have revealed."""
    old = make_streams(method, 2, 8, 3)
    run(old, range(9), Counter())
    assert old[0].queue.taken != old[1].queue.taken  # one has overtaken examples of the other
    new = make_streams(method, world, 8, 6 // world, old)

    def chains(streams):
        parts = [(s.number[t], s.x0[t], s.hidden[t]) for s in streams for t in range(len(s.x0))]
        rows = [row for part in parts for row in zip(*part, strict=True)]
        return {int(number): (x0.tolist(), hidden.tolist()) for number, x0, hidden in rows}

    assert chains(old) == chains(new) and len(chains(new)) == 48
    for stream in new:
        revealed = 24 - stream.hidden.sum(-1, keepdim=True)
        assert stream.stage.equal(revealed * stream.stages // 24)


def test_what_is_left_over_equals_a_slow_loop():
    """The new sequence is the old one without what was taken; `ahead` may not be used up."""
    rng = np.random.default_rng(0)
    epochs = np.concatenate([shuffled(np.arange(50), 50, (7, epoch)) for epoch in range(6)])
    for world in [1, 2, 3, 5] * 20:
        ahead, base = rng.integers(0, 50, rng.integers(20)), int(rng.integers(100))
        old = [*ahead, *epochs[base:]]
        taken = rng.integers(0, 20, world).tolist()
        gone = {rank + n * world for rank in range(world) for n in range(taken[rank])}
        expected = [number for place, number in enumerate(old) if place not in gone]
        saved = {"ahead": torch.from_numpy(ahead), "base": base}
        skipped, base = left_over([saved | {"taken": n} for n in taken], 50, 7)
        new = examples_at(np.arange(len(expected)), skipped, base, 50, 7)
        assert new.tolist() == expected
