"""Where training contexts come from: random masks (the baseline) or teacher-forced chains (PUMA).

    x0, x, hidden = stream.batch(iteration)   (B, L) clean ids, masked ids, bool: what to predict
    stream.advance(score, confidence)         (B, L) of the same forward pass: to the next states

All streams present these two methods to the training loop and differ in nothing else; NextToken is
that of autoregressive pretraining, RandomFirst begins with random masks and goes on with chains.
ProgressiveUnmasking is Algorithm 1 and appendix B.1 of the paper (arXiv 2602.10314): each row is a
chain that starts fully masked, and each step reveals the *true* tokens at the positions which the
current model would reveal next. The choice sees x only, never the hidden tokens of x0, so the
minimiser of the loss stays what it is (Proposition 2).

Every row of every batch has a hidden position: a finished chain is replaced at once. `advance`
never copies to the host and its shapes are static, so that a step can be captured in a graph.
"""

import torch

import policies


class RandomMasking:
    """Ordinary masked diffusion, the baseline: each batch is new, under random masks."""

    def __init__(self, queue, mask_token, generator):
        self.queue, self.mask_token, self.generator = queue, mask_token, generator
        self.every_row = torch.ones(queue.rows, dtype=torch.bool, device=generator.device)

    def batch(self, iteration):
        self.queue.top_up()
        x0, prompt = self.queue.take(self.every_row)
        hidden = self.hide(prompt, iteration)
        return x0, x0.masked_fill(hidden, self.mask_token), hidden

    def hide(self, prompt, iteration):
        return random_masks(prompt, self.generator)

    def advance(self, score, confidence):
        """Random masks do not depend on the model: the next batch is drawn afresh."""

    def state_dict(self):
        return {"queue": self.queue.state_dict(), "generator": self.generator.get_state()}

    def load_state_dict(self, state):
        self.queue.load_state_dict(state["queue"])
        self.generator.set_state(state["generator"].cpu())


class NextToken(RandomMasking):
    """Autoregression, for a causal model: all tokens are seen and all but the prompt predicted."""

    def batch(self, iteration):
        self.queue.top_up()
        x0, prompt = self.queue.take(self.every_row)
        return x0, x0, ~prompt


class RandomFirst:
    """Random masks until an iteration, chains from there on; both draw from one queue.

    A chain hides what does not follow yet. That teaches little while the model cannot use what is
    visible, to copy a word for instance; random masks, which leave easy tokens hidden, teach that.
    """

    def __init__(self, masks, chains, until):
        self.masks, self.chains, self.until = masks, chains, until
        self.queue = masks.queue

    def batch(self, iteration):
        self.current = self.masks if iteration < self.until else self.chains
        return self.current.batch(iteration)

    def advance(self, score, confidence):
        self.current.advance(score, confidence)

    def state_dict(self):
        return {"masks": self.masks.state_dict(), "chains": self.chains.state_dict()}

    def load_state_dict(self, state):
        self.masks.load_state_dict(state["masks"])
        self.chains.load_state_dict(state["chains"])


class ProgressiveUnmasking:
    """A streaming buffer of teacher-forced chains.

    queue          ExampleQueue; its `rows` is B
    k_schedule     (iteration, K) pairs: from that iteration on, K tokens are revealed per stage of
                   a full-length row; a chain has round(L / K) stages, at least 2
    tau            also reveal what the model is surer of than this (fast-forward); None = off
    batches        the buffer holds this many batches of chains and visits them in turn, so that
                   consecutive batches share no sequence

    State, each (batches, B, ...): x0, prompt, hidden (.., L) and stage, where stage n means that a
    share of I_n = [n, n + 1] / stages of the row's L_eff tokens is revealed.
    """

    STATE = "x0", "prompt", "hidden", "stage", "turn"

    def __init__(self, queue, mask_token, generator, k_schedule, tau=None, batches=1):
        self.queue, self.mask_token, self.generator = queue, mask_token, generator
        self.k_schedule, self.tau = check_schedule(k_schedule), tau
        self.stages = self.stages_at(0)
        self.turn = torch.zeros(1, dtype=torch.long, device=queue.x0.device)  # the batch in use
        self.x0, self.prompt, self.hidden, self.stage = self.new_buffer(batches)

    def new_buffer(self, batches):
        """First chains for that many batches: x0, prompt, hidden, stage, (batches, B, ...) each."""
        B = self.queue.rows
        first = [self.first_chains(B, place) for place in range(0, batches * B, B)]
        return map(torch.stack, zip(*first, strict=True))

    def first_chains(self, B, place):
        """Chains for one batch, from `place` in the buffer; spread over the stages."""
        self.queue.top_up()
        every_row = torch.ones(B, dtype=torch.bool, device=self.queue.x0.device)
        x0, prompt = self.queue.take(every_row)
        stage = (place + torch.arange(B, device=x0.device)) % self.stages
        return x0, prompt, self.first_state(prompt, stage), stage

    def batch(self, iteration):
        self.queue.top_up()
        if (stages := self.stages_at(iteration)) != self.stages:
            self.switch(stages)
        x0, hidden = self.visited("x0"), self.visited("hidden")
        return x0, x0.masked_fill(hidden, self.mask_token), hidden

    def switch(self, stages):
        """K switches: chains go on."""
        self.stages = stages
        effective = (~self.prompt).sum(-1)
        self.stage.copy_(self.stage_of(effective - self.hidden.sum(-1), effective))

    def advance(self, score, confidence):
        """Reveal true tokens, replace finished chains, turn to the next batch of the buffer.

        score (B, L): larger = revealed sooner; confidence (B, L): probability of the likeliest
        token. Both must depend on x alone.
        """
        x0, prompt, hidden, stage = (self.visited(name) for name in self.STATE[:4])
        hidden, stage, finished = self.reveal(prompt, hidden, stage, score, confidence)
        self.replace(finished, x0, prompt, hidden, stage)

    def reveal(self, prompt, hidden, stage, score, confidence):
        """One step of each chain: hidden (B, L), stage (B,) and whether it is finished (B,)."""
        effective = (~prompt).sum(1)
        revealed = effective - hidden.sum(1)

        r = (stage + 1 + uniform(len(stage), self.generator)) / self.stages  # Unif(I_{n+1})
        target = self.tokens_at(r, effective)
        count = (target - revealed).clamp(min=1)  # short rows must not stall
        chosen = policies.reveal(score, hidden, count)
        if self.tau is not None:
            chosen |= policies.fast_forward(confidence, hidden, self.tau)
        hidden = hidden & ~chosen
        revealed = effective - hidden.sum(1)

        finished = (stage + 1 >= self.stages) | ~hidden.any(1)
        stage = torch.where(revealed > target, self.stage_of(revealed, effective), stage + 1)
        return hidden, stage, finished

    def replace(self, finished, x0, prompt, hidden, stage):
        """Write the visited batch back, with a new chain in every finished row."""
        new_x0, new_prompt = self.queue.take(finished)
        row = finished[:, None]
        prompt = torch.where(row, new_prompt, prompt)
        after = {
            "x0": torch.where(row, new_x0, x0),
            "prompt": prompt,
            "hidden": torch.where(row, self.start(prompt), hidden),
            "stage": stage.masked_fill(row if stage.dim() > 1 else finished, 0),  # of blocks, too
        }
        for name, value in after.items():
            getattr(self, name).index_copy_(0, self.turn, value[None])
        self.turn.copy_((self.turn + 1) % len(self.x0))

    def first_state(self, prompt, stage):
        """Hidden positions of the first chains, which begin at any stage (B,)."""
        return torch.where(stage[:, None] > 0, self.random_state(prompt, stage), self.start(prompt))

    def start(self, prompt):
        """The hidden positions of new chains, (B, L)."""
        return ~prompt

    def random_state(self, prompt, stage):
        """Hidden positions of rows that are at `stage` with random positions revealed, (B, L)."""
        effective = (~prompt).sum(1)
        r = (stage + uniform(len(prompt), self.generator)) / self.stages
        count = self.tokens_at(r, effective)
        return ~prompt & ~choose_random(~prompt, count, self.generator)

    @staticmethod
    def tokens_at(r, effective):
        """Tokens revealed at the share r < 1: rounded, and never all of them."""
        return (r * effective).round().long().clamp(max=effective - 1)

    def stage_of(self, revealed, effective):
        return revealed * self.stages // effective

    def stages_at(self, iteration):
        return max(2, round(self.queue.x0.shape[1] / value_at(self.k_schedule, iteration)))

    def visited(self, name):
        return getattr(self, name).index_select(0, self.turn)[0]

    def state_dict(self):
        state = {name: getattr(self, name).clone() for name in self.STATE}
        state |= {"stages": self.stages, "generator": self.generator.get_state()}
        return state | {"queue": self.queue.state_dict()}

    def load_state_dict(self, state):
        for name in self.STATE:
            if getattr(self, name).shape != state[name].shape:
                raise ValueError(
                    f"the saved buffer has {name} {tuple(state[name].shape)}, this run "
                    f"{tuple(getattr(self, name).shape)}: batch size and buffer must stay the same"
                )
            getattr(self, name).copy_(state[name])
        self.stages = state["stages"]
        self.generator.set_state(state["generator"].cpu())
        self.queue.load_state_dict(state["queue"])


def check_schedule(pairs, name="k_schedule"):
    whole = [
        pair for pair in pairs if isinstance(pair, tuple | list) and [*map(type, pair)] == [int] * 2
    ]
    starts = [start for start, _ in whole]
    if (
        len(whole) != len(pairs)
        or starts[:1] != [0]
        or starts != sorted(set(starts))
        or min(value for _, value in whole) < 1
    ):
        raise ValueError(f"{name} {pairs}: (iteration, value) pairs from iteration 0 on, from 1 up")
    return pairs


def value_at(schedule, iteration):
    return [value for start, value in schedule if start <= iteration][-1]


def random_masks(prompt, generator):
    """A count uniform in 1..L_eff, then that many random positions; hidden (B, L) bool."""
    effective = (~prompt).sum(1)
    count = 1 + (uniform(len(prompt), generator) * effective).long().clamp(max=effective - 1)
    return choose_random(~prompt, count, generator)


def uniform(n, generator):
    return torch.rand(n, generator=generator, device=generator.device)


def choose_random(candidates, count, generator):
    """count (B,) random positions out of each row's candidates, (B, L) bool."""
    noise = torch.rand(candidates.shape, generator=generator, device=candidates.device)
    return policies.reveal(noise, candidates, count)
