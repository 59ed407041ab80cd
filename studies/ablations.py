"""Streams that exist only to be compared with PUMA's: variants of it, and rivals from other papers.

`train.py --method=NAME` with a name of STREAMS. The variants, puma_NAME, change one thing of
puma.ProgressiveUnmasking: what happens after a step (`refill`), before it (`advance`) or when K
changes (`switch`). All randomness comes from self.generator, which a checkpoint holds, so that runs
resume exactly. If the choice of contexts sees x only, and never a hidden token of x0, the minimiser
of the loss is unchanged (Proposition 2 of the paper): that holds for all of these but OwnTokens,
which says what holds instead.

Other comparisons are settings of train.py: --tau=None turns fast-forward off, --chains_from begins
with random masks, --chains_until ends with them, --random_share has them in a share of the rows,
--papl is the loss of arXiv 2509.23405.
"""

import torch

import policies
from losses import score_all
from puma import (
    Batch,
    ProgressiveUnmasking,
    RandomFirst,
    RandomMasking,
    choose_random,
    masks_of_share,
    noise,
    random_reveal,
    tokens_at,
    uniform,
)


class RandomStart(ProgressiveUnmasking):
    """A new chain starts with a random reveal of stage 0's share, as in the authors' code."""

    def first_state(self, prompt, stage):
        return random_reveal(prompt, stage, self.stages, self.generator)

    def refill(self, ended, x0, prompt, hidden, stage):
        batch = super().refill(ended, x0, prompt, hidden, stage)
        start = self.first_state(batch["prompt"], batch["stage"])
        return batch | {"hidden": torch.where(ended[:, None], start, batch["hidden"])}


class RandomStage(ProgressiveUnmasking):
    """A new chain starts at a random stage, in a random state of it, and continues as usual.

    Every share of hidden tokens then occurs, however soon chains end. On average a chain has half
    of the visits, so twice as many examples are used.
    """

    def refill(self, ended, x0, prompt, hidden, stage):
        batch = super().refill(ended, x0, prompt, hidden, stage)
        start = (uniform(len(ended), self.generator) * self.stages).long()
        state = self.first_state(batch["prompt"], start)
        return batch | {
            "hidden": torch.where(ended[:, None], state, batch["hidden"]),
            "stage": torch.where(ended, start, batch["stage"]),
        }


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

    Their data order starts again too; here it continues.
    """

    def switch(self, stages):
        self.set_stages(stages)
        every_row = torch.ones_like(self.number, dtype=torch.bool)
        for name, new in zip(("x0", "prompt", "number"), self.new_examples(every_row), strict=True):
            getattr(self, name).copy_(new)
        for name, new in zip(("stage", "hidden"), self.first_states(), strict=True):
            getattr(self, name).copy_(new)


class EqualStages(ProgressiveUnmasking):
    """All stages reveal equal shares of the tokens, instead of ending at a random count."""

    def move(self, score, confidence, r):
        super().move(score, confidence, torch.zeros_like(r))


class Bounded(ProgressiveUnmasking):
    """Fast-forward skips one stage at most, so that a chain keeps at least half of its visits.

    From stage n, an ordinary step leads to a random count of tokens in stage n + 1. Fast-forward
    leads at most to a random count in stage n + 2, and never past the last stage: only that many
    hidden positions, those of the highest score, are open to it. Even if every confidence is above
    tau, a chain still has (stages + 1) / 2 visits or more.
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
    """With probability EPSILON a row's step reveals random positions, whatever the confidence.

    Chains then pass through states off the greedy path, where a sampler's mistake may lead.
    """

    EPSILON = 0.25

    def advance(self, score, confidence):
        explores = uniform(len(score), self.generator)[:, None] < self.EPSILON
        noise = torch.rand(score.shape, generator=self.generator, device=score.device)
        score = torch.where(explores, noise.to(score.dtype), score)
        super().advance(score, confidence.masked_fill(explores, 0))


class Reverse(ProgressiveUnmasking):
    """The least confident first, and no fast-forward: the order that inference never takes.

    A control: any gain that survives here cannot come from matching inference.
    """

    def advance(self, score, confidence):
        super().advance(-score, torch.zeros_like(confidence))


class Adaptive(ProgressiveUnmasking):
    """Raises the threshold while chains have fewer visits than half of the stages, else lowers it.

    The share of the visited chains that end is one over the mean visits. The threshold is stored as
    `nines` (1,), -log10(1 - tau): 1 for tau = 0.9. It never falls below the run's tau; at 8 it is 1
    in float32, which no confidence exceeds. Like the ends it depends on visible tokens alone.
    """

    STATE = (*ProgressiveUnmasking.STATE, "nines")
    RATE = 0.1  # nines per visit, when twice as many chains end as should

    def __init__(self, *args):
        super().__init__(*args)
        if self.tau >= 1:
            raise ValueError("tau: expected less than 1, because puma_adaptive raises it")
        self.least = -torch.tensor([1 - self.tau], device=self.x0.device).log10()
        self.nines = self.least.clone()

    def advance(self, score, confidence):
        self.tau = 1 - 10**-self.nines
        super().advance(score, confidence)

    def refill(self, ended, x0, prompt, hidden, stage):
        too_many = ended.float().mean() * self.stages / 2 - 1
        nines = (self.nines + self.RATE * too_many).clamp(max=8)
        self.nines.copy_(nines.maximum(self.least))
        return super().refill(ended, x0, prompt, hidden, stage)


class OwnTokens(ProgressiveUnmasking):
    """On-policy chains: they reveal the model's own tokens, right or wrong, as sampling does.

    The loss still asks for the true tokens at the hidden positions. A chain's visible tokens then
    say nothing of x0 that its prompt does not, so the minimiser is p(x0_i | prompt) in every state:
    Proposition 2, which is about p(x0_i | x), does not hold. If the prompt has one answer both
    are that answer, and chains show what follows a mistake. Otherwise, as in text, the model would
    learn to ignore its own tokens.

    Costs a second forward pass, for the model's tokens. The first chains begin with true tokens.
    """

    STATE = (*ProgressiveUnmasking.STATE, "tokens")
    model = None  # set by train.py

    def __init__(self, *args):
        super().__init__(*args)
        self.tokens = self.x0.clone()

    def visit(self):
        return super().visit()._replace(x=self.context())

    def context(self):
        return self.visited("tokens").masked_fill(self.visited("hidden"), self.mask_token)

    @torch.no_grad()
    def refill(self, ended, x0, prompt, hidden, stage):
        own = self.model.logits(self.model(self.context())).argmax(-1)
        revealed = self.visited("hidden") & ~hidden
        tokens = torch.where(revealed, own, self.visited("tokens"))
        batch = super().refill(ended, x0, prompt, hidden, stage)
        return batch | {"tokens": torch.where(ended[:, None], batch["x0"], tokens)}


class RandomLast(RandomFirst):
    """Chains until an iteration, random masks from then on."""

    def prepare(self, iteration):
        self.current = self.chains if iteration < self.until else self.masks
        self.current.prepare(iteration)


class BellMasks(RandomMasking):
    """Random masks of which few hide almost all or almost nothing (arXiv 2605.13026).

    The hidden share is drawn from a bell curve in place of the uniform law: here the sigmoid of a
    normal variable (two thirds lie in 0.27..0.73), since the abstract, all that could be read,
    names no curve. The loss is not reweighted.
    """

    def __init__(self, queue, mask_token, generator, *_):
        super().__init__(queue, mask_token, generator)

    def hide(self, prompt, block):
        share = torch.randn(len(prompt), generator=self.generator, device=prompt.device).sigmoid()
        return masks_of_share(prompt, share, noise(prompt.shape, self.generator))


class SelfAligned(RandomMasking):
    """Random masks that hide too much, and a pass that reveals the most confident positions.

    After SAT-Mask ("Efficient Diffusion Language Model Training via Self-Aligned Trajectory
    Masking": dynamic over-noising, then margin-based partial denoising; only its abstract could be
    read). Here the number that stays hidden is uniform in 1..L_eff as with random masks. A random
    number more, up to all, is hidden at first; then the true tokens of the largest margins are
    revealed. There is no buffer, each example is used once, and a step costs a second pass.
    """

    model = None  # set by train.py

    def __init__(self, queue, mask_token, generator, *_):
        super().__init__(queue, mask_token, generator)

    @torch.no_grad()
    def visit(self):
        x, x0, hidden, _ = super().visit()
        spare = self.effective - hidden.sum(1)
        count = (uniform(len(x), self.generator) * (spare + 1)).long()
        visible = ~(hidden | self.prompt)
        hidden = hidden | choose_random(visible, count, self.generator)
        x = x0.masked_fill(hidden, self.mask_token)
        _, margin, _ = score_all(self.model, x, x0, policies.margin)
        hidden = hidden & ~policies.reveal(margin, hidden, count)
        return Batch(x0.masked_fill(hidden, self.mask_token), x0, hidden)


CHAINS = {
    "puma_random_start": RandomStart,
    "puma_random_stage": RandomStage,
    "puma_late_refill": LateRefill,
    "puma_drop_chains": DropChains,
    "puma_equal_stages": EqualStages,
    "puma_bounded": Bounded,
    "puma_adaptive": Adaptive,
    "puma_own_tokens": OwnTokens,
    "puma_explore": Explore,
    "puma_reverse": Reverse,
}
STREAMS = CHAINS | {"bell": BellMasks, "sat": SelfAligned}
