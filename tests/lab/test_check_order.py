"""lab/check_order.py passes the order of this project, and fails what looks at hidden tokens."""

import pytest
import torch

import loss
import policies
from lab.check_order import check_order
from model import Transformer

torch.manual_seed(0)
MODEL = Transformer(9, 8, 10, dim=16, layers=1, heads=2, mlp=16, theta=99.0).requires_grad_(False)
X0 = torch.randint(8, (4, 10))
HIDDEN = torch.rand(4, 10) < 0.6


@pytest.mark.parametrize("policy", policies.POLICIES.values())
def test_the_policies_do_not_look(policy):
    def scores(x0, hidden):
        return loss.objective(MODEL, policy, x0.masked_fill(hidden, 8), x0, hidden)[1]

    def revealed(x0, hidden):
        return policies.reveal(scores(x0, hidden), hidden, torch.full((4,), 2))

    check_order(scores, X0, HIDDEN, 8)
    check_order(revealed, X0, HIDDEN, 8)


def true_token(x0, hidden):
    log_probs = MODEL.logits(MODEL(x0.masked_fill(hidden, 8))).log_softmax(-1)
    return log_probs.gather(-1, x0[..., None])[..., 0]


@pytest.mark.parametrize("choose", [true_token, lambda x0, _: MODEL.logits(MODEL(x0)).amax(-1)])
def test_what_looks_is_caught(choose):
    with pytest.raises(AssertionError, match="depends on hidden tokens, in row"):
        check_order(choose, X0, HIDDEN, 8)
