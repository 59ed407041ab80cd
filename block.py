"""Block diffusion's contexts: every block of a row holds a chain of its own.

To Algorithm 1 (puma.step) a block is a row, (B, L) -> (B * blocks, block), given the clean blocks
before it (arXiv 2503.09573; paper, section 4.4). All blocks of an example are trained in one pass,
so they come and go together, although with tau their chains differ in length. An example stays for
`stages` visits, the most that a chain can take; a block that ends earlier keeps its last state
until then, so it always has something to predict. Blocks that are wholly prompt take no part.

The number of visits must be fixed, and so must the number of chains. If an example left when its
slowest block ended, then the later blocks, which see the clean tokens of earlier ones, would
influence how often those are trained on. If a block that ended restarted, its own tokens would
influence how often it is trained on fully masked. Either way a state's frequency would depend on
what it hides, and the minimiser would change (Proposition 2 needs p(z | x0) to be the same for all
x0 that agree with z). Whether a state is the last of its chain depends only on what is visible. If
a single block takes part, no other block sees its tokens, so the example leaves when that block
ends, as in puma.py.

Not here: attention between blocks (model.py), sampling block by block (sample.py, cache.py).
"""

import torch

from puma import (
    Batch,
    Buffer,
    check_schedule,
    check_sizes,
    stage_of,
    stages_of,
    step,
    tau_or_inf,
    uniform,
    value_at,
)


class BlockUnmasking(Buffer):
    """Chains in blocks: PUMA's stream for block diffusion.

    block_schedule: (iteration, size) pairs; sizes divide the length. A chain has
    round(size / K) stages, at least 2, or 1 in blocks of one token. Other arguments as in
    puma.ProgressiveUnmasking.

    State: Buffer's, but stage (batches, B, blocks); and age (batches, B), the visits of an example.
    """

    STATE = (*Buffer.STATE, "age")

    def __init__(self, queue, mask_token, generator, block_schedule, k_schedule, tau=0.9, buffer=8):
        super().__init__(queue, mask_token, generator, buffer)
        self.block_schedule = check_sizes(block_schedule, queue.x0.shape[1])
        self.k_schedule, self.tau = check_schedule(k_schedule), tau_or_inf(tau)
        self.block, stages = self.sizes_at(0)
        self.set_stages(stages)
        self.start_chains()

    def start_chains(self, old=None, hidden=None):
        """Start chains of the current block size, spread evenly over the stages.

        `old` chains, of other processes, start over too: they may have had another block size.
        """
        self.age, self.hidden = self.first_states()
        self.stage = self.of_blocks(self.age)
        self.coming = None

    def first_state(self, prompt, stage):
        return (
            super().first_state(self.rows(prompt), self.of_blocks(stage).flatten()).view_as(prompt)
        )

    def prepare(self, iteration):
        self.queue.top_up()
        block, stages = self.sizes_at(iteration)
        if block != self.block:  # chains of the old size are useless; their examples stay
            self.block = block
            self.set_stages(stages)
            self.start_chains()
        elif stages != self.known:
            self.switch(stages)

    def visit(self):
        self.begin_visit()
        x0, hidden = self.visited("x0"), self.visited("hidden")
        return Batch(x0.masked_fill(hidden, self.mask_token), x0, hidden, self.block)

    def switch(self, stages):
        """K has changed: every chain continues, at the stage that its revealed share puts it in."""
        self.age.copy_(self.age * stages // self.known)
        self.set_stages(stages)
        effective = (~self.rows(self.prompt)).sum(1)
        revealed = effective - self.rows(self.hidden).sum(1)
        self.stage.copy_(stage_of(revealed, effective, stages).view_as(self.stage))

    def advance(self, score, confidence):
        """Reveal true tokens in every block, replace the examples that have finished."""
        self.end_visit(score, confidence)
        self.move(score, confidence, uniform(score.numel() // self.block, self.generator))

    def move(self, score, confidence, r):
        """`advance` after its random draw, r (B * blocks,)."""
        x0, prompt, hidden, stage = (self.visited(name) for name in self.STATE[:4])
        effective = (~self.rows(prompt)).sum(1)
        after, next_stage, ended = step(
            self.rows(hidden), stage.flatten(), effective, self.rows(score), self.rows(confidence),
            r, self.stages, self.tau,
        )  # fmt: skip
        after = torch.where(ended[:, None], self.rows(hidden), after)  # keep the last state
        next_stage = torch.where(ended, stage.flatten(), next_stage)

        takes_part = (effective > 0).view_as(stage)  # (B, blocks)
        alone_and_ended = (takes_part.sum(1) == 1) & (takes_part & ended.view_as(stage)).any(1)
        age = self.visited("age") + 1
        over = (age >= self.stages) | alone_and_ended  # (B,)
        state = self.refill(over, x0, prompt, after.view_as(prompt), next_stage.view_as(stage))
        self.leave(**state, age=age.masked_fill(over, 0))

    def rows(self, t):
        """(..., L) -> (rows, block): every block becomes a row."""
        return t.reshape(-1, self.block)

    def of_blocks(self, counts):
        """Counts of rows (...), repeated for each of their blocks (..., blocks)."""
        return counts[..., None].repeat_interleave(self.x0.shape[-1] // self.block, -1)

    def sizes_at(self, iteration):
        """Tokens per block, and stages per chain."""
        block = value_at(self.block_schedule, iteration)
        return block, stages_of(block, value_at(self.k_schedule, iteration))

    def state_dict(self):
        return super().state_dict() | {"block": self.block}

    def load_state_dict(self, state):
        self.block = state["block"]
        self.stage = self.of_blocks(self.age)  # its shape
        super().load_state_dict(state)
