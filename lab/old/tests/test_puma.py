import pytest
import torch
from toys import MASK, STREAMS, assert_resumes, make_chains, make_queue, run

from block import NextToken
from puma import ProgressiveUnmasking


def slow_advance(stream, score, confidence, r):
    """Appendix B.1 for one batch, row by row: (hidden, stage), or None where the chain ends."""
    after, stages, turn = [], stream.stages, stream.turn
    for b in range(len(score)):
        hidden = stream.hidden[turn, b].clone()
        stage = int(stream.stage[turn, b])
        effective = int((~stream.prompt[turn, b]).sum())
        before = effective - int(hidden.sum())
        target = round(effective * float(stage + 1 + r[b]) / stages)
        target = min(target, effective - 1)
        if stage + 1 >= stages:
            after.append(None)
            continue
        places = sorted(hidden.nonzero()[:, 0].tolist(), key=lambda i: -score[b, i].item())
        chosen = places[: max(1, target - before)]
        chosen += [i for i in places if confidence[b, i] > stream.tau]
        hidden[chosen] = False
        revealed = effective - int(hidden.sum())
        stage = stage + 1 if revealed <= target else revealed * stages // effective
        after.append((hidden, stage) if hidden.any() else None)
    return after


@pytest.mark.parametrize("tau", [None, 0.8, 0.0])
@pytest.mark.parametrize("effective", [[24], [24, 17, 1, 2, 3, 5, 8, 9]])
def test_advance_equals_a_slow_loop(tau, effective):
    stream, inside = make_chains(effective=effective, tau=tau, buffer=2), set()
    torch.manual_seed(0)
    for _ in range(60):
        x, x0, hidden, *_ = stream.batch(0)
        assert x.equal(torch.where(hidden, MASK, x0))
        score, confidence = torch.rand(16, 24), torch.rand(16, 24) ** 0.3
        turn = stream.turn
        twin = torch.Generator()
        twin.set_state(stream.generator.get_state())
        expected = slow_advance(stream, score, confidence, torch.rand(16, generator=twin))
        taken, was = int(stream.queue.taken), (~stream.prompt[turn]).sum(1)
        stream.advance(score, confidence)
        assert int(stream.queue.taken) - taken == sum(row is None for row in expected)
        for b, row in enumerate(expected):
            size, stage = int((~stream.prompt[turn, b]).sum()), int(stream.stage[turn, b])
            if row is None and hidden[b].sum() == was[b]:  # it ended at once: this starts inside
                bounds = [round(size * (stage + r) / stream.stages) for r in (0, 1)]
                low, high = (min(bound, size - 1) for bound in bounds)
                assert stage > 0 and low <= size - int(stream.hidden[turn, b].sum()) <= high
                inside.add(stage)
            elif row is None:  # replaced at once by a chain with everything hidden
                assert stream.hidden[turn, b].equal(~stream.prompt[turn, b]) and stage == 0
            else:
                assert stream.hidden[turn, b].equal(row[0]) and stream.stage[turn, b] == row[1]
                assert stream.x0[turn, b].equal(x0[b])
    assert tau != 0.0 or inside == {*range(1, 8)}


def test_first_batch_is_spread_over_the_stages():
    stream = make_chains(buffer=3)
    for turn in range(3):
        assert stream.stage[turn, :, 0].bincount().tolist() == [2] * 8
        revealed = 24 - stream.hidden[turn].sum(1)
        assert (revealed[stream.stage[turn, :, 0] == 0] == 0).all()
        assert revealed[stream.stage[turn, :, 0] == 7].min() >= 20


def test_consecutive_batches_share_no_sequence():
    stream = make_chains(buffer=4, n=10**6)
    batches = [set(map(tuple, x0.tolist())) for x0, *_ in run(stream, 40)]
    for i, batch in enumerate(batches):
        for other in batches[i + 1 : i + 4]:
            assert not batch & other
    assert any(batch & other for batch, other in zip(batches, batches[4:], strict=False))


def test_k_switch_keeps_every_chain_and_recomputes_its_stage():
    stream = make_chains(k=[(0, 12), (5, 3)], buffer=2)
    steps = run(stream, 6)
    for _ in range(5):
        next(steps)
    assert stream.stages == 2
    stream.advance(torch.rand(16, 24), torch.rand(16, 24))
    x0, hidden, taken = stream.x0.clone(), stream.hidden.clone(), int(stream.queue.taken)
    stream.batch(5)
    assert stream.stages == 8 and int(stream.queue.taken) == taken
    assert stream.x0.equal(x0) and stream.hidden.equal(hidden)
    assert stream.stage[..., 0].equal((24 - hidden.sum(-1)) * 8 // 24)


def test_stages_are_those_of_the_paper():
    schedule = [(0, 42)] + [(30_000 * i, 42 - 3 * i) for i in range(1, 11)]
    stream = make_chains(B=2, length=512, k=schedule)
    assert [stream.stages_at(i) for i in (0, 29_999, 30_000, 300_000)] == [12, 12, 13, 43]
    assert make_chains(k=24).stages == 2  # at least two
    bad = [], [(1, 3)], [(0, 3), (0, 2)], [(0, 3), (9, 2), (5, 1)], [(0, 0)], 0, -1, 4.0, True
    for wrong in bad:
        with pytest.raises(ValueError, match="k_schedule"):
            ProgressiveUnmasking(stream.queue, MASK, stream.generator, wrong)


@pytest.mark.parametrize("kind", STREAMS.values(), ids=STREAMS)
def test_resumed_stream_goes_on_bit_for_bit(kind):
    settings = dict(effective=[24, 5], tau=0.9, buffer=3, k=[(0, 6), (30, 3)])
    assert_resumes(lambda: make_chains(kind=kind, **settings))


def test_settings_and_data_of_a_stream_that_do_not_fit_are_named():
    for buffer in (0, 2.5):
        with pytest.raises(ValueError, match=f"buffer {buffer}: expected a whole number"):
            make_chains(buffer=buffer)
    stream = make_chains()
    with pytest.raises(ValueError, match="x0 holds the mask token 0 where it is to be predicted"):
        ProgressiveUnmasking(stream.queue, 0, stream.generator, 3)
    with pytest.raises(ValueError, match="another buffer or batch size"):
        make_chains(buffer=2).load_state_dict(stream.state_dict())


def test_next_token_sees_everything_and_predicts_all_but_the_prompt():
    stream = NextToken(make_queue(B=4, effective=[20, 5]), MASK, torch.Generator())
    x, x0, hidden, *_ = stream.batch(0)
    assert x.equal(x0) and hidden.sum(1).tolist() == stream.effective.tolist()
    assert {*hidden.sum(1).tolist()} == {5, 20} and hidden[:, :5].all()  # the prompt comes last


class Digits:
    """All that chains need of a queue of one's own: rows of one digit, repeated."""

    rows = 8

    def take(self, wanted):
        digit = torch.randint(4, (8, 1))
        return digit.repeat(1, 6), torch.zeros(8, 6, dtype=torch.bool), digit[:, 0]


def test_a_queue_of_ones_own_needs_rows_and_take():
    stream = ProgressiveUnmasking(Digits(), 4, torch.Generator(), k_schedule=2)
    for iteration in range(20):
        x, x0, hidden, *_ = stream.batch(iteration)
        assert x.equal(torch.where(hidden, 4, x0)) and x0.equal(x0[:, :1].expand(8, 6))
        stream.advance(torch.rand(8, 6), torch.rand(8, 6))
    assert stream.stages_at(10**6) == 3
