"""A table of logits, trained by the shipped loss on the shipped buffer and on random masks."""

import random

import exact
import masks
import shipped
import torch
import torch.nn as nn
from minimiser import NOTHING, buffer_loss, iid_loss
from shipped import Buffer, Objective, policies, puma

ENOUGH = 1e-3  # the KL divergence to reach


class Table(shipped.Lookup):
    """A softmax for each state and position: every predictor there is."""

    def __init__(self, L, V):
        super().__init__(None, V)
        self.table = nn.Parameter(torch.zeros((V + 1) ** L, L, V, dtype=torch.float64))


def divergences(data, model):
    """KL(posterior | model) for every state and position."""
    log_p = shipped.log_table(data).log_softmax(-1)
    log_f = model.table.detach().log_softmax(-1)
    return (log_p.exp() * (log_p - log_f)).sum(-1)


def places(data, keys):
    """Index of (z, i) pairs into what `divergences` gives."""
    z, i = zip(*keys, strict=True)
    return shipped.state_code(torch.tensor(z), data.V), torch.tensor(i)


def train(data, stream, calls, objective_of=Objective, every=5):
    """[(step, divergences)] of a table under the shipped loss; Adagrad."""
    objective = objective_of(Table(data.L, data.V), policies.top_k)
    optimizer = torch.optim.Adagrad(objective.parameters(), lr=0.05)
    curve = []
    for step in range(calls):
        if step % every == 0:
            curve.append((step, divergences(data, objective.model)))
        x0, x, is_hidden = stream.batch(step)
        loss, score, confidence = objective(x, x0, is_hidden)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        stream.advance(score, confidence)
    return [*curve, (calls, divergences(data, objective.model))]


def mean(data, curve, C):
    """[(step, KL averaged as the loss C weighs it)], which is the loss less its least value."""
    weight = torch.tensor([float(sum(c.values())) for c in C.values()], dtype=torch.float64)
    where = places(data, C)
    return [(step, float(weight @ kl[where] / weight.sum())) for step, kl in curve]


def trained_row(claim, curve):
    needed = next((step for step, kl in curve if kl < ENOUGH), None)
    last = curve[-1][1]
    return claim, f"mean KL {last:.2g}, first below {ENOUGH} at step {needed}", last < ENOUGH


def rows(seed, size, objective_of=Objective):
    """(rows, curves): PUMA with its own policy, and random masks, from zero logits."""
    data = exact.random_data(random.Random(seed), 2, 4)
    buffer = Buffer(data, "top_k", 1, NOTHING)
    on_chain, on_masks = buffer_loss(data, "top_k"), iid_loss(data, masks.shipped_weight)
    queue = shipped.make_queue(data, buffer.starts, *size)
    stream = puma.RandomMasking(queue, exact.MASK, torch.Generator().manual_seed(seed))
    chain = train(data, buffer.stream(size), size[1], objective_of)
    random_masks = train(data, stream, size[1])
    curves = {
        "PUMA, on its chain": mean(data, chain, on_chain),
        "random masks, on the chain": mean(data, random_masks, on_chain),
        "random masks, on random masks": mean(data, random_masks, on_masks),
    }
    rows = [trained_row(f"trained, {name}", curve) for name, curve in curves.items()]
    return [*rows, free_row(data, chain, on_masks.keys() - on_chain.keys())], curves


def free_row(data, curve, missed):
    """What the chain never reaches stays wrong; a few it reached under an earlier policy."""
    worst = float(curve[-1][1][places(data, missed)].max())
    return "trained, PUMA: not pinned", f"{len(missed)} predictions, KL {worst:.2g}", worst > ENOUGH
