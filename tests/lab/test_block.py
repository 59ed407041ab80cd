"""lab/block.py, lab/ar.py and their cache, against a pass per block and slow loops."""

import math

import numpy as np
import pytest
import torch

import lab.ar
import lab.block
import lab.shifted
import policies
import puma

L = 12
MASK = 9
SHAPE = dict(vocab_size=10, mask_token=MASK, length=L, dim=32, layers=2, heads=2, mlp=48)


class Data:
    """Rows of random tokens (n, L); prompts of the given lengths in turn."""

    def __init__(self, n, lengths=(0,), L=24, vocab=9):
        self.x0 = np.random.default_rng(0).integers(0, vocab, (n, L))
        self.prompt = np.arange(L) < np.resize(lengths, n)[:, None]

    def __len__(self):
        return len(self.x0)

    def __getitem__(self, indices):
        return self.x0[indices], self.prompt[indices]


def model_of(module, **options):
    torch.manual_seed(0)
    model = module.make_model(theta=100.0, **SHAPE, **options).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(4)  # far from uniform
    return model.double()


def problems():
    torch.manual_seed(1)
    x0 = torch.randint(0, 9, (7, L))
    hidden = torch.rand(7, L) < 0.6
    hidden[0] = True
    hidden[1] = False
    return x0, hidden


@pytest.mark.parametrize("size", [1, 3, 6, L])
def test_states_in_one_pass_equal_a_pass_per_block(size):
    """Oracle: block b alone after clean blocks; a visible table that sees no later block."""
    model = model_of(lab.block, blocks=[(0, size)])
    x0, hidden = problems()
    x = x0.masked_fill(hidden, MASK)
    found = model(x, x0)
    for start in range(0, L, size):
        row = torch.cat((x0[:, :start], x[:, start : start + size]), 1)
        index = torch.arange(start + size) // size
        expected = model.model(row, index <= index[:, None])[:, start:]
        torch.testing.assert_close(found[:, start : start + size], expected)


@pytest.mark.parametrize(("size", "count", "tau"), [(1, 1, 1.0), (3, 2, 1.0), (6, 1, 0.3)])
def test_sampling_with_a_cache_equals_sampling_without(size, count, tau):
    """Oracle: each row by itself, every step from the whole sequence."""
    model = model_of(lab.block, blocks=[(0, size)])
    x0, hidden = problems()
    seen = []
    show = lambda x: seen.append(x.clone())  # noqa: E731
    tokens, steps = lab.block.generate(model, x0, hidden, policies.top_k, count, tau, show=show)
    assert torch.equal(seen[0], x0.masked_fill(hidden, MASK))
    fast = 0
    for b in range(len(x0)):
        row = x0[b : b + 1].masked_fill(hidden[b], MASK)
        left = set(hidden[b].nonzero()[:, 0].tolist())
        step = 0
        while left:
            block = min(left) // size
            places = [i for i in left if i // size == block]
            probability = model.logits(model(row, row)).softmax(-1)[0]
            best, token = probability.max(-1)
            chosen = [i for i in places if best[i] > tau]
            fast += len(chosen) > count
            chosen = chosen or sorted(places, key=lambda i: -best[i].item())[:count]
            row[0, chosen] = token[chosen]
            left -= set(chosen)
            step += 1
        assert torch.equal(tokens[b], row[0]) and steps[b] == step
    assert fast or tau == 1.0


def test_a_causal_model_writes_from_left_to_right_as_without_a_cache():
    model = model_of(lab.ar)
    x0, hidden = problems()
    tokens, steps = lab.ar.generate(model, x0, hidden, policies.top_k)
    expected = x0.masked_fill(hidden, MASK)
    for i in range(L):
        likeliest = model.logits(model(expected)[:, i]).argmax(-1)
        expected[:, i] = torch.where(hidden[:, i], likeliest, expected[:, i])
    assert torch.equal(tokens, expected) and torch.equal(steps, hidden.sum(1))
    assert len(tokens.unique()) > 4


def test_a_shifted_model_scores_with_the_state_before():
    model = model_of(lab.shifted)
    x0, _ = problems()
    states = model.model(x0)
    torch.testing.assert_close(model(x0)[:, 1:], states[:, :-1])
    later = x0.clone()
    later[:, -1] = (later[:, -1] + 1) % 9
    assert not torch.equal(model(later)[:, 0], model(x0)[:, 0])  # it sees both sides


def chains(blocks, k=((0, 4),), tau=0.9, buffer=2, rows=16, data=None):
    queue = puma.Queue(data or Data(400, (0, 7, 23, 2, 9)), rows, "cpu", seed=1)
    return lab.block.BlockUnmasking(blocks, queue, MASK, k, tau, buffer, False)


@pytest.mark.parametrize("tau", [1.0, 0.8])
def test_a_single_block_is_a_chain_of_puma(tau):
    """Bit for bit, also where prompts differ and confident tokens end a chain early."""
    data = Data(400, (0, 7, 23, 2, 9))
    torch.manual_seed(0)
    one = chains([(0, 24)], tau=tau, data=data)
    queue = puma.Queue(data, 16, "cpu", seed=1)
    whole = puma.ProgressiveUnmasking(queue, MASK, ((0, 4),), tau, 2, False)
    one.hidden = whole.hidden.clone()  # the random starts of the first chains
    for i in range(60):
        batch = one.batch(i)
        expected = whole.batch(i)
        assert torch.equal(batch.hidden, expected.hidden) and torch.equal(batch.x0, expected.x0)
        score = torch.rand(16, 24)
        for stream in one, whole:
            torch.manual_seed(i)  # r is drawn first by both
            stream.advance(score, score)


@pytest.mark.parametrize("tau", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("size", [1, 2, 6, 12])
def test_every_block_has_something_hidden_while_its_example_stays(size, tau):
    torch.manual_seed(0)
    stream = chains([(0, size)], tau=tau)
    visits = 0
    before = int(stream.queue.taken)
    for i in range(60):
        x, x0, hidden, _ = stream.batch(i)
        prompt = stream.prompt[stream.turn].view(16, -1, size)
        assert torch.equal(hidden.view(16, -1, size).any(2), ~prompt.all(2))
        assert torch.equal(x, x0.masked_fill(hidden, MASK))
        assert (stream.age < stream.stages).all() and (stream.stage < stream.stages).all()
        stream.advance(torch.rand(16, 24), torch.rand(16, 24))
        visits += 16
    assert int(stream.queue.taken) - before >= visits // stream.stages


def test_a_switch_of_the_size_keeps_the_examples_and_one_of_k_every_chain():
    torch.manual_seed(0)
    stream = chains([(0, 1), (4, 24), (9, 6)], k=[(0, 2), (12, 1)], data=Data(400))
    for i in range(12):
        x0 = stream.x0.clone()
        assert stream.batch(i).block == (1 if i < 4 else 24 if i < 9 else 6)
        assert torch.equal(stream.x0, x0)
        assert stream.stages == (1 if i < 4 else 12 if i < 9 else 3)
        if i in (4, 9):
            shown = (~stream.hidden).unflatten(2, (-1, stream.block)).float().mean(3)
            assert (shown * stream.stages - stream.stage).abs().max() <= 1.01
        copied = chains([(0, 1), (4, 24), (9, 6)], k=[(0, 2), (12, 1)], data=Data(400))
        copied.load_state_dict(stream.state_dict())
        assert torch.equal(copied.stage, stream.stage) and copied.block == stream.block
        stream.advance(torch.rand(16, 24), torch.rand(16, 24))
    hidden = stream.hidden.clone()
    age = stream.age.clone()
    stream.batch(12)
    assert stream.stages == 6 and torch.equal(stream.hidden, hidden)
    assert torch.equal(stream.age, 2 * age)
    assert torch.equal(stream.stage, (~hidden).unflatten(2, (4, 6)).sum(3))


@pytest.mark.parametrize("given", [1, 5])
def test_random_masks_have_a_uniform_count_in_each_block(given):
    torch.manual_seed(0)
    queue = puma.Queue(Data(20_000, (given,), L=8), 20_000, "cpu", seed=1)
    stream = lab.block.BlockMasking([(0, 8), (3, 4)], queue, MASK)
    assert stream.batch(2).block == 8
    hidden = stream.batch(3).hidden
    assert not hidden[:, :given].any()
    free = min(4, 8 - given)
    counts = hidden[:, 4:].sum(1).bincount(minlength=free + 1)
    assert counts[0] == 0 and (counts[1:] - 20_000 / free).abs().max() < 340  # 5 sigma


@pytest.mark.parametrize("tau", [1.0, 0.9])
def test_how_often_a_state_is_trained_on_does_not_depend_on_what_it_hides(tau):
    """Fair coins, blocks of 3; the model is sure of a block once its first token shows as 1.

    Such a chain is shorter. Fully hidden blocks must still have a 1 there half of the time.
    """
    torch.manual_seed(0)
    data = Data(100_000, L=6, vocab=2)
    queue = puma.Queue(data, 256, "cpu", seed=1)
    stream = lab.block.BlockUnmasking([(0, 3)], queue, 2, [(0, 1)], tau, 1, False)
    ones = 0
    count = 0
    for i in range(200):
        x, x0, *_ = stream.batch(i)
        hidden = (x.view(-1, 3) == 2).all(1)
        if i > 20:
            ones += x0.view(-1, 3)[hidden, 0].sum().item()
            count += hidden.sum().item()
        sure = (x.view(-1, 3)[:, :1] == 1).float().expand(-1, 3).reshape(x.shape)
        stream.advance(-torch.arange(6.0).expand(x.shape), sure)
    assert queue.taken == sum(1 + (200 + row % 3) // 3 for row in range(256))  # 3 visits of each
    assert count > 20_000 and abs(ones / count - 0.5) < 4 * 0.5 / math.sqrt(count)
