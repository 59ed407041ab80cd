"""Masked sequences over a small vocabulary, enumerated with exact fractions.

A state z of (V + {mask})^L is a tuple with MASK at its hidden positions. `Data` holds p_data and
every posterior p(x0^i = v | z). A chain walks through the states by its moves: the policy g of the
paper, together with what the chain counts (the step of a time grid, the stage of the buffer).

    moves(z, n, x0) -> [(probability, S, next n)]     S: positions to reveal, () = wait;
                                                      next n None: the chain ends

The same moves define two chains. The teacher-forced chain reveals the tokens of its x0. Idealised
inference has no x0 (moves get None) and draws each token of S from the posterior. A policy that
obeys the rules of the paper ignores x0. Floats occur only in the entropy, which orders positions.
"""

import math
from collections import Counter
from fractions import Fraction
from functools import cache
from itertools import combinations, product

MASK = -1
ONE = Fraction(1)


class Data:
    """p {x0: probability}; mass {z: P(x0 agrees with z)}; posterior {z: {i: V fractions}}."""

    def __init__(self, p, V):
        self.p, self.V, self.L = p, V, len(next(iter(p)))
        self.mass = Counter()
        for x0, probability in p.items():
            for z in contexts(x0):
                self.mass[z] += probability
        self.posterior = {z: {i: self.conditional(z, i) for i in hidden(z)} for z in self.mass}

    def conditional(self, z, i):
        return tuple(self.mass[put(z, (i,), (v,))] / self.mass[z] for v in range(self.V))

    def consistent(self, z):
        """[(x0, p(x0 | z))] of the sequences that agree with z."""
        return [(x0, p / self.mass[z]) for x0, p in self.p.items() if agrees(x0, z)]


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


def random_law(rng, outcomes, zeros=True):
    """A random rational law over the outcomes; with `zeros`, some may be impossible."""
    weights = [rng.randint(0 if zeros else 1, 9) for _ in outcomes]
    weights[rng.randrange(len(weights))] += 1
    return {o: Fraction(w, sum(weights)) for o, w in zip(outcomes, weights, strict=True) if w}


def random_data(rng, V, L, full_support=True):
    sequences = list(product(range(V), repeat=L))
    if not full_support:
        sequences = rng.sample(sequences, rng.randint(2, len(sequences) - 1))
    return Data(random_law(rng, sequences, zeros=False), V)


def instances(rng, n, V, L):
    """n random p_data; every other one lacks full support."""
    return [random_data(rng, V, L, full_support=k % 2 == 0) for k in range(n)]


def teacher_forced(data, moves, steps, first=None):
    """[{(x0, z, n): probability}] over the steps 0 .. steps, from the law `first`.

    By default that is the start in Proposition 1: fully masked, at step 0 of the grid.
    """
    first = first or {(x0, (MASK,) * data.L, 0): p for x0, p in data.p.items()}
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


def random_policy(rng, wait=False):
    """One random index per step; g(i | z, j) is a new random law for every state and step."""

    @cache
    def moves(z, j, x0=None):
        outcomes = [(i,) for i in hidden(z)]
        law = random_law(rng, outcomes + [()] * (wait or not outcomes))
        return [(g, S, j + 1) for S, g in law.items()]

    return lambda z, j, x0=None: moves(z, j)


def peeking_moves(data):
    """Against the rules: a position whose hidden token is 0 goes first.

    Inference, which has no x0, follows the mean of these moves over the posterior.
    """

    def moves(z, j, x0=None):
        law = Counter()
        for truth, p in [(x0, ONE)] if x0 else data.consistent(z):
            law[min(hidden(z), key=lambda i: truth[i] != 0),] += p
        return [(p, S, j + 1) for S, p in law.items()]

    return moves


SCORES = {  # of a position: (its posterior, the position) -> a number, larger = revealed sooner
    "top_k": lambda posterior, i: max(posterior),
    "margin": lambda posterior, i: max(posterior) - sorted(posterior)[-2],
    "entropy": lambda posterior, i: sum(float(p) * math.log(p) for p in sorted(posterior) if p),
    "left_to_right": lambda posterior, i: -i,
    "semi_ar_2": lambda posterior, i: max(posterior) - 2 * (i // 2),
}


def best_first(data, score):
    """choose(z, count) -> {S: probability}: the highest scores, ties to the leftmost."""

    def choose(z, count):
        by_score = sorted(hidden(z), key=lambda i: -score(data.posterior[z][i], i))
        return {tuple(by_score[:count]): ONE}

    return choose


def uniform_choice(z, count):
    """The policy `random`: every set of `count` hidden positions is equally likely."""
    sets = list(combinations(hidden(z), min(count, len(hidden(z)))))
    return {S: Fraction(1, len(sets)) for S in sets}


def choices(data):
    """{name: choose} of the policies that the project ships."""
    return {name: best_first(data, s) for name, s in SCORES.items()} | {"random": uniform_choice}


def on_grid(choose, count=1):
    """Moves that reveal `count` indices at each step."""
    return lambda z, j, x0=None: [(g, S, j + 1) for S, g in choose(z, count).items()]
