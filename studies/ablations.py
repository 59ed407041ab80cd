"""Variants of PUMA that exist only to be compared with it: `train.py --method=puma_<variant>`.

Each overrides one step of puma.ProgressiveUnmasking and keeps its state, so that runs resume
exactly. Where the choice of contexts sees x only, and never a hidden token of x0, the minimiser of
the loss stays what it is (Proposition 2 of the paper): that holds for all of these.
"""

import torch

from puma import ProgressiveUnmasking, random_masks, uniform


class RandomStart(ProgressiveUnmasking):
    """A new chain starts with a random reveal of stage 0's share, as in the authors' code."""

    def start(self, prompt):
        return self.random_state(prompt, 0)


class LateRefill(ProgressiveUnmasking):
    """What to replace is decided before the reveal: a chain that tau completes stays a step longer.

    As in the authors' code. Its row then has nothing hidden, and no weight in the loss.
    """

    def replace(self, finished, x0, prompt, hidden, stage):
        was_at_the_end = self.visited("stage") + 1 >= self.stages  # a complete one was past it
        super().replace(was_at_the_end, x0, prompt, hidden, stage)


class DropChains(ProgressiveUnmasking):
    """A switch of K throws all chains away and fills the buffer anew, as in the authors' code.

    Their data order starts again too; here it goes on.
    """

    def batch(self, iteration):
        if (stages := self.stages_at(iteration)) != self.stages:
            self.stages = stages
            fresh = self.new_buffer(len(self.x0))
            for name, value in zip(self.STATE[:4], fresh, strict=True):
                getattr(self, name).copy_(value)
        return super().batch(iteration)


class Mixed(ProgressiveUnmasking):
    """A share of each batch's rows is drawn afresh under random masks, the rest are chains.

    Random masks show many cells that follow from the visible ones, which is what a model learns
    first; chains show what the sampler will meet.
    """

    SHARE = 0.5

    def start(self, prompt):
        masks = random_masks(prompt, self.generator)
        return torch.where(self.is_random(prompt)[:, None], masks, ~prompt)

    def replace(self, finished, x0, prompt, hidden, stage):
        super().replace(finished | self.is_random(prompt), x0, prompt, hidden, stage)

    def is_random(self, prompt):
        """The rows of a batch that are no chains, (B,) bool."""
        row = torch.arange(len(prompt), device=prompt.device)
        return row < self.SHARE * len(prompt)


class Explore(ProgressiveUnmasking):
    """With probability EPSILON a row's step reveals at random, whatever the model is sure of.

    Chains then pass through states beside the greedy path, where a sampler's mistake may lead.
    """

    EPSILON = 0.25

    def advance(self, score, confidence):
        explores = uniform(len(score), self.generator)[:, None] < self.EPSILON
        noise = torch.rand(score.shape, generator=self.generator, device=score.device)
        score = torch.where(explores, noise.to(score.dtype), score)
        super().advance(score, confidence.masked_fill(explores, 0))


class Reverse(ProgressiveUnmasking):
    """The least sure first, and no fast-forward: the order that inference never takes.

    What helps here too is not the agreement with inference.
    """

    def advance(self, score, confidence):
        super().advance(-score, torch.zeros_like(confidence))


CHAINS = {
    "puma": ProgressiveUnmasking,
    "puma_random_start": RandomStart,
    "puma_late_refill": LateRefill,
    "puma_drop_chains": DropChains,
    "puma_mixed": Mixed,
    "puma_explore": Explore,
    "puma_reverse": Reverse,
}
