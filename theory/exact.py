"""Masked sequences over a small vocabulary, enumerated with exact fractions.

A state z of (V + {mask})^L is a tuple, with MASK at the hidden positions. `Data` holds p_data and
every posterior p(x0^i = v | z). A process is given by its moves (the policy g of the paper, and
what the chain remembers: the step of a time grid, or the stage of the training buffer):

    moves(z, n, x0=None) -> [(probability, S, next n)]     S: positions to reveal, () = wait;
                                                           next n None: the chain ends
    starts: [(probability, given positions, first n)]      independent of x0

A policy that keeps to the rules ignores x0; inference has none to give. Two laws follow from the
same moves: the teacher-forced chain reveals the tokens of x0, inference samples each token of S
from a model. Both are lists over steps of {(z, n): probability}, the former with x0 in the key.
No floats here except in the entropy, where they only order the positions.
"""

import math
from collections import Counter
from fractions import Fraction
from itertools import combinations, product

MASK = -1


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
    """A random rational law over the outcomes, some of them impossible if `zeros`."""
    weights = [rng.randint(0 if zeros else 1, 9) for _ in outcomes]
    weights[rng.randrange(len(weights))] += 1
    return {o: Fraction(w, sum(weights)) for o, w in zip(outcomes, weights, strict=True) if w}


def random_data(rng, V, L, full_support=True):
    sequences = list(product(range(V), repeat=L))
    if not full_support:
        sequences = rng.sample(sequences, rng.randint(2, len(sequences) - 1))
    return Data(random_law(rng, sequences, zeros=False), V)


def normalised(ps):
    return tuple(p / sum(ps) for p in ps)


def instances(rng, n, V, L):
    """Random p_data, every other one without full support."""
    return [random_data(rng, V, L, full_support=k % 2 == 0) for k in range(n)]


def random_policy(rng, wait=False):
    """One random index per step, g(i | z, j) a new law for every state and step of the grid.

    Where it may also wait, the number of revealed tokens does not give the time away, so that a
    dependence on t is more than a dependence on z.
    """
    table = {}

    def moves(z, j, x0=None):
        if (z, j) not in table:
            outcomes = [(i,) for i in hidden(z)]
            table[z, j] = random_law(rng, outcomes + [()] * (wait or not outcomes))
        return [(g, S, j + 1) for S, g in table[z, j].items()]

    return moves


def peeking_moves(data, share=1):
    """Negative control: on that share of steps, a position whose hidden token is 0 comes first.

    Without x0, the mean of that law over the posterior.
    """

    def moves(z, j, x0=None):
        law, first = Counter(), hidden(z)[0]
        for truth, p in {x0: Fraction(1)}.items() if x0 else data.p.items():
            if agrees(truth, z):
                law[min(hidden(z), key=lambda i: truth[i] != 0),] += p * share
                law[first,] += p * (1 - share)
        return [(p / sum(law.values()), S, j + 1) for S, p in law.items() if p]

    return moves


FULLY_MASKED = ((Fraction(1), (), 0),)  # the start of Proposition 1, at step 0 of the grid


def trajectories(x0, moves, steps, path, probability):
    """(probability, [(z, n), ...]) of every way the chain of x0 can go on from `path`."""
    z, n = path[-1]
    if steps == 0 or n is None:
        yield probability, path
        return
    for g, S, after in moves(z, n, x0):
        longer = [*path, (reveal(z, S, x0), after)]
        yield from trajectories(x0, moves, steps - 1, longer, probability * g)


def teacher_forced(data, moves, steps, starts=FULLY_MASKED):
    """[{(x0, z, n): probability}] by enumeration of x0 and of all trajectories."""
    laws = [Counter() for _ in range(steps + 1)]
    for x0, p in data.p.items():
        for s, given, n in starts:
            first = reveal((MASK,) * data.L, given, x0), n
            for probability, path in trajectories(x0, moves, steps, [first], p * s):
                for law, (z, n_visit) in zip(laws, path, strict=False):
                    if n_visit is not None:
                        law[x0, z, n_visit] += probability
    return laws


def marginal(joint):
    """Sums x0 out of {(x0, z, n): probability}."""
    law = Counter()
    for (_, z, n), probability in joint.items():
        law[z, n] += probability
    return law


def inference(data, moves, steps, starts=FULLY_MASKED, model=None):
    """[{(z, n): probability}]: the tokens of S sampled, each on its own, from model[z][i]."""
    model = model or data.posterior
    law = Counter()
    for s, given, n in starts:
        for x0, p in data.p.items():
            law[reveal((MASK,) * data.L, given, x0), n] += p * s
    laws = [law]
    for _ in range(steps):
        laws.append(inference_step(laws[-1], moves, model))
    return laws


def inference_step(law, moves, model):
    """What inference has taken out of the support of p_data has no posterior and stays there."""
    after = Counter()
    for (z, n), q in law.items():
        if z not in model:
            after[z, n] += q
            continue
        for g, S, n_next in moves(z, n):
            if n_next is not None:
                for tokens, p in sampled(model[z], S):
                    after[put(z, S, tokens), n_next] += q * g * p
    return after


def sampled(posterior, S):
    """(tokens, probability) of independent draws at the positions of S."""
    tokens = [[(v, p) for v, p in enumerate(posterior[i]) if p] for i in S]
    for draw in product(*tokens):
        yield [v for v, _ in draw], math.prod(p for _, p in draw)


def total_variation(p, q):
    return sum((abs(p[key] - q[key]) for key in p.keys() | q.keys()), Fraction(0)) / 2


def top_k(posterior, i):
    return max(posterior)


def margin(posterior, i):
    first, second = sorted(posterior)[-1:-3:-1]
    return first - second


def entropy(posterior, i):
    return sum(float(p) * math.log(p) for p in sorted(posterior) if p)


def left_to_right(posterior, i):
    return -i


def semi_ar_2(posterior, i):
    return max(posterior) - 2 * (i // 2)


SCORES = {f.__name__: f for f in (top_k, margin, entropy, left_to_right, semi_ar_2)}


def best_first(data, score):
    """choose(z, count) -> {S: probability}: the highest scores, ties to the leftmost."""

    def choose(z, count):
        by_score = sorted(hidden(z), key=lambda i: -score(data.posterior[z][i], i))
        return {tuple(by_score[:count]): Fraction(1)}

    return choose


def uniform_choice(z, count):
    """The policy `random`: every set of `count` hidden positions is as likely."""
    sets = list(combinations(hidden(z), min(count, len(hidden(z)))))
    return {S: Fraction(1, len(sets)) for S in sets}


def choices(data):
    """The policies that the project ships, by their names there."""
    return {name: best_first(data, s) for name, s in SCORES.items()} | {"random": uniform_choice}


def on_grid(choose, count=1):
    """Moves on the grid of one step per `count` revealed indices."""

    def moves(z, j, x0=None):
        return [(g, S, j + 1) for S, g in choose(z, count).items()]

    return moves
