"""Fill in masked tokens with a trained model; solve Sudoku puzzles from the command line.

    python sample.py --out_dir=out/sudoku_mini_puma_1                   its held-out puzzles
    python sample.py --out_dir=out/sudoku_mini_puma_1 --puzzle=..3.1    one, 0 or . for a blank
    python sample.py --out_dir=out/sudoku_mini_puma_1 --file=FILE       one puzzle per line
    python sample.py --out_dir=out/sudoku_mini_puma_1 --watch           see a grid fill in

`generate` is the library: it takes tensors and a model and knows nothing of Sudoku.
"""

import csv
import time
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

import backend
import checkpoint
import policies
import sudoku
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
    sampled (paper, table 2); the entropy does not depend on it.

    Returns the tokens (N, L), the step at which each was revealed (N, L), from 1, 0 = given, and
    the number of forward passes. Finished rows leave the batch, waiting ones take their places;
    progress shows how many tokens are revealed.
    """
    if count < 1 or batch_size < 1 or temperature < 0 or not 0 < top_p <= 1:
        raise ValueError(
            f"{count=}, {batch_size=}: at least 1; {temperature=}: at least 0; {top_p=}: up to 1"
        )
    sure, tau = policies.threshold(tau, tau_entropy)
    x, hidden = x.masked_fill(hidden, model.mask_token), hidden.clone()
    revealed_at, age = torch.zeros_like(x), torch.zeros_like(x[:, 0])
    waiting = hidden.any(1).nonzero()[:, 0]
    active, passes = waiting[:0], 0
    bar = tqdm(total=hidden.sum().item(), unit="token", leave=False, disable=not progress)
    while len(active) + len(waiting):
        free = batch_size - len(active)
        active, waiting = torch.cat((active, waiting[:free])), waiting[free:]
        rows, now = x[active], hidden[active]  # (B, L)
        where = now.nonzero(as_tuple=True)
        h = model(rows)[where]  # (n, dim)
        found = predict(model, h, where[1], policy, temperature, top_p, sure)  # (n,) each
        token, certainty, score = (
            f.new_zeros(rows.shape).index_put_(where, f) for f in found
        )  # (B, L)
        chosen = choose(score, certainty, now, count, tau)
        passes += 1
        age[active] += 1
        x[active] = torch.where(chosen, token, rows)
        revealed_at[active] = torch.where(chosen, age[active, None], revealed_at[active])
        hidden[active] = now & ~chosen
        active = active[hidden[active].any(1)]
        bar.update(chosen.sum().item())
    bar.close()
    return x, revealed_at, passes


def predict(model, h, position, policy, temperature, top_p, sure):
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
    """The positions to reveal in this step, (B, L) bool: at least one in every row."""
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

    solved = sudoku.check(grids, puzzles, box)
    for row in range(len(puzzles)) if puzzle or file or watch else ():
        if watch:
            animate(puzzles[row], grids[row], revealed_at[row], box)
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
