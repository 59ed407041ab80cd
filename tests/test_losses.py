import math

import pytest
import torch

import policies
from losses import predictions, row_mean


def test_loss_equals_a_slow_loop_and_its_gradient():
    torch.manual_seed(0)
    logits = torch.randn(3, 5, 7, dtype=torch.float64, requires_grad=True)
    x0, hidden = torch.randint(7, (3, 5)), torch.rand(3, 5) < 0.5
    hidden[:, 0] = True
    nll, _, confidence = predictions(logits, x0, policies.top_k)
    loss = row_mean(nll, hidden)
    (gradient,) = torch.autograd.grad(loss, logits)

    probs = logits.detach().softmax(-1)
    expected, slow = 0.0, torch.zeros_like(probs)
    for b in range(3):
        for i in range(5):
            if hidden[b, i]:
                weight = 1 / (3 * hidden[b].sum())
                expected -= weight * probs[b, i, x0[b, i]].log()
                slow[b, i] = weight * probs[b, i]
                slow[b, i, x0[b, i]] -= weight
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient, slow)
    torch.testing.assert_close(confidence, probs.amax(-1))


def test_row_mean_under_uniform_counts_is_the_paper_loss():
    """The weight that each mask gets: integral of 1/t * P(mask | t) over t, L times ours."""
    L, n = 5, 200_000
    t = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    for hidden in range(1, L + 1):
        paper = (t ** (hidden - 1) * (1 - t) ** (L - hidden)).mean().item()
        ours = 1 / L / math.comb(L, hidden) / hidden  # P(count) P(mask | count) / count
        assert paper == pytest.approx(L * ours, rel=1e-5)


def test_scores_do_not_depend_on_the_truth():
    logits = torch.randn(2, 4, 6)
    for name in policies.POLICIES:
        torch.manual_seed(1)
        _, score, confidence = predictions(logits, torch.zeros(2, 4).long(), policies.get(name))
        torch.manual_seed(1)
        _, other, same = predictions(logits, torch.full((2, 4), 5), policies.get(name))
        assert score.equal(other) and confidence.equal(same) and not score.requires_grad
