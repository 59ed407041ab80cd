"""Streams that exist only to be compared with PUMA's: variants of it.

`train.py --method=NAME` with a name of STREAMS. Each changes one thing of
puma.ProgressiveUnmasking: what happens after a step (`refill`), before it (`advance`) or when K
changes (`switch`). All randomness comes from self.generator, which a checkpoint holds, so that runs
resume exactly. The choice of contexts sees x only, and never a hidden token of x0, so the minimiser
of the loss is unchanged (Proposition 2 of the paper).

Other comparisons are settings of train.py: --tau=None turns fast-forward off, --chains_from begins
with random masks, --random_share has them in a share of the rows (`mixture`), --papl is the loss of
arXiv 2509.23405.
"""

import torch

import policies
from puma import (
    Batch,
    ProgressiveUnmasking,
    RandomMasking,
    random_reveal,
    step,
    tokens_at,
    uniform,
)


class Mixture:
    """Chains in the first rows of each batch, random masks in the rest. Not in the paper.

    A model with confidence above tau everywhere ends its chains at once; without such rows it then
    forgets all states but the first (theory/README.md, results/when.md).
    """

    def __init__(self, chains, masks):
        self.chains, self.masks = chains, masks
        self.state_dict, self.load_state_dict = chains.state_dict, chains.load_state_dict
        self.adopt = chains.adopt

    def batch(self, iteration):
        chains, masks = self.chains.batch(iteration), self.masks.batch(iteration)
        self.effective = torch.cat([self.chains.effective, self.masks.effective])
        return Batch(*(torch.cat(pair) for pair in zip(chains[:3], masks[:3], strict=True)))

    def advance(self, score, confidence):
        rows = len(self.chains.effective)
        self.chains.advance(score[:rows], confidence[:rows])


class RandomStart(ProgressiveUnmasking):
    """A new chain starts with a random reveal of stage 0's share, as in the authors' code."""

    def first_state(self, prompt, stage):
        return random_reveal(prompt, stage, self.stages, self.generator)

    def refill(self, hidden, stage, ended):
        super().refill(hidden, stage, ended)
        self.restart(ended, torch.zeros_like(stage))

    def restart(self, ended, stage):
        """New chains of the current batch start at `stage` (B,)."""
        turn = self.turn
        state = self.first_state(self.prompt[turn], stage)
        self.hidden[turn] = torch.where(ended[:, None], state, self.hidden[turn])
        self.stage[turn] = torch.where(ended, stage, self.stage[turn])


class RandomStage(RandomStart):
    """A new chain starts at a random stage, in a random state of it, and continues as usual.

    Every share of hidden tokens then occurs, however soon chains end. On average a chain has half
    of the visits, so twice as many examples are used.
    """

    first_state = ProgressiveUnmasking.first_state

    def refill(self, hidden, stage, ended):
        ProgressiveUnmasking.refill(self, hidden, stage, ended)
        self.restart(ended, (uniform(len(ended), self.generator) * self.stages).long())


class LateRefill(ProgressiveUnmasking):
    """Decides which chains to replace before revealing, as in the authors' code.

    A chain that tau has just completed then stays for one more step, with nothing hidden and no
    weight in the loss.
    """

    def refill(self, hidden, stage, ended):
        was_at_the_end = self.stage[self.turn] + 1 >= self.stages  # a complete one was past it
        super().refill(hidden, stage, was_at_the_end)


class DropChains(ProgressiveUnmasking):
    """A switch of K throws all chains away and fills the buffer anew, as in the authors' code.

    Their data order starts again too; here it continues.
    """

    def switch(self, stages):
        every_row = torch.ones_like(self.number[0], dtype=torch.bool)
        taken = zip(*(self.queue.take(every_row) for _ in self.number), strict=True)
        self.x0, self.prompt, self.number = map(torch.stack, taken)
        self.start_chains(stages)


class EqualStages(ProgressiveUnmasking):
    """All stages reveal equal shares of the tokens, instead of ending at a random count."""

    def move(self, score, confidence):
        hidden, stage = self.hidden[self.turn], self.stage[self.turn]
        r = torch.zeros_like(uniform(len(score), self.generator))
        after = step(hidden, stage, self.effective, score, confidence, r, self.stages, self.tau)
        self.refill(*after)


class Bounded(ProgressiveUnmasking):
    """Fast-forward skips one stage at most, so that a chain keeps at least half of its visits.

    From stage n, an ordinary step leads to a random count of tokens in stage n + 1. Fast-forward
    leads at most to a random count in stage n + 2, and never past the last stage: only that many
    hidden positions, those of the highest score, are open to it. Even if every confidence is above
    tau, a chain still has (stages + 1) / 2 visits or more.
    """

    def advance(self, score, confidence):
        hidden, stage = self.hidden[self.turn], self.stage[self.turn]
        r = uniform(len(stage), self.generator)
        most = tokens_at((stage + 2 + r) / self.stages, self.effective)
        last = ((stage + 3) * self.effective - 1) // self.stages  # r is rounded: no more than this
        room = torch.minimum(most, last) - (self.effective - hidden.sum(1))
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


STREAMS = {
    "puma_random_start": RandomStart,
    "puma_random_stage": RandomStage,
    "puma_late_refill": LateRefill,
    "puma_drop_chains": DropChains,
    "puma_equal_stages": EqualStages,
    "puma_bounded": Bounded,
    "puma_explore": Explore,
    "puma_reverse": Reverse,
}


def get(method):
    """The class of a variant. Raises ValueError for an unknown name."""
    if method not in STREAMS:
        raise ValueError(f"method {method!r}: expected puma, mdm, ar or {', '.join(STREAMS)}")
    return STREAMS[method]


def make(method, share, queue, mask_token, generator, *chains):
    """Chains of a method; a share of the queue's rows, if above 0, has random masks instead.

    Raises ValueError if that comes to no row, or to all.
    """
    kind = ProgressiveUnmasking if method == "puma" else get(method)
    args = queue, mask_token, generator
    if not share:
        return kind(*args, *chains)
    masked = round(share * queue.rows)
    if not 0 < masked < queue.rows:
        raise ValueError(f"random_share {share} of {queue.rows} rows: expected some, but not all")
    return Mixture(kind(*args, *chains, rows=queue.rows - masked), RandomMasking(*args, masked))
