import shutil
import subprocess
import sys

import pytest
import torch
from conftest import ONE_THREAD, ROOT
from toys import MASK, STREAMS, assert_resumes, make_chains, make_queue, run

import policies
from block import NextToken
from losses import Objective
from model import Transformer, causal
from puma import ProgressiveUnmasking, random_masks


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


@pytest.mark.parametrize("tau", [None, 0.5, 0.0])
@pytest.mark.parametrize("effective", [[24], [1], [2], [7], [8], [9], list(range(1, 25))])
def test_every_row_has_something_hidden_and_no_chain_stalls(tau, effective):
    stream = make_chains(effective=effective, tau=tau)
    torch.manual_seed(0)
    visits = 0
    for _ in run(stream, 100):
        visits += 16
    longest = min(stream.stages, max(effective))  # visits of a chain
    assert int(stream.queue.taken) >= visits / longest
    if tau == 0.0:  # everything is revealed in one step: each visit is of a new example
        assert int(stream.queue.taken) >= visits


def test_chains_without_tau_visit_every_stage_once():
    stream = make_chains(k=3)
    assert stream.stages == 8
    age = stream.stage[0, :, 0].clone()
    for _ in run(stream, 40):
        assert stream.stage[0, :, 0].equal(age)
        age = (age + 1) % 8


def test_revealed_tokens_lie_in_their_stage():
    stream = make_chains(k=3, tau=0.9)
    for _, _, hidden in run(stream, 200, lambda: torch.rand(16, 24) ** 0.1):
        share = (24 - hidden.sum(1)) / 24 * stream.stages
        stage = stream.stage[0, :, 0]
        assert ((share >= stage - 1e-3) & (share <= stage + 1 + 1e-3)).all()


def test_first_batch_is_spread_over_the_stages_and_later_chains_start_masked():
    stream = make_chains(buffer=3)
    for turn in range(3):
        assert stream.stage[turn, :, 0].bincount().tolist() == [2] * 8
        revealed = 24 - stream.hidden[turn].sum(1)
        assert (revealed[stream.stage[turn, :, 0] == 0] == 0).all()
        assert revealed[stream.stage[turn, :, 0] == 7].min() >= 20
    before = stream.stage[0, :, 0].clone()
    list(run(stream, 3))
    assert stream.hidden[0][before == 7].all()


def test_policy_sees_x_only():
    """Other truth under the masks, same visible tokens: the same reveals and the same chains."""
    first, second = make_chains(), make_chains()
    hidden = first.hidden.clone()
    second.x0 = torch.where(hidden, (second.x0 + 1) % 9, second.x0)

    def model(x):  # any function of x
        return torch.sin(x.float() * 12.9898 + torch.arange(24) * 78.233 + x.sum(1, keepdim=True))

    for stream in (first, second):
        x, *_ = stream.batch(0)
        stream.advance(model(x), model(x).abs())
    kept = first.stage[0, :, 0] > 0
    assert kept.any() and first.hidden[0][kept].equal(second.hidden[0][kept])
    assert first.stage.equal(second.stage)


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
    for bad in ([], [(1, 3)], [(0, 3), (0, 2)], [(0, 3), (9, 2), (5, 1)], [(0, 0)]):
        with pytest.raises(ValueError, match="k_schedule"):
            make_chains(k=bad)


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


def test_random_masks_have_a_uniform_count_and_uniform_positions():
    prompt = torch.zeros(40_000, 6, dtype=torch.bool)
    prompt[:, 5] = True
    hidden = random_masks(prompt, torch.Generator().manual_seed(0))
    assert not hidden[:, 5].any()
    counts = hidden.sum(1).bincount(minlength=6)
    assert counts[0] == 0 and (counts[1:] - 8000).abs().max() < 400  # 5 standard deviations
    assert (hidden[:, :5].float().mean(0) - 0.6).abs().max() < 0.015


def test_chain_of_a_shifted_model_reveals_the_position_that_is_scored():
    """The output at 3 is sure of token 4. Unaligned, the chain would reveal position 3."""
    stream = make_chains(k=1)  # a new chain reveals one token, or two
    stream.hidden[:], stream.stage[:] = True, 0
    model = Transformer(10, MASK, 24, 32, 2, 2, 48, shifted=True)
    states = torch.zeros(16, 24, 32)
    states[:, 3] = 2000 * model.lm_head.weight[2].detach()
    model.model.forward = lambda *_: states
    x, x0, hidden, *_ = stream.batch(0)
    _, score, confidence = Objective(model, policies.top_k)(x, x0, hidden)
    assert confidence[0, 4] > 0.99 > 0.2 > confidence[0, 3]
    stream.advance(score, confidence)
    revealed = ~stream.hidden[0]
    assert revealed[:, 4].all() and (revealed.sum(1) == 1).any()


def test_next_token_sees_everything_and_predicts_all_but_the_prompt():
    """The loss is the cross-entropy of the output at i - 1 against token i."""
    queue = make_queue(B=4, effective=[20, 5])
    stream = NextToken(queue, MASK, torch.Generator().manual_seed(0))
    x, x0, hidden, *_ = stream.batch(0)
    assert x.equal(x0) and set(hidden.sum(1).tolist()) == {5, 20}
    torch.manual_seed(0)
    model = Transformer(10, MASK, 24, 32, 2, 2, 48, causal=True, shifted=True)
    model.lm_head.weight.data.mul_(20)
    # Rows gives positions to predict at the left: all but the first are tokens with a past
    hidden[:, 0] = False
    loss, *_ = Objective(model, policies.top_k)(x, x0, hidden)
    unshifted = model.model(x, slice(24), causal)  # row i comes from tokens up to i
    nll = torch.nn.functional.cross_entropy(
        model.logits(unshifted[:, :-1]).transpose(1, 2), x0[:, 1:], reduction="none"
    )
    rows = [nll[b][hidden[b, 1:]].mean() for b in range(4)]
    torch.testing.assert_close(loss, torch.stack(rows).mean())


# -- a trainer of one's own ------------------------------------------------------------------------
OWN_TRAINER = """
import sys, torch
import policies, puma

class Queue:  # of rows of one digit, repeated
    rows = 8

    def take(self, wanted):
        digit = torch.randint(4, (8, 1))
        return digit.repeat(1, 6), torch.zeros(8, 6, dtype=torch.bool), digit[:, 0]

torch.manual_seed(0)
model = torch.nn.Embedding(5, 4)
optimizer = torch.optim.Adam(model.parameters(), 0.2)
stream = puma.ProgressiveUnmasking(Queue(), 4, torch.Generator().manual_seed(0), k_schedule=2)
for iteration in range(100):
    x, x0, hidden, *_ = stream.batch(iteration)
    log_probs = model(x).sum(1, keepdim=True).log_softmax(-1).expand(8, 6, 4)
    nll = -log_probs.gather(-1, x0[..., None])[..., 0]
    loss = ((nll * hidden).sum(1) / hidden.sum(1)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    confidence = log_probs.detach().amax(-1).exp()
    stream.advance(policies.top_k(log_probs, confidence, None), confidence)
known = ~hidden.all(1)
print(nll[known].max().item() < 0.1 < nll[~known].min().item(), known.any().item())
print(*sorted(name for name in ("engine", "model", "losses", "train") if name in sys.modules))
"""


def test_puma_and_policies_alone_are_enough_for_a_trainer_of_ones_own(tmp_path):
    for name in ("puma.py", "policies.py"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "loop.py").write_text(OWN_TRAINER)
    printed = subprocess.run(
        [sys.executable, "loop.py"], cwd=tmp_path, env=ONE_THREAD, text=True, capture_output=True
    )
    assert printed.stdout.split() == ["True", "True"], printed.stderr
