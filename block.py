"""Block diffusion's contexts: each block of a row is masked, or holds a chain, of its own.

A block is a row to the streams of puma.py, given the clean blocks before it (arXiv 2503.09573;
paper, section 4.4). All blocks of an example are trained in one pass, so they come and go together,
although with tau their chains differ in length. An example stays for `stages` visits, the most
that a chain can take; a block that is finished earlier keeps its last state until then, so that it
always has something to predict. Blocks that are wholly prompt take no part.

The time must be fixed, and so must the number of chains. Were an example replaced once its slowest
block is finished, later blocks, which see the tokens that are hidden in earlier ones, would decide
how often these are trained on; did a finished block begin anew, its tokens would decide how often
it starts from nothing. A state's frequency would then depend on what it hides, and the minimiser
would change (Proposition 2 needs p(z | x0) to be the same for all x0 that agree with z). Whether a
state is a chain's last depends on what it shows alone. Only where one block takes part does nothing
else see its tokens: such an example is replaced when that block is finished, as in puma.py.
"""

import torch

import puma


class RandomMasking(puma.RandomMasking):
    """The baseline in blocks. block_schedule: (iteration, size) pairs; sizes divide the length."""

    def __init__(self, queue, mask_token, generator, block_schedule):
        super().__init__(queue, mask_token, generator)
        self.block_schedule = check_sizes(block_schedule, queue.x0.shape[1])

    def hide(self, prompt, iteration):
        return random_masks(prompt, puma.value_at(self.block_schedule, iteration), self.generator)


class ProgressiveUnmasking(puma.ProgressiveUnmasking):
    """Chains in blocks. block_schedule as above; a chain has round(block / K) stages, at least 2.

    With blocks of one token it has 1. When the size switches, chains of the old size are of no use:
    the examples stay, in random states spread over the stages, as when training starts.

    State: stage (batches, B, blocks); age (batches, B), the visits of the example.
    """

    STATE = (*puma.ProgressiveUnmasking.STATE, "age")

    def __init__(self, queue, mask_token, generator, block_schedule, *chains):
        self.block_schedule = check_sizes(block_schedule, queue.x0.shape[1])
        self.block = self.block_at(0)
        super().__init__(queue, mask_token, generator, *chains)
        self.age, self.stage = self.stage, self.of_blocks(self.stage)

    def batch(self, iteration):
        if (block := self.block_at(iteration)) != self.block:
            self.block, self.stages = block, self.stages_at(iteration)
            place = torch.arange(self.age.numel(), device=self.age.device)
            self.age = (place % self.stages).view_as(self.age)
            self.stage = self.of_blocks(self.age)
            first = self.first_state(self.prompt.flatten(0, 1), self.age.flatten())
            self.hidden = first.view_as(self.hidden)
        return super().batch(iteration)

    def switch(self, stages):
        self.age = self.age * stages // self.stages
        self.stages = stages
        effective = (~self.rows(self.prompt)).sum(1)
        revealed = effective - self.rows(self.hidden).sum(1)
        self.stage = self.stage_of(revealed, effective).view_as(self.stage)

    def advance(self, score, confidence):
        x0, prompt, hidden, stage, age = map(
            self.visited, ("x0", "prompt", "hidden", "stage", "age")
        )
        prompts, hiddens, *found = map(self.rows, (prompt, hidden, score, confidence))
        after, stages, finished = self.reveal(prompts, hiddens, stage.flatten(), *found)
        hiddens = torch.where(finished[:, None], hiddens, after)
        stages = torch.where(finished, stage.flatten(), stages)

        takes_part = ~prompts.all(1)
        finished = (finished & takes_part).view_as(stage).any(1)
        alone = takes_part.view_as(stage).sum(1) == 1
        over = (age + 1 >= self.stages) | (alone & finished)  # (B,)
        self.age.index_copy_(0, self.turn, (age + 1).masked_fill(over, 0)[None])
        self.replace(over, x0, prompt, hiddens.view_as(prompt), stages.view_as(stage))

    def random_state(self, prompt, stage):
        """prompt (B, L), stage (B,) or one for all, of whole rows or of blocks as rows."""
        prompts = self.rows(prompt)
        stages = torch.as_tensor(stage, device=prompt.device).expand(len(prompt))
        stages = stages.repeat_interleave(len(prompts) // len(prompt))
        return super().random_state(prompts, stages).view_as(prompt)

    def rows(self, t):
        """(..., L) -> (rows, block): every block a row."""
        return t.reshape(-1, self.block)

    def of_blocks(self, counts):
        """Counts of rows (...) -> of their blocks (..., blocks)."""
        return counts[..., None].repeat_interleave(self.x0.shape[-1] // self.block, -1)

    def stage_of(self, revealed, effective):
        return super().stage_of(revealed, effective.clamp(min=1))  # 0 in blocks of prompt

    def stages_at(self, iteration):
        block = self.block_at(iteration)
        k = puma.value_at(self.k_schedule, iteration)
        return max(2, round(block / k)) if block > 1 else 1

    def block_at(self, iteration):
        return puma.value_at(self.block_schedule, iteration)

    def state_dict(self):
        return super().state_dict() | {"block": self.block}

    def load_state_dict(self, state):
        self.block = state["block"]
        self.stage = self.of_blocks(self.age)  # its shape
        super().load_state_dict(state)


def random_masks(prompt, block, generator):
    """puma.random_masks in each block, or in the whole row if block is 0; hidden (B, L) bool."""
    rows = prompt.reshape(-1, block or prompt.shape[1])
    return puma.random_masks(rows, generator).view_as(prompt)


def check_sizes(schedule, length):
    puma.check_schedule(schedule, "block_schedule")
    for _, size in schedule:
        if length % size:
            raise ValueError(f"block_schedule: blocks of {size} do not divide rows of {length}")
    return schedule
