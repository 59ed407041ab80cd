"""Variants of PUMA that exist only to be compared with it: `train.py --method=puma_<variant>`.

Each changes one thing of puma.ProgressiveUnmasking: what happens after a step (`refill`), before it
(`advance`) or when K changes (`switch`). All chance comes from self.generator, which a checkpoint
holds, so that runs resume exactly. Where the choice of contexts sees x only, and never a hidden
token of x0, the minimiser of the loss stays what it is (Proposition 2 of the paper): that holds for
all of these.
"""

import torch

import policies
from puma import ProgressiveUnmasking, random_masks, random_reveal, tokens_at, uniform


class RandomStart(ProgressiveUnmasking):
    """A new chain starts with a random reveal of stage 0's share, as in the authors' code."""

    def first_state(self, prompt, stage):
        return random_reveal(prompt, stage, self.stages, self.generator)

    def refill(self, ended, x0, prompt, hidden, stage):
        batch = super().refill(ended, x0, prompt, hidden, stage)
        start = self.first_state(batch["prompt"], batch["stage"])
        return batch | {"hidden": torch.where(ended[:, None], start, batch["hidden"])}


class LateRefill(ProgressiveUnmasking):
    """Decides which chains to replace before revealing, as in the authors' code.

    A chain that tau has just completed then stays for one more step, with nothing hidden and no
    weight in the loss.
    """

    def refill(self, ended, x0, prompt, hidden, stage):
        was_at_the_end = self.visited("stage") + 1 >= self.stages  # a complete one was past it
        return super().refill(was_at_the_end, x0, prompt, hidden, stage)


class DropChains(ProgressiveUnmasking):
    """A switch of K throws all chains away and fills the buffer anew, as in the authors' code.

    Their data order starts again too; here it goes on.
    """

    def switch(self, stages):
        self.stages = stages
        self.x0, self.prompt = self.new_examples(len(self.x0))
        self.stage, self.hidden = self.first_states()


class Mixed(ProgressiveUnmasking):
    """A share of each batch's rows is drawn afresh under random masks, the rest are chains.

    Random masks show many cells that follow from the visible ones, which is what a model learns
    first; chains show what the sampler will meet.
    """

    SHARE = 0.5

    def refill(self, ended, x0, prompt, hidden, stage):
        is_random = torch.arange(len(ended), device=ended.device) < self.SHARE * len(ended)
        batch = super().refill(ended | is_random, x0, prompt, hidden, stage)
        masks = random_masks(batch["prompt"], self.generator)
        return batch | {"hidden": torch.where(is_random[:, None], masks, batch["hidden"])}


class Bounded(ProgressiveUnmasking):
    """Fast-forward skips one stage at most, so that no chain loses more than half of its visits.

    From stage n, an ordinary step leads to a random number of tokens of stage n + 1. Fast-forward
    leads at most to a random number of stage n + 2, or of the last stage: of the hidden positions,
    only so many of the highest score are open to it. A model that is surer than tau of everything
    thus still sees every chain at ceil((stages + 1) / 2) stages.
    """

    def advance(self, score, confidence):
        prompt, hidden, stage = (self.visited(name) for name in ("prompt", "hidden", "stage"))
        effective, r = (~prompt).sum(1), uniform(len(stage), self.generator)
        most = tokens_at((stage + 2 + r) / self.stages, effective)
        last = ((stage + 3) * effective - 1) // self.stages  # stage n + 2 has no more: r is rounded
        room = torch.minimum(most, last) - (effective - hidden.sum(1))
        open_to_it = policies.reveal(score, hidden, room)
        super().advance(score, confidence.masked_fill(~open_to_it, 0))


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

    A control: any gain that survives here cannot come from matching inference.
    """

    def advance(self, score, confidence):
        super().advance(-score, torch.zeros_like(confidence))


CHAINS = {
    "puma_random_start": RandomStart,
    "puma_late_refill": LateRefill,
    "puma_drop_chains": DropChains,
    "puma_mixed": Mixed,
    "puma_bounded": Bounded,
    "puma_explore": Explore,
    "puma_reverse": Reverse,
}
