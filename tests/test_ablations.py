"""The variants of the chain: what all keep of PUMA's, and a worked example of what each changes."""

import copy
import functools

import pytest
import torch
from conftest import train
from toys import batches_of, make_chains

from pretrained.runs import open_run
from puma import ProgressiveUnmasking
from studies.ablations import (
    STREAMS,
    DropChains,
    LateRefill,
    RandomStart,
    Reverse,
)


def published(kind):
    """As train.py makes a variant."""
    return functools.partial(kind, second_visit=False)


EVERY = pytest.mark.parametrize("kind", [*map(published, STREAMS.values())], ids=STREAMS)


def visits(stream, steps, sharpness=0.1):
    """Batches of a stream under noise in place of a model: (x0, hidden, stage)."""
    noise = torch.Generator().manual_seed(1)
    for iteration in range(steps):
        stage = stream.stage[stream.turn].clone()
        _, x0, hidden, _ = stream.batch(iteration)
        yield x0, hidden, stage
        score = torch.rand(hidden.shape, generator=noise)
        stream.advance(score, score**sharpness)


# -- all of them -----------------------------------------------------------------------------------
def sure_of(x):
    """Any function of the visible tokens, (B, L) in 0..1."""
    place = torch.arange(x.shape[1])
    return torch.sin(x.float() * 12.9898 + place * 78.233 + x.sum(1, keepdim=True)).abs()


@EVERY
def test_the_choice_sees_x_only(kind):
    """Other truth under the masks, same visible tokens: the same chains."""
    first, second = (make_chains(kind=kind, tau=0.95, k=[(0, 3), (1, 2)]) for _ in range(2))
    second.x0 = torch.where(first.hidden, (second.x0 + 1) % 9, second.x0)
    for stream in (first, second):
        x, _, _, _ = stream.batch(0)
        stream.advance(sure_of(x), sure_of(x))
    assert first.hidden.equal(second.hidden) and first.stage.equal(second.stage)


@EVERY
def test_a_resumed_stream_goes_on_bit_for_bit(kind):
    """Another one that takes over everything after 25 steps has the same batches; K changes."""
    settings = dict(effective=[24, 5], tau=0.9, buffer=3, k=[(0, 6), (30, 3)])
    whole, other = (make_chains(kind=kind, **settings) for _ in "12")
    batches_of(whole, 0, 25)
    batches_of(other, 0, 8)
    saved = copy.deepcopy(whole)
    other.generator.set_state(saved.generator.get_state())
    for ours, theirs in ((other.queue, saved.queue), (other, saved)):
        ours.load_state_dict(theirs.state_dict())
    pairs = zip(batches_of(other, 25, 25), batches_of(whole, 25, 25), strict=True)
    assert all(a.equal(b) for pair in pairs for a, b in zip(*pair, strict=True))


@EVERY
def test_each_example_of_an_epoch_is_used_once(kind):
    stream, begun = make_chains(kind=kind, tau=0.9, buffer=2, n=200), []
    begun += stream.number.flatten().tolist()
    take = stream.queue.take

    def spy(wanted):
        x0, prompt, number = take(wanted)
        begun.extend(number[wanted].tolist())
        return x0, prompt, number

    stream.queue.take = spy
    for _ in visits(stream, 100):
        pass
    assert len(begun) > 200 and sorted(begun[:200]) == [*range(200)]


# -- each of them ----------------------------------------------------------------------------------
def test_random_start_reveals_the_share_of_stage_zero():
    stream = make_chains(kind=published(RandomStart))
    counts = torch.cat([24 - h[stage == 0].sum(1) for _, h, stage in visits(stream, 200)])
    assert len(counts.bincount()) == 4 and counts.bincount().min() > 0  # 0 to 3 of 24: K = 3


def test_late_refill_is_puma_but_for_chains_that_tau_completes():
    late, completed = make_chains(kind=published(LateRefill), tau=0.9, n=10**6), 0
    torch.manual_seed(0)
    for iteration in range(100):
        _, x0, hidden, _ = late.batch(iteration)
        stage = late.stage[0].clone()
        twin = copy.deepcopy(late)
        twin.__class__ = ProgressiveUnmasking
        score = torch.rand(16, 24) ** 0.05
        late.advance(score, score)
        twin.advance(score, score)
        for b in range(16):
            begun = twin.stage[0, b] == 0  # PUMA replaced it
            if not hidden[b].any() or stage[b] == 7:
                assert begun and late.stage[0, b] == 0 and late.hidden[0, b].all()
                assert not late.x0[0, b].equal(x0[b])
            elif begun:  # complete: it stays, with nothing hidden
                completed += 1
                assert not late.hidden[0, b].any() and late.x0[0, b].equal(x0[b])
            else:
                assert late.hidden[0, b].equal(twin.hidden[0, b])
                assert late.x0[0, b].equal(x0[b]) and late.stage[0, b] == twin.stage[0, b]
    assert completed > 100


def test_drop_chains_fills_the_buffer_anew_at_a_switch_only():
    dropping, keeping = (
        make_chains(kind=kind, k=[(0, 12), (5, 3)], buffer=2, n=10**6, tau=0.9)
        for kind in (DropChains, ProgressiveUnmasking)
    )
    for ours, theirs in zip(visits(dropping, 5), visits(keeping, 5), strict=True):
        assert all(a.equal(b) for a, b in zip(ours, theirs, strict=True))
    before, taken = set(map(tuple, dropping.x0.view(-1, 24).tolist())), int(dropping.queue.taken)
    dropping.batch(5)
    assert not before & set(map(tuple, dropping.x0.view(-1, 24).tolist()))
    assert int(dropping.queue.taken) == taken + 32
    assert dropping.stages == 8 and dropping.stage.flatten().bincount().tolist() == [4] * 8
    assert dropping.hidden.sum(-1)[dropping.stage == 0].eq(24).all()


def test_reverse_reveals_the_least_sure_first_whatever_tau_is():
    stream = make_chains(kind=published(Reverse), tau=0.5)
    hidden, stage = stream.batch(0).hidden.clone(), stream.stage[0].clone()
    score = torch.rand(16, 24)
    stream.advance(score, torch.ones(16, 24))
    for b in (stage < 7).nonzero()[:, 0]:
        revealed = (hidden[b] & ~stream.hidden[0, b]).nonzero()[:, 0].tolist()
        lowest = sorted(hidden[b].nonzero()[:, 0].tolist(), key=lambda i: score[b, i].item())
        assert 0 < len(revealed) <= 6 and revealed == sorted(lowest[: len(revealed)])


def test_a_variant_trains(tmp_path):
    train(tmp_path, "--method=puma_late_refill", "--tau=0.3", "--max_iters=5", "--eval_interval=5")
    saved = open_run(tmp_path / "checkpoint.pt")
    assert saved.iteration == 5 and saved.config["method"] == "puma_late_refill"
