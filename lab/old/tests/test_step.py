"""A training step of train.py: how its rows are divided, and that the host need not wait for it."""

import contextlib
import copy
import itertools
from types import SimpleNamespace

import pytest
import torch
from toys import MASK, STREAMS, Waits, make_chains, make_queue

import train
import variants
from engine.muon import Muon
from engine.queue import rows_and_passes
from losses import Objective
from model import Transformer
from puma import MasksThenChains, RandomMasking


@pytest.mark.parametrize(
    "wait",
    [
        lambda t: t.sum().item(),
        lambda t: t.tolist(),
        lambda t: range(t.int().abs().sum()),
        lambda t: t[t > 0],
        lambda t: torch.zeros(5).index_put_((t > 0,), torch.ones(1)),
        lambda t: t.nonzero(),
        lambda t: t.masked_fill_(t > 0, 1).equal(t),
    ],
)
def test_waits_are_noticed(wait, monkeypatch):
    with Waits(monkeypatch) as waits:
        wait(torch.randn(5))
    assert waits.count >= 1


def make_run(chains, passes):
    """The parts of train.Run that an update uses."""
    torch.manual_seed(0)
    model = Transformer(10, MASK, 24, 32, 1, 2, 48)
    parts = {
        "model": model, "averaged": copy.deepcopy(model),
        "optimizer": Muon(model, model.model.layers, train.muon),
        "objective": Objective(model), "passes": passes, "casts": contextlib.nullcontext(),
        "stream": chains,
    }  # fmt: skip
    return SimpleNamespace(**parts)


@pytest.mark.parametrize("kind", (streams := STREAMS | variants.STREAMS).values(), ids=streams)
def test_the_host_waits_once_for_many_steps(kind, monkeypatch):
    """Forward and backward passes, clipping, Muon and AdamW, average, chains, switches of K.

    Only the queue reads its count, after half a ring at the most: 512 examples, 31 takes of 16.
    """
    monkeypatch.setattr(train, "muon", True)
    run = make_run(make_chains([(0, 12), (5, 3)], tau=0.9, buffer=2, kind=kind), passes=3)
    train.update(run, 0)  # the optimizer makes its state
    before = [p.clone() for p in run.model.parameters()]
    with Waits(monkeypatch) as waits:
        for iteration in range(1, 11):
            train.update(run, iteration)
    assert waits.count <= 2  # in 30 batches
    assert not any(p.equal(q) for p, q in zip(run.model.parameters(), before, strict=True))


def test_random_masks_come_first_and_the_chains_wait():
    chains = make_chains(tau=0.9, buffer=2)
    masks = RandomMasking(make_queue(), MASK, torch.Generator().manual_seed(0))
    run, waiting = (
        make_run(MasksThenChains(masks, chains, begin=3), passes=1),
        chains.hidden.clone(),
    )
    for iteration in range(3):
        train.update(run, iteration)
        assert chains.hidden.equal(waiting) and chains.turn == 0
    *_, share_hidden = train.update(run, 3)
    assert share_hidden.equal(waiting[0].sum(1) / 24) and chains.turn == 1
    assert masks.queue.taken == 3 * 16


def test_chains_begin_once_the_model_is_sure_of_half():
    """Against a loop over tokens; what is not hidden does not count, nor one process alone."""
    others = iter([0.6, 0.5, 0.5, 0.6])  # the mean of three other processes, at each reading
    masks = RandomMasking(make_queue(), MASK, torch.Generator().manual_seed(0))
    stream = MasksThenChains(masks, make_chains(), mean=lambda own: (own + 3 * next(others)) / 4)
    expected, begun = 0.0, []
    for iteration in range(40):
        for _ in range(2):  # visits of an update
            hidden = stream.batch(iteration).hidden
            begun.append(stream.stream is stream.chains)
            confidence = torch.where(hidden, 1.5 * torch.rand(16, 24), 1.0)
            stream.advance(confidence, confidence)
            sure = [c > 0.9 for c, h in zip(confidence.ravel(), hidden.ravel(), strict=True) if h]
            expected += 0.1 * (float(sum(sure)) / len(sure) - expected)
            assert begun[-1] or float(masks.sure) == pytest.approx(expected, abs=1e-5)
    assert begun == [iteration >= 30 for iteration in range(40) for _ in range(2)]
    assert stream.begin == 30


def test_rows_of_an_update_are_divided_over_processes_and_passes():
    for most, world in itertools.product([None, *range(1, 200)], (1, 2, 3, 64)):
        rows, passes = rows_and_passes(192, most, world)
        assert world * rows * passes == 192 and rows <= (most or 192)
        fewer = [n for n in range(1, passes) if 192 // world % n == 0]
        assert all(192 // world // n > (most or 192) for n in fewer)
    for world in (5, 384):
        with pytest.raises(ValueError, match="192 rows per update: expected a multiple of the"):
            rows_and_passes(192, None, world)
