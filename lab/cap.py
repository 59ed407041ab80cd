"""Confidence-aware training, CAP (LLaDA2.0, arXiv 2512.15745): the term that buys parallel steps.

    python train.py config/sudoku_tiny.py --variant=lab.cap --options="{'weight': 0.1}"
    python train.py config/sudoku_tiny.py --variant=lab.cap --method=mdm --init=out/sudoku_tiny

To the loss comes `weight` times the entropy of the prediction, in nats, averaged over the hidden
tokens whose likeliest token is the true one. What is right becomes surer, so that more tokens are
above tau at once. The term depends on hidden tokens, so it moves the minimiser (Proposition 2 does
not hold), towards overconfidence. It is published as a last phase; dParallel (arXiv 2509.26488) has
the same term of logits divided by 0.5. The logits of all positions are kept in memory.
"""

import loss
from model import Transformer


def make_model(weight=0.1, **args):
    model = Transformer(**args)
    model.weight = weight
    return model


def objective(model, policy, x, x0, hidden):
    h = model(x)
    weight = hidden / (hidden.sum(1, keepdim=True) * len(hidden))
    usual, *seen = loss.loss_and_scores(model, policy, h, x0, hidden, weight)
    log_probs = model.logits(h).log_softmax(-1)  # (B, L, V); -inf for the mask token
    right = hidden & (log_probs.argmax(-1) == x0)
    entropy = -(log_probs.exp() * log_probs.clamp(min=-100)).sum(-1)
    return usual + model.weight * (entropy * right).sum() / right.sum().clamp(min=1), *seen
