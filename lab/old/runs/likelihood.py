"""The negative evidence lower bound (NELBO) of the paper, in nats, from few masks.

    NELBO(x0) = E[1/t * sum over hidden i of -log f_i(x0_i | x_t)],   t ~ U(0, 1)      (eq. 1)

x_t hides each of the L_eff non-prompt tokens with probability t. A set of h positions then has the
weight integral of t^(h-1) (1-t)^(L_eff-h) dt = 1 / (h comb(L_eff, h)), so that exactly

    NELBO(x0) = L_eff E[mean over hidden i of -log f_i(x0_i | x)],   h ~ U{1, ..., L_eff}

with h uniformly random positions hidden: no t is drawn and no mask is empty. Most of the remaining
variance comes from h, so the counts are stratified over all examples and masks together.

Where the order depends on visible tokens alone, the loss of a teacher-forced chain in that order,
on the tokens that each step reveals, is an exact negative log-likelihood and no bound (arXiv
2609.37974): `chain_nll`. A run with a carry has only its first step in the NELBO.
"""

import math
import time
from pathlib import Path

import numpy as np
import torch

from engine import processes
from engine.files import progress_bar, write_json
from engine.log import origin
from losses import masked_nll
from puma import choose_random
from runs.saved import load_task
from sample import Sampler, reveal_step


def nelbo(model, examples, N, padding, masks, batch_size, seed, rank=0, world=1):
    """Estimates for the first N examples, on every process: nats (N, 2), tokens (N, 2), float64.

    examples[indices] -> x0, prompt (n, L) as numpy arrays; padding(x0) -> bool (n, L).
    Column 0 counts all tokens but the prompt; its nats are the bound. Column 1 omits predictions of
    padding; contexts still show padding, and so the length: it is not a bound.
    The masks depend on the seed alone.
    """
    generator = torch.Generator().manual_seed(seed)
    step = batch_size * world
    batches = [np.arange(row, min(row + step, N)) for row in range(0, N, step)]
    nats, tokens = torch.zeros(2, N, 2, dtype=torch.float64)
    for batch in batches:
        x0, prompt = examples[batch]
        content = ~prompt & ~padding(x0)
        tokens[batch] = torch.from_numpy(np.stack([(~prompt).sum(1), content.sum(1)], 1)).double()
    count = stratified(tokens[:, 0].long(), masks, generator)
    bar = progress_bar(total=N * masks, unit="mask", leave=False, show=rank == 0)
    for column in count.T:
        for batch in batches:
            x0, prompt = map(torch.from_numpy, examples[batch])
            hidden = choose_random(~prompt, column[batch], generator)
            own = slice(rank, None, world)
            if len(rows := batch[own]):
                nll = hidden_nll(model, x0[own].long(), hidden[own])
                content = torch.from_numpy(~padding(x0[own].numpy()))
                sums = torch.stack([nll.sum(1), (nll * content).sum(1)], 1)  # (n, 2)
                nats[rows] += sums * (tokens[rows, :1] / column[rows, None] / masks)
            bar.update(len(batch))
    bar.close()
    return sum(processes.gather(nats)), tokens


def stratified(effective, masks, generator):
    """Hidden tokens of each of `masks` masks per row, effective (N,) = L_eff -> (N, masks).

    Column j draws from the j-th of `masks` equal parts of 1..L_eff, so a row's counts together are
    uniform. Part j is divided into N again: each row draws from another of these.
    """
    N = len(effective)
    part = torch.rand(N, masks, generator=generator).argsort(0)  # a permutation in each column
    place = (part + torch.rand(N, masks, generator=generator, dtype=torch.float64)) / N
    u = (torch.arange(masks) + place) / masks  # in (0, 1)
    return 1 + (u * effective[:, None]).long().clamp(max=effective[:, None] - 1)


@torch.no_grad()
def hidden_nll(model, x0, hidden):
    """-log f_i(x0_i | x) where hidden, 0 elsewhere, (B, L) float64 on the CPU."""
    device = next(model.parameters()).device
    x0, hidden = x0.to(device), hidden.to(device)
    h = model(x0.masked_fill(hidden, model.mask_token))
    return masked_nll(model, h, x0, hidden).cpu().double()


@torch.no_grad()
def chain_nll(model, x0, prompt, sampler):
    """-log P(x0 | prompt), (B,) float64: the order is the sampler's at temperature 0, tokens are
    drawn at temperature 1. ValueError for a random order. At temperature 1 the sampler follows this
    with entropy, margin, left_to_right; not with top_k, semi_ar or tau, which see the drawn token.
    """
    if sampler.policy == "random":
        raise ValueError("--chain: a run with --policy=random has no order, and so no likelihood")
    hidden = ~prompt
    nats = torch.zeros(len(x0), dtype=torch.float64)
    carry = {}
    while hidden.any():
        x = x0.masked_fill(hidden, model.mask_token)
        h = model(x, **carry)
        carry = {"carry": h} if model.carries else {}
        _, chosen = reveal_step(model, sampler, h, x, hidden)
        nats += masked_nll(model, h, x0, chosen).sum(1).cpu().double()
        hidden = hidden & ~chosen
    return nats


def chains(model, examples, N, config, batch_size, rank, world):
    """chain_nll of the first N examples under the run's sampler, (N,), on every process."""
    device = model.lm_head.weight.device
    nats = torch.zeros(N, dtype=torch.float64)
    for rows in torch.arange(rank, N, world).split(batch_size):
        x0, prompt = (torch.as_tensor(part).to(device) for part in examples[rows.numpy()])
        nats[rows] = chain_nll(model, x0.long(), prompt, sampler(config))
    return sum(processes.gather(nats))


def sampler(config):
    """The sampler in the order of a run's chains, as fast as the run's evaluations."""
    return Sampler(config["policy"], config["eval_reveal"], config["eval_tau"])


def ratio(nats, tokens):
    """The sum of nats (N,) over the sum of tokens (N,); its standard error (the delta method).

    The error accounts for the draw of N examples and of their masks; None if N is 1.
    """
    N, value = len(nats), (nats.sum() / tokens.sum()).item()
    if N == 1:
        return value, None
    spread = (nats - value * tokens).square().sum() * N / (N - 1)
    return value, (spread.sqrt() / tokens.sum()).item()


def measure(saved, out_dir, conditions, place, problems, examples, masks, chain, batch_size, seed):
    """Write nelbo.json of a saved run, for `eval.py --nelbo`, and print the bound."""
    task = load_task(saved.config, saved.model)
    if saved.model.causal or 0 < saved.block < task.length:
        raise ValueError("--nelbo needs a bidirectional model without blocks")
    data = task.examples(problems) if problems else task.validation
    begin = time.perf_counter()
    n = min(examples or len(data), len(data))
    if chain:  # before the rest, as it refuses a random order
        exact = chains(saved.model, data, n, saved.config, batch_size, place.rank, place.world)
    nats, tokens = nelbo(
        saved.model, data, n, task.padding, masks, batch_size, seed, place.rank, place.world
    )
    result = conditions | {"examples": n, "masks": masks} | origin()
    values = units(nats, tokens, task, data)
    if chain:
        values.append(("per_token_chain", exact, tokens[:, 0]))
    for key, total, unit in values:
        value, error = ratio(total, unit)
        result |= {key: value, f"{key}_error": error}
        if place.rank == 0:
            error = f"+- {error:.3g} " if error is not None else ""
            name = key if key.startswith("bits") else f"nats_{key}"
            print(f"{value:.5g} {error}{name.replace('_', ' ')}")
    if place.rank == 0:
        result |= {"seconds": time.perf_counter() - begin}
        write_json(Path(out_dir) / "nelbo.json", result)


def units(nats, tokens, task, data):
    """[(unit, numerators (N,), denominators (N,))]; nats, tokens (N, 2): see nelbo."""
    values = [
        ("per_example", nats[:, 0], torch.ones_like(tokens[:, 0])),
        ("per_token", nats[:, 0], tokens[:, 0]),
        ("per_token_without_padding", nats[:, 1], tokens[:, 1]),
    ]
    if count := getattr(task, "characters", None):
        x0, _ = data[np.arange(len(nats))]
        written = torch.from_numpy(count(x0)).double()
        values.append(("bits_per_character", nats[:, 0] / math.log(2), written))
    return values
