"""The objective: masked cross-entropy, averaged over the hidden positions of each row.

The paper's loss is E[1/t * sum over hidden i of -log f_i(x0_i | x_t)] (eq. 1). With
t = hidden / L_eff the weight 1/t is L_eff / hidden, so up to the constant L_eff the loss is the
mean over hidden positions. For random masking, drawing the count of hidden tokens uniformly from
1..L_eff and weighting by 1/count gives every mask the weight that drawing t ~ U(0, 1), masking
i.i.d. and weighting by 1/t gives it in expectation, up to the same L_eff, with less variance.

Loss and score come from the same pass over the logits: the chain needs no forward pass of its own.
"""

import torch
import torch.nn as nn


def predictions(logits, x0, policy):
    """One pass over logits (..., V): cross-entropy of x0, policy's score, confidence; all (...).

    The last dimension of x0 is the position. Score and confidence carry no gradient and depend on
    the logits only, not on x0.
    """
    log_probs = logits.log_softmax(-1)
    nll = -log_probs.gather(-1, x0[..., None])[..., 0]
    log_probs = log_probs.detach()
    confidence = log_probs.amax(-1).exp()
    position = torch.arange(x0.shape[-1], device=x0.device).expand_as(x0)
    return nll, policy(log_probs, confidence, position), confidence


def row_mean(nll, hidden):
    """Mean over each row's hidden positions, then over rows. Every row must have one; (B, L)."""
    return (nll.masked_fill(~hidden, 0).sum(1) / hidden.sum(1)).mean()


class Objective(nn.Module):
    """What one training step computes: the loss, and what the chain needs, in one forward pass."""

    def __init__(self, model, policy):
        super().__init__()
        self.model, self.policy = model, policy

    def forward(self, x, x0, hidden):
        """(B, L) each -> loss (), score (B, L), confidence (B, L).

        Scores are computed at given positions too, where nothing uses them: with a small
        vocabulary static shapes are worth more than the few logits saved.
        """
        logits = self.model.logits(self.model(x))
        nll, score, confidence = predictions(logits, x0, self.policy)
        return row_mean(nll, hidden), score, confidence
