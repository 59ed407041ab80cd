import pytest
import torch
from toys import MASK, L, make_model, make_problems

from block import Cache
from model import Transformer
from sample import Sampler, generate


def test_cached_states_of_a_causal_model_equal_uncached_ones():
    model = make_model(causal=True, shifted=True, kv_heads=2)
    x, _ = make_problems()
    cache, whole = Cache(model, L, 1), model(x)
    assert cache.states(x[:, :1]).eq(0).all()
    cache.keep(x[:, :4])
    for i in range(4, L):
        torch.testing.assert_close(cache.states(x[:, i : i + 1]), whole[:, i : i + 1])
        cache.keep(x[:, i : i + 1])


@pytest.mark.parametrize("count, tau", [(1, None), (5, None), (1, 0.0)])
def test_a_causal_model_fills_in_from_left_to_right_as_without_a_cache(count, tau):
    model = make_model(causal=True, shifted=True)
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


def test_sampled_tokens_of_a_causal_model_follow_the_product_of_its_conditionals():
    """All 4 * 4 pairs at the last two places, against the probabilities of the uncached model."""
    torch.manual_seed(0)
    model = Transformer(5, 4, 4, dim=16, layers=2, heads=2, mlp=16, causal=True, shifted=True)
    model.lm_head.weight.data.mul_(40)
    x = torch.tensor([[1, 3, 0, 0]])
    pairs = torch.cartesian_prod(torch.arange(4), torch.arange(4))
    rows = torch.cat((x[:, :2].expand(16, 2), pairs), 1)
    log_probs = model.logits(model(rows)).log_softmax(-1)
    expected = log_probs[:, 2:].gather(-1, pairs[..., None]).sum((1, 2)).exp()

    n = 40_000
    hidden = torch.tensor([False, False, True, True]).expand(n, 4)
    tokens, *_ = generate(
        model, x.expand(n, 4), hidden, Sampler(reveal=1, temperature=1.0), batch_size=n
    )
    shares = (4 * tokens[:, 2] + tokens[:, 3]).bincount(minlength=16) / n
    assert (shares - expected).abs().max() < 0.0125  # 5 standard deviations
    assert expected.max() - expected.min() > 0.05
