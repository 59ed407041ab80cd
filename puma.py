"""Progressive Unmasking (PUMA, arXiv 2602.10314): Algorithm 1, and the buffer that streams it.

Ordinary masked diffusion trains on random masks. PUMA trains on the states of *chains*: a chain
starts fully masked; at each step the current model chooses the next positions, and the *true*
tokens are revealed there. The choice uses the score and confidence that the training step computes
anyway, so it costs no extra forward pass, and it depends on x alone, never on a hidden token of
x0, so the minimiser of the loss is unchanged (Proposition 2). A chain passes through `stages`
stages; at stage n the revealed share of its L_eff non-prompt tokens lies in

    I_n = [n, n + 1] / stages

`step` is Algorithm 1. The classes are streams of training contexts with one interface: random
masks (the baseline), next tokens, and the buffer of chains.

    stream.prepare(iteration)            on the host: load new examples, switch K
    batch = stream.visit()               x, x0, hidden (B, L) and the block size, see Batch
    stream.advance(score, confidence)    (B, L) each, detached, from the forward pass on that
                                         batch; chains need this call before the next visit
    stream.effective                     L_eff (B,) of the rows of the latest batch, for the record

`visit` and `advance` run on the device alone: they never make the host wait, take nothing but sizes
from it, and change tensors in place, so that one recording of them can be replayed.

Not here: the policy, which turns logits into the score (losses.predictions); chains per block
(block.py).
"""

import math
import zlib
from typing import NamedTuple

import numpy as np
import torch

import policies
from example_queue import Arriving


def step(hidden, stage, effective, score, confidence, r, stages, tau):
    """Algorithm 1 (and appendix B.1): reveal the next tokens of each chain.

    hidden (B, L) bool, stage (B,), effective (B,) = L_eff; score, confidence (B, L): larger score
    = revealed sooner, confidence = probability of the likeliest token; both must depend on x alone.
    r (B,) uniform in [0, 1); stages (): number of stages of a chain; tau = inf: no fast-forward.

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
    # Fast-forward may reveal more than the next stage's share: the chain then skips stages.
    stage = torch.where(revealed > target, stage_of(revealed, effective, stages), stage + 1)
    return hidden, stage, ended


def tokens_at(share, effective):
    """A share < 1 of L_eff as a number of tokens, (B,): rounded, but never all of them.

    A state without a hidden token would leave nothing to predict.
    """
    return (share * effective).round().long().clamp(max=effective - 1)


def stage_of(revealed, effective, stages):
    """The stage n of a row with that many tokens revealed: revealed / L_eff lies in I_n."""
    return revealed * stages // effective.clamp(min=1)  # 0 if all is prompt, as a block may be


def stages_of(length, K):
    """The number of stages of a chain of `length` tokens that reveals K of them per stage.

    At least two, or every context would be fully masked; a single token has only one context.
    """
    return max(2, round(length / K)) if length > 1 else 1


class Batch(NamedTuple):
    """The arguments of the objective, in order."""

    x: torch.Tensor  # (B, L) ids: x0 with the mask token wherever hidden
    x0: torch.Tensor  # (B, L) clean ids
    hidden: torch.Tensor  # (B, L) bool: the positions to predict
    block: int = 0  # size of the blocks of block diffusion; 0: the row is one block


class Stream:
    """A source of training contexts."""

    def batch(self, iteration):
        """The next Batch, for a loop that records no CUDA graph."""
        self.prepare(iteration)
        return self.visit()

    def compile(self):
        """Compile the work of `advance`, if there is any."""

    def count_hidden(self):
        """To be called first if `size` is to be called after every visit."""

    def size(self):
        """The number of hidden positions in the latest batch; None if the host does not know it."""


class RandomMasking(Stream):
    """Ordinary masked diffusion, the baseline: every batch holds new examples, randomly masked.

    block_schedule: (iteration, size) pairs; each block of a row then gets its own mask.
    """

    def __init__(self, queue, mask_token, generator, block_schedule=()):
        self.queue, self.mask_token, self.generator = queue, mask_token, generator
        self.block_schedule = block_schedule and check_sizes(block_schedule, queue.x0.shape[1])
        self.every_row = torch.ones(queue.rows, dtype=torch.bool, device=generator.device)

    def prepare(self, iteration):
        self.queue.top_up()
        self.block = value_at(self.block_schedule, iteration) if self.block_schedule else 0

    def visit(self):
        x0, self.prompt, _ = self.queue.take(self.every_row)
        hidden = self.hide(self.prompt, self.block)
        return Batch(x0.masked_fill(hidden, self.mask_token), x0, hidden, self.block)

    def hide(self, prompt, block):
        return random_masks(prompt, self.generator, block)

    @property
    def effective(self):
        return (~self.prompt).sum(1)

    def advance(self, score, confidence):
        """Random masks do not depend on the model: the next batch is drawn afresh."""

    def state_dict(self):
        return {"queue": self.queue.state_dict(), "generator": self.generator.get_state()}

    def load_state_dict(self, state):
        self.queue.load_state_dict(state["queue"])
        self.generator.set_state(state["generator"].cpu())

    def share_out(self, states):
        """Continue from other processes' state_dicts; chains in them return their examples."""
        queues, chains = take_apart(states, self.queue)
        self.queue.share_out(queues, chains["number"].numpy())


class NextToken(RandomMasking):
    """Autoregression, for a causal model: nothing is masked, all but the prompt is predicted."""

    def visit(self):
        x0, self.prompt, _ = self.queue.take(self.every_row)
        return Batch(x0, x0, ~self.prompt, block=1)


class RandomFirst(Stream):
    """Random masks until an iteration, chains from then on; both draw from one queue.

    A chain hides the hard tokens: those that the visible ones do not determine yet. A model that
    cannot use its context learns little from them. Random masks also hide easy tokens, which teach
    it, for instance, to copy a word.
    """

    def __init__(self, masks, chains, until):
        self.masks, self.chains, self.until = masks, chains, until
        self.queue = masks.queue

    def prepare(self, iteration):
        self.current = self.masks if iteration < self.until else self.chains
        self.current.prepare(iteration)

    def visit(self):
        return self.current.visit()

    def compile(self):
        self.chains.compile()

    def count_hidden(self):
        self.chains.count_hidden()

    def size(self):
        return self.current.size()

    @property
    def effective(self):
        return self.current.effective

    def advance(self, score, confidence):
        self.current.advance(score, confidence)

    def state_dict(self):
        return {"masks": self.masks.state_dict(), "chains": self.chains.state_dict()}

    def load_state_dict(self, state):
        self.masks.load_state_dict(state["masks"])
        self.chains.load_state_dict(state["chains"])

    def share_out(self, states):
        """Continue from other processes' state_dicts; the chains restore the common queue."""
        self.chains.share_out(states)


class Buffer(Stream):
    """Holds several batches of B chains and visits one batch at a time, in turn.

    Consecutive batches then share no sequence, although a chain stays for several visits.
    State, each (batches, B, ...): x0, prompt, hidden (.., L), stage and the number of the example;
    `turn` (1,) is the batch being visited. `stages` () is the number of stages of a chain: on the
    device, since a switch of K changes it; `known` is the host's copy.
    """

    STATE = "x0", "prompt", "hidden", "stage", "number", "turn"
    counts, coming = False, None  # whether `size` will be called; the next batch's, on its way
    visiting = False  # whether the visited batch has yet to advance

    def __init__(self, queue, mask_token, generator, batches):
        if not isinstance(batches, int) or batches < 1:
            raise ValueError(f"buffer {batches}: expected a whole number, at least 1")
        self.queue, self.mask_token, self.generator = queue, mask_token, generator
        self.turn = torch.zeros(1, dtype=torch.long, device=queue.x0.device)
        self.stages = torch.zeros((), dtype=torch.long, device=queue.x0.device)
        every_row = torch.ones(batches, queue.rows, dtype=torch.bool, device=queue.x0.device)
        self.x0, self.prompt, self.number = self.new_examples(every_row)

    def new_examples(self, wanted):
        """x0, prompt, number of new examples where wanted (batches, B), elsewhere arbitrary."""
        taken = []
        for rows in wanted:
            self.queue.top_up()
            taken.append(self.queue.take(rows))
        return map(torch.stack, zip(*taken, strict=True))

    def compile(self):
        self.move = torch.compile(self.move, dynamic=False)

    def count_hidden(self):
        self.counts = True

    def size(self):
        """With two or more batches, the count was sent at the previous visit and has arrived."""
        if not self.counts:
            return None
        now, n = self.coming or Arriving(self.visited("hidden").sum()), len(self.hidden)
        following = self.hidden.index_select(0, (self.turn + 1) % n)
        self.coming = Arriving(following.sum()) if n > 1 else None
        return now.value()

    def begin_visit(self):
        """Raise RuntimeError if the last batch has not advanced: its chains would never end."""
        if self.visiting:
            raise RuntimeError(
                "advance() was not called after the last visit() or batch(), so its chains have "
                "not moved: call advance(score, confidence) with what the objective returned"
            )
        self.visiting = True

    def end_visit(self, score, confidence):
        """Raise RuntimeError if no batch was visited.

        Raises ValueError for inputs with a gradient, or that are not numbers of shape (B, L).
        """
        for name, part in ("score", score), ("confidence", confidence):
            if part.shape != self.x0.shape[1:] or not part.is_floating_point():
                raise ValueError(
                    f"{name} {part.dtype} {tuple(part.shape)}: expected floating-point numbers "
                    f"{tuple(self.x0.shape[1:])}, one for each position of the batch"
                )
            if part.requires_grad:
                raise ValueError(
                    f"{name} carries a gradient, but no loss may reach the model through the "
                    f"choice of what to reveal: pass {name}.detach()"
                )
        if not self.visiting:
            raise RuntimeError("no batch was visited since the last advance(): call visit() first")
        self.visiting = False

    def set_stages(self, stages):
        self.known = stages
        self.stages.fill_(stages)

    def first_states(self):
        """Stage (batches, B) and hidden positions of the first chains, spread over the stages.

        If all began at stage 0, they would all end together.
        """
        stage = self.numbered() % self.stages
        pairs = zip(self.prompt, stage, strict=True)
        return stage, torch.stack([self.first_state(*pair) for pair in pairs])

    def numbered(self):
        """The number of each row of the buffer, (batches, B)."""
        return torch.arange(self.number.numel(), device=self.number.device).view_as(self.number)

    def first_state(self, prompt, stage):
        """Hidden positions of chains that start at `stage` (B,); at stage 0, all of them."""
        later = random_reveal(prompt, stage, self.stages, self.generator)
        return torch.where(stage[:, None] > 0, later, ~prompt)

    @property
    def effective(self):
        return (~self.visited("prompt")).sum(1)

    def visited(self, name):
        """The visited batch's part of the state `name`, (B, ...)."""
        return getattr(self, name).index_select(0, self.turn)[0]

    def leave(self, **state):
        """Write `state` back to the visited batch, and turn to the next one."""
        for name, value in state.items():
            getattr(self, name).index_copy_(0, self.turn, value[None])
        self.turn.copy_((self.turn + 1) % len(self.x0))

    def refill(self, ended, x0, prompt, hidden, stage):
        """The batch with a new chain, fully masked, in every row whose chain has ended (B,)."""
        new_x0, new_prompt, new_number = self.queue.take(ended)
        row = ended[:, None]
        number = torch.where(ended, new_number, self.visited("number"))
        prompt = torch.where(row, new_prompt, prompt)
        hidden = torch.where(row, ~prompt, hidden)
        stage = stage.masked_fill(row if stage.dim() > 1 else ended, 0)  # (B, blocks) or (B,)
        x0 = torch.where(row, new_x0, x0)
        return dict(x0=x0, prompt=prompt, hidden=hidden, stage=stage, number=number)

    def state_dict(self):
        """Examples are saved as numbers and a checksum, hidden positions as bits (`packed`)."""
        state = {name: getattr(self, name).clone() for name in self.STATE[2:] if name != "hidden"}
        state |= {"hidden": packed(self.hidden), "checksum": checksum(self.x0, self.prompt)}
        state |= {"stages": self.known, "generator": self.generator.get_state()}
        return state | {"queue": self.queue.state_dict()}

    def load_state_dict(self, state):
        """Raises ValueError if the saved buffer has another shape, or impossible chains."""
        saved = state | saved_chains(state, self.queue)
        for name in self.STATE:
            if getattr(self, name).shape != saved[name].shape:
                raise ValueError(
                    f"the saved buffer has {name} {tuple(saved[name].shape)}, this run "
                    f"{tuple(getattr(self, name).shape)}: batch size and buffer must stay the same"
                )
            getattr(self, name).copy_(saved[name])
        self.visiting = False
        if not 0 <= int(self.turn) < len(self.x0):
            raise ValueError(f"the saved buffer visits batch {int(self.turn)} of {len(self.x0)}")
        self.coming = None
        self.set_stages(state["stages"])
        self.generator.set_state(state["generator"].cpu())
        self.queue.load_state_dict(state["queue"])

    def share_out(self, states):
        """Continue from the chains in other processes' state_dicts: this process takes its share.

        Chains that find no room return their examples to the queue; spare room gets new chains.
        """
        queues, chains = take_apart(states, self.queue)
        self.visiting = False
        rank, world = self.queue.rank, self.queue.world
        room = self.number.numel() * world
        surplus = chains["number"][room:].numpy()
        self.queue.share_out(queues, surplus)
        mine = {name: value[:room][rank::world] for name, value in chains.items()}
        old = torch.arange(self.number.numel(), device=self.number.device) < len(mine["number"])
        old = old.view_as(self.number)
        self.x0, self.prompt, self.number = self.new_examples(~old)
        for name in "x0", "prompt", "number":
            getattr(self, name)[old] = mine[name].to(self.number.device)
        self.start_chains(old, mine["hidden"].to(self.number.device))


class ProgressiveUnmasking(Buffer):
    """PUMA's stream: a buffer in which every row is a chain, replaced as soon as it ends.

    queue          ExampleQueue; its `rows` is B
    generator      torch.Generator on the device of the queue
    k_schedule     (iteration, K) pairs: from that iteration on, a full-length row reveals K tokens
                   per stage, so a chain has round(L / K) stages, at least 2; a row that is partly
                   prompt reveals K * L_eff / L tokens. A whole number: this K throughout
    tau            also reveal all with confidence above this (fast-forward); None = off
    buffer         how many batches of chains are held; 1 = as in the paper
    random_share   share of the buffer's rows that hold no chain, but a new example under a random
                   mask at each visit. A model with confidence above tau everywhere ends its chains
                   at once; without such rows it then forgets all states but the first
                   (theory/README.md, results/when.md). Not in the paper, where it is 0.
    """

    def __init__(
        self, queue, mask_token, generator, k_schedule, tau=0.9, buffer=8, random_share=0.0
    ):
        super().__init__(queue, mask_token, generator, buffer)
        self.k_schedule, self.tau = check_schedule(k_schedule), tau_or_inf(tau)
        self.random_share, self.is_random = random_share, self.spread(random_share)
        self.set_stages(self.stages_at(0))
        self.stage, self.hidden = self.first_states()
        self.mask_random_rows()

    def start_chains(self, old, hidden):
        """Start new chains; those where `old` (batches, B) continue from states hidden (n, L)."""
        self.stage, self.hidden = self.first_states()
        self.hidden[old] = hidden
        self.stage[old] = self.reached()[old]
        self.mask_random_rows()
        self.coming = None

    def spread(self, share):
        """Which rows of the buffer hold no chain: a share, evenly spread, (batches, B) bool.

        Raises ValueError if a share above 0 comes to no row, or to all.
        """
        rows = self.number.numel()
        count = (torch.arange(rows + 1, device=self.number.device) * share).floor()
        if share and not 0 < count[-1] < rows:
            raise ValueError(
                f"random_share {share} of {rows} rows in the buffer is {int(count[-1])}: "
                "expected at least one, but not all"
            )
        return (count[1:] > count[:-1]).view_as(self.number)

    def numbered(self):
        """The number of each chain, (batches, B); a row without one repeats another's."""
        return ((~self.is_random).flatten().cumsum(0) - 1).view_as(self.number)

    def mask_random_rows(self):
        """Draw random masks for all rows that hold no chain."""
        if self.random_share:
            masks = random_masks(self.prompt.flatten(0, 1), self.generator).view_as(self.hidden)
            self.hidden = torch.where(self.is_random[..., None], masks, self.hidden)

    def prepare(self, iteration):
        self.queue.top_up()
        if (stages := self.stages_at(iteration)) != self.known:
            self.switch(stages)

    def visit(self):
        self.begin_visit()
        x0, hidden = self.visited("x0"), self.visited("hidden")
        return Batch(x0.masked_fill(hidden, self.mask_token), x0, hidden)

    def switch(self, stages):
        """K has changed: every chain continues, at the stage that its revealed share puts it in."""
        self.set_stages(stages)
        self.stage.copy_(self.reached())

    def reached(self):
        """The stage (batches, B) that the revealed share of each chain puts it in."""
        effective = (~self.prompt).sum(-1)
        return stage_of(effective - self.hidden.sum(-1), effective, self.stages)

    def advance(self, score, confidence):
        """Reveal true tokens, replace the chains that ended, turn to the next batch.

        Raises RuntimeError without a visit before it, ValueError for inputs with a gradient.
        """
        self.end_visit(score, confidence)
        chance = [uniform(len(score), self.generator)]
        if self.random_share:
            chance += uniform(len(score), self.generator), noise(score.shape, self.generator)
        self.move(score, confidence, *chance)

    def move(self, score, confidence, r, share=None, order=None):
        """`advance` after its random draws: a generator cannot be compiled.

        r (B,) goes to `step`; share (B,) and order (B, L) to the masks of the rows without chains.
        """
        x0, prompt, hidden, stage = (self.visited(name) for name in self.STATE[:4])
        hidden, stage, ended = step(
            hidden, stage, (~prompt).sum(1), score, confidence, r, self.stages, self.tau
        )
        is_random = self.visited("is_random")
        state = self.refill(ended | is_random, x0, prompt, hidden, stage)
        if self.random_share:
            masks = masks_of_share(state["prompt"], share, order)
            state["hidden"] = torch.where(is_random[:, None], masks, state["hidden"])
        self.leave(**state)

    def stages_at(self, iteration):
        return stages_of(self.queue.x0.shape[1], value_at(self.k_schedule, iteration))


def take_apart(states, queue):
    """The queues in the state_dicts of several streams, and their chains, {name: (n, ...)}.

    Random masks have no chains: n = 0. Raises ValueError like `saved_chains`.
    """
    states = [state.get("chains", state) for state in states]
    queues = [state["queue"] for state in states]
    if "number" not in states[0]:
        none = torch.zeros(0, queue.x0.shape[1], dtype=torch.long)
        return queues, dict(x0=none, prompt=none.bool(), hidden=none.bool(), number=none[:, 0])
    parts = [saved_chains(state, queue) for state in states]
    return queues, {n: torch.cat([part[n].flatten(0, 1) for part in parts]) for n in parts[0]}


def saved_chains(state, queue):
    """x0, prompt, hidden (batches, B, L), number (batches, B) of the chains in a state_dict.

    The examples are looked up in the queue's data. Raises ValueError if the saved ones differ.
    """
    try:
        x0, prompt = queue.look_up(state["number"])
        hidden = unpacked(state["hidden"], prompt)
        if state["checksum"] != checksum(x0, prompt) or (hidden & prompt).any():
            raise ValueError("the rows differ")
    except ValueError as error:
        raise ValueError(f"the saved chains are not from this training set: {error}") from None
    return dict(x0=x0, prompt=prompt, hidden=hidden, number=state["number"])


def packed(mask):
    """mask (..., L) bool as bits, uint8 (..., L / 8 rounded up), on the CPU."""
    return torch.from_numpy(np.packbits(mask.cpu().numpy(), axis=-1))


def unpacked(bits, like):
    """The mask, shaped like `like`, that `packed` turned into bits. Or raises ValueError."""
    if bits.shape != (*like.shape[:-1], -(-like.shape[-1] // 8)):
        raise ValueError(f"bits {tuple(bits.shape)} of rows {tuple(like.shape)}")
    return torch.from_numpy(np.unpackbits(bits.numpy(), axis=-1, count=like.shape[-1])).bool()


def checksum(x0, prompt):
    """CRC-32 of rows, (..., L) each."""
    return zlib.crc32(prompt.cpu().numpy().tobytes(), zlib.crc32(x0.cpu().numpy().tobytes()))


# -- schedules -------------------------------------------------------------------------------------
def check_schedule(pairs, name="k_schedule"):
    """The (iteration, value) pairs; a whole number means this value throughout. Or ValueError."""
    if type(pairs) is int:
        pairs = [(0, pairs)]
    listed = pairs if isinstance(pairs, tuple | list) else []
    whole = [p for p in listed if isinstance(p, tuple | list) and [*map(type, p)] == [int] * 2]
    starts = [start for start, _ in whole]
    if (
        len(whole) != len(listed)
        or starts[:1] != [0]
        or starts != sorted(set(starts))
        or not all(start <= 10**9 and 1 <= value <= 10**9 for start, value in whole)
    ):
        raise ValueError(
            f"{name} {pairs}: expected (iteration, value) pairs of whole numbers; iterations start "
            "at 0 and increase, values are at least 1, and both at most 10^9"
        )
    return pairs


def check_sizes(schedule, length):
    """The block_schedule. Raises ValueError unless its sizes divide rows of that length."""
    schedule = check_schedule(schedule, "block_schedule")
    for _, size in schedule:
        if length % size:
            raise ValueError(f"block_schedule: blocks of {size} do not divide rows of {length}")
    return schedule


def value_at(schedule, iteration):
    return [value for start, value in schedule if start <= iteration][-1]


def tau_or_inf(tau):
    """tau as `step` takes it: inf for None. Raises ValueError unless it is a probability."""
    policies.check_tau(tau)
    return math.inf if tau is None else tau


# -- random draws ----------------------------------------------------------------------------------
def random_masks(prompt, generator, block=0):
    """Hides a uniform count in 1..L_eff of random positions in each row; hidden (B, L) bool.

    block: if not 0, the size of blocks that each count as a row.
    """
    rows = prompt.reshape(-1, block or prompt.shape[1])
    share = uniform(len(rows), generator)
    return masks_of_share(rows, share, noise(rows.shape, generator)).view_as(prompt)


def masks_of_share(prompt, share, order):
    """Random masks of a share (B,) in [0, 1) of each row: of 1 + share * L_eff positions.

    order (B, L): noise; the positions with the largest values are hidden.
    """
    effective = (~prompt).sum(1)
    count = 1 + (share * effective).long().clamp(max=effective - 1)
    return policies.reveal(order, ~prompt, count)


def random_reveal(prompt, stage, stages, generator):
    """Hidden positions (B, L) of rows at `stage` (B,), where the revealed ones are random."""
    effective = (~prompt).sum(1)
    count = tokens_at((stage + uniform(len(prompt), generator)) / stages, effective)
    return ~prompt & ~choose_random(~prompt, count, generator)


def uniform(n, generator):
    return noise((n,), generator)


def noise(shape, generator):
    return torch.rand(shape, generator=generator, device=generator.device)


def choose_random(candidates, count, generator):
    """count (B,) random positions out of each row's candidates, (B, L) bool."""
    return policies.reveal(noise(candidates.shape, generator), candidates, count)
