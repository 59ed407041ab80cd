"""Planner-Aware Path Learning, PAPL (arXiv 2509.23405), which the paper compares PUMA with.

    python train.py config/sudoku_tiny.py --variant=lab.papl --options="{'alpha': 1.0}"
    python train.py config/sudoku_tiny.py --variant=lab.papl --method=mdm

The loss of position i is weighted by 1 + alpha w^i, where, over the hidden positions j of its row,

    w^i = f_i(x0^i) / sum_j f_j(x0^j)      (detached; paper, appendix on PAPL)

so tokens that the model knows weigh more. w depends on hidden tokens, so it moves the minimiser
(Proposition 2 does not hold), towards overconfidence.
"""

import torch

import loss
from model import Transformer


def make_model(alpha=1.0, **args):
    model = Transformer(**args)
    model.alpha = alpha
    return model


def objective(model, policy, x, x0, hidden):
    h = model(x)
    weight = hidden / (hidden.sum(1, keepdim=True) * len(hidden))
    weight = weight * (1 + model.alpha * shares(model, h, x0, hidden))
    return loss.loss_and_scores(model, policy, h, x0, hidden, weight)


@torch.no_grad()
def shares(model, h, x0, hidden):
    """w (B, L), which sums to 1 over the hidden positions of each row; h (B, L, dim).

    Computed as a softmax of log f, it is finite even if all f are tiny.
    """
    where = hidden.nonzero(as_tuple=True)
    states = h[where]  # (n, dim)
    target = x0[where][:, None]
    log_f = [
        model.logits(states[part]).log_softmax(-1).gather(-1, target[part])[:, 0]
        for part in loss.chunks(len(states), model.vocab_size)
    ]
    table = torch.full(hidden.shape, -torch.inf, device=h.device)
    return table.index_put(where, torch.cat(log_f)).softmax(1)
