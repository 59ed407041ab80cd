"""A carried state: each step of a chain receives what the previous step has computed.

A chain hands on tokens alone: what the model has worked out about positions that are still hidden
is lost, and the next step works it out again. With `--carry` the next step receives the states
before the output head, one vector per position (PUMBA, arXiv 2609.37974):

    h_t = model(x_t, carry=h_(t-1))        zeros at the first step of a chain, wherever it starts

The model adds them to the token embeddings through a LayerNorm whose weight and bias start at zero:
training begins as without. With `--window=W` an update trains on W consecutive visits of the same
chains; the loss is their mean, and its gradient flows back through the carry, but never through the
choice of positions, nor into an earlier window. The sampler (sample.py) carries states likewise,
and in block diffusion begins each block with zeros.

A carry is computed from what its chain showed before, all of which x shows too: it holds nothing of
hidden tokens, so that the minimiser of the loss is the same (Proposition 2). Its cost: buffer * B *
L * dim numbers on the device and in the checkpoint, and the memory of W forward passes.
"""

from typing import NamedTuple

import torch

from block import BlockMasking, BlockUnmasking
from puma import ProgressiveUnmasking, RandomMasking


class CarriedBatch(NamedTuple):
    """The arguments of the objective, in order: those of puma.Batch and the carry."""

    x: torch.Tensor
    x0: torch.Tensor
    hidden: torch.Tensor
    block: int
    carry: torch.Tensor  # (B, L, width); inside a window a part of the graph


class Carrying:
    """A stream with a carry. width: of its vectors; window: consecutive visits of the same chains.

    `advance` takes what the objective returns, with the next carry. All visits of a window have the
    same iteration, and checkpoints fall between windows. A run that continues with changes begins
    with a carry of zeros.
    """

    def __init__(self, width, window, *args, **settings):
        self.width, self.window, self.visit = width, window, 0
        self.live = None  # the carry inside a window, with its graph
        super().__init__(*args, **settings)

    def start_chains(self, *args):
        super().start_chains(*args)
        self.carry = torch.zeros(*self.x0.shape, self.width, device=self.x0.device)

    def batch(self, iteration):
        batch = super().batch(iteration)
        self.given = self.carry[self.turn].clone() if self.live is None else self.live
        return CarriedBatch(*batch, self.given)

    def advance(self, score, confidence, carry):
        turn, self.live = self.turn, carry
        super().advance(score, confidence)  # calls refill
        self.visit = (self.visit + 1) % self.window
        if self.visit:
            self.turn = turn  # the same chains again
        else:
            self.live = None

    def refill(self, hidden, stage, ended):
        """Keep the next carry, zeros where a new chain begins."""
        super().refill(hidden, stage, ended)
        self.live = self.live.masked_fill(ended[:, None, None], 0)
        self.carry[self.turn] = self.live.detach()


class CarryingChains(Carrying, ProgressiveUnmasking):
    STATE = (*ProgressiveUnmasking.STATE, "carry")


class CarryingBlocks(Carrying, BlockUnmasking):
    STATE = (*BlockUnmasking.STATE, "carry")

    def refill(self, hidden, stage, ended):
        """A block that has ended is visited again as it was, with the carry that it had."""
        same = self.rows(hidden == self.hidden[self.turn]).all(1)  # (B * blocks,)
        same = same.repeat_interleave(self.block).view_as(hidden)[..., None]
        self.live = torch.where(same, self.given, self.live)
        super().refill(hidden, stage, ended)


def streams(schedule, args, chains, width, window):
    """Random masks, for the time before the chains, and chains with a carry; see block.streams."""
    carried = width, window, *args
    if schedule:
        return BlockMasking(*args, schedule), CarryingBlocks(*carried, schedule, *chains)
    return RandomMasking(*args), CarryingChains(*carried, *chains)
