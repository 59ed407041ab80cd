"""PAPL (arXiv 2509.23405), a rival: positions that the model knows weigh more in the loss."""

import functools

import torch


def papl_weights(alpha):
    """`weights` with that alpha, as losses.Objective takes it."""
    return functools.partial(weights, alpha=alpha)


def weights(nll, hidden, block=0, alpha=1.0):
    """PAPL's weight of each position in the loss, 1 + alpha w^i; (B, L).

    w^i = f_i(x0^i) / sum over hidden j of f_j(x0^j), detached (PAPL; paper, appendix "Empirical
    comparison to PAPL"); each block counts as a row. Computed as a softmax of log f, it is finite
    even if all f are tiny. It depends on hidden tokens, so it moves the minimiser (Proposition 2
    does not hold), towards overconfidence.
    """
    lowest = torch.finfo(nll.dtype).min
    score = nll.detach().neg().masked_fill(~hidden, lowest)
    return 1 + alpha * score.unflatten(1, (-1, block or nll.shape[1])).softmax(2).flatten(1)
