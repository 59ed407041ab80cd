import itertools
import math

import pytest
import torch

import policies

P = torch.tensor([[0.5, 0.3, 0.2, 0.0], [0.6, 0.0, 0.4, 0.0], [0.1, 0.2, 0.7, 0.0]])


def score(name):
    log_probs = P.log()
    position = torch.arange(3)
    return policies.get(name)(log_probs, P.amax(-1), position)


def test_scores_by_hand():
    assert score("top_k").tolist() == pytest.approx([0.5, 0.6, 0.7])
    assert score("margin").tolist() == pytest.approx([0.2, 0.2, 0.5])
    negative = [sum(p * math.log(p) for p in row if p) for row in P.tolist()]
    assert score("entropy").tolist() == pytest.approx(negative)
    assert score("left_to_right").argsort(descending=True).tolist() == [0, 1, 2]
    assert score("semi_ar_2").argsort(descending=True).tolist() == [1, 0, 2]  # surest in the block


def test_random_is_uniform_over_orders():
    torch.manual_seed(0)
    counts = {}
    for _ in range(3000):
        order = tuple(score("random").argsort().tolist())
        counts[order] = counts.get(order, 0) + 1
    assert set(counts) == set(itertools.permutations(range(3)))
    assert max(abs(n - 500) for n in counts.values()) < 100  # 5 standard deviations


@pytest.mark.parametrize("name", ["topk", "semi_ar_0", "semi_ar_", "semi_ar_x"])
def test_unknown_policy(name):
    with pytest.raises(ValueError, match="top_k, margin"):
        policies.get(name)


def slow_reveal(score, hidden, count):
    chosen, lowest = torch.zeros_like(hidden), torch.finfo(score.dtype).min
    for b in range(len(score)):
        worth = [v if v > lowest else lowest for v in score[b].tolist()]  # nan and -inf: the least
        places = [i for i in range(score.shape[1]) if hidden[b, i]]
        places.sort(key=lambda i: (-worth[i], i))  # ties: leftmost first
        chosen[b, places[: max(0, int(count[b]))]] = True
    return chosen


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_reveal_equals_a_slow_loop(dtype):
    """Ties, infinities of both signs, nan, the lowest number, rows of all lengths, counts < 0."""
    torch.manual_seed(0)
    lowest = torch.finfo(dtype).min
    for length in [1, 2, 9, 33] * 60:
        score = torch.randint(-2, 3, (6, length)).to(dtype)  # many ties
        for value in (-torch.inf, torch.inf, torch.nan, lowest):
            score[torch.rand(score.shape) < 0.1] = value
        hidden = torch.rand(score.shape) < torch.rand(6, 1)
        count = torch.randint(-1, length + 2, (6,))
        assert policies.reveal(score, hidden, count).equal(slow_reveal(score, hidden, count))


def test_fast_forward_is_strictly_above_tau():
    confidence = torch.tensor([[0.9, 0.91, 0.99, 0.1]])
    hidden = torch.tensor([[True, True, False, True]])
    assert policies.fast_forward(confidence, hidden, 0.9).tolist() == [[False, True, False, False]]


def test_semi_autoregressive_order_within_late_blocks_is_that_of_the_confidences():
    """A model that is sure: what float32 keeps beside the number of a block is not enough."""
    confidence = 1 - torch.arange(1, 65).float() * 1e-6
    position = torch.full((64,), 4095)
    score = policies.get("semi_ar_4")(None, confidence, position)
    assert score.argsort(descending=True, stable=True).equal(torch.arange(64))
    assert len(score.unique()) == len(confidence.unique()) == 64
