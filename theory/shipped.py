"""The shipped code on an enumerated p_data, and the exact law of the buffer in puma.py.

A lookup table stands in for the model: its logits are the logarithms of given posteriors. The
losses, the policies and the chains are those which train.
"""

import sys
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
from chi_square import chi_square
from exact import MASK, Data, choices, hidden, inference, teacher_forced

sys.path.insert(0, str(Path(__file__).parent.parent))
import losses
import policies
import puma
from example_queue import ExampleQueue

torch.set_num_threads(1)  # tensors here are small


class Sampled:
    """n examples of (x0, prompt) drawn independently: used once each, chains are independent."""

    def __init__(self, data, starts, n, seed):
        rng = np.random.default_rng(seed)
        x0 = rng.choice(len(data.p), n, p=np.array(list(data.p.values()), float))
        start = rng.choice(len(starts), n, p=np.array([s for s, *_ in starts], float))
        self.x0 = np.array(list(data.p))[x0]  # (n, L)
        prompts = [[i in given for i in range(data.L)] for _, given, _ in starts]
        self.prompt = np.array(prompts)[start]  # (n, L)

    def __len__(self):
        return len(self.x0)

    def __getitem__(self, indices):
        return self.x0[indices], self.prompt[indices]


Objective = losses.Objective


class Peeking(Objective):
    """Negative control: hidden positions whose true token is 0 come first."""

    def forward(self, x, x0, is_hidden):
        loss, _, confidence = super().forward(x, x0, is_hidden)
        return loss, (x0 == 0).to(confidence), confidence


class Lookup(nn.Module):
    """logits (B, L, V) of states x (B, L), from a table with a row for each of (V + 1)^L states."""

    def __init__(self, table, V):
        super().__init__()
        self.table, self.V, self.block = table, V, 0

    def forward(self, x):
        return state_code(x, self.V)

    def logits(self, code):
        return self.table[code]


def state_code(x, V):
    """States (..., L) -> integers (...); the mask is digit 0 in base V + 1."""
    place = (V + 1) ** torch.arange(x.shape[-1])
    return ((x - MASK) * place).sum(-1)


def log_table(data, model=None):
    """log model[z][i][v] for every state, ((V + 1)^L, L, V) float64; 0 where nothing is asked."""
    table = torch.zeros((data.V + 1) ** data.L, data.L, data.V, dtype=torch.float64)
    for z, posterior in (model or data.posterior).items():
        for i, p in posterior.items():
            table[state_code(torch.tensor(z), data.V), i] = torch.tensor(p, dtype=float).log()
    return table


@cache
def target_law(stage, effective, stages):
    """The law of the count that `advance` aims at: r ~ Unif(I_{n+1}), times L_eff, rounded.

    The probability of k is the part of [stage + 1, stage + 2] / stages * L_eff which rounds to k.
    """
    low, high = (Fraction((stage + k) * effective, stages) for k in (1, 2))
    law, half = Counter(), Fraction(1, 2)
    for k in range(2 * effective + 1):
        share = (min(high, k + half) - max(low, k - half)) / (high - low)
        if share > 0:
            law[min(k, effective - 1)] += share
    return law


def buffer_moves(data, choose, stages, tau=None, aim=target_law):
    """Algorithm 1 and appendix B.1 as puma.py runs them; n = (stage, L_eff)."""

    def moves(z, n, x0=None):
        stage, effective = n
        out = []
        for target, p in aim(stage, effective, stages).items():
            count = max(1, target - effective + len(hidden(z)))
            for S, g in choose(z, count).items():
                S = tuple(sorted(set(S) | surer_than(tau, data.posterior[z])))
                revealed = effective - len(hidden(z)) + len(S)
                out.append((p * g, S, stage_after(n, target, revealed, stages)))
        return out

    return moves


def surer_than(tau, posterior):
    return {i for i, p in posterior.items() if tau is not None and max(p) > tau}


def stage_after(n, target, revealed, stages):
    """(stage, L_eff) once `revealed` tokens are, None if the chain is finished."""
    stage, effective = n
    if stage + 1 >= stages or revealed == effective:
        return None
    return (revealed * stages // effective if revealed > target else stage + 1), effective


def chain_lengths(effective, stages):
    """The law of the number of contexts of a chain without tau, whatever the policy."""
    lengths, law = Counter(), {((0, effective), 0): Fraction(1)}
    for length in range(1, stages + 1):
        after = Counter()
        for (n, revealed), probability in law.items():
            for target, p in target_law(*n, stages).items():
                now = max(target, revealed + 1)
                n_next = stage_after(n, target, now, stages)
                if n_next is None:
                    lengths[length] += probability * p
                else:
                    after[n_next, now] += probability * p
        law = after
    return lengths


def buffer_starts(L, prompts):
    """Starts for {given positions: probability}."""
    return [(p, given, (0, L - len(given))) for given, p in prompts.items()]


def make_queue(data, starts, rows, calls, seed):
    """Enough examples for `calls` batches, so that none comes twice."""
    return ExampleQueue(Sampled(data, starts, rows * (calls + 64), seed), rows, seed=seed)


@dataclass
class Buffer:
    """A setting of the buffer; `prompts` {given positions: probability}; data of length L."""

    data: Data
    policy: str
    K: int
    prompts: dict
    tau: float | None = None

    def __post_init__(self):
        self.starts = buffer_starts(self.data.L, self.prompts)
        self.stages = max(2, round(self.data.L / self.K))

    def moves(self, **changed):
        rules = dict(tau=self.tau) | changed
        choose = choices(self.data)[self.policy]
        return buffer_moves(self.data, choose, self.stages, **rules)

    def joints(self, moves):
        """[{(x0, z, (stage, L_eff)): probability}] of the visits of a chain."""
        return teacher_forced(self.data, moves, self.stages - 1, self.starts)

    def inference(self, moves):
        return inference(self.data, moves, self.stages - 1, self.starts)

    def run(self, size, objective_of=Objective):
        """Counts of what the shipped buffer hands out, and the number of chains."""
        _, calls, seed = size
        lookup = Lookup(log_table(self.data), self.data.V)
        objective = objective_of(lookup, policies.get(self.policy))
        torch.manual_seed(seed + 1)  # of the random policy
        return run_chains(self.stream(size), objective, calls)

    def stream(self, size):
        rows, calls, seed = size
        queue = make_queue(self.data, self.starts, rows, calls, seed)
        generator = torch.Generator().manual_seed(seed)
        return puma.ProgressiveUnmasking(queue, MASK, generator, [(0, self.K)], self.tau)


def near(data, tau):
    """Half-way between the two confidences around tau, so that rounding decides nothing."""
    confidences = {max(p) for posterior in data.posterior.values() for p in posterior.values()}
    above, below = (c for c in confidences if c > tau), (c for c in confidences if c <= tau)
    return float(min(above) + max(below)) / 2


def run_chains(stream, objective, calls):
    """Counter of (visit, stage, L_eff, state code) and the number of chains that were counted.

    Counted are the chains which start after every first chain is gone (those start from random
    reveals) and early enough to end. A chain that is counted is so whatever happens in it, which
    makes its visits fair samples: the k-th visits of all chains are independent draws of one law.
    """
    L, V = stream.x0.shape[-1], objective.model.V
    visit = torch.zeros(stream.x0.shape[1], dtype=torch.long)
    counted = torch.zeros_like(visit, dtype=torch.bool)
    seen, chains = Counter(), 0
    for call in range(calls):
        x0, x, is_hidden = stream.batch(call)
        stage, effective = stream.stage[0].clone(), (~stream.prompt[0]).sum(1)
        starts = is_hidden.sum(1) == effective
        visit = torch.where(starts, 0, visit + 1)
        counted = torch.where(starts, stream.stages <= call < calls - stream.stages, counted)
        chains += int((starts & counted).sum())
        key = ((visit * stream.stages + stage) * (L + 1) + effective) * (V + 1) ** L
        codes, n = (key + state_code(x, V))[counted].unique(return_counts=True)
        seen.update(dict(zip(codes.tolist(), n.tolist(), strict=True)))
        with torch.no_grad():
            _, score, confidence = objective(x, x0, is_hidden)
        stream.advance(score, confidence)
    return {unpack(key, stream.stages, L, V): n for key, n in seen.items()}, chains


def unpack(key, stages, L, V):
    key, code = divmod(key, (V + 1) ** L)
    key, effective = divmod(key, L + 1)
    visit, stage = divmod(key, stages)
    return visit, (stage, effective), tuple(code // (V + 1) ** i % (V + 1) + MASK for i in range(L))


def shipped_order(data, name):
    """{z: hidden positions, soonest revealed first} by policies.py on the posteriors."""
    z = torch.tensor([z for z in data.mass if hidden(z)])
    objective = Objective(Lookup(log_table(data), data.V), policies.get(name))
    is_hidden = z == MASK
    _, score, _ = objective(z, z.clamp(min=0), is_hidden)
    rank = torch.zeros_like(z)
    for count in range(data.L):
        rank += ~policies.reveal(score, is_hidden, torch.full((len(z),), count + 1))
    return {
        tuple(state): tuple(sorted(hidden(state), key=ranks.__getitem__))
        for state, ranks in zip(z.tolist(), rank.tolist(), strict=True)
    }


def baseline_masks(L, n, seed, law):
    """n masks of puma.random_masks against a law of masks.py.

    Counter of the hidden positions, (L,) bool each; and the degrees of freedom and p-value.
    """
    generator = torch.Generator().manual_seed(seed)
    drawn = puma.random_masks(torch.zeros(n, L, dtype=torch.bool), generator)
    seen = Counter(map(tuple, drawn.tolist()))
    sets = [m for m in product((False, True), repeat=L) if any(m)]
    return seen, *chi_square(seen, {m: law(sum(m), L) for m in sets}, n)[1:]
