"""Evaluation while a run trains: the share of held-out problems solved, and the validation loss."""

import numpy as np
import torch

import tasks
from engine import processes
from engine.files import progress_bar
from losses import hidden_states, masked_nll, row_mean
from puma import random_masks
from sample import generate


def evaluate(task, model, block, samplers, most, size, place):
    """Accuracy by policy, and validation loss, on held-out examples split over the processes.

    most: examples for the loss; size: rows per batch. Random states stay as they were.
    """
    (world, rank), device = place[:2], model.lm_head.weight.device
    samplers, solved = samplers if task.test.judged else [], []
    mine = np.arange(rank, len(task.test) if samplers else 0, world)
    work = {"total": len(samplers) * len(mine), "unit": "problem", "desc": "evaluation"}
    with (
        torch.random.fork_rng([device] if device.type == "cuda" else []),
        progress_bar(leave=False, show=rank == 0, **work) as bar,
    ):
        for sampler in samplers:
            torch.manual_seed(rank)
            x, hidden = tasks.problems_on(device, task.test, mine)
            tokens, _, _ = generate(model, x, hidden, sampler, block, size, bar.update)
            kinds = [record["kind"] for record in task.test.judge(tokens.cpu().numpy(), mine)]
            solved.append(kinds.count("correct"))
        loss, rows = validation_loss(task.validation, model, block, most, size, rank, world)
    loss, rows, n, *solved = processes.all_reduce_sum([loss, rows, len(mine), *solved])
    shares = {s.policy: share / n for s, share in zip(samplers, solved, strict=True)}
    return {"accuracy": shares, "val_loss": loss / rows, "examples": int(n)}


@torch.no_grad()
def validation_loss(examples, model, block, most, size, rank, world):
    """The baseline's loss summed over this process's share of `most` rows, and their number.

    The masks are always the same. Losses in blocks, or of next tokens, are not comparable.
    """
    device = model.lm_head.weight.device
    x0, prompt = (torch.as_tensor(part) for part in examples[np.arange(min(len(examples), most))])
    x0, prompt = x0.long().to(device), prompt.to(device)
    hidden = random_masks(prompt, torch.Generator(device).manual_seed(0), block)
    x = x0 if model.causal else x0.masked_fill(hidden, model.mask_token)
    x, x0, hidden = (part[rank::world] for part in (x, x0, hidden))
    total = 0.0
    for row in range(0, len(x0), size):
        rows = slice(row, row + size)
        h = hidden_states(model, x[rows], x0[rows], block)
        nll = masked_nll(model, h, x0[rows], hidden[rows])
        total += row_mean(nll, hidden[rows], block).item() * len(nll)
    return total, len(x0)
