import math
from itertools import combinations

import numpy as np
import pytest
import torch
from toys import MASK, Arrays, make_model

import losses
import policies
from engine import head
from model import Transformer
from runs.likelihood import chain_nll, nelbo, ratio, stratified
from sample import Sampler, generate

TOY = Arrays(
    [[0, 1, 2, 2, 2], [1, 1, 0, 2, 2], [0, 0, 1, 0, 2], [1, 0, 1, 1, 0]],
    [[1, 0, 0, 0, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 0], [0, 1, 0, 1, 0]],
)


def padding(x0):
    """Token 2 is, once it has come."""
    return (x0 == 2).cumsum(1) > 1


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = Transformer(4, 3, 5, dim=16, layers=1, heads=2, mlp=16).double()
    for p in model.parameters():
        p.requires_grad_(False).mul_(8)  # far from uniform
    return model


def enumerated(model):
    """The bound of each row of TOY, and the same without padding, over all masks, (N, 2)."""
    found = torch.zeros(len(TOY), 2, dtype=torch.float64)
    for row, (ids, given) in enumerate(zip(TOY.x0, TOY.prompt, strict=True)):
        x0 = torch.from_numpy(ids)
        content = ~padding(ids[None])[0]
        free = [i for i in range(5) if not given[i]]
        for h in range(1, len(free) + 1):
            for hidden in combinations(free, h):
                x = x0.clone()
                x[list(hidden)] = 3
                log_probs = model.logits(model(x[None]))[0].log_softmax(-1)
                for i in hidden:
                    nll = -by_time(h, len(free)) * log_probs[i, x0[i]]
                    found[row] += nll * torch.tensor([True, bool(content[i])])
    return found


def by_time(h, L):
    """1/t times the chance of the set, under t ~ U(0, 1): quadrature that is exact here."""
    nodes, weights = np.polynomial.legendre.leggauss(8)
    t = (nodes + 1) / 2
    return (weights / 2 * t ** (h - 1) * (1 - t) ** (L - h)).sum()


@pytest.mark.parametrize("masks", [1, 3, 5])
def test_estimates_are_those_of_all_masks_enumerated(model, masks):
    exact, n = enumerated(model), 3000
    many = Arrays(np.tile(TOY.x0, (n, 1)), np.tile(TOY.prompt, (n, 1)))
    nats, tokens = nelbo(model, many, 4 * n, padding, masks, 1024, seed=0)
    assert tokens[:4].tolist() == [[4, 2], [5, 4], [1, 1], [3, 3]]
    draws = nats.reshape(n, 4, 2)
    error = draws.std(0) / n**0.5  # less in truth: stratified draws balance each other
    assert (error / exact).max() < 0.03 and error[2].max() < 1e-12  # row 2 has one token
    assert ((draws.mean(0) - exact).abs() < 4 * error + 1e-12).all()


def test_counts_are_uniform_and_stratified_over_rows_and_masks():
    generator = torch.Generator().manual_seed(0)
    effective = torch.full((6,), 12)
    seen = torch.zeros(6, 2, 13)
    for _ in range(3000):
        count = stratified(effective, 2, generator)
        assert sorted(count.flatten().tolist()) == list(range(1, 13))
        seen.scatter_add_(2, count[..., None], torch.ones(6, 2, 1))
    # every row: 1..6 by its first mask, 7..12 by its second, each 500 times
    assert seen[:, 0, 7:].sum() == seen[:, 1, :7].sum() == seen[:, 0, 0].sum() == 0
    assert (seen[:, 0, 1:7] - 500).abs().max() < 100  # 5 standard deviations
    short = stratified(torch.tensor([1, 2, 3]), 50, generator)
    assert short.amin(1).tolist() == [1, 1, 1] and short.amax(1).tolist() == [1, 2, 3]


def test_batches_and_processes_change_nothing(model):
    whole, _ = nelbo(model, TOY, 4, padding, 3, 4, seed=7)
    for batch_size, world in ((1, 1), (3, 1), (1, 2), (2, 3), (1, 3)):
        parts = [
            nelbo(model, TOY, 4, padding, 3, batch_size, 7, rank, world)[0] for rank in range(world)
        ]
        torch.testing.assert_close(sum(parts), whole)
        assert world == 1 or all(len(part.nonzero()) < 8 for part in parts)


def test_a_large_vocabulary_in_chunks(monkeypatch):
    monkeypatch.setitem(head.CHUNK, "cpu", 103 * 7)
    torch.manual_seed(0)
    model = Transformer(103, 102, 20, dim=16, layers=1, heads=2, mlp=16).double()
    x0, hidden = torch.randint(102, (4, 20)), torch.rand(4, 20) < 0.5
    h = model(x0.masked_fill(hidden, 102))
    expected = -model.logits(h).log_softmax(-1).gather(-1, x0[..., None])[..., 0]
    sizes, logits = [], model.logits
    monkeypatch.setattr(model, "logits", lambda h: sizes.append(len(h)) or logits(h))
    found = losses.masked_nll(model, h, x0, hidden)
    torch.testing.assert_close(found, expected * hidden)
    assert max(sizes) == 7 and sum(sizes) == hidden.sum() and not found.requires_grad


def test_the_standard_error_is_that_of_repeated_draws():
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, 9, (4000, 60), generator=generator).double()
    nats = tokens * (1 + 0.3 * torch.randn(4000, 60, generator=generator, dtype=torch.float64))
    nats += torch.randn(4000, 60, generator=generator, dtype=torch.float64)
    values, errors = zip(*map(ratio, nats, tokens), strict=True)
    assert np.mean(values) == pytest.approx(1, abs=0.01)
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.05)
    assert ratio(nats[0, :1], tokens[0, :1])[1] is None


@pytest.mark.parametrize("carry", [False, True])
@pytest.mark.parametrize("sampler", [Sampler(), Sampler("margin", 1), Sampler("top_k", 1, 0.3)])
@torch.no_grad()
def test_likelihoods_of_chains_against_all_sequences_of_three_tokens(sampler, carry):
    """They sum to one; and each is the product that a loop over one row gives."""
    model = make_model(carry=carry)
    x0 = torch.cartesian_prod(torch.tensor([4]), *[torch.arange(9)] * 3)
    nats = chain_nll(model, x0, (torch.arange(4) < 1).expand_as(x0), sampler)
    assert nats.neg().exp().sum().item() == pytest.approx(1)
    for row in (0, 100, 555):
        x, left, chance, h = [4, MASK, MASK, MASK], {1, 2, 3}, 1.0, None
        while left:
            h = model(torch.tensor([x]), carry=h if carry else None)
            probs = model.logits(h)[0].softmax(-1)
            best, second = probs.topk(2).values.T
            score = best - second * (sampler.policy == "margin")
            sure = {i for i in left if sampler.tau and best[i] > sampler.tau}
            ranked = sorted(left, key=lambda i, score=score: -score[i])
            for i in sure or ranked[: sampler.reveal]:
                x[i] = x0[row, i].item()
                chance *= probs[i, x[i]].item()
            left = {i for i in left if x[i] == MASK}
        assert math.exp(-nats[row]) == pytest.approx(chance)


@pytest.mark.parametrize("policy", [*policies.POLICIES, "semi_ar_3"])
def test_only_an_order_without_chance_has_a_likelihood(policy):
    """Over all fillings it sums to one. Samples at temperature 1 follow it if it ranks all tokens
    of a position alike: the distance (total variation) of 20,000 true draws is 0.02.
    """
    model, n = make_model(), 20_000
    x0 = torch.cartesian_prod(torch.tensor([4]), torch.arange(9), torch.arange(9))
    hidden = (torch.arange(3) > 0).expand_as(x0)
    if policy == "random":
        with pytest.raises(ValueError, match="--policy=random has no order"):
            chain_nll(model, x0, ~hidden, Sampler(policy, 1))
        return
    chance = chain_nll(model, x0, ~hidden, Sampler(policy, 1)).neg().exp()
    assert chance.sum().item() == pytest.approx(1)
    torch.manual_seed(0)
    sampler = Sampler(policy, 1, temperature=1.0)
    tokens, *_ = generate(
        model, x0[:1].expand(n, 3), hidden[:1].expand(n, 3), sampler, batch_size=n
    )
    shares = (9 * tokens[:, 1] + tokens[:, 2]).bincount(minlength=81) / n
    same = policy in ("entropy", "margin", "left_to_right")
    assert ((shares - chance).abs().sum() / 2 < 0.05) == same
