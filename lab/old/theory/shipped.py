"""The shipped code on an enumerated p_data, the exact law of the buffer in puma.py, and the test.

A lookup table stands in for the model: its logits are the logarithms of given posteriors. The
losses, the policies and the chains are the ones that train. What they do is counted, and the counts
are compared with the exact law by a chi-square test.
"""

import sys
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property, partial
from itertools import pairwise, zip_longest
from pathlib import Path

import exact
import numpy as np
import torch
import torch.nn as nn
from exact import MASK, ONE, hidden

sys.path.insert(0, str(Path(__file__).parent.parent))
import losses
import puma
from engine.queue import ExampleQueue

torch.set_num_threads(1)  # the tensors are small
LEVEL = 1e-4  # below this p-value the shipped code contradicts the exact law
published = partial(puma.ProgressiveUnmasking, second_visit=False)


# -- the exact law of the buffer -------------------------------------------------------------------
@cache
def target_law(stage, effective, stages):
    """The law of the count that the buffer aims at: r ~ Unif(I_{n+1}), times L_eff, rounded."""
    low, high = (Fraction((stage + k) * effective, stages) for k in (1, 2))
    law, half = Counter(), Fraction(1, 2)
    for k in range(2 * effective + 1):
        share = (min(high, k + half) - max(low, k - half)) / (high - low)
        if share > 0:
            law[min(k, effective - 1)] += share
    return law


def after(n, target, revealed, stages):
    """(stage, L_eff) once so many tokens are revealed; None if the chain is finished."""
    stage, effective = n
    if stage + 1 >= stages or revealed == effective:
        return None
    return (revealed * stages // effective if revealed > target else stage + 1), effective


@dataclass
class Buffer:
    """A setting of the buffer, on data of length L; `prompts` {given positions: probability}.

    A state of a chain is (z, n) with n = (stage, L_eff).
    """

    data: exact.Data
    policy: str
    K: int
    tau: float | None = None
    prompts: dict | None = None  # None: nothing is given

    def __post_init__(self):
        self.prompts = self.prompts or {(): ONE}
        self.stages = puma.stages_of(self.data.L, self.K)
        self.choose = exact.choices(self.data)[self.policy]

    def first(self):
        """The law {(x0, z, n): probability} of the first context."""
        empty = (MASK,) * self.data.L
        return {
            (x0, exact.reveal(empty, given, x0), (0, self.data.L - len(given))): p * share
            for x0, p in self.data.p.items()
            for given, share in self.prompts.items()
        }

    def moves(self, z, n, x0=None):
        """Algorithm 1 and appendix B.1 of the paper, as puma.py runs them."""
        stage, effective = n
        fast = set(hidden(z)) - self.unsure(z)
        out = []
        for target, p in target_law(stage, effective, self.stages).items():
            count = max(1, target - effective + len(hidden(z)))
            for S, g in self.choose(z, count).items():
                S = tuple(sorted({*S, *fast}))
                revealed = effective - len(hidden(z)) + len(S)
                out.append((p * g, S, after(n, target, revealed, self.stages)))
        return out

    def unsure(self, z):
        """The hidden positions that fast-forward leaves: their confidence is tau at most."""
        posterior = self.data.posterior[z]
        return {i for i, p in posterior.items() if self.tau is None or max(p) <= self.tau}

    @cached_property
    def joints(self):
        """[{(x0, z, n): probability}] for the first, second, .. context of a chain."""
        return exact.teacher_forced(self.data, self.moves, self.stages - 1, self.first())

    def inside(self):
        """The law of the first context of a chain that starts in a random later stage."""
        law = Counter()
        for (x0, z, (_, effective)), p in self.first().items():
            for stage in range(1, self.stages):
                for count, q in target_law(stage - 1, effective, self.stages).items():
                    for S, g in exact.uniform_choice(z, count).items():
                        context = x0, exact.reveal(z, S, x0), (stage, effective)
                        law[context] += p * q * g / (self.stages - 1)
        return law

    def calls(self, count, second_visit=True):
        """[{(x0, z, n): probability}] of a row of the buffer at its first calls.

        At first chains start evenly over the stages. Then an ended chain is followed by one from
        the start, or, with `second_visit`, from inside if its only context was the start.
        """
        first, inside = self.first(), self.inside()
        law = mixture({0: ONE / self.stages, 1: 1 - ONE / self.stages}, (first, inside))
        laws = [law]
        while len(laws) < count:
            after, follows = Counter(), Counter()
            for (x0, z, n), p in laws[-1].items():
                at_once = second_visit and len(hidden(z)) == n[1]
                for q, S, following in self.moves(z, n):
                    if following is None:
                        follows[int(at_once)] += p * q
                    else:
                        after[x0, exact.reveal(z, S, x0), following] += p * q
            after.update(mixture(follows, (first, inside)))
            laws.append(after)
        return laws

    def visits(self):
        """Mean visits per chain."""
        return sum(sum(joint.values()) for joint in self.joints)

    def stream(self, size, kind):
        """The shipped buffer, of one batch. Each example is used once: chains are independent."""
        rows, calls, seed = size
        examples = Sampled(self.first(), rows * (calls + 64), seed)
        queue = ExampleQueue(examples, rows, seed=seed)
        generator = torch.Generator()
        tau = None if self.tau is None else float(self.tau)
        return kind(queue, MASK, generator.manual_seed(seed), [(0, self.K)], tau, 1)

    def states(self, size, kind, objective_of=losses.Objective):
        """Yields [(z, (stage, L_eff))] of the rows of the shipped buffer at each call.

        The true posteriors stand in for a model.
        """
        _, calls, seed = size
        torch.manual_seed(seed + 1)  # the random policy draws from the global generator
        objective = objective_of(Lookup(log_table(self.data), self.data.V), self.policy)
        stream = self.stream(size, kind)
        for x, _, _ in training_steps(stream, objective, calls):
            n = zip(
                stream.stage[0, :, 0].tolist(), (~stream.prompt[0]).sum(1).tolist(), strict=True
            )
            yield [*zip(map(tuple, x.tolist()), n, strict=True)]

    def run(self, size, objective_of=losses.Objective):
        """Run the shipped buffer as published.

        Returns [{(z, (stage, L_eff)): count}] of first, second, .. contexts. A chain is counted if
        it starts after the very first ones, which begin with random reveals, are gone and early
        enough to end.
        """
        rows, calls, _ = size
        visits = [None] * rows  # of the chain in each row, so far; None if it is not counted
        seen = [Counter() for _ in range(self.stages)]
        for call, states in enumerate(self.states(size, published, objective_of)):
            for row, (z, (stage, effective)) in enumerate(states):
                if z.count(MASK) == effective:
                    visits[row] = 0 if self.stages <= call < calls - self.stages else None
                if visits[row] is not None:
                    seen[visits[row]][z, (stage, effective)] += 1
                    visits[row] += 1
        return [counts for counts in seen if counts]


def mixture(weights, laws):
    """{key: sum of weights[k] laws[k]{key}}."""
    out = Counter()
    for k, weight in weights.items():
        for key, p in laws[k].items():
            out[key] += weight * p
    return out


def chain_lengths(L, K=1):
    """{number of contexts: probability} of a chain without prompt and without tau.

    Neither the data nor the policy matters, so a single sequence is enough.
    """
    joints = Buffer(exact.Data({(0,) * L: ONE}, 1), "left_to_right", K).joints
    return lengths([sum(joint.values()) for joint in joints])


def lengths(alive):
    """{k: chains with exactly k contexts}, from the number with more than 0, more than 1, .."""
    ended = {k: n - after for k, (n, after) in enumerate(pairwise([*alive, 0]), 1)}
    return {k: n for k, n in ended.items() if n}


# -- the test --------------------------------------------------------------------------------------
def chi_square(observed, law, n):
    """(degrees of freedom, p-value) of counts that n draws of `law` should give.

    The probability that `law` lacks is one more outcome: the chain has ended. An observed outcome
    of probability 0 refutes the law. Of the outcomes expected less than 5 times the rarest merge.
    """
    ended = n - sum(observed.values())
    if any(key not in law for key in observed) or (ended and sum(law.values()) == 1):
        return 0, 0.0
    cells = [(float(p) * n, observed.get(key, 0)) for key, p in law.items()]
    cells = sorted([*cells, (float(1 - sum(law.values())) * n, ended)])
    while len(cells) > 1 and cells[0][0] < 5:
        first, second, *rest = cells
        cells = sorted([(first[0] + second[0], first[1] + second[1]), *rest])
    statistic = sum((count - expected) ** 2 / expected for expected, count in cells)
    return len(cells) - 1, survival(statistic, len(cells) - 1)


def bonferroni(seen, joints, n):
    """(degrees of freedom, p-value) of all counts {(z, n): count} against their joint laws."""
    pairs = zip_longest(seen, joints, fillvalue={})
    tests = [chi_square(counts, exact.marginal(joint), n) for counts, joint in pairs]
    return sum(dof for dof, _ in tests), min(1.0, len(tests) * min(p for _, p in tests))


def survival(statistic, dof):
    """P(chi-square with dof degrees of freedom > statistic)."""
    if dof == 0:
        return 1.0
    half = torch.tensor([dof, statistic], dtype=torch.float64) / 2
    return float(torch.special.gammaincc(half[0], half[1]))


# -- the shipped code ------------------------------------------------------------------------------
def training_steps(stream, objective, calls):
    """Yields (x, is_hidden, loss) for each batch, before the stream advances."""
    for call in range(calls):
        x, x0, is_hidden, *_ = stream.batch(call)
        loss, score, confidence = objective(x, x0, is_hidden)
        yield x, is_hidden, loss
        stream.advance(score, confidence)


def scores(data, name):
    """{z: the score of each position}, by policies.py on the posteriors."""
    z = torch.tensor([z for z in data.mass if hidden(z)])
    objective = losses.Objective(Lookup(log_table(data), data.V), name)
    _, score, _ = objective(z, z.clamp(min=0), z == MASK)
    return dict(zip(map(tuple, z.tolist()), score.tolist(), strict=True))


class Sampled:
    """n independent draws of (x0, prompt) from a law {(x0, first state, n): probability}."""

    def __init__(self, law, n, seed):
        p = np.array(list(law.values()), float)
        draw = np.random.default_rng(seed).choice(len(p), n, p=p)
        self.x0 = np.array([x0 for x0, _, _ in law])[draw]  # (n, L)
        self.prompt = np.array([z for _, z, _ in law])[draw] != MASK

    def __len__(self):
        return len(self.x0)

    def __getitem__(self, indices):
        return self.x0[indices], self.prompt[indices]


class Lookup(nn.Module):
    """logits (B, L, V) of states x (B, L), from a table with a row for each of (V + 1)^L states."""

    def __init__(self, table, V):
        super().__init__()
        self.table, self.V = table, V

    def forward(self, x):
        return state_code(x, self.V)

    def logits(self, code):
        return self.table[code]


def state_code(x, V):
    """States (..., L) -> integers (...); the mask is digit 0 in base V + 1."""
    place = (V + 1) ** torch.arange(x.shape[-1])
    return ((x - MASK) * place).sum(-1)


def log_table(data):
    """The log posteriors of every state, ((V + 1)^L, L, V) float64; 0 where there is none."""
    table = torch.zeros((data.V + 1) ** data.L, data.L, data.V, dtype=torch.float64)
    entries = [(z, i, p) for z, posterior in data.posterior.items() for i, p in posterior.items()]
    z, i, p = zip(*entries, strict=True)
    table[state_code(torch.tensor(z), data.V), torch.tensor(i)] = torch.tensor(p, dtype=float).log()
    return table
