"""The likelihood of held-out examples: a bound over all orders, and exact along one of them.

    python lab/likelihood.py --out_dir=out/sudoku_tiny --chain

NELBO (paper, eq. 1): E[1/t sum over hidden i of -log f_i(x0_i | x_t)], t ~ U(0, 1). Integrated over
t, a set of h of the L_eff tokens has the weight 1 / (h comb(L_eff, h)), so without drawing t it is

    L_eff E[mean over hidden i of -log f_i(x0_i | x)],    h ~ U{1, ..., L_eff} random tokens hidden

Chain (arXiv 2609.37974): true tokens are revealed one by one in the order of a policy, which sees
no hidden token. So the sum of -log f_i, each at the step that reveals i, is -log P(x0 | prompt), if
tokens are drawn at temperature 1 in the order of temperature 0.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from tqdm import tqdm

import checkpoint
import loss
import policies
from configurator import configure, pick
from lab.evaluate import open_run

out_dir = "results/weights/sudoku_mini"  # a run of train.py; nelbo.json is written there
masks = 16  # of each example
chain = False
policy = ""  # of the chain: top_k, margin, entropy; "" = the run's
examples = None  # held out; None = those that the run was tested on
batch_size = 64
seed = 1
device = "cuda" if torch.cuda.is_available() else "cpu"


def main(config):
    if min(masks, batch_size) < 1:
        raise SystemExit("masks and batch_size are 1 or more")
    torch.manual_seed(seed)
    model, run, problem, count = open_run(out_dir, examples, device)
    refuse_own_sampler(run["variant"])
    order = pick("policy", policy or run.get("policy", "top_k"), policies.POLICIES)
    if chain and order == "random":
        raise SystemExit("--chain: policy random has no order, and so no likelihood")
    x0, prompt = (torch.as_tensor(rows).to(device) for rows in problem.test[:count])
    measures = {"NELBO": (nelbo, masks)}
    measures |= {f"chain, {order}": (chain_nll, policies.POLICIES[order])} if chain else {}
    result = {"config": config, "examples": count}
    for name, (measure, how) in measures.items():
        parts = tqdm(torch.arange(count).split(batch_size), name, unit="batch", leave=False)
        nats = torch.cat([measure(model, x0[part].long(), prompt[part], how) for part in parts])
        result[name] = estimates(problem, x0.cpu(), prompt.cpu(), nats.cpu())
        for unit, (value, error) in result[name].items():
            print(f"{name}: {value:.5g}" + f" +- {error:.2g}" * (count > 1) + f" {unit}")
    with checkpoint.opened(out_dir, "nelbo.json", "w") as file:
        json.dump(result, file, indent=1)


def refuse_own_sampler(variant):
    if checkpoint.of_variant(variant, "generate", None):
        raise SystemExit(f"{variant} has a sampler of its own, which this does not follow")


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


def chain_nll(model, x0, prompt, policy):
    """-log f_i at the step that reveals position i, nats (n, L)."""
    hidden = ~prompt
    nats = 0
    while hidden.any():
        nll, score = read(model, x0, hidden, policy)
        chosen = policies.reveal(score, hidden, torch.ones_like(x0[:, 0]))
        nats = nats + nll * chosen
        hidden = hidden & ~chosen
    return nats


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
        if not prompt.any() and hasattr(problem.tokenizer, "text"):
            ids = ([i for i in row if i < problem.end] for row in x0.tolist())
            size = [len(problem.tokenizer.decode(row)) for row in ids]
            sums["bits per character"] = total / torch.tensor(2.0).log(), torch.tensor(size)
    for unit, (top, size) in sums.items():
        value = top.sum() / size.sum()
        error = (top - value * size).std() * len(top) ** 0.5 / size.sum()  # the delta method
        sums[unit] = value.item(), error.item()
    return sums


if __name__ == "__main__":
    main(configure(globals()))
