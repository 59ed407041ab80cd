import copy

import pytest
import torch
from conftest import train
from toys import MASK, assert_resumes, make_chains, make_queue

import losses
import policies
from checkpoint import load, load_model
from model import Transformer
from puma import ProgressiveUnmasking
from studies.ablations import CHAINS, DropChains, Explore, LateRefill, Mixed, RandomStart, Reverse

EVERY = pytest.mark.parametrize("kind", CHAINS.values(), ids=CHAINS)


def visits(stream, steps, sharpness=0.1):
    """Batches of a stream under noise in place of a model: (x0, hidden, stage)."""
    noise = torch.Generator().manual_seed(1)
    for iteration in range(steps):
        _, x0, hidden, _ = stream.batch(iteration)
        yield x0, hidden, stream.visited("stage")
        score = torch.rand(hidden.shape, generator=noise)
        stream.advance(score, score**sharpness)


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
    settings = dict(effective=[24, 5], tau=0.9, buffer=3, k=[(0, 6), (30, 3)])
    assert_resumes(lambda: make_chains(kind=kind, **settings))


@EVERY
def test_only_a_late_refill_has_rows_with_nothing_hidden(kind):
    stream = make_chains(kind=kind, effective=list(range(1, 25)), tau=0.8)
    full = [hidden.any(1).all() for _, hidden, _ in visits(stream, 60)]
    assert all(full) == (kind is not LateRefill)


def test_random_start_reveals_the_share_of_stage_zero():
    stream = make_chains(kind=RandomStart)
    counts = torch.cat([24 - h[stage == 0].sum(1) for _, h, stage in visits(stream, 200)])
    assert len(counts.bincount()) == 4 and counts.bincount().min() > 0  # 0 to 3 of 24: K = 3


def test_late_refill_is_puma_but_for_chains_that_tau_completes():
    late, completed = make_chains(kind=LateRefill, tau=0.9, n=10**6), 0
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


def test_late_refill_leaves_half_of_the_slots_empty_where_the_model_is_sure_of_all():
    stream = make_chains(kind=LateRefill, tau=0.0)
    for _ in range(10):
        _, _, hidden, _ = stream.batch(0)
        stream.advance(torch.rand(16, 24), torch.ones(16, 24))
    taken = int(stream.queue.taken)
    for _ in range(10):
        _, _, hidden, _ = stream.batch(0)
        stream.advance(torch.rand(16, 24), torch.ones(16, 24))
        assert (hidden.all(1) | ~hidden.any(1)).all()
    assert int(stream.queue.taken) - taken == 16 * 10 / 2


@pytest.mark.parametrize("kind", [losses.Objective, losses.ChunkedObjective])
def test_a_row_with_nothing_hidden_weighs_nothing(kind):
    torch.manual_seed(0)
    model = Transformer(vocab_size=10, mask_token=9, length=6, dim=8, layers=1, heads=2, mlp=8)
    x0, hidden = torch.randint(0, 9, (3, 6)), torch.rand(3, 6) < 0.5
    hidden[:, 0], hidden[1] = True, False
    loss, _, _ = kind(model, policies.top_k)(x0.masked_fill(hidden, 9), x0, hidden)
    loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    rest = [0, 2]
    alone, _, _ = kind(model, policies.top_k)(
        x0[rest].masked_fill(hidden[rest], 9), x0[rest], hidden[rest]
    )
    assert loss.item() == pytest.approx(alone.item() * 2 / 3, rel=1e-5)


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


def test_mixed_has_fresh_random_masks_in_half_of_the_rows_and_chains_in_the_rest():
    stream = make_chains(kind=Mixed, n=10**6)
    masks, seen, age = [], [], stream.stage[0, 8:].clone()
    for x0, hidden, stage in visits(stream, 400):
        masks.append(hidden[:8])
        seen += map(tuple, x0[:8].tolist())
        assert stage[8:].equal(age)  # without tau a chain visits every stage once
        assert hidden[8:][stage[8:] == 0].all()
        age = (age + 1) % 8
    assert len(set(seen)) == len(seen)
    counts = torch.cat(masks[1:]).sum(1).bincount(minlength=25)
    expected = 8 * 399 / 24
    assert counts[0] == 0 and (counts[1:] - expected).abs().max() < 5 * expected**0.5
    assert (torch.cat(masks[1:]).float().mean(0) - 12.5 / 24).abs().max() < 0.05


def test_explore_reveals_a_share_of_the_steps_at_random():
    """All confidence above tau: a greedy row is complete at once, an exploring one is not."""
    queue = make_queue(B=2000, n=10**6)
    stream = Explore(queue, MASK, torch.Generator().manual_seed(0), [(0, 12)], tau=0.9)
    stream.hidden.fill_(True)
    stream.stage.fill_(0)
    x0 = stream.batch(0).x0
    best = torch.arange(24).expand(2000, 24) / 24 + 1  # the last position is the surest
    stream.advance(best, torch.ones(2000, 24))
    explored = (stream.x0[0] == x0).all(1)
    assert explored.float().mean().item() == pytest.approx(0.25, abs=0.05)  # 5 deviations
    revealed = (~stream.hidden[0, explored]).float()
    assert revealed.sum(1).min() >= 12  # to stage 1 of 2, in no order:
    assert (revealed.mean(0) - revealed.mean()).abs().max() < 0.12


def test_reverse_reveals_the_least_sure_first_whatever_tau_is():
    stream = make_chains(kind=Reverse, tau=0.5)
    hidden, stage = stream.batch(0).hidden.clone(), stream.stage[0].clone()
    score = torch.rand(16, 24)
    stream.advance(score, torch.ones(16, 24))
    for b in (stage < 7).nonzero()[:, 0]:
        revealed = (hidden[b] & ~stream.hidden[0, b]).nonzero()[:, 0].tolist()
        lowest = sorted(hidden[b].nonzero()[:, 0].tolist(), key=lambda i: score[b, i].item())
        assert 0 < len(revealed) <= 6 and revealed == sorted(lowest[: len(revealed)])


def test_a_variant_trains_and_keeps_its_averaged_weights(tmp_path):
    flags = ["--method=puma_late_refill", "--tau=0.3", "--keep_every=5", "--eval_interval=20"]
    train(tmp_path, *flags, "--max_iters=10")
    names = [f"{n:06d}.pt" for n in (0, 5, 10)]
    assert sorted(p.name for p in (tmp_path / "weights").iterdir()) == names
    model, config, iteration = load_model(tmp_path / "weights/000010.pt")[:3]
    final = load(tmp_path / "checkpoint.pt")
    assert iteration == 10 and config["method"] == "puma_late_refill"
    assert all(weight.equal(final["ema"][name]) for name, weight in model.state_dict().items())
    train(tmp_path, *flags, "--max_iters=5")  # a new run keeps those of the old one
    assert sorted(p.name for p in (tmp_path / "weights").iterdir()) == names[:2]
    assert len(list((tmp_path / "before.1/weights").iterdir())) == 3
