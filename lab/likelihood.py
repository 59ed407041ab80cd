"""The likelihood of held-out examples, and the order of revealing; also while runs train.

    python lab/likelihood.py --out_dir=out/sudoku_tiny
    python lab/study.py --run --seeds=3 --every=100                    # keeps weights on the way
    python lab/likelihood.py --out_dir="out/study/*_?" --examples=100  # means over seeds

nelbo (paper, eq. 1, figure 11): E[1/t sum over hidden i of -log f_i(x0_i | x_t)], t ~ U(0, 1).
Integrated over t, a set of h of the L_eff tokens has the weight 1 / (h comb(L_eff, h)), so without
drawing t it is

    L_eff E[mean over hidden i of -log f_i(x0_i | x)],    h ~ U{1, ..., L_eff} random tokens hidden

chain (arXiv 2609.37974): true tokens are revealed one by one in the order of a policy, which sees
no hidden token. So the sum of -log f_i, each at the step that reveals i, is -log P(x0 | prompt), if
tokens are drawn at temperature 1 in the order of temperature 0.

distance (paper, eq. traj-dist, figure 6): the mean over all cells, clues included, of |u_t - u_T|,
where u is the step of a chain of true tokens, with K of training and no tau, that reveals a cell.
"""

import re
import sys
from glob import glob
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

import checkpoint
import loss
import policies
import puma
from configurator import configure, pick
from lab.evaluate import open_run
from lab.tables import mean

out_dir = "results/weights/sudoku_mini"  # a run of train.py; or a pattern of runs, ARM_SEED
what = "nelbo"  # nelbo, chain, distance
policy = ""  # of chain and distance: top_k, margin, entropy; "" = the run's
masks = 16  # 1.. of each example
examples = None  # 1.. held out; None = those that the run was tested on
batch_size = 64  # 1..
device = "cuda" if torch.cuda.is_available() else "cpu"
figure = ""  # a file of matplotlib, over updates
title = ""  # of the figure: its finding


def main():
    pick("what", what, ("nelbo", "chain", "distance"))
    arms = {arm: [*map(curve, runs)] for arm, runs in by_arm(out_dir).items()}
    unit = "steps to the order of the end" if what == "distance" else "nats per token"
    for arm, curves in arms.items():
        print(f"{arm}, {what}, {unit}, mean of {len(curves)}")
        for update in sorted(set.intersection(*map(set, curves))):
            print(f"  {update:6} {mean([each[update] for each in curves]):8.3f}")
    if figure:
        from lab import figures

        figures.curves(arms, unit, None, title, figure)


def by_arm(pattern):
    """{arm: its runs}, folders that are named ARM_SEED."""
    arms = {}
    for run in sorted(glob(pattern)):
        arms.setdefault(re.sub(r"_\d+$", "", Path(run).name), []).append(Path(run))
    if not arms:
        raise SystemExit(f"{pattern}: no such run")
    return arms


def kept(run):
    """{update: folder} of the weights kept on the way, or of the last."""
    on_the_way = {int(folder.name): folder for folder in run.glob("at/*")}
    return dict(sorted(on_the_way.items())) or {checkpoint.load(run)["iteration"]: run}


def curve(run):
    """{update: value}; the same draws for all."""
    found = {}
    for update, folder in kept(run).items():
        problem, *rows = measured(folder)
        found[update] = rows[-1]
        if what != "distance":
            result = estimates(problem, *rows)
            said = (f"{value:.5g} +- {error:.2g} {unit}" for unit, (value, error) in result.items())
            print(f"{folder}: " + ", ".join(said), flush=True)
            found[update] = result["nats per token"][0]
    if what == "distance":
        last = found[max(found)]
        return {update: (u - last).abs().float().mean().item() for update, u in found.items()}
    return found


def measured(folder):
    """The task, x0, prompt, and of each position nats or the step that reveals it, (N, L) each."""
    model, run, problem, count = open_run(folder, examples, device)
    if checkpoint.of_variant(run["variant"], "generate", None):
        raise SystemExit(f"{run['variant']} has a sampler of its own, which this does not follow")
    x0, prompt = (torch.as_tensor(rows) for rows in problem.test[:count])
    torch.manual_seed(1)
    parts = torch.arange(count).split(batch_size)
    values = [of_batch(model, run, x0[at].long().to(device), prompt[at].to(device)) for at in parts]
    return problem, x0, prompt, torch.cat(values).cpu()


def of_batch(model, run, x0, prompt):
    if what == "nelbo":
        return nelbo(model, x0, prompt, masks)
    orders = {name: each for name, each in policies.POLICIES.items() if name != "random"}
    order = orders[pick("policy", policy or run["policy"], orders)]
    if what == "chain":
        return chain(model, x0, prompt, order, 1)[0]
    return chain(model, x0, prompt, order, puma.value_at(run["k_schedule"], run["max_iters"]))[1]


def nelbo(model, x0, prompt, masks):
    """An estimate of each position's part of the bound, nats (n, L)."""
    effective = (~prompt).sum(1, keepdim=True)
    # Most of the variance is that of h: each is drawn from another of n * masks parts of (0, 1)
    part = torch.rand(len(x0), masks).argsort(0)  # a permutation in each column
    u = (torch.arange(masks) + (part + torch.rand(part.shape)) / len(x0)) / masks  # (n, masks)
    h = 1 + (u.to(x0.device) * effective).long().clamp(max=effective - 1)
    nats = 0
    for count, weight in zip(h.T, (effective / h / masks).T, strict=True):
        hidden = policies.reveal(torch.rand(x0.shape, device=x0.device), ~prompt, count)
        nats = nats + read(model, x0, hidden, policies.top_k)[0] * weight[:, None]
    return nats


def chain(model, x0, prompt, policy, K):
    """-log f_i at the step that reveals position i, and that step, 0 in the prompt; (n, L)."""
    hidden = ~prompt
    nats = torch.zeros(x0.shape, device=x0.device)
    step = torch.zeros_like(x0)
    while hidden.any():
        step += hidden
        nll, score = read(model, x0, hidden, policy)
        chosen = policies.reveal(score, hidden, torch.full_like(x0[:, 0], K))
        nats = nats + nll * chosen
        hidden = hidden & ~chosen
    return nats, step


@torch.no_grad()
def read(model, x0, hidden, policy):
    """-log f_i(x0_i | x) and the policy's score where hidden, else 0; (n, L)."""
    where = hidden.nonzero(as_tuple=True)
    h = model(x0.masked_fill(hidden, model.mask_token))[where]
    target = x0[where]
    parts = loss.chunks(len(h), model.vocab_size)
    seen = [loss.read(model.logits(h[at]).log_softmax(-1), target[at], policy) for at in parts]
    nll, score, _ = (torch.cat(values).double() for values in zip(*seen, strict=True))
    return [nll.new_zeros(hidden.shape).index_put(where, values) for values in (nll, score)]


def estimates(problem, x0, prompt, nats):
    """{unit: (value, its standard error over rows and their masks)} of nats (N, L)."""
    total = nats.sum(1)
    tokens = (~prompt).sum(1)
    sums = {"nats per example": (total, tokens > 0), "nats per token": (total, tokens)}
    if hasattr(problem, "end"):  # what follows an end is padding; contexts show it: no bound
        end = x0 == problem.end
        content = ~prompt & ~(end & torch.nn.functional.pad(end, (1, -1)))
        sums["nats per token without padding"] = (nats * content).sum(1), content.sum(1)
    for unit, (top, size) in sums.items():
        value = top.sum() / size.sum()
        error = (top - value * size).std() * len(top) ** 0.5 / size.sum()  # the delta method
        sums[unit] = value.item(), error.item()
    return sums


if __name__ == "__main__":
    configure(globals())
    main()
