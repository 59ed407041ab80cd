"""Fill in masked tokens with a trained model; solve Sudoku puzzles from the command line.

    python sample.py --out_dir=out/sudoku_mini_puma_1                   its held-out puzzles
    python sample.py --out_dir=out/sudoku_mini_puma_1 --puzzle=..3.1    one, 0 or . for a blank
    python sample.py --out_dir=out/sudoku_mini_puma_1 --file=FILE       one puzzle per line
    python sample.py --out_dir=out/sudoku_mini_puma_1 --watch           see a grid fill in

`generate` is the library: it takes tensors and a model and knows nothing of Sudoku.
"""

import csv
import functools
import time
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

import backend
import checkpoint
import policies
import sudoku
from cache import Cache
from configurator import configure
from losses import chunks

# -- what to solve -------------------------------------------------------------------------------
out_dir = "out/sudoku_mini_puma_1"  # the run whose averaged weights are used
puzzle = ""  # a puzzle, row by row, 0 or . for a blank
file = ""  # a file with one puzzle per line, or a CSV file with a column `puzzle`
examples = 512  # of the run's held-out puzzles at most, when neither is given
# -- how -----------------------------------------------------------------------------------------
policy = "top_k"  # top_k, margin, entropy, random, left_to_right, semi_ar_<block size>
reveal = 2  # tokens revealed per step
tau: float | None = None  # reveal all that is surer than this, else `reveal` tokens; None = off
tau_entropy: float | None = None  # the same for all of less entropy than this, in nats
temperature = 0.0  # 0 = the likeliest token
seed = 1  # of the sampled tokens and of the random policy
batch_size = 256  # rows in work at a time
watch = False  # show the grids filling in, in the terminal; one held-out puzzle if none is given
delay = 0.15  # seconds per step of watch
# -- system --------------------------------------------------------------------------------------
device = ""  # cpu, cuda, mps; "" = the best there is
dtype = ""  # bfloat16 or float32; "" = chosen by the hardware


@torch.no_grad()
def generate(
    model, x, hidden, policy, count, tau=None, temperature=0.0, batch_size=256, progress=False,
    tau_entropy=None, top_p=1.0,
):  # fmt: skip
    """Unmask the hidden positions of x, step by step (paper, section 2).

    x (N, L) token ids, hidden (N, L) bool. Each step reveals the `count` positions of the highest
    score; with tau, all positions surer than tau and, in rows where there is none, the `count`
    best; with tau_entropy, the same for positions of less entropy than that (nats).
    temperature > 0 first samples a token for every position, out of the likeliest ones that have
    top_p of the probability; `confidence` is then the model's untempered probability of what was
    sampled (paper, table 1); the entropy does not depend on it.

    A model with blocks fills in one block after the other, and so does this inside each. A causal
    model's blocks are single tokens: policy, count and tau have nothing to choose from, whatever
    they are.

    Returns the tokens (N, L), the step at which each was revealed (N, L), from 1, 0 = given, and
    the number of forward passes; progress shows how many tokens are revealed.
    """
    if count < 1 or batch_size < 1 or temperature < 0 or not 0 < top_p <= 1:
        raise ValueError(
            f"{count=}, {batch_size=}: at least 1; {temperature=}: at least 0; {top_p=}: up to 1"
        )
    sure, tau = policies.threshold(tau, tau_entropy)
    x, hidden = x.masked_fill(hidden, model.mask_token), hidden.clone()
    predicted = functools.partial(
        predict, model, policy=policy, temperature=temperature, top_p=top_p, sure=sure
    )
    step = functools.partial(reveal_step, predicted, count, tau)
    order = by_blocks if 0 < model.block < x.shape[1] else at_once
    with tqdm(total=hidden.sum().item(), unit="token", leave=False, disable=not progress) as bar:
        revealed_at, passes = order(model, x, hidden, step, batch_size, bar)
    return x, revealed_at, passes


def at_once(model, x, hidden, step, batch_size, bar):
    """Fill in x, hidden (N, L) in place. Finished rows leave, waiting rows take their places."""
    revealed_at, age = torch.zeros_like(x), torch.zeros_like(x[:, 0])
    waiting = hidden.any(1).nonzero()[:, 0]
    active, passes = waiting[:0], 0
    while len(active) + len(waiting):
        free = batch_size - len(active)
        active, waiting = torch.cat((active, waiting[:free])), waiting[free:]
        rows, now = x[active], hidden[active]  # (B, L)
        x[active], chosen = step(model(rows), rows, now)
        passes += 1
        age[active] += 1
        revealed_at[active] = torch.where(chosen, age[active, None], revealed_at[active])
        hidden[active] = now & ~chosen
        active = active[hidden[active].any(1)]
        bar.update(chosen.sum().item())
    return revealed_at, passes


def by_blocks(model, x, hidden, step, batch_size, bar):
    """Fill in x, hidden (N, L) in place, block by block from the left; finished blocks are cached.

    The rows of a batch start each block together. `passes` counts those that fill the cache too.
    """
    L, size, passes = x.shape[1], model.block, 0
    revealed_at = torch.zeros_like(x)
    work = hidden.any(1).nonzero()[:, 0]
    for rows in work.split(batch_size) if len(work) else ():
        cache, age = Cache(model, L), torch.zeros_like(x[rows, :1])
        columns = hidden[rows].any(0).nonzero()[:, 0]
        given, last = (columns[[0, -1]] // size * size).tolist()  # first and last block to fill in
        if given:
            cache.keep(x[rows, :given])
        for start in range(given, last + 1, size):
            block = slice(start, start + size)
            tokens, now, at = x[rows, block], hidden[rows, block], revealed_at[rows, block]
            while now.any():
                tokens, chosen = step(cache.states(tokens), tokens, now, start)
                age += chosen.any(1, keepdim=True)
                at, now = torch.where(chosen, age, at), now & ~chosen
                bar.update(chosen.sum().item())
            x[rows, block], revealed_at[rows, block] = tokens, at
            if start < last:
                cache.keep(tokens)
        passes += cache.passes
    return revealed_at, passes


def reveal_step(predicted, count, tau, h, x, hidden, start=0):
    """One step at positions from `start` on: h (B, n, dim), x, hidden (B, n) -> x and what changed.

    h are the states that score x; predicted(h, position) is `predict` of n of them.
    """
    where = hidden.nonzero(as_tuple=True)
    found = predicted(h[where], where[1] + start)  # (n,) each
    token, certainty, score = (f.new_zeros(x.shape).index_put_(where, f) for f in found)  # (B, n)
    chosen = choose(score, certainty, hidden, count, tau)
    return torch.where(chosen, token, x), chosen


def predict(model, h, position, policy, temperature=0.0, top_p=1.0, sure=policies.top_k):
    """Token and the scores of two policies, `sure` and `policy`, at n positions, (n,) each."""
    found = []
    for part in chunks(len(h), model.vocab_size):
        log_probs = model.logits(h[part]).log_softmax(-1)
        token = draw(log_probs, temperature, top_p)
        confidence = log_probs.gather(-1, token[:, None])[:, 0].exp()
        given = log_probs, confidence, position[part]
        found.append((token, sure(*given), policy(*given)))
    return map(torch.cat, zip(*found, strict=True))


def draw(log_probs, temperature, top_p=1.0):
    """The likeliest token, or one sampled at the temperature by the Gumbel-max trick, float32."""
    if temperature == 0:
        return log_probs.argmax(-1)
    gumbel = -torch.rand_like(log_probs, dtype=torch.float32).log().neg().log()
    return (nucleus(log_probs / temperature, top_p) + gumbel).argmax(-1)


def nucleus(logits, top_p):
    """-inf for all but the fewest tokens that, the likeliest first, have top_p of the probability.

    (n, V) -> (n, V); arXiv 1904.09751, of the distribution at the temperature.
    """
    if top_p == 1:
        return logits
    share = logits.softmax(-1)
    # Tokens below this share, all together, do not have the rest: no need to sort them.
    candidates = (share >= (1 - top_p) / share.shape[-1]).sum(-1).max()
    share, token = share.topk(int(candidates))
    outside = share.cumsum(-1) - share >= top_p  # what the likelier ones have is enough
    kept = logits.gather(-1, token).masked_fill(outside, -torch.inf)
    return torch.full_like(logits, -torch.inf).scatter(-1, token, kept)


def choose(score, certainty, hidden, count, tau):
    """The positions to reveal in this step, (B, L) bool: one at least where any is hidden."""
    best = policies.reveal(score, hidden, score.new_full(score.shape[:1], count))
    if tau is None:
        return best
    sure = policies.fast_forward(certainty, hidden, tau)
    return torch.where(sure.any(1, keepdim=True), sure, best)


def main():
    with backend.mistakes_named():
        _, _, where = backend.start(device)
        autocast = backend.autocast(where, dtype)
        model, config, _ = checkpoint.load_model(Path(out_dir) / "checkpoint.pt", where)
        if config["dataset"] != "sudoku":
            raise ValueError(f"{out_dir} was trained on {config['dataset']}: see gsm8k.py")
        box = tuple(config["box"])
        puzzles = read_puzzles(box) if puzzle or file else held_out(config)
        sudoku.validate(puzzles, box)
        chosen = policies.get(policy)

    torch.manual_seed(seed)
    clues = torch.from_numpy(puzzles).long().to(where)
    begin = time.perf_counter()
    with backend.mistakes_named(), autocast:
        tokens, revealed_at, passes = generate(
            model, clues - 1, clues == 0, chosen, reveal, tau, temperature, batch_size,
            progress=len(puzzles) > batch_size, tau_entropy=tau_entropy,
        )  # fmt: skip
    grids, revealed_at = tokens.cpu().numpy() + 1, revealed_at.cpu().numpy()
    seconds = time.perf_counter() - begin

    solved = sudoku.solves(grids, puzzles, box)
    for row in range(len(puzzles)) if puzzle or file or watch else ():
        if watch:
            animate(puzzles[row], grids[row], revealed_at[row], box)
        elif puzzle:
            print(sudoku.render(grids[row], box))
        print(sudoku.to_text(grids[row]), "solved" if solved[row] else "wrong")
    steps = revealed_at.max(1).sum()
    print(
        f"solved {solved.sum()} of {len(puzzles)} ({solved.mean():.1%}): {policy}, "
        f"{(puzzles == 0).sum() / steps:.2f} tokens per step, {passes} forward passes, "
        f"{seconds:.1f} s"
    )


def held_out(config):
    test = sudoku.load(config).test
    return test.puzzles(np.arange(min(1 if watch else examples, len(test))))


def read_puzzles(box):
    """The puzzles of the command line, uint8 (N, L). Raises ValueError that names the line."""
    if puzzle:
        return sudoku.parse(puzzle, box)[None]
    with open(file, newline="") as lines:
        rows = [(reader.line_num, row) for reader in [csv.reader(lines)] for row in reader if row]
    if not rows:
        raise ValueError(f"{file} is empty: expected one puzzle per line")
    column = rows[0][1].index("puzzle") if "puzzle" in rows[0][1] else 0
    puzzles = []
    for line, row in rows["puzzle" in rows[0][1] :]:
        try:
            puzzles.append(sudoku.parse(row[column], box))
        except (ValueError, IndexError) as error:
            raise ValueError(f"{file}, line {line}: {error}") from None
    return np.stack(puzzles)


def animate(clues, grid, revealed_at, box):
    """Print the grid after every step, in place; then the step at which each cell was revealed."""
    height = len(sudoku.render(clues, box).splitlines())
    for step in range(revealed_at.max() + 1):
        shown = np.where(revealed_at <= step, grid, 0)
        print(sudoku.render(shown, box), f"\nstep {step}", flush=True)
        time.sleep(delay)
        if step < revealed_at.max():
            print(f"\033[{height + 1}A", end="")  # back up to overwrite the grid
    print("revealed at step (. = given)")
    n, width = box[0] * box[1], len(str(revealed_at.max()))
    for cells in revealed_at.reshape(n, n):
        print(" ".join(f"{step or '.':>{width}}" for step in cells))


if __name__ == "__main__":
    configure(globals())
    main()
