"""Progressive Unmasking (PUMA, arXiv 2602.10314): Algorithm 1, and the buffer that streams it.

Ordinary masked diffusion trains on random masks. PUMA trains on the states of *chains*: a chain
starts fully masked; at each step the current model chooses the next positions, and the *true*
tokens are revealed there. The choice uses the score and confidence that the training step computes
anyway, so it costs no extra forward pass, and it depends on x alone, never on a hidden token of
x0, so the minimiser of the loss is unchanged (Proposition 2). A chain passes through `stages`
stages; at stage n the revealed share of its L_eff non-prompt tokens lies in

    I_n = [n, n + 1] / stages

`step` is Algorithm 1. The classes below it are streams of training contexts:

    batch = stream.batch(iteration)      x, x0, hidden (B, L), block size and carry, see Batch
    stream.advance(score, confidence)    (B, L) each, detached, from the forward pass on that batch
    stream.effective                     L_eff (B,) of the rows of the latest batch

This file and policies.py are enough for a trainer of your own. losses.py turns logits into scores.
"""

from operator import index
from typing import NamedTuple

import torch

import policies


# -- Algorithm 1 -----------------------------------------------------------------------------------
def step(hidden, stage, effective, score, confidence, r, stages, tau):
    """Reveal the next tokens of each chain (Algorithm 1 and appendix B.1).

    hidden (B, L) bool, stage (B,), effective (B,) = L_eff; score, confidence (B, L): larger score
    = revealed sooner, confidence = probability of the likeliest token; both must depend on x alone.
    r (B,) uniform in [0, 1); stages: of a chain; tau = inf: no fast-forward.

    Returns hidden and stage after the step, and which chains have ended, (B,) bool.
    """
    target = tokens_at((stage + 1 + r) / stages, effective)  # Unif(I_{n+1}), as a number of tokens
    # At least one: if L_eff is smaller than the number of stages, the target may already be
    # reached, and a chain that reveals nothing would stay in the buffer for ever.
    count = (target - (effective - hidden.sum(1))).clamp(min=1)
    chosen = policies.reveal(score, hidden, count)
    chosen |= policies.fast_forward(confidence, hidden, tau)
    hidden = hidden & ~chosen
    revealed = effective - hidden.sum(1)
    # The last stage has no successor, and a row with nothing hidden would train on nothing.
    ended = (stage + 1 >= stages) | ~hidden.any(1)
    # More than the next stage's share may be revealed (fast-forward): the chain skips stages.
    stage = torch.where(revealed > target, stage_of(revealed, effective, stages), stage + 1)
    return hidden, stage, ended


def tokens_at(share, effective):
    """A share of L_eff in tokens, (B,): rounded, but at most L_eff - 1: one is left to predict."""
    return (share * effective).round().long().clamp(max=effective - 1)


def stage_of(revealed, effective, stages):
    """The stage n of a row with that many tokens revealed: revealed / L_eff lies in I_n."""
    return revealed * stages // effective.clamp(min=1)  # 0 if all is prompt, as a block may be


def stages_of(length, K):
    """The number of stages of a chain of `length` tokens that reveals K of them per stage."""
    return max(2, round(length / K)) if length > 1 else 1  # with one, all contexts are fully masked


# -- streams of contexts ---------------------------------------------------------------------------
class Batch(NamedTuple):
    """The arguments of the objective, in order."""

    x: torch.Tensor  # (B, L) ids: x0 with the mask token wherever hidden
    x0: torch.Tensor  # (B, L) clean ids
    hidden: torch.Tensor  # (B, L) bool: the positions to predict
    block: int = 0  # size of the blocks of block diffusion; 0: the row is one block
    carry: torch.Tensor | None = None  # (B, L, width): states of the previous step (carry.py)


class RandomMasking:
    """Ordinary masked diffusion, the baseline: every batch holds new examples, randomly masked.

    sure (): the share of what they hide where the model is sure, a running mean over batches.
    """

    block = 0  # size of blocks with masks of their own (block.py); 0: the row is one block
    begin = None  # no chains follow: see MasksThenChains
    SURE = 0.9  # confidence above this

    def __init__(self, queue, mask_token, generator):
        self.queue, self.mask_token, self.generator = queue, mask_token, generator
        self.all = torch.ones(queue.rows, dtype=torch.bool, device=generator.device)
        self.sure = torch.zeros((), device=generator.device)

    def batch(self, iteration):
        x0, prompt, _ = self.queue.take(self.all)
        self.effective = (~prompt).sum(1)
        self.hidden = random_masks(prompt, self.generator, self.block)
        x = x0.masked_fill(self.hidden, self.mask_token)
        return Batch(x, x0, self.hidden, self.block)

    def advance(self, score, confidence):
        """The masks do not depend on the model."""
        sure = (confidence > self.SURE) & self.hidden
        self.sure.lerp_(sure.sum() / self.hidden.sum(), 0.1)  # nothing waits for the device

    def adopt(self, rows):
        """Nothing to continue: the queue gives the examples of other processes' chains again."""

    def state_dict(self):
        return {"sure": self.sure.clone()}

    def load_state_dict(self, state):
        self.sure.copy_(state["sure"])


class ProgressiveUnmasking:
    """PUMA: a buffer in which every row is a chain, replaced as soon as it ends.

    queue       take(wanted (B,) bool) -> x0, prompt (B, L), index in the data (B,); `rows`: B
    generator   torch.Generator on the device of the queue
    k_schedule  (iteration, K) pairs: from that iteration on, a full-length row reveals K tokens per
                stage, so a chain has round(L / K) stages, at least 2; a row that is partly prompt
                reveals K * L_eff / L tokens. A whole number: this K throughout
    tau         also reveal all with confidence above this (fast-forward); None = off
    buffer      how many batches of chains are held and visited in turn, so that consecutive
                batches share no sequence; 1 = as in the paper
    second_visit  see refill; False = as in the paper
    """

    STATE = "x0", "prompt", "number", "hidden", "stage"  # (buffer, B, ...) each

    def __init__(self, queue, mask_token, generator, k_schedule, tau=0.9, buffer=8,
                 second_visit=True):  # fmt: skip
        if not isinstance(buffer, int) or buffer < 1:
            raise ValueError(f"buffer {buffer}: expected a whole number, at least 1")
        self.queue, self.mask_token, self.generator = queue, mask_token, generator
        self.k_schedule, self.tau = check_schedule(k_schedule), policies.check_tau(tau)
        self.second_visit = second_visit
        all_rows = torch.ones(queue.rows, dtype=torch.bool, device=generator.device)
        taken = zip(*(queue.take(all_rows) for _ in range(buffer)), strict=True)
        self.x0, self.prompt, self.number = map(torch.stack, taken)
        if ((self.x0 == mask_token) & ~self.prompt).any():
            raise ValueError(f"x0 holds the mask token {mask_token} where it is to be predicted")
        self.turn, self.visiting = 0, False  # of the current batch; True until its `advance`
        self.start_chains(self.stages_at(0))

    def start_chains(self, stages):
        """Start the chains, evenly over the stages: if all began at once, all would end at once."""
        self.stages = stages
        order = torch.arange(self.number.numel(), device=self.number.device)
        self.stage = (order.view_as(self.number) % self.stages)[..., None]  # (buffer, B, 1)
        self.hidden = torch.stack([*map(self.first_state, self.prompt, self.stage)])

    def stages_at(self, iteration):
        return stages_of(self.x0.shape[-1], value_at(self.k_schedule, iteration))

    def first_state(self, prompt, stage):
        """Hidden positions (B, L) of chains that start at `stage` (B, 1); all at stage 0."""
        later = random_reveal(prompt, stage[:, 0], self.stages, self.generator)
        return torch.where(stage > 0, later, ~prompt)

    def batch(self, iteration):
        if self.visiting:
            raise RuntimeError("call advance(score, confidence) after each batch()")
        if (stages := self.stages_at(iteration)) != self.stages:
            self.switch(stages)
        self.visiting = True
        x0, hidden = self.x0[self.turn], self.hidden[self.turn]
        self.effective = (~self.prompt[self.turn]).sum(1)
        return Batch(x0.masked_fill(hidden, self.mask_token), x0.clone(), hidden.clone())

    def switch(self, stages):
        """K has changed: every chain continues, at the stage that its revealed share puts it in."""
        effective = (~self.prompt).sum(-1, keepdim=True)
        self.stage = stage_of(effective - self.hidden.sum(-1, keepdim=True), effective, stages)
        self.stages = stages

    def advance(self, score, confidence):
        """Reveal true tokens, replace the chains that ended, turn to the next batch."""
        if not self.visiting:
            raise RuntimeError("no batch to advance: call batch(iteration) first")
        if score.requires_grad or confidence.requires_grad:
            raise ValueError("no loss may reach the model through the choice: pass detached scores")
        if not score.shape == confidence.shape == self.x0.shape[1:]:
            raise ValueError(f"score {tuple(score.shape)}: expected {tuple(self.x0.shape[1:])}")
        self.move(score, confidence)
        self.next_batch()
        self.visiting = False

    def next_batch(self):
        self.turn = (self.turn + 1) % len(self.x0)

    def move(self, score, confidence):
        hidden, stage, ended = step(
            self.hidden[self.turn], self.stage[self.turn, :, 0], self.effective, score, confidence,
            uniform(len(score), self.generator), self.stages, self.tau,
        )  # fmt: skip
        self.refill(hidden, stage[:, None], ended)

    def refill(self, hidden, stage, ended):
        """Write the batch back; where `ended` (B,), a new example takes the row, fully masked.

        But if the old chain ended straight from there, the new one starts at a random later stage,
        with random tokens revealed (the *second visit*, not in the paper). Otherwise a model that
        is sure of everything would see fully masked rows only, and forget the rest (theory/).
        """
        turn, ended_row = self.turn, ended[:, None]
        # (B, 1) or (B, blocks): was nothing revealed yet?
        was_all_hidden = (self.hidden[turn] == ~self.prompt[turn]).view(*stage.shape, -1).all(-1)
        x0, prompt, number = self.queue.take(ended)  # no .item(): nothing waits for the device
        self.x0[turn] = torch.where(ended_row, x0, self.x0[turn])
        self.prompt[turn] = torch.where(ended_row, prompt, self.prompt[turn])
        self.number[turn] = torch.where(ended, number, self.number[turn])
        start_stage, start_hidden = torch.zeros_like(stage), ~self.prompt[turn]
        if self.second_visit and self.stages > 1:
            u = uniform(stage.numel(), self.generator).view_as(stage)
            start_stage = (1 + (u * (self.stages - 1)).long()) * was_all_hidden
            start_hidden = self.first_state(self.prompt[turn], start_stage)
        self.hidden[turn] = torch.where(ended_row, start_hidden, hidden)
        self.stage[turn] = torch.where(ended_row, start_stage, stage)

    def state_dict(self):
        state = {name: getattr(self, name).clone() for name in self.STATE}
        return state | {"turn": self.turn, "stages": self.stages}

    def load_state_dict(self, state):
        if state["number"].shape != self.number.shape:  # copy_ would broadcast a buffer of 1
            raise ValueError("the saved chains have another buffer or batch size")
        for name in self.STATE:
            getattr(self, name).copy_(state[name].view_as(getattr(self, name)))
        self.turn, self.stages, self.visiting = state["turn"], state["stages"], False

    def adopt(self, rows):
        """Continue chains of other processes, {name: (n, ...)}, in the first rows."""
        hidden = rows["hidden"][: self.number.numel()]
        self.hidden.flatten(0, 1)[: len(hidden)] = hidden.to(self.hidden.device)
        self.switch(self.stages)


class MasksThenChains:
    """Random masks until the model has begun to learn; from then on chains.

    Until then a chain's order is noise, and each example stays for all stages of its chain, so the
    model would see fewer examples for nothing. begin: the iteration of the first chains; None = as
    soon as the model is sure of SHARE of what random masks hide. mean: over all processes.
    """

    SHARE, EVERY = 0.5, 10  # looked up every so many iterations: the host waits for the device

    def __init__(self, masks, chains, begin=None, mean=float):
        self.masks, self.chains, self.begin, self.mean = masks, chains, begin, mean
        self.latest = None
        self.adopt = chains.adopt

    def batch(self, iteration):
        if iteration != self.latest:  # all visits of an update are of one kind
            looks = self.begin is None and iteration % self.EVERY == 0
            if looks and self.mean(self.masks.sure) > self.SHARE:
                self.begin = iteration
            begun = self.begin is not None and iteration >= self.begin
            self.stream = self.chains if begun else self.masks
            self.sure = None if begun else self.masks.sure
            self.latest = iteration
        batch = self.stream.batch(iteration)
        self.advance, self.effective = self.stream.advance, self.stream.effective
        return batch

    def state_dict(self):
        return self.chains.state_dict() | self.masks.state_dict() | {"begin": self.begin}

    def load_state_dict(self, state):
        self.chains.load_state_dict(state)
        self.masks.load_state_dict(state)
        self.begin = state["begin"]
        self.latest = None


# -- schedules -------------------------------------------------------------------------------------
def value_at(schedule, iteration):
    """The value in (iteration, value) pairs that holds at the iteration."""
    return [value for start, value in schedule if start <= iteration][-1]


def check_schedule(pairs, name="k_schedule"):
    """The (iteration, value) pairs; a whole number means this value throughout. Or ValueError."""
    try:
        pairs = [(0, pairs)] if type(pairs) is int else pairs
        starts, values = zip(*((index(start), index(value)) for start, value in pairs), strict=True)
        good = starts[0] == 0 and [*starts] == sorted({*starts}) and min(values) > 0
    except (TypeError, ValueError):
        good = False
    if not good:
        expected = "(iteration, value) pairs of whole numbers: iterations from 0 up, values above 0"
        raise ValueError(f"{name} {pairs}: expected {expected}")
    return pairs


# -- random masks ----------------------------------------------------------------------------------
def random_masks(prompt, generator, block=0):
    """Hides 1..L_eff (uniform) random positions of each row, or block; hidden (B, L) bool."""
    rows = prompt.reshape(-1, block or prompt.shape[1])
    effective, share = (~rows).sum(1), uniform(len(rows), generator)
    count = 1 + (share * effective).long().clamp(max=effective - 1)
    return choose_random(~rows, count, generator).view_as(prompt)


def random_reveal(prompt, stage, stages, generator):
    """Hidden positions (B, L) of rows at `stage` (B,), where the revealed ones are random."""
    effective = (~prompt).sum(1)
    count = tokens_at((stage + uniform(len(prompt), generator)) / stages, effective)
    return ~prompt & ~choose_random(~prompt, count, generator)


def choose_random(candidates, count, generator):
    """count (B,) random positions out of each row's candidates, (B, L) bool."""
    score = torch.rand(candidates.shape, generator=generator, device=generator.device)
    return policies.reveal(score, candidates, count)


def uniform(n, generator):
    return torch.rand(n, generator=generator, device=generator.device)
