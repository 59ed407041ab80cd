"""A carried state: each step of a chain receives what the previous step has computed.

A chain hands on tokens alone: what the model has worked out about positions that are still hidden
is lost, and the next step works it out again. With `--carry` the next step receives the states
before the output head, one vector per position (PUMBA, arXiv 2609.37974):

    h_t = model(x_t, carry=h_(t-1))        h_0 = 0 at the start of every chain, at any stage

The model adds them to the token embeddings through a LayerNorm whose weight and bias start at zero:
at first the carry has no effect. With `--window=W` an update trains on W consecutive visits of the
same chains; the loss is their mean, and its gradient flows back through the carry, but never
through the choice of positions, nor into an earlier window. The sampler (sample.py) carries states,
too, and in block diffusion begins each block with zeros.

A carry is computed from tokens that were visible before, and x still shows all of them. It holds
nothing of hidden tokens, so the minimiser of the loss is the same (Proposition 2). Its cost: buffer
* B * L * dim numbers on the device and in the checkpoint, and the memory of W forward passes.
"""

import torch

from block import BlockUnmasking
from puma import ProgressiveUnmasking


class Carrying:
    """Chains with a carry. width: of its vectors; window: consecutive visits of the same chains.

    `advance` takes what the objective returns, with the next carry. All visits of a window have the
    same iteration, and checkpoints fall between windows. With --init_from=continue and changed
    settings, all carries restart at zero.
    """

    def __init__(self, *args, width, window=1, **settings):
        self.width, self.window, self.visits_in_window = width, window, 0
        super().__init__(*args, **settings)

    def start_chains(self, *args):
        super().start_chains(*args)
        self.carry = torch.zeros(*self.x0.shape, self.width, device=self.x0.device)

    def batch(self, iteration):
        batch = super().batch(iteration)
        if self.visits_in_window == 0:
            self.carry_in_window = self.carry[self.turn].clone()  # (B, L, width)
        return batch._replace(carry=self.carry_in_window)

    def advance(self, score, confidence, carry):
        self.next_carry = carry  # with its graph
        super().advance(score, confidence)

    def refill(self, hidden, stage, ended):
        """Keep the next carry: zeros where a new chain begins."""
        super().refill(hidden, stage, ended)
        self.carry_in_window = self.next_carry.masked_fill(ended[:, None, None], 0)
        self.carry[self.turn] = self.carry_in_window.detach()

    def next_batch(self):
        """Turn to the next batch at the end of a window."""
        self.visits_in_window = (self.visits_in_window + 1) % self.window
        if self.visits_in_window == 0:
            self.carry_in_window = self.next_carry = None  # frees the graph
            super().next_batch()


class CarryingChains(Carrying, ProgressiveUnmasking):
    STATE = (*ProgressiveUnmasking.STATE, "carry")


class CarryingBlocks(Carrying, BlockUnmasking):
    STATE = (*BlockUnmasking.STATE, "carry")

    def refill(self, hidden, stage, ended):
        """A block whose chain has ended keeps its last state, and the carry that it was given."""
        same = self.rows(hidden == self.hidden[self.turn]).all(1)  # (B * blocks,)
        same = same.repeat_interleave(self.block).view_as(hidden)[..., None]
        self.next_carry = torch.where(same, self.carry_in_window, self.next_carry)
        super().refill(hidden, stage, ended)
