"""Streams that exist only to be compared with PUMA's: variants of it, and the place for your own.

`train.py --method=NAME` with a name of STREAMS. All randomness comes from self.generator, which a
checkpoint holds, so that runs resume exactly. The choice of contexts sees x only, and never a
hidden token of x0, so the minimiser of the loss is unchanged (Proposition 2 of the paper).

Other comparisons are settings of train.py: --second_visit=False is the method as published, which
these are variants of, --tau=None turns fast-forward off, --chains_from begins with random masks,
--papl is the loss of arXiv 2509.23405.
"""

import torch

from puma import ProgressiveUnmasking


class Reverse(ProgressiveUnmasking):
    """The least confident first, and no fast-forward: the order that inference never takes.

    A control: any gain that survives here cannot come from matching inference.
    """

    def advance(self, score, confidence):
        super().advance(-score, torch.zeros_like(confidence))


STREAMS = {"puma_reverse": Reverse}


def get(method):
    """The class of a variant. Raises ValueError for an unknown name."""
    if method not in STREAMS:
        raise ValueError(f"method {method!r}: expected puma, mdm, ar or {', '.join(STREAMS)}")
    return STREAMS[method]
