"""Sampling: fill in masked tokens a few at a time, by a policy's order (paper, section 2).

    python sample.py --prompt=1......23....4.5.....2...5.12..3..5. --watch
    python sample.py --out_dir=out/sudoku_mini_puma_1              a held-out puzzle of your run
    python sample.py --out_dir=out/gsm_mini_puma_1 --prompt="Ann has 3 pens ..."
    python sample.py --policy=entropy --reveal=1 --temperature=0.5     any sampler

`generate` (x, hidden (N, L) -> tokens (N, L)) also serves evaluation and studies; a `Sampler` holds
its settings. Not here: the policies (policies.py), results of a finished run (eval.py).
"""

from configurator import configure, errors_as_messages  # isort: skip (first, to say if torch is missing)
import functools
from typing import NamedTuple

import torch

import policies
import tasks
from engine import processes
from engine.files import say
from engine.head import chunks
from engine.machine import autocast

# -- what ----------------------------------------------------------------------------------------
out_dir = "weights/sudoku_mini"  # a run, whose averaged weights are used, or export.py's folder
prompt = ""  # a puzzle, row by row, 0 or . = blank; 12+34; a text; "" = the first held-out one
watch = False  # show in the terminal how it fills in (runs/watch.py)
delay = 0.15  # 0..60: seconds per step with --watch
seed = 1  # 0..: for sampled tokens and the random policy
# -- system --------------------------------------------------------------------------------------
device = ""  # cpu, cuda, mps; "" = the best there is
dtype = ""  # bfloat16 or float32; "" = chosen by the hardware

GRID = 2.0**-24  # the steps of torch.rand in float32


class Sampler(NamedTuple):
    """How to sample. Its fields are settings of sample.py, and, as lists too, of eval.py."""

    policy: str = "top_k"  # top_k, margin, entropy, random, left_to_right, semi_ar_8
    reveal: int = 2  # 1..: tokens revealed per step
    tau: float | None = None  # 0..1: reveal all with confidence above it, else `reveal`; None = off
    tau_entropy: float | None = None  # 0..: the same, where the entropy is below this (nats)
    temperature: float = 0.0  # 0..100: 0 = the likeliest token
    top_p: float = 1.0  # 0..1: sample from the likeliest tokens with this total probability

    def check(self):
        """Raise ValueError, naming the field, for a value out of its range."""
        policies.get(self.policy)
        policies.threshold(self.tau, self.tau_entropy)
        if self.reveal < 1 or self.temperature < 0 or not 0 < self.top_p <= 1:
            raise ValueError(f"{self!r}: expected reveal >= 1, temperature >= 0, 0 < top_p <= 1")

    def __str__(self):
        words = f"{self.reveal} per step"
        if self.tau is not None:
            words = f"confidence above {self.tau:g}, else {words}"
        if self.tau_entropy is not None:
            words = f"entropy below {self.tau_entropy:g}, else {words}"
        heat = f", T = {self.temperature:g}" if self.temperature else ""
        nucleus = f", top-p {self.top_p:g}" if self.top_p < 1 else ""
        return f"{self.policy}, {words}{heat}{nucleus}"


@torch.no_grad()
def generate(model, x, hidden, sampler, block=0, batch_size=256, progress=lambda rows: None,
             broken=None):  # fmt: skip
    """Unmask the hidden positions of x, step by step.

    model: model.Transformer, or another model in model.Logits, with dropout off (model.eval()).
    x (N, L) token ids, ignored at hidden positions; hidden (N, L) bool.
    Each step reveals the sampler's `reveal` positions with the highest score; with tau, all
    positions with confidence above tau, or the `reveal` best in a row without any. temperature > 0
    first samples a token for every position; `confidence` is then the model's untempered
    probability of the sampled token (paper, table 1), and the entropy does not depend on it.
    block: the size of blocks filled in one after the other; 0 = the whole row. Needs a Transformer;
    a causal model's blocks are single tokens. progress(n): called at each step with N times the
    share of the hidden tokens that it has revealed. broken(x (B, L) on the CPU): which rows, bool
    (B,), break a rule already; they end with the mask tokens that are left. Not with blocks.

    Returns the tokens (N, L), the step at which each was revealed (N, L), from 1, 0 = given, and
    the number of forward passes. Raises ValueError for a bad sampler or an unsuitable model.
    """
    sampler.check()
    check_model(model, block)
    x = x.masked_fill(hidden, model.mask_token)
    hidden = hidden.clone()
    block = 1 if model.causal else block
    fill = functools.partial(whole_rows, broken)
    if 0 < block < x.shape[1]:
        fill = functools.partial(by_blocks, block)
    share = len(x) / max(1, hidden.sum().item())
    revealed_at, passes = fill(
        model, x, hidden, sampler, batch_size, lambda tokens: progress(tokens * share)
    )
    return x, revealed_at, passes


def check_model(model, block):
    """Raise ValueError unless `generate` can take the model."""
    kind = type(model).__name__
    if not hasattr(model, "mask_token"):
        raise ValueError(f"{kind} has no mask_token: wrap it as model.Logits(yours, mask_token)")
    if block and not hasattr(model, "model"):
        raise ValueError(f"block {block}: expected 0, or a Transformer; {kind} has no cache")


def whole_rows(broken, model, x, hidden, sampler, batch_size, progress):
    """Fill in x, hidden (N, L) in place, `batch_size` rows at a time.

    A waiting row takes the place of a finished one immediately. When none waits, finished rows stay
    until a quarter of the places is idle: the model then sees few shapes.
    """
    revealed_at = torch.zeros_like(x)
    age = torch.zeros_like(x[:, 0])
    queue = hidden.any(1).nonzero()[:, 0]
    taken = len(rows := queue[:batch_size])  # rows (B,) in progress
    passes = before = 0
    width = getattr(model, "carries", 0)
    carry = x.new_zeros((*x[:taken].shape, width), dtype=torch.float)  # of `rows` (carry.py)
    while True:
        now = hidden[rows]  # (B, L)
        working, left = torch.stack((now.any(1).sum(), hidden.sum())).tolist()
        progress(max(0, before - left))  # 0 at first
        if not working:
            return revealed_at, passes
        before = left
        size = slots_for(working, len(rows))
        if size < len(rows):
            kept = now.any(1).int().argsort(descending=True, stable=True)[:size]
            rows, now, carry = rows[kept], now[kept], carry[kept]
        tokens = x[rows]  # (B, L)
        h = model(tokens, carry=carry) if width else model(tokens)
        x[rows], chosen = reveal_step(model, sampler, h, tokens, now)
        passes += 1
        age[rows] += 1
        revealed_at[rows] = torch.where(chosen, age[rows, None], revealed_at[rows])
        hidden[rows] = unless_broken(now & ~chosen, x, rows, broken)
        # finished (B,)            F  T  T      with 5 rows of the queue taken,
        # cumsum                   0  1  2      the second and third place
        # next in the queue        4  5  6      go to its rows 5 and 6
        finished = ~hidden[rows].any(1)
        next_one = taken + finished.cumsum(0) - 1
        waiting = finished & (next_one < len(queue))
        rows = torch.where(waiting, queue[next_one.clamp(max=len(queue) - 1)], rows)
        carry = h.float().masked_fill(waiting[:, None, None], 0) if width else carry
        taken = taken + finished.sum()


def unless_broken(hidden, x, rows, broken):
    """hidden (B, L) of these rows of x; nothing in those that break a rule already."""
    if broken is None:
        return hidden
    return hidden & ~torch.as_tensor(broken(x[rows].cpu()), device=x.device)[:, None]


def slots_for(working, size):
    """How many of `size` slots to keep for `working` rows: all, or fewer by quarters."""
    while working <= size * 3 // 4:
        size = size * 3 // 4
    return size


def by_blocks(size, model, x, hidden, sampler, batch_size, progress):
    """Fill in x, hidden (N, L) in place, block by block from the left; finished blocks are cached.

    The rows of a batch start each block together. `passes` also counts those that fill the cache.
    """
    from block import Cache

    passes, revealed_at = 0, torch.zeros_like(x)
    work = hidden.any(1).nonzero()[:, 0]
    for rows in work.split(batch_size) if len(work) else ():
        cache = Cache(model, x.shape[1], size)
        age = torch.zeros_like(x[rows, :1])
        counts = hidden[rows].sum(0).tolist()  # per column
        starts = [column // size * size for column, count in enumerate(counts) if count]
        given = starts[0]  # the first block to fill in
        last = starts[-1]
        if given:
            cache.keep(x[rows, :given])
        for start in range(given, last + 1, size):
            block = slice(start, start + size)
            tokens = x[rows, block]
            now = hidden[rows, block]
            at = revealed_at[rows, block]
            left = sum(counts[block])
            carry = None
            while left:
                h = cache.states(tokens, carry)
                carry = h.float() if model.carries else None
                tokens, chosen = reveal_step(model, sampler, h, tokens, now, start)
                age += chosen.any(1, keepdim=True)
                at, now = torch.where(chosen, age, at), now & ~chosen
                before, left = left, now.sum().item()  # only here the host waits for the device
                progress(before - left)
            x[rows, block], revealed_at[rows, block] = tokens, at
            if start < last:  # nothing follows the last block
                cache.keep(tokens)
        passes += cache.passes
    return revealed_at, passes


def reveal_step(model, sampler, h, x, hidden, start=0):
    """One step on positions start .. start + n: x with new tokens, and where they are, (B, n) each.

    h (B, n, dim) are the states that score x (B, n); hidden (B, n).
    """
    measure, tau = policies.threshold(sampler.tau, sampler.tau_entropy)
    where = hidden.nonzero(as_tuple=True)  # rows, columns
    flat = predict(model, h[where], where[1] + start, sampler, measure)
    token, measured, score = (f.new_zeros(x.shape).index_put_(where, f) for f in flat)  # (B, n)
    chosen = choose(score, measured, hidden, sampler.reveal, tau)
    return torch.where(chosen, token, x), chosen


def predict(model, h, position, sampler, measure):
    """The token at n positions, what the threshold is compared with, the sampler's score."""
    policy, parts = policies.get(sampler.policy), []
    for part in chunks(len(h), model.vocab_size, h.device):
        log_probs = model.logits(h[part]).log_softmax(-1)  # (part of n, V)
        token = draw(log_probs, sampler.temperature, sampler.top_p)
        probability = log_probs.gather(-1, token[:, None])[:, 0].exp()
        args = log_probs, probability, position[part]
        parts.append((token, measure(*args), policy(*args)))
    return map(torch.cat, zip(*parts, strict=True))


def draw(log_probs, temperature, top_p=1.0):
    """The likeliest token, or one sampled at the temperature by the Gumbel-max trick."""
    if temperature == 0:
        return log_probs.argmax(-1)
    # A rare token wins if u is near 0, but torch.rand gives multiples of GRID only: of 150,000
    # tokens that share a probability of 0.1 % none would ever be drawn. A second u fills the gaps.
    u, finer = torch.rand(2, *log_probs.shape, device=log_probs.device)
    exponential = u.add_(finer, alpha=GRID).neg_().log1p_().neg_()  # -log(1 - u)
    return (nucleus(log_probs / temperature, top_p) - exponential.log_()).argmax(-1)


def nucleus(logits, top_p):
    """Logits (n, V), -inf outside the smallest set of likeliest tokens with top_p of probability.

    arXiv 1904.09751; of the distribution at the temperature.
    """
    if top_p == 1:
        return logits
    share = logits.softmax(-1)
    # Tokens this rare cannot reach 1 - top_p even together: drop them before sorting.
    candidates = (share >= (1 - top_p) / share.shape[-1]).sum(-1).max()
    share, token = share.topk(int(candidates))  # the host waits for the device, for each chunk
    outside = share.cumsum(-1) - share >= top_p  # the likelier ones are enough
    kept = logits.gather(-1, token).masked_fill(outside, -torch.inf)
    return torch.full_like(logits, -torch.inf).scatter(-1, token, kept)


def choose(score, measured, hidden, count, tau):
    """The positions to reveal in this step, (B, L) bool: at least one where any is hidden.

    measured: what tau is compared with, the confidence or the negative entropy.
    """
    best = policies.reveal(score, hidden, score.new_full(score.shape[:1], count))
    if tau is None:
        return best
    confident = policies.fast_forward(measured, hidden, tau)
    return torch.where(confident.any(1, keepdim=True), confident, best)


def main(sampler):
    from runs.saved import load_task, open_run

    with errors_as_messages():
        sampler.check()
        where = processes.start(device).device
        saved = open_run(out_dir, where)
        say(f"{out_dir}, iteration {saved.iteration}")
        task = load_task(saved.config, saved.model)
        test = task.prompts([prompt]) if prompt else task.test
        x, hidden = tasks.problems_on(where, test, [0])  # (1, L) each
        casts = autocast(where, dtype)
    if watch:
        from runs.watch import Screen

        screen = Screen(task, test, x[0], hidden[0])
        screen.begin()
    torch.manual_seed(seed)
    with casts:
        tokens, revealed_at, passes = generate(saved.model, x, hidden, sampler, saved.block)
        if watch:
            screen.play(saved.model, tokens[0], revealed_at[0], saved.block, delay)
    tokens = tokens.cpu().numpy()
    steps = revealed_at.max().item()
    if not watch:
        print(tasks.printable(test.show(tokens[0])))
    if verdict := test.verdict(test.judge(tokens, [0])[0]):
        print(tasks.printable(verdict))
    rate = hidden.sum().item() / max(1, steps)
    print(f"{rate:.2f} tokens per step, {passes} forward passes ({sampler})")


if __name__ == "__main__":
    settings = configure(globals(), fields=Sampler)
    main(Sampler(*(settings[field] for field in Sampler._fields)))
