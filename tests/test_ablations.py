import copy
import functools

import pytest
import torch
import toys
from conftest import train
from toys import MASK, assert_resumes, make_queue

import losses
import policies
from engine.checkpoint import load
from model import Transformer
from pretrained.runs import open_run
from puma import ProgressiveUnmasking, RandomMasking
from studies.ablations import (
    CHAINS,
    STREAMS,
    Adaptive,
    BellMasks,
    Bounded,
    DropChains,
    Explore,
    LateRefill,
    OwnTokens,
    RandomLast,
    RandomStage,
    RandomStart,
    Reverse,
    SelfAligned,
)

EVERY = pytest.mark.parametrize("kind", CHAINS.values(), ids=CHAINS)


class Pattern:
    """A "model": logits (B, L, 10) that depend on the visible tokens and the position."""

    def __init__(self):
        self.seen = []  # the inputs

    def __call__(self, x):
        self.seen.append(x.clone())
        return x

    def logits(self, x):
        phase = x.sum(1)[:, None, None] + torch.arange(x.shape[1])[:, None] * 7.7
        logits = 3 * torch.sin(phase + torch.arange(10) * 2.3)
        logits[..., MASK] = -torch.inf
        return logits


def make_chains(**settings):
    """toys.make_chains, with a model for the variants that ask one."""
    stream = toys.make_chains(**settings)
    stream.model = Pattern()
    return stream


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


@pytest.mark.parametrize("kind", STREAMS.values(), ids=STREAMS)
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


def test_a_random_share_of_half_has_fresh_masks_there_and_chains_in_the_rest():
    kind = functools.partial(ProgressiveUnmasking, random_share=0.5)
    stream = make_chains(kind=kind, n=10**6)
    random = stream.is_random[0]
    assert random.sum() == 8
    masks, seen, age = [], [], stream.stage[0, ~random].clone()
    for x0, hidden, stage in visits(stream, 400):
        masks.append(hidden[random])
        seen += map(tuple, x0[random].tolist())
        assert stage[~random].equal(age)  # without tau a chain visits every stage once
        assert hidden[~random][age == 0].all()
        age = (age + 1) % 8
    assert len(set(seen)) == len(seen)
    counts = torch.cat(masks).sum(1).bincount(minlength=25)
    expected = 8 * 400 / 24
    assert counts[0] == 0 and (counts[1:] - expected).abs().max() < 5 * expected**0.5
    assert (torch.cat(masks).float().mean(0) - 12.5 / 24).abs().max() < 0.05


@pytest.mark.parametrize("share, rows, batches", [(0.1, 4, 16), (0.25, 1, 8), (0.9, 16, 1)])
def test_a_random_share_does_not_depend_on_the_rows_of_a_pass(share, rows, batches):
    kind = functools.partial(ProgressiveUnmasking, random_share=share)
    stream = make_chains(kind=kind, B=rows, buffer=batches)
    assert stream.is_random.sum() == int(share * rows * batches)
    counts = stream.stage[~stream.is_random].bincount(minlength=int(stream.stages))
    assert counts.max() - counts.min() <= 1  # chains begin in all stages alike
    with pytest.raises(ValueError, match=r"random_share 0\.01 of 16 rows in the buffer is 0"):
        make_chains(kind=functools.partial(ProgressiveUnmasking, random_share=0.01), buffer=1)


def mean_visits(stream, confidence, steps=200, warm_up=100):
    """Rows per example used up, under one confidence for all positions."""
    noise = torch.Generator().manual_seed(2)
    for iteration in range(warm_up + steps):
        if iteration == warm_up:
            taken = int(stream.queue.taken)
        stream.batch(iteration)
        score = torch.rand(16, 24, generator=noise)
        stream.advance(score, torch.full((16, 24), confidence))
    return steps * 16 / (int(stream.queue.taken) - taken)


@pytest.mark.parametrize("k, visits", [(3, 5), (4, 4), (12, 2), (1, 13)])
def test_bounded_keeps_half_of_the_visits_where_the_model_is_sure_of_all(k, visits):
    """At least at stages 0, 2, 4, 6, 7 of 8; PUMA's chains end at once."""
    settings = dict(k=k, tau=0.9, n=10**5)
    assert mean_visits(make_chains(**settings), 1.0) == 1
    bounded = mean_visits(make_chains(kind=Bounded, **settings), 1.0)
    assert visits <= bounded < max(0.75 * 24 / k, visits + 0.1)
    unsure = [
        mean_visits(make_chains(kind=kind, **settings), 0.5)
        for kind in (Bounded, ProgressiveUnmasking)
    ]
    assert unsure[0] == pytest.approx(unsure[1], rel=0.1)


@pytest.mark.parametrize("effective", [24, 17])
def test_bounded_skips_one_stage_at_most(effective):
    stream = make_chains(kind=Bounded, effective=[effective], tau=0.5, n=10**5)
    steps, sizes = [], set()
    for _ in range(300):
        stream.batch(0)
        stage, x0 = stream.stage[0].clone(), stream.x0[0].clone()
        stream.advance(torch.rand(16, 24), torch.rand(16, 24))
        stays = (stream.x0[0] == x0).all(1)
        assert (stage[~stays] == 7).all(), "fast-forward never ends a chain"
        steps += (stream.stage[0] - stage)[stays].tolist()
        sizes |= set((effective - stream.hidden[0].sum(1)[stays & (stage == 0)]).tolist())
    assert set(steps) == {1, 2}
    assert effective < 24 or sizes == set(range(3, 9))  # to any number of stage 1 or 2


@pytest.mark.parametrize("effective", [2, 5, 8, 9])
def test_bounded_keeps_half_of_the_visits_of_short_rows(effective):
    settings = dict(effective=[effective], n=10**5)
    without = mean_visits(make_chains(**settings), 1.0)
    assert mean_visits(make_chains(kind=Bounded, tau=0.9, **settings), 1.0) >= without / 2


def test_bounded_leads_to_a_random_number_of_the_stage_after_next():
    """From stage 0: 3 (2 + r), rounded, of 24 tokens; 9 of them would be stage 3."""
    queue = make_queue(B=6000, n=10**5)
    stream = Bounded(queue, MASK, torch.Generator().manual_seed(0), [(0, 3)], 0.9, 1)
    stream.hidden[:], stream.stage[:] = True, 0
    stream.batch(0)
    stream.advance(torch.rand(6000, 24), torch.ones(6000, 24))
    counts = (24 - stream.hidden[0].sum(1)).bincount(minlength=10) / 6000
    assert counts[6:].tolist() == pytest.approx([1 / 6, 1 / 3, 1 / 2, 0], abs=0.04)


def test_bounded_reveals_what_puma_would_but_less_of_it():
    """Beyond the ordinary step only the surest, and no position that PUMA would not reveal."""
    stream = make_chains(kind=Bounded, tau=0.9, n=10**5)
    for _ in range(100):
        hidden, stage, x0 = stream.batch(0).hidden, stream.stage[0].clone(), stream.x0[0].clone()
        score = torch.rand(16, 24) ** 0.2
        stream.advance(score, score)
        for b in (stream.x0[0] == x0).all(1).nonzero()[:, 0]:
            revealed = hidden[b] & ~stream.hidden[0, b]
            rest = score[b, hidden[b] & ~revealed]
            assert score[b, revealed].min() > rest.max(), "the best by score"
            beyond = score[b, revealed].sort().values[: -3 * (int(stage[b]) + 2)]
            assert (beyond > 0.9).all()


def test_random_stage_starts_anywhere():
    stream = make_chains(kind=RandomStage, n=10**5, k=3)
    counts, stages = [], []
    for _ in range(400):
        x0 = stream.x0[0].clone()
        stream.batch(0)
        stream.advance(torch.rand(16, 24), torch.zeros(16, 24))
        new = (stream.x0[0] != x0).any(1)
        counts += (24 - stream.hidden[0][new].sum(1)).tolist()
        stages += stream.stage[0][new].tolist()
    frequency = torch.tensor(stages).bincount(minlength=8)
    expected = len(stages) / 8
    assert (frequency - expected).abs().max() < 5 * expected**0.5
    for stage, count in zip(stages, counts, strict=True):
        assert 3 * stage <= count <= min(3 * stage + 3, 23)
    assert mean_visits(stream, 0.0, steps=1000) == pytest.approx(4.5, rel=0.05)  # 1 to 8


@pytest.mark.parametrize("confidence", [0.95, 0.99999, 1.0])
def test_adaptive_holds_the_visits_where_the_model_is_sure_of_all(confidence):
    settings = dict(tau=0.9, n=10**5)
    assert mean_visits(make_chains(**settings), confidence) == 1
    stream = make_chains(kind=Adaptive, **settings)
    assert mean_visits(stream, confidence, 1000, 300) == pytest.approx(4, rel=0.15)
    other = make_chains(kind=Adaptive, **settings)
    other.load_state_dict(stream.state_dict())
    assert other.nines.equal(stream.nines) and other.nines.item() > 1.1


def test_adaptive_never_has_less_than_the_threshold_of_the_run():
    stream = make_chains(kind=Adaptive, tau=0.9, n=10**5)
    assert mean_visits(stream, 0.89) == 8
    assert stream.nines.item() == pytest.approx(1) and stream.tau.item() == pytest.approx(0.9)
    for tau in (1.0, None):
        with pytest.raises(ValueError, match="less than 1"):
            make_chains(kind=Adaptive, tau=tau)


def test_own_tokens_are_revealed_in_place_of_the_true_ones():
    stream = make_chains(kind=OwnTokens, effective=[20], buffer=2, tau=0.8, n=10**5)
    expected = [stream.x0[i].clone() for i in range(2)]  # what the chains show
    shown = 0
    for iteration in range(60):
        turn = iteration % 2
        x, x0, hidden, _ = stream.batch(iteration)
        assert x.equal(expected[turn].masked_fill(hidden, MASK)) and x0.equal(stream.x0[turn])
        shown += (x != x0)[~hidden].sum().item()
        own = stream.model.logits(x).argmax(-1)
        stream.advance(torch.rand(16, 24), torch.rand(16, 24))
        new = (stream.x0[turn] != x0).any(1, keepdim=True)
        revealed = hidden & ~stream.hidden[turn]
        expected[turn] = torch.where(revealed, own, expected[turn])
        expected[turn] = torch.where(new, stream.x0[turn], expected[turn])
        assert stream.prompt[turn][:, 20:].all()
    assert shown > 1000


def random_stream(kind, B=16, n=10**5, effective=None):
    queue = make_queue(B=B, n=n, effective=effective)
    stream = kind(queue, MASK, torch.Generator().manual_seed(0))
    stream.model = Pattern()
    return stream


def test_bell_masks_hide_shares_of_a_bell_curve():
    stream = random_stream(BellMasks, B=20_000)
    x, x0, hidden, _ = stream.batch(0)
    assert x.equal(x0.masked_fill(hidden, MASK))
    share = (hidden.sum(1) - 0.5) / 24
    normal = torch.distributions.Normal(0, 1)
    for bound in (0.125, 0.25, 0.5, 0.75, 0.875):
        expected = normal.cdf(torch.tensor(bound).logit()).item()
        assert (share < bound).float().mean().item() == pytest.approx(expected, abs=0.02)
    assert hidden.sum(1).min() >= 1 and (hidden.float().mean(0) - 0.52).abs().max() < 0.03


def test_self_aligned_masks_leave_the_least_sure_of_a_larger_mask():
    stream = random_stream(SelfAligned, B=4000, effective=[20])
    x, x0, hidden, _ = stream.batch(0)
    assert x.equal(x0.masked_fill(hidden, MASK)) and not hidden[:, 20:].any()
    (first,) = stream.model.seen
    larger = first == MASK
    assert (larger | ~hidden).all() and first[~larger].equal(x0[~larger])
    first_two = stream.model.logits(first).softmax(-1).topk(2).values
    margin = first_two[..., 0] - first_two[..., 1]
    revealed = larger & ~hidden
    least = margin.masked_fill(~revealed, 2).amin(1)
    assert (least >= margin.masked_fill(~hidden, -1).amax(1)).all()
    left, extra = hidden.sum(1), revealed.sum(1)
    assert (left.bincount(minlength=21)[1:] - 200).abs().max() < 5 * 200**0.5
    for count in (1, 10, 20):  # up to all
        assert set(extra[left == count].tolist()) == set(range(20 - count + 1))
    assert int(stream.queue.taken) == 4000


def test_self_aligned_masks_depend_on_what_the_larger_mask_leaves_visible():
    first, second = (random_stream(SelfAligned) for _ in range(2))
    hidden = first.batch(0).hidden
    larger = first.model.seen[0] == MASK
    second.queue.x0[:16] = torch.where(larger, (second.queue.x0[:16] + 1) % 9, second.queue.x0[:16])
    assert second.batch(0).hidden.equal(hidden)
    third = random_stream(SelfAligned)
    third.queue.x0[:16] = (third.queue.x0[:16] + 1) % 9
    assert not third.batch(0).hidden.equal(hidden)


def test_random_masks_last():
    def make():
        chains = make_chains(buffer=2, n=1000)
        return RandomLast(RandomMasking(chains.queue, MASK, chains.generator), chains, until=3)

    stream, twin = make(), make_chains(buffer=2, n=1000)
    for iteration in range(3):
        ours, theirs = stream.batch(iteration), twin.batch(iteration)
        assert ours.hidden.equal(theirs.hidden) and stream.effective.eq(24).all()
        for each in (stream, twin):
            each.advance(*2 * [torch.rand(16, 24, generator=torch.Generator().manual_seed(1))])
    taken, waiting = int(stream.queue.taken), stream.chains.hidden.clone()
    for iteration in range(3, 6):
        x, x0, hidden, _ = stream.batch(iteration)
        assert x.equal(x0.masked_fill(hidden, MASK))
        stream.advance(torch.rand(16, 24), torch.rand(16, 24))
    assert int(stream.queue.taken) == taken + 48 and stream.chains.hidden.equal(waiting)
    assert_resumes(make)


def test_explore_reveals_a_share_of_the_steps_at_random():
    """All confidence above tau: a greedy row is complete at once, an exploring one is not."""
    queue = make_queue(B=2000, n=10**6)
    stream = Explore(queue, MASK, torch.Generator().manual_seed(0), [(0, 12)], 0.9, 1)
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
    model, config, iteration = open_run(tmp_path / "weights/000010.pt")[:3]
    final = load(tmp_path / "checkpoint.pt")
    assert iteration == 10 and config["method"] == "puma_late_refill"
    assert all(weight.equal(final["ema"][name]) for name, weight in model.state_dict().items())
    train(tmp_path, *flags, "--max_iters=5")  # a new run keeps those of the old one
    assert sorted(p.name for p in (tmp_path / "weights").iterdir()) == names[:2]
    assert len(list((tmp_path / "before.1/weights").iterdir())) == 3


@pytest.mark.parametrize("flag", ["--method=sat", "--method=puma_own_tokens", "--chains_until=2"])
def test_what_asks_the_model_again_or_ends_early_trains(flag, tmp_path):
    train(tmp_path, flag, "--max_iters=4", "--eval_interval=4", "--eval_policies=['top_k']")
    assert load(tmp_path / "checkpoint.pt")["iteration"] == 4
