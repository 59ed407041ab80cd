"""The loss of the tokens that are revealed soon weighs more: how TAD (arXiv 2605.09536) trains.

    python train.py config/sudoku_tiny.py --variant=lab.near --options="{'half': 4}"

TAD takes the order from a teacher. Here the policy has it, from the same forward pass: the hidden
token that comes n-th in its order has the weight 0.5^(n / half), n = 0, 1, ..., and the weights of
a row are divided by their sum. They depend on x alone, so the minimiser stays (Proposition 2); TAD
fits distant tokens to its teacher's predictions, which is left out.
"""

import torch

import loss
from model import Transformer


def make_model(half=4, **args):
    model = Transformer(**args)
    model.half = half
    return model


def objective(model, policy, x, x0, hidden):
    h = model(x)
    return loss.loss_and_scores(model, policy, h, x0, hidden, weights(model, policy, h, x0, hidden))


@torch.no_grad()
def weights(model, policy, h, x0, hidden):
    """(B, L), which sum to 1 over all hidden positions; h (B, L, dim)."""
    _, score, _ = loss.loss_and_scores(model, policy, h, x0, hidden, hidden.float())
    order = score.masked_fill(~hidden, -torch.inf).argsort(dim=1, descending=True, stable=True)
    place = order.argsort(1)
    weight = hidden * 0.5 ** (place / model.half)
    return weight / (weight.sum(1, keepdim=True) * len(hidden))
