"""Block diffusion: every block of a row holds a chain of its own.

To Algorithm 1 (puma.step) a block is a row, (B, L) -> (B * blocks, block), given the clean blocks
before it (arXiv 2503.09573; paper, section 4.4). All blocks of an example are trained in one pass,
so they come and go together, although with tau their chains differ in length. An example stays for
`stages` visits, the most that a chain can take; a block that ends earlier keeps its last state
until then, so it always has something to predict. Blocks that are wholly prompt take no part.

Why the number of visits is fixed: if an example left when its slowest block ended, the later
blocks, which see the clean tokens of earlier ones, would influence how often those are trained on;
if a block that ended restarted, its own tokens would influence how often it is trained on fully
masked. Either way a state's frequency would depend on what it hides, and the minimiser would change
(Proposition 2). If a single block takes part, no other block sees its tokens, so the example leaves
when that block ends, as in puma.py.

At the end of the file is the cache with which finished blocks are sampled (sample.by_blocks).
Not here: attention between blocks (model.py).
"""

import torch

from model import attend
from puma import (
    Batch,
    ProgressiveUnmasking,
    RandomMasking,
    check_schedule,
    stage_of,
    stages_of,
    step,
    uniform,
    value_at,
)


def check_sizes(schedule, length):
    """The block_schedule. Raises ValueError unless its sizes divide rows of that length."""
    schedule = check_schedule(schedule, "block_schedule")
    for _, size in schedule:
        if length % size:
            raise ValueError(f"block_schedule: blocks of {size} do not divide rows of {length}")
    return schedule


class NextToken(RandomMasking):
    """Autoregression, for a causal model: nothing is masked, all but the prompt is predicted."""

    def batch(self, iteration):
        x0, prompt, _ = self.queue.take(self.all)
        self.hidden = ~prompt
        self.effective = self.hidden.sum(1)
        return Batch(x0, x0, self.hidden, block=1)


class BlockMasking(RandomMasking):
    """Random masks, the baseline: each block has its own. See BlockUnmasking."""

    def __init__(self, queue, mask_token, generator, block_schedule):
        super().__init__(queue, mask_token, generator)
        self.block_schedule = check_sizes(block_schedule, queue.x0.shape[1])

    def batch(self, iteration):
        self.block = value_at(self.block_schedule, iteration)
        return super().batch(iteration)


class BlockUnmasking(ProgressiveUnmasking):
    """Chains in blocks: PUMA's stream for block diffusion.

    block_schedule: (iteration, size) pairs; sizes divide the length. A chain has round(size / K)
    stages, at least 2, or 1 in blocks of one token. Other arguments: puma.ProgressiveUnmasking.

    A row has two clocks: `stage` (buffer, B, blocks) of each block's chain, which tau can advance
    by several, and `age` (buffer, B), the visits of the example, which decides when it leaves.
    """

    STATE = (*ProgressiveUnmasking.STATE, "age")

    def __init__(self, queue, mask_token, generator, block_schedule, k_schedule, tau=0.9, buffer=8,
                 second_visit=True):  # fmt: skip
        self.block_schedule = check_sizes(block_schedule, queue.x0.shape[1])
        super().__init__(queue, mask_token, generator, k_schedule, tau, buffer, second_visit)

    def start_chains(self, stages, iteration=0):
        """Start chains of the block size of an iteration, evenly over the stages."""
        self.block, self.stages = self.block_at(iteration), stages
        order = torch.arange(self.number.numel(), device=self.number.device)
        self.age = order.view_as(self.number) % self.stages  # (buffer, B)
        self.stage = self.of_blocks(self.age)  # (buffer, B, blocks)
        self.hidden = torch.stack([*map(self.first_state, self.prompt, self.stage)])

    def first_state(self, prompt, stage):
        return super().first_state(self.rows(prompt), stage.reshape(-1, 1)).view_as(prompt)

    def block_at(self, iteration):
        return value_at(self.block_schedule, iteration)

    def stages_at(self, iteration):
        return stages_of(self.block_at(iteration), value_at(self.k_schedule, iteration))

    def batch(self, iteration):
        if self.block_at(iteration) != self.block:
            # The examples stay; their chains start over: chains of the old size are useless.
            self.start_chains(self.stages_at(iteration), iteration)
        return super().batch(iteration)._replace(block=self.block)

    def switch(self, stages):
        """K has changed: every chain continues, at the stage that its revealed share puts it in."""
        self.age = self.age * stages // self.stages
        effective = (~self.rows(self.prompt)).sum(1)
        revealed = effective - self.rows(self.hidden).sum(1)
        self.stage = stage_of(revealed, effective, stages).view_as(self.stage)
        self.stages = stages

    def move(self, score, confidence):
        """Reveal true tokens in every block, replace the examples that have finished."""
        hidden, stage, prompt = (part[self.turn] for part in (self.hidden, self.stage, self.prompt))
        rows, effective = self.rows(hidden), (~self.rows(prompt)).sum(1)  # (B * blocks, block)
        after, next_stage, ended = step(
            rows, stage.flatten(), effective, self.rows(score), self.rows(confidence),
            uniform(len(rows), self.generator), self.stages, self.tau,
        )  # fmt: skip
        after = torch.where(ended[:, None], rows, after)  # keep the last state
        next_stage = torch.where(ended, stage.flatten(), next_stage)

        takes_part = (effective > 0).view_as(stage)  # (B, blocks)
        alone_and_ended = (takes_part.sum(1) == 1) & (takes_part & ended.view_as(stage)).any(1)
        age = self.age[self.turn] + 1
        over = (age >= self.stages) | alone_and_ended  # (B,)
        self.age[self.turn] = age.masked_fill(over, 0)
        self.refill(after.view_as(hidden), next_stage.view_as(stage), over)

    def rows(self, t):
        """(..., L) -> (rows, block): every block becomes a row."""
        return t.reshape(-1, self.block)

    def of_blocks(self, counts):
        """Counts of rows (...), repeated for each of their blocks (..., blocks)."""
        return counts[..., None].repeat_interleave(self.x0.shape[-1] // self.block, -1)

    def state_dict(self):
        return super().state_dict() | {"block": self.block}

    def load_state_dict(self, state):
        self.block = state["block"]
        self.stage = self.of_blocks(self.age)  # its shape
        super().load_state_dict(state)

    def adopt(self, rows):
        """Chains of other processes start over: they may have had another block size."""


# -- sampling -------------------------------------------------------------------------------------
class Cache:
    """Keys and values of the `start` finished tokens of B rows: whole blocks of `block` tokens.

    A block never sees a later one, so keys and values of a finished block never change: the states
    (B, block, dim) of the current block equal, up to rounding, the states of a pass over the whole
    sequence. A causal model is the case of blocks of one token.
    Keys and values of all layers take 2 * layers * B * length * kv_heads * head width numbers.
    """

    def __init__(self, model, length, block):
        self.model, self.length, self.block = model, length, block
        self.start, self.passes, self.kept, self.before = 0, 0, {}, None

    def states(self, x, carry=None):
        """x (B, block), the next block as it is now -> (B, block, dim): row i scores token i.

        carry (B, block, dim): of the previous step in this block.
        """
        if self.model.shifted and x.shape[1] == 1 and self.start > 0:
            return self.before  # the state of the last finished token: no pass is needed
        h = self.run(x, carry)
        return self.model.aligned(h, self.before if self.start > 0 else self.model.first(h))

    def keep(self, x):
        """Append finished blocks, x (B, n)."""
        self.before = self.run(x)[:, -1:]
        self.start += x.shape[1]

    def run(self, x, carry=None):
        self.passes += 1
        places = slice(self.start, self.start + x.shape[1])
        return self.model.model(x, places, self.attention, carry)

    def attention(self, layer, q, k, v):
        """Queries of new tokens see the kept keys, and the new keys up to their own block.

        New keys and values are stored after the kept ones; the next pass overwrites the keys of an
        unfinished block.
        """
        end = self.start + k.shape[2]
        if layer not in self.kept:
            self.kept[layer] = tuple(
                t.new_empty(*t.shape[:2], self.length, t.shape[3]) for t in (k, v)
            )
        for store, new in zip(self.kept[layer], (k, v), strict=True):
            store[:, :, self.start : end] = new
        keys, values = (store[:, :, :end] for store in self.kept[layer])
        if k.shape[2] == self.block:  # one block sees everything so far
            return attend(q, keys, values)
        block = torch.arange(end, device=q.device) // self.block
        return attend(q, keys, values, visible=block <= block[self.start :, None])
