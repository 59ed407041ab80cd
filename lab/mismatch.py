"""The mismatch that PUMA is for: is a model worse on the states that its sampler visits?

    python lab/study.py --run --seeds=8 --every=500                   # keeps weights on the way
    python lab/mismatch.py --out_dir="out/study/*_?" --figure=a.png   # means over seeds

Held-out examples are revealed token by token: `random`, true tokens at random places; `order`, true
tokens in the order of the policy; `own`, in that order the tokens that the model chooses itself. Of
each state the cross-entropy of the hidden tokens in nats, and the share whose likeliest token is
right; means over hidden tokens, states, examples. Where a puzzle has one solution, a perfect model
has no gap.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

import loss
import policies
from configurator import configure, pick
from lab.evaluate import open_run
from lab.likelihood import by_arm, kept
from lab.tables import interval, label

out_dir = "results/weights/sudoku_mini"  # a run of train.py; or a pattern of runs, ARM_SEED
examples = 128
figure = ""  # a file of matplotlib: the gap of `order`, over updates
title = ""  # of the figure: its finding
KINDS = "random", "order", "own"


def main():
    torch.set_num_threads(1)  # the tensors are small
    gaps = {}  # {arm: {seed: {update: nats of order less random}}}
    for arm, folders in by_arm(out_dir).items():
        runs = [{u: measured(at) for u, at in kept(run).items()} for run in folders]
        print(f"{label(arm)}, {len(runs)} seeds: nats, then % right, on {', '.join(KINDS)}; gap")
        for update in sorted(set.intersection(*map(set, runs))):
            nats, right = torch.tensor([run[update] for run in runs]).unbind(2)  # (seeds, kinds)
            gap = interval((nats[:, 1] - nats[:, 0]).tolist(), "{:+.3f}".format)
            shares = "".join(f"{100 * each:6.1f}" for each in right.mean(0))
            print(f"{update:6}", "".join(f"{each:7.3f}" for each in nats.mean(0)), shares, gap)
        gaps[arm] = {
            folder.name.rpartition("_")[2]: {u: at[1][0] - at[0][0] for u, at in run.items()}
            for folder, run in zip(folders, runs, strict=True)
        }
    differences(gaps)
    if figure:
        from lab import figures

        curves = {arm: [*runs.values()] for arm, runs in gaps.items()}
        figures.curves(curves, "nats, policy's order less random", None, title, figure)


def differences(gaps):
    """Of each arm: its gap after the last update, less that of random masks with the same seed."""
    base = gaps.get("mdm", {})
    for arm in sorted(gaps.keys() - {"mdm"}) if base else ():
        last = max(next(iter(base.values())))
        less = [own[last] - base[seed][last] for seed, own in gaps[arm].items()
                if last in own and last in base.get(seed, {})]  # fmt: skip
        shown = interval(less, "{:+.3f}".format)
        print(f"{label(arm)} less random masks, {len(less)} pairs: {shown} after {last}")


@torch.no_grad()
def measured(folder):
    model, run, problem, count = open_run(folder, examples, "cpu")
    x0, prompt = (torch.as_tensor(rows) for rows in problem.test[:count])
    torch.manual_seed(1)  # the same random places for all weights
    order = policies.POLICIES[pick("policy", run["policy"], policies.POLICIES)]
    return [states(model, x0.long(), prompt, order, k) for k in KINDS]


def states(model, x0, prompt, policy, kind):
    """Nats and share right, means over the states of one kind; x0, prompt (N, L)."""
    hidden = ~prompt
    x = x0.masked_fill(hidden, model.mask_token)
    sums = torch.zeros(2, len(x0))
    while hidden.any():
        log_probs = model.logits(model(x)).log_softmax(-1)
        nll, score, _ = loss.read(log_probs, x0, policy)
        guess = log_probs.argmax(-1)
        of_state = torch.stack((nll, guess == x0)) * hidden
        sums += of_state.sum(2) / hidden.sum(1).clamp(min=1)
        score = torch.rand_like(score) if kind == "random" else score
        chosen = policies.reveal(score, hidden, torch.ones_like(x0[:, 0]))
        x = torch.where(chosen, guess if kind == "own" else x0, x)
        hidden = hidden & ~chosen
    return (sums / (~prompt).sum(1)).mean(1).tolist()


if __name__ == "__main__":
    configure(globals())
    main()
