import functools
import math

import numpy as np
import pytest
import torch
from toys import MASK, Arrays, L, make_chains, make_model, make_problems, run

import policies
import puma
from block import BlockMasking, BlockUnmasking
from engine import machine
from engine.queue import ExampleQueue
from losses import Objective
from model import Transformer, masked
from sample import Sampler, generate

SIZES = [1, 2, 3, 4, 6, L]  # one block: full diffusion


# -- model and loss --------------------------------------------------------------------------------
def noisy():
    """A batch of half masked rows: x0, x, hidden (7, L), every row with something hidden."""
    x0, hidden = make_problems()
    hidden[:, -1] = True
    return x0, x0.masked_fill(hidden, MASK), hidden


@pytest.mark.parametrize("carry", [False, True])
@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_states_in_one_pass_equal_a_pass_per_block_over_its_own_tokens(size, shifted, carry):
    """Oracle: block b alone, after clean blocks, which have no carry and see no later one."""
    model = make_model(shifted=shifted, kv_heads=2, carry=carry)
    x0, x, _ = noisy()
    given = torch.randn(*x.shape, 32, dtype=torch.float64)
    found = model(x, x0, size, given)
    for start in range(0, L, size):
        end = start + size
        row = torch.cat((x0[:, :start], x[:, start:end]), 1)
        index = torch.arange(end) // size
        visible = index <= index[:, None]
        own = torch.cat((torch.zeros_like(given[:, :start]), given[:, start:end]), 1)
        sees = functools.partial(masked, visible)
        h = model.model(row, slice(end), sees, own)
        expected = h[:, start - shifted : end - shifted] if start else model.aligned(h, h[:, :1])
        torch.testing.assert_close(found[:, start:end], expected)


@pytest.mark.slow
@pytest.mark.skipif(not machine.compiles(torch.device("cpu"), None, 500), reason="no C++ compiler")
def test_the_compiled_objective_is_the_eager_one_and_repeats_itself_on_two_threads():
    machine.open_device("cpu")  # deterministic
    torch.manual_seed(0)
    objective = Objective(Transformer(7, 6, 36, 96, 1, 2, 96), policies.top_k)
    x0, hidden = torch.randint(6, (32, 36)), torch.rand(32, 36) < 0.5
    x = x0.masked_fill(hidden, 6)

    def step():
        objective.zero_grad()
        loss, *found = objective(x, x0, hidden, 12)
        loss.backward()
        gradients = [p.grad.clone() for p in objective.parameters()]
        return [loss, *(f[hidden] for f in found), *gradients]

    eager = step()
    torch.set_num_threads(2)
    try:
        objective.compile()
        first, *others = [step() for _ in range(6)]
    finally:
        torch.set_num_threads(1)
    torch.testing.assert_close(first, eager)
    assert all(a.equal(b) for other in others for a, b in zip(first, other, strict=True))


# -- sampling --------------------------------------------------------------------------------------
@pytest.mark.parametrize("carry, loops", [(False, 1), (True, 2), (False, 2)])
@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("count, tau", [(1, None), (2, None), (1, 0.6)])
@pytest.mark.parametrize("size", [1, 3, 6])
def test_sampling_with_a_cache_equals_sampling_without(size, count, tau, shifted, carry, loops):
    """Oracle: each row by itself, block by block, every step from the whole sequence."""
    model = make_model(shifted=shifted, carry=carry, loops=loops)
    x, hidden = make_problems()
    tokens, at, passes = generate(model, x, hidden, Sampler("top_k", count, tau), size, 4)
    assert passes < 2 * (L + L // size)
    for b in (0, 1, 3, 6):
        row, now, step = x[b : b + 1].masked_fill(hidden[b], MASK), hidden[b].clone(), 0
        expected_at = torch.zeros_like(row)
        for start in range(0, L, size):
            inside, given = torch.arange(L) // size == start // size, {}
            while (now & inside).any():
                step += 1
                h = model(row, row, size, **given)
                given = {"carry": h * inside[:, None]} if carry else {}
                probs = model.logits(h).softmax(-1)[0]
                best, token = probs.max(-1)
                places = (now & inside).nonzero()[:, 0].tolist()
                chosen = [i for i in places if tau is not None and best[i] > tau]
                chosen = chosen or sorted(places, key=lambda i: -best[i].item())[:count]
                row[0, chosen], expected_at[0, chosen], now[chosen] = token[chosen], step, False
        assert tokens[b].equal(row[0]) and at[b].equal(expected_at[0])


@pytest.mark.parametrize("count, tau", [(1, None), (5, None), (1, 0.0)])
def test_a_causal_model_fills_in_from_left_to_right_as_without_a_cache(count, tau):
    model = make_model(causal=True, shifted=True, kv_heads=2)
    x, hidden = make_problems()
    tokens, at, passes = generate(model, x, hidden, Sampler("entropy", count, tau), batch_size=4)

    expected = x.masked_fill(hidden, MASK)
    for i in range(L):
        likeliest = model.logits(model(expected)[:, i]).argmax(-1)
        expected[:, i] = torch.where(hidden[:, i], likeliest, expected[:, i])
    assert tokens.equal(expected) and tokens[~hidden].equal(x[~hidden])
    assert len(tokens.unique()) > 4
    assert at.equal(hidden.cumsum(1) * hidden)  # one token per step, whatever count and tau are
    assert passes == 2 * L  # two batches, and a pass per token


# -- chains ----------------------------------------------------------------------------------------
def make_blocks(size=6, **settings):
    """Chains in blocks; size: theirs, or a schedule of sizes."""

    def in_blocks(queue, mask, generator, *others):
        schedule = size if isinstance(size, list) else [(0, size)]
        return BlockUnmasking(queue, mask, generator, schedule, *others)

    return make_chains(kind=in_blocks, **settings)


@pytest.mark.parametrize("effective", [[24], [24, 17, 1, 2, 9]])
@pytest.mark.parametrize("tau", [None, 0.8])
def test_a_single_block_is_the_chain_of_full_diffusion(tau, effective):
    """The same batches, bit for bit."""
    one = make_blocks(24, effective=effective, tau=tau, buffer=2)
    full = make_chains(effective=effective, tau=tau, buffer=2)
    for i in range(100):
        batch, expected = one.batch(i), full.batch(i)
        assert batch.x0.equal(expected.x0) and batch.hidden.equal(expected.hidden)
        score, confidence = torch.rand(16, 24), torch.rand(16, 24)
        for stream in (one, full):
            stream.advance(score, confidence)


@pytest.mark.parametrize("tau", [None, 0.5, 0.0])
@pytest.mark.parametrize("size", [1, 2, 3, 6, 12])
@pytest.mark.parametrize("effective", [[24], [24, 17, 1, 2, 7]])
def test_every_block_has_something_hidden_and_finishes_before_its_example_goes(
    size, tau, effective
):
    stream = make_blocks(size, effective=effective, tau=tau, buffer=2)
    taken, visits = int(stream.queue.taken), 0
    for x0, _, hidden in run(stream, 60):
        turn = stream.turn
        prompts = stream.prompt[turn].view(16, -1, size)
        assert hidden.view(16, -1, size).any(2).equal(~prompts.all(2))
        assert not (hidden & stream.prompt[turn]).any() and x0.equal(stream.x0[turn])
        # a chain that never began anew has a stage of at least its example's age
        assert (stream.age < stream.stages).all() and (stream.stage < stream.stages).all()
        visits += 16
    used = int(stream.queue.taken) - taken
    several = max(effective) > size
    if several and effective == [24]:
        assert used == visits / stream.stages  # fixed visits for each example, whatever tau is
    assert used >= visits // stream.stages


def test_blocks_step_as_rows_do():
    """Without tau and in step, each block is the chain of puma.py on rows of its length."""
    stream = make_blocks(6, k=2, B=16)
    rows, stage = stream.hidden[0].clone().view(64, 6), stream.stage[0].clone().flatten()
    is_last = stream.age[0] == stream.stages - 1
    stream.batch(0)
    twin = torch.Generator()
    twin.set_state(stream.generator.get_state())
    score, six = torch.rand(16, 24), torch.full((64,), 6)
    expected, *_ = puma.step(
        rows, stage, six, score.view(64, 6), torch.zeros(64, 6), puma.uniform(64, twin), 3, math.inf
    )
    stream.advance(score, torch.zeros(16, 24))
    expected = expected.view(16, 24) | is_last.view(16, 1)  # a new example
    assert stream.hidden[0].equal(expected) and 0 < is_last.sum() < 16


def test_a_switch_of_the_size_keeps_the_examples_and_one_of_k_every_chain():
    stream = make_blocks([(0, 1), (4, 24), (9, 6)], k=[(0, 2), (12, 1)], buffer=2, tau=0.9)
    for i in range(12):
        x0, age = stream.x0.clone(), stream.age.clone()
        assert stream.batch(i).block == (1 if i < 4 else 24 if i < 9 else 6)
        assert stream.x0.equal(x0) and stream.stages == (1 if i < 4 else 12 if i < 9 else 3)
        if i in (4, 9):
            revealed = (~stream.hidden).unflatten(2, (-1, stream.block)).float().mean(3)
            assert revealed.shape == stream.stage.shape
            assert (revealed * stream.stages - stream.stage).abs().max() <= 1.01
            assert set(stream.age.unique().tolist()) == set(range(stream.stages))
        else:
            assert stream.age.equal(age)
        stream.advance(torch.rand(16, 24), torch.rand(16, 24))
    hidden, age = stream.hidden.clone(), stream.age.clone()
    stream.batch(12)
    assert stream.stages == 6 and stream.hidden.equal(hidden) and stream.age.equal(2 * age)
    assert stream.stage.equal((~hidden).unflatten(2, (4, 6)).sum(3))


def test_random_masks_have_a_uniform_count_in_each_block():
    queue = ExampleQueue(Arrays(np.zeros((50_000, 8), int), np.arange(8) < 5), 2000)
    stream = BlockMasking(queue, 1, torch.Generator().manual_seed(0), [(0, 8), (3, 4)])
    assert stream.batch(2).block == 8
    batches = [stream.batch(iteration) for iteration in range(3, 13)]
    hidden = torch.cat([batch.hidden for batch in batches])  # (20000, 8)
    assert batches[0].block == 4 and not hidden[:, :5].any()
    counts = hidden[:, 4:].sum(1).bincount(minlength=4)
    assert counts[0] == 0 and (counts[1:] - 20_000 / 3).abs().max() < 340  # 5 standard deviations


@pytest.mark.parametrize("tau", [None, 0.9])
def test_how_often_a_state_is_trained_on_does_not_depend_on_what_it_hides(tau):
    """Fair tokens, blocks of 3; the model is sure of a block once its first token shows as 1.

    Such a chain is shorter. Fully hidden blocks must still have a 1 there half of the time.
    """
    generator = torch.Generator().manual_seed(0)
    coins = np.random.default_rng(0).integers(0, 2, (100_000, 6))
    queue = ExampleQueue(Arrays(coins, np.zeros(6)), 256)
    stream = BlockUnmasking(queue, 2, generator, [(0, 3)], [(0, 1)], tau, 1)
    ones, count = 0, 0
    for iteration in range(200):
        x, x0, *_ = stream.batch(iteration)
        hidden = (x.view(-1, 3) == 2).all(1)
        if iteration > 20:
            ones, count = ones + x0.view(-1, 3)[hidden, 0].sum(), count + hidden.sum()
        sure = (x.view(-1, 3)[:, :1] == 1).float().expand(-1, 3).reshape(x.shape)
        stream.advance(-torch.arange(6.0).expand(x.shape), sure)
    assert count > 20_000 and abs(ones / count - 0.5) < 4 * 0.5 / count**0.5
