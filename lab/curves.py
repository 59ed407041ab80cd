"""What changes while runs train (paper, figures 6 and 11), of weights that were kept on the way.

    python lab/study.py --run --every=100                # trains and keeps them, and judges them
    python lab/curves.py                                 # nats per token (lab/likelihood.py)
    python lab/curves.py --what=distance                 # of the order of revealing to the last

distance is eq. traj-dist: the mean over all cells, clues included, of |u_t - u_T|, where u is the
step of a chain of true tokens, with K of training and no tau, that reveals a cell. Every line is a
mean over seeds; --figure=FILE.png draws it.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

import policies
import puma
from configurator import configure, pick
from lab import evaluate, figures, likelihood, tables

arms = ["puma_plus", "mdm"]  # runs are OUT/ARM_SEED
seeds = 1
out = "out/study"
what = "nelbo"  # nelbo, distance
policy = "top_k"  # of the order
examples = 100  # held out
figure = ""  # a file of matplotlib
title = ""  # of the figure: its finding


def main():
    pick("what", what, MEASURES)
    pick("policy", policy, policies.POLICIES)
    about = {"nelbo": "NELBO, nats per token",
             "distance": f"distance of the order ({policy}) to the last one"}[what]  # fmt: skip
    lines = {}
    for arm in arms:
        measured = [curve(Path(out, f"{arm}_{seed}")) for seed in range(1, seeds + 1)]
        updates = sorted(set.intersection(*map(set, measured)))
        values = torch.tensor([[each[update] for each in measured] for update in updates]).mean(1)
        print(f"\n{arm}, {about}, {seeds} seeds")
        for update, value in zip(updates, values.tolist(), strict=True):
            print(f"  {update:6} {value:8.3f}", flush=True)
        lines[f"{tables.label(arm)}, mean of {seeds} seeds"] = updates, values, 0 * values
    if figure:
        figures.lines_over_updates(lines, about, None, title, figure)


def curve(folder):
    """{update: value} of a run; all have the same draws and the same examples."""
    kept = sorted(int(path.parent.name) for path in folder.glob("at/*/ckpt.pt"))
    if not kept:
        raise SystemExit(f"{folder} has no kept weights: python lab/study.py --run --every=100")
    values = {}
    for update in kept:
        run = evaluate.open_run(folder / "at" / str(update), examples, "cpu")
        likelihood.refuse_own_sampler(run[1]["variant"])
        values[update] = MEASURES[what](*run)
    if what == "distance":
        last = values[kept[-1]]
        values = {u: (each - last).abs().float().mean().item() for u, each in values.items()}
    return values


def nelbo(model, run, problem, count):
    torch.manual_seed(1)
    x0, prompt = (torch.as_tensor(rows) for rows in problem.test[:count])
    nats = likelihood.nelbo(model, x0.long(), prompt, masks=16)
    return (nats.sum() / (~prompt).sum()).item()


@torch.no_grad()
def order(model, run, problem, count):
    """The step of a chain of true tokens that reveals each place, (n, L); 0 in the prompt."""
    x0, prompt = (torch.as_tensor(rows) for rows in problem.test[:count])
    K = puma.value_at(run["k_schedule"], run["max_iters"])
    hidden = ~prompt
    step = torch.zeros_like(x0, dtype=torch.long)
    while hidden.any():
        step += hidden
        _, score = likelihood.read(model, x0.long(), hidden, policies.POLICIES[policy])
        hidden = hidden & ~policies.reveal(score, hidden, torch.full_like(step[:, 0], K))
    return step


MEASURES = {"nelbo": nelbo, "distance": order}

if __name__ == "__main__":
    os.chdir(Path(__file__).resolve().parents[1])
    configure(globals())
    main()
