"""What PUMA is compared with: variants of the chain, and PAPL's loss. Add your own here.

`train.py --method=NAME` with a name of STREAMS. All randomness comes from self.generator, which a
checkpoint holds, so that runs resume exactly. A chain's choice of contexts sees x only, and never a
hidden token of x0, so its minimiser of the loss is unchanged (Proposition 2 of the paper).

Other comparisons are settings of train.py: --second_visit=False is the method as published, which
these are variants of, --tau=None turns fast-forward off, --chains_from begins with random masks,
--papl is the loss of arXiv 2509.23405.
"""

import torch

from losses import ChunkedObjective, Objective, masked_nll
from puma import ProgressiveUnmasking


# -- chains ----------------------------------------------------------------------------------------
class Reverse(ProgressiveUnmasking):
    """The least confident first, and no fast-forward: the order that inference never takes.

    A control: any gain that survives here cannot come from matching inference.
    """

    def advance(self, score, confidence):
        super().advance(-score, torch.zeros_like(confidence))


STREAMS = {"puma_reverse": Reverse}


def get(method):
    """The class of a variant; None for puma, mdm and ar. Raises ValueError for another name."""
    if method in ("puma", "mdm", "ar"):
        return None
    if method not in STREAMS:
        raise ValueError(f"method {method!r}: expected puma, mdm, ar or {', '.join(STREAMS)}")
    return STREAMS[method]


# -- Planner-Aware Path Learning, PAPL (arXiv 2509.23405) ------------------------------------------
def papl_weights(nll, hidden, block, alpha):
    """PAPL's weight of each position in the loss, 1 + alpha w^i; (B, L).

    w^i = f_i(x0^i) / sum over hidden j of f_j(x0^j), detached (PAPL; paper, appendix "Empirical
    comparison to PAPL"); each block counts as a row. Computed as a softmax of log f, it is finite
    even if all f are tiny. It depends on hidden tokens, so it moves the minimiser (Proposition 2
    does not hold), towards overconfidence.
    """
    lowest = torch.finfo(nll.dtype).min
    score = nll.detach().neg().masked_fill(~hidden, lowest)
    return 1 + alpha * score.unflatten(1, (-1, block or nll.shape[1])).softmax(2).flatten(1)


class Papl(Objective):
    """The objective in which tokens that the model knows weigh more: Papl(model, alpha=1.0)."""

    def __init__(self, *args, alpha):
        super().__init__(*args)
        self.alpha = alpha

    def mean(self, nll, hidden, block):
        return super().mean(nll * papl_weights(nll, hidden, block, self.alpha), hidden, block)


class ChunkedPapl(ChunkedObjective):
    """The same for a large vocabulary: a second pass over the logits finds the weights."""

    def __init__(self, *args, alpha):
        super().__init__(*args)
        self.alpha = alpha

    def position_weights(self, h, x0, hidden, block):
        nll = masked_nll(self.model, h, x0, hidden)
        weights = papl_weights(nll, hidden, block, self.alpha)
        return super().position_weights(h, x0, hidden, block) * weights


PAPL = {Objective: Papl, ChunkedObjective: ChunkedPapl}
