"""What the four scripts share: laws in exact fractions, and what tests the shipped code by them.

A state z of (V + {mask})^L is a tuple with MASK at its hidden positions. A chain walks through the
states by its moves: the policy g of the paper, with what the chain counts (the step of a time grid,
the stage of the buffer).

    moves(z, n, x0) -> [(probability, S, next n)]     S: positions to reveal, () = wait;
                                                      next n None: the chain ends

The same moves define two chains. The teacher-forced chain reveals the tokens of its x0. Idealised
inference has no x0 (moves get None) and draws each token of S from the posterior.
"""

import argparse
import math
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property, partial
from itertools import chain, combinations, product
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent.parent))
import loss
import policies
import puma

torch.set_num_threads(1)  # the tensors are small
MASK = -1
ONE = Fraction(1)
LEVEL = 1e-4  # below this p-value the shipped code contradicts the exact law


# -- states and data -------------------------------------------------------------------------------
class Data:
    """p {x0: probability}; mass {z: P(x0 agrees with z)}; posterior {z: {i: V fractions}}."""

    def __init__(self, p, V):
        self.p = p
        self.V = V
        self.L = len(next(iter(p)))
        self.mass = Counter()
        for x0, probability in p.items():
            for z in contexts(x0):
                self.mass[z] += probability
        self.posterior = {z: {i: self.conditional(z, i) for i in hidden(z)} for z in self.mass}

    def conditional(self, z, i):
        return tuple(self.mass[put(z, (i,), (v,))] / self.mass[z] for v in range(self.V))


def contexts(x0):
    """The 2^L states that agree with x0."""
    return product(*((MASK, token) for token in x0))


def hidden(z):
    return tuple(i for i, token in enumerate(z) if token == MASK)


def agrees(x0, z):
    return all(token in (MASK, true) for true, token in zip(x0, z, strict=True))


def put(z, positions, tokens):
    z = list(z)
    for i, token in zip(positions, tokens, strict=True):
        z[i] = token
    return tuple(z)


def reveal(z, positions, x0):
    return put(z, positions, [x0[i] for i in positions])


def subsets(positions):
    """All of them as tuples, the empty one first."""
    sizes = range(len(positions) + 1)
    return list(chain.from_iterable(combinations(positions, size) for size in sizes))


def random_law(rng, outcomes, zeros=True, most=9):
    """A random rational law over the outcomes; with `zeros`, some may be impossible."""
    weights = [rng.randint(0 if zeros else 1, most) for _ in outcomes]
    weights[rng.randrange(len(weights))] += 1
    return {o: Fraction(w, sum(weights)) for o, w in zip(outcomes, weights, strict=True) if w}


def random_data(rng, V, L, full_support=True, most=9):
    sequences = list(product(range(V), repeat=L))
    if not full_support:
        sequences = rng.sample(sequences, rng.randint(2, len(sequences) - 1))
    return Data(random_law(rng, sequences, False, most), V)


def instances(rng, n, V, L):
    """n random p_data; every other one lacks full support."""
    return [random_data(rng, V, L, full_support=k % 2 == 0) for k in range(n)]


# -- the two chains --------------------------------------------------------------------------------
def teacher_forced(data, moves, steps, first=None):
    """[{(x0, z, n): probability}] over the steps 0 .. steps, from the law `first`.

    By default that is the start in Proposition 1: fully masked, at step 0 of the grid.
    """
    if first is None:
        first = {(x0, (MASK,) * data.L, 0): p for x0, p in data.p.items()}
    return walk(data, moves, steps, first, lambda x0, z, i: [(x0[i], 1)])


def inference(data, moves, steps, first):
    """[{(z, n): probability}]: each token of S is drawn on its own from the posterior."""

    def token(x0, z, i):
        return [(v, p) for v, p in enumerate(data.posterior[z][i]) if p]

    first = {(None, z, n): p for (z, n), p in marginal(first).items()}
    return list(map(marginal, walk(data, moves, steps, first, token)))


def walk(data, moves, steps, law, token):
    """The laws after 0 .. steps moves; token(x0, z, i) -> [(v, probability)] of a revealed token.

    Outside the support of p_data, where only inference goes, there is no posterior: it stays there.
    """
    laws = [law]
    for _ in range(steps):
        after = Counter()
        for (x0, z, n), q in laws[-1].items():
            for g, S, n_after in moves(z, n, x0) if z in data.mass else [(1, (), n)]:
                if n_after is not None:
                    for draw in product(*(token(x0, z, i) for i in S)):
                        p = math.prod(p for _, p in draw)
                        after[x0, put(z, S, [v for v, _ in draw]), n_after] += q * g * p
        laws.append(after)
    return laws


def gaps(data, moves, joints):
    """Total variation at each step between teacher forcing, whose laws these are, and inference."""
    ideal = inference(data, moves, len(joints) - 1, joints[0])
    return [total_variation(marginal(p), q) for p, q in zip(joints, ideal, strict=True)]


def marginal(joint):
    """Sums x0 out of {(x0, z, n): probability}."""
    law = Counter()
    for (_, z, n), probability in joint.items():
        law[z, n] += probability
    return law


def total_variation(p, q):
    return sum((abs(p[key] - q[key]) for key in p.keys() | q.keys()), Fraction(0)) / 2


# -- policies --------------------------------------------------------------------------------------
def random_policies(rng, wait=False):
    """policy(data) -> moves of one random index per step; g(i | z, j) is new for every z and j."""

    @cache
    def moves(z, j):
        outcomes = [(i,) for i in hidden(z)]
        law = random_law(rng, outcomes + [()] * (wait or not outcomes))
        return [(g, S, j + 1) for S, g in law.items()]

    return lambda data: lambda z, j, x0=None: moves(z, j)


def peeking_moves(data):
    """Against the rules: a position whose hidden token is 0 goes first.

    Inference, which has no x0, follows the mean of these moves over the posterior.
    """

    def moves(z, j, x0=None):
        law = Counter()
        for truth, p in [(x0, ONE)] if x0 else data.p.items():
            if agrees(truth, z):
                zeros_first = sorted(hidden(z), key=lambda i: truth[i] != 0)
                law[tuple(zeros_first[:1])] += p
        return [(p / law.total(), S, j + 1) for S, p in law.items()]

    return moves


SCORES = {  # of a position: (its posterior, the position) -> a number, larger = revealed sooner
    "top_k": lambda posterior, i: max(posterior),
    "margin": lambda posterior, i: max(posterior) - sorted(posterior)[-2],
    "entropy": lambda posterior, i: sum(float(p) * math.log(p) for p in sorted(posterior) if p),
}


def choice(data, policy):
    """choose(z, count) -> {S: probability}: the highest scores, ties to the leftmost."""

    @cache
    def choose(z, count):
        score = {i: SCORES[policy](p, i) for i, p in data.posterior[z].items()}
        return {tuple(sorted(score, key=lambda i: -score[i])[:count]): ONE}

    return uniform_choice if policy == "random" else choose


@cache
def uniform_choice(z, count):
    """Every set of `count` hidden positions is equally likely."""
    sets = list(combinations(hidden(z), min(count, len(hidden(z)))))
    return {S: Fraction(1, len(sets)) for S in sets}


# -- random masks: law(positions) -> {S: P(exactly the positions S are hidden)} --------------------
def fixed(q):
    """Each position hidden with probability q."""
    return lambda positions: {
        S: math.prod(q if i in S else 1 - q for i in positions) for S in subsets(positions)
    }


def uniform_t(positions, over=0):
    """Each position hidden with probability t ~ U(0, 1). over = 1: E[1/t, S hidden], S not empty"""
    return {S: integral(len(S) - over, len(positions) - len(S)) for S in subsets(positions)[over:]}


over_t = partial(uniform_t, over=1)  # the paper's weight


def integral(a, b):
    """Of t^a (1 - t)^b over 0 .. 1, multiplied out."""
    return sum(Fraction((-1) ** k * math.comb(b, k), a + k + 1) for k in range(b + 1))


def uniform_count(positions):
    """The baseline of puma.py: a count uniform in 1 .. L_eff, then that many random positions."""
    sets = [list(combinations(positions, count + 1)) for count in range(len(positions))]
    return {S: Fraction(1, len(sets) * len(alike)) for alike in sets for S in alike}


def random_contexts(data, law, given=()):
    """{(x0, z, 0): probability} of masks for the positions that are not given."""
    masks = law([i for i in range(data.L) if i not in given])
    return {
        (x0, put(x0, S, [MASK] * len(S)), 0): p * share
        for x0, p in data.p.items()
        for S, share in masks.items()
    }


# -- the minimizer of the loss ---------------------------------------------------------------------
def per_hidden(z, n):
    """The weight in loss.objective."""
    return Fraction(1, len(hidden(z)))


def shifts(data, joints, weight=per_hidden):
    """{(z, i): total variation between the minimizer of the loss and the posterior of p_data}.

    joints: laws {(x0, z, n): probability} that are added up. E[w sum over hidden i of -log f_i(x0^i
    | z)] is least at the law of x0^i under P(x0, z) w(z). Predictions at states never met are free.
    """
    C = defaultdict(Counter)
    for (x0, z, n), p in chain.from_iterable(joint.items() for joint in joints):
        for i in hidden(z):
            C[z, i][x0[i]] += p * weight(z, n)
    least = {at: Counter({v: c / law.total() for v, c in law.items()}) for at, law in C.items()}
    posterior = {(z, i): Counter(dict(enumerate(data.posterior[z][i]))) for z, i in C}
    return {at: total_variation(least[at], posterior[at]) for at in C}


# -- the exact law of the buffer -------------------------------------------------------------------
@cache
def target_law(stage, effective, stages):
    """The law of the count that the buffer aims at: r ~ Unif(I_{n+1}), times L_eff, rounded."""
    low = Fraction((stage + 1) * effective, stages)
    high = Fraction((stage + 2) * effective, stages)
    half = Fraction(1, 2)
    law = Counter()
    for k in range(2 * effective + 1):
        share = (min(high, k + half) - max(low, k - half)) / (high - low)
        if share > 0:
            law[min(k, effective - 1)] += share
    return law


def next_stage(n, target, revealed, stages):
    """(stage, L_eff) once so many tokens are revealed; None if the chain is finished."""
    stage, effective = n
    if stage + 1 >= stages or revealed == effective:
        return None
    return (revealed * stages // effective if revealed > target else stage + 1), effective


@dataclass
class Buffer:
    """A setting of the buffer in puma.py; `prompts` {given positions: probability}.

    A state of a chain is (z, n) with n = (stage, L_eff).
    """

    data: Data
    policy: str
    K: int
    tau: float = math.inf
    prompts: dict | None = None  # None: nothing is given

    def __post_init__(self):
        self.prompts = self.prompts or {(): ONE}
        self.stages = puma.stage_count(self.data.L, self.K)
        self.choose = choice(self.data, self.policy)
        posteriors = self.data.posterior.items()
        self.fast = {z: [i for i, p in at.items() if max(p) > self.tau] for z, at in posteriors}

    def first(self):
        """The law {(x0, z, n): probability} of the first context."""
        empty = (MASK,) * self.data.L
        return {
            (x0, reveal(empty, given, x0), (0, self.data.L - len(given))): p * share
            for x0, p in self.data.p.items()
            for given, share in self.prompts.items()
        }

    def moves(self, z, n, x0=None):
        """Algorithm 1 and appendix B.1 of the paper, as puma.py runs them."""
        stage, effective = n
        out = []
        for target, p in target_law(stage, effective, self.stages).items():
            count = max(1, target - effective + len(hidden(z)))
            for S, g in self.choose(z, count).items():
                S = tuple(sorted({*S, *self.fast[z]}))
                revealed = effective - len(hidden(z)) + len(S)
                out.append((p * g, S, next_stage(n, target, revealed, self.stages)))
        return out

    @cached_property
    def joints(self):
        """[{(x0, z, n): probability}] for the first, second, .. context of a chain."""
        return teacher_forced(self.data, self.moves, self.stages - 1, self.first())

    def inside(self):
        """The law of the first context of a chain that starts in a random later stage."""
        law = Counter()
        for (x0, z, (_, effective)), p in self.first().items():
            for stage in range(1, self.stages):
                for count, q in target_law(stage - 1, effective, self.stages).items():
                    for S, g in uniform_choice(z, count).items():
                        context = x0, reveal(z, S, x0), (stage, effective)
                        law[context] += p * q * g / (self.stages - 1)
        return law

    def calls(self, count, second_visit):
        """[{(x0, z, n): probability}] of a row of the buffer at its first calls.

        At first chains start evenly over the stages. Then an ended chain is followed by one from
        the start, or, with `second_visit`, from inside if its only context was the start.
        """
        starts = self.first(), self.inside()
        laws = [mixture((ONE / self.stages, 1 - ONE / self.stages), starts)]
        while len(laws) < count:
            after = Counter()
            ended = [0, 0]  # followed by a start, by one from inside
            for (x0, z, n), p in laws[-1].items():
                at_once = second_visit and len(hidden(z)) == n[1]
                for q, S, following in self.moves(z, n):
                    if following is None:
                        ended[at_once] += p * q
                    else:
                        after[x0, reveal(z, S, x0), following] += p * q
            after.update(mixture(ended, starts))
            laws.append(after)
        return laws

    def stream(self, size, second_visit):
        """The shipped buffer, of one batch. Each example is used once: chains are independent."""
        rows, calls, seed = size
        torch.manual_seed(seed)
        examples = Sampled(self.first(), rows * (calls + 2 * puma.Queue.AHEAD), seed)
        queue = puma.Queue(examples, rows, "cpu", seed)
        tau = float(self.tau)
        return puma.ProgressiveUnmasking(queue, MASK, [(0, self.K)], tau, 1, second_visit)

    def states(self, size, second_visit, objective):
        """Yields {(z, (stage, L_eff)): rows of the shipped buffer} at each call.

        size: rows, calls, seed. The true posteriors stand in for a model.
        """
        stream = self.stream(size, second_visit)
        for batch, _ in training_steps(stream, Lookup(self.data), self.policy, size[1], objective):
            effective = (~stream.prompt[0]).sum(1).tolist()
            n = zip(stream.stage[0].tolist(), effective, strict=True)
            yield Counter(zip(map(tuple, batch.x.tolist()), n, strict=True))


def mixture(weights, laws):
    """{key: sum over k of weights[k] laws[k]{key}}."""
    out = Counter()
    for weight, law in zip(weights, laws, strict=True):
        for key, p in law.items():
            out[key] += weight * p
    return out


# -- the shipped code ------------------------------------------------------------------------------
def training_steps(stream, model, policy, calls, objective=None):
    """Yields (batch, loss) before the stream advances."""
    for call in range(calls):
        batch = stream.batch(call)
        value, *seen = (objective or loss.objective)(model, policies.POLICIES[policy], *batch)
        yield batch, value
        stream.advance(*seen)


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


class Lookup:
    """A model whose logits are the log posteriors: states x (B, L) -> rows of a table (B, L, V).

    The mask is digit 0 of a row's number in base V + 1.
    """

    def __init__(self, data):
        self.vocab_size = data.V
        self.table = torch.zeros((data.V + 1) ** data.L, data.L, data.V, dtype=torch.float64)
        for z, posterior in data.posterior.items():
            for i, p in posterior.items():
                self.table[self(torch.tensor(z)), i] = torch.tensor(p, dtype=torch.float64).log()

    def __call__(self, x):
        return ((x - MASK) * (self.vocab_size + 1) ** torch.arange(x.shape[-1])).sum(-1)

    def logits(self, row):
        return self.table[row]


# -- the test --------------------------------------------------------------------------------------
def chi_square(observed, law, n):
    """(degrees of freedom, p-value) of counts that n draws of `law` should give.

    An observed outcome of probability 0 refutes the law. Of the outcomes expected less than 5 times
    the rarest merge; the counts have no say in that.
    """
    if any(key not in law for key in observed):
        return 0, 0.0
    cells = [(float(p) * n, observed.get(key, 0)) for key, p in law.items()]
    cells.sort(key=lambda cell: cell[0])
    while len(cells) > 1 and cells[0][0] < 5:
        first, second, *rest = cells
        merged = first[0] + second[0], first[1] + second[1]
        cells = sorted([merged, *rest], key=lambda cell: cell[0])
    statistic = sum((count - expected) ** 2 / expected for expected, count in cells)
    return len(cells) - 1, survival(statistic, len(cells) - 1)


def running(buffer, size, second_visit=False, objective=None, laws=None):
    """(degrees of freedom, p-value) of the shipped buffer, call by call, against its exact law.

    The rows of a call are independent; the calls are not, hence Bonferroni's correction.
    """
    rows, calls, _ = size
    laws = laws or buffer.calls(calls, second_visit)
    seen = buffer.states(size, second_visit, objective)
    tests = [
        chi_square(counts, marginal(law), rows) for counts, law in zip(seen, laws, strict=True)
    ]
    return sum(dof for dof, _ in tests), min(1.0, calls * min(p for _, p in tests))


def survival(statistic, dof):
    """P(chi-square with dof degrees of freedom > statistic)."""
    if dof == 0:
        return 1.0
    half = torch.tensor([dof, statistic], dtype=torch.float64) / 2
    return float(torch.special.gammaincc(half[0], half[1]))


# -- the command line, the table of claims, the controls -------------------------------------------
def main(doc, claims, controls, **sizes):
    """Run a script: claims(args) -> rows. Exits with 1 if a claim fails.

    A row is (claim, what was found, whether it holds), or a heading: a string. A negative control
    breaks one thing: {name: function of the arguments that returns rows, all of which must fail}.
    sizes: {name: default} of the flags that set how much is checked.
    """
    parser = argparse.ArgumentParser(description=doc.partition("\n")[0])
    names = ["all", *controls]
    text = f"run a negative control, which must fail: {', '.join(names)}"
    parser.add_argument("--break", dest="broken", choices=names, metavar="NAME", help=text)
    for name, default in {"seed": 0, **sizes}.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default {default}")
    sys.exit(run(claims, controls, parser.parse_args()))


def run(claims, controls, args):
    """The exit status: 1 if a claim fails. Of controls: 1 if every row fails, as it must."""
    if args.broken is None:
        return int(not all(show(claims(args))))
    names = controls if args.broken == "all" else [args.broken]
    held = [show([f"--break {name}", *controls[name](args)]) for name in names]
    return int(not any(map(any, held)))


def show(rows):
    """Prints the table; returns for each claim whether it holds."""
    checks = [row for row in rows if not isinstance(row, str)]
    wide = max(len(claim) for claim, _, _ in checks)
    for row in rows:
        if isinstance(row, str):
            print(f"\n{row}")
        else:
            claim, found, holds = row
            print(f"  {'holds' if holds else 'FAILS'}  {claim:<{wide}}  {found}")
    return [holds for _, _, holds in checks]
