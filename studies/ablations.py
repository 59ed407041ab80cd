"""Streams that exist only to be compared with PUMA's: variants of it.

`train.py --method=NAME` with a name of STREAMS. Each changes one thing of
puma.ProgressiveUnmasking: what happens after a step (`refill`), before it (`advance`) or when K
changes (`switch`). All randomness comes from self.generator, which a checkpoint holds, so that runs
resume exactly. The choice of contexts sees x only, and never a hidden token of x0, so the minimiser
of the loss is unchanged (Proposition 2 of the paper).

Other comparisons are settings of train.py: --second_visit=False is the method as published, which
these are variants of, --tau=None turns fast-forward off, --chains_from begins with random masks,
--papl is the loss of arXiv 2509.23405.
"""

import torch

from puma import ProgressiveUnmasking, random_reveal


class RandomStart(ProgressiveUnmasking):
    """A new chain starts with a random reveal of stage 0's share, as in the authors' code."""

    def first_state(self, prompt, stage):
        return random_reveal(prompt, stage, self.stages, self.generator)

    def refill(self, hidden, stage, ended):
        super().refill(hidden, stage, ended)
        state = self.first_state(self.prompt[self.turn], self.stage[self.turn])
        self.hidden[self.turn] = torch.where(ended[:, None], state, self.hidden[self.turn])


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


class Reverse(ProgressiveUnmasking):
    """The least confident first, and no fast-forward: the order that inference never takes.

    A control: any gain that survives here cannot come from matching inference.
    """

    def advance(self, score, confidence):
        super().advance(-score, torch.zeros_like(confidence))


STREAMS = {
    "puma_random_start": RandomStart,
    "puma_late_refill": LateRefill,
    "puma_drop_chains": DropChains,
    "puma_reverse": Reverse,
}


def get(method):
    """The class of a variant. Raises ValueError for an unknown name."""
    if method not in STREAMS:
        raise ValueError(f"method {method!r}: expected puma, mdm, ar or {', '.join(STREAMS)}")
    return STREAMS[method]
