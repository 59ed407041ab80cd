"""Proposition 3 and Example Z_m (paper, section 3.3 and appendix A), checked exactly.

Latents U_1..U_d and noise E are independent, Y = theta + sum_j U_j + E (mod m). The U_j are uniform
on the subgroup H of the multiples of Delta, E = 0 with probability 1 - eta, else uniform, and theta
is in Theta = H; the paper has |H| = 2, Delta = m/2. L = d + 1. The statements:

  collapse     given any strict subset of the latents, Y has the same law pi_0 for every theta
  Chernoff     C(P_theta, P_theta') >= -log B, B = 2 sqrt((1-eta) eta/(m-1)) + (m-2) eta/(m-1)
  order        the true confidence of a hidden latent exceeds that of Y until no latent is hidden
  random masks P(error) >= (1 - 1/|Theta|) (1-a)^n, a = P(all latents visible, Y hidden) = q(1-q)^d.
               The paper goes on with (1-a)^n >= exp(-an), which is the wrong way round; right is
               exp(-an/(1-a)) <= (1-a)^n < exp(-an). Under t ~ U(0, 1), a = 1/((d+1)(d+2)).
  oracle       P(error) <= (|Theta| - 1) B^T after T chains of d + 1 steps

The paper says that no other mask tells theta. That is so for the prediction of Y alone; the loss
also predicts a latent that is hidden alone, and that prediction depends on theta as much. Both
counts are shown: "Y only" and "every prediction". Of the optimal (MAP) estimator, ties are broken
by a fair coin.

Laws are integers over a common denominator, or Fractions. There is no tolerance: square roots are
compared by their squares, powers x^s are enclosed by integer square roots, exp by Taylor sums with
remainder, refined until the comparison is decided. Only the runs of the shipped buffer are random.
"""

import argparse
import itertools
import math
import sys
from collections import Counter, defaultdict
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent.parent))
import losses
import policies
from examples import ExampleQueue
from puma import ProgressiveUnmasking, RandomMasking

P_VALUE = 1e-6  # below this the shipped code contradicts the exact law

# -- the model -------------------------------------------------------------


class Model(NamedTuple):
    """Example Z_m; `latent` holds the weights of U_j over H, so |H| = |Theta| = len(latent)."""

    m: int
    d: int
    eta: Fraction
    latent: tuple = (1, 1)

    @property
    def size(self):
        return len(self.latent)

    @property
    def thetas(self):
        return range(0, self.m, self.m // self.size)

    @property
    def noise(self):
        """P(E = e) for e in Z_m."""
        return [1 - self.eta] + [self.eta / (self.m - 1)] * (self.m - 1)

    @property
    def weights(self):
        """The noise as integers over their sum, (m,)."""
        denominator = self.eta.denominator * (self.m - 1)
        return np.array([int(p * denominator) for p in self.noise])


def joint(model, theta):
    """P_theta(u, y) as integers over their sum; axes u_1 .. u_d, y: (|H|,) * d + (m,)."""
    *u, y = np.indices((model.size,) * model.d + (model.m,))
    law = model.weights[(y - theta - model.thetas.step * sum(u)) % model.m]
    for u_j in u:
        law = law * np.array(model.latent)[u_j]
    assert int(law.sum()) ** 2 < 2**63, "integers too large: choose eta with a smaller denominator"
    return law


def subsets(axes):
    return itertools.chain.from_iterable(
        itertools.combinations(axes, k) for k in range(len(axes) + 1)
    )


# -- collapse, order, and which masks tell theta ---------------------------


def pi_0(model):
    """The noise, shifted by a uniform element of H; integers (m,)."""
    return sum(np.roll(model.weights, shift) for shift in model.thetas)


def collapses(model):
    """Given any strict subset of the latents, Y has the law pi_0, for every theta."""
    expected = pi_0(model)
    return all(
        (law * expected.sum() == expected * law.sum(-1, keepdims=True)).all()
        for theta in model.thetas
        for missing in subsets(range(model.d))
        if missing
        for law in [joint(model, theta).sum(missing)]  # (.., m), unnormalised
    )


def early_confidence(model):
    """Of Y while a latent is hidden; (1 - eta)/2 + eta/(m-1)/2 if |H| = 2."""
    return (1 - model.eta + (model.size - 1) * model.noise[1]) / model.size


def latents_come_first(model):
    """True confidences given u_S: of each hidden latent above Y's, of Y as in the paper's formulas.

    Laws given u_S are left unnormalised: all have the same sum P(u_S), so they compare as they are.
    """
    laws = [joint(model, theta) for theta in model.thetas]
    return early_confidence(model) < 1 - model.eta and all(
        latents_are_surer(model, law, missing) if missing else has_confidence(law, 1 - model.eta)
        for law in laws
        for missing in subsets(range(model.d))
    )


def latents_are_surer(model, law, missing):
    y = law.sum(missing)
    latents = (alone(law, (*missing, model.d), j).max(-1) for j in missing)
    return has_confidence(y, early_confidence(model)) and all(
        (confidence > y.max(-1)).all() for confidence in latents
    )


def has_confidence(law, confidence):
    """Whether max / sum over the last axis is this Fraction, everywhere."""
    return (law.max(-1) * confidence.denominator == law.sum(-1) * confidence.numerator).all()


def alone(law, hidden, target):
    """Sum out the hidden positions other than the target, and put the target's axis last."""
    others = tuple(i for i in hidden if i != target)
    return np.moveaxis(law.sum(others), target - sum(i < target for i in others), -1)


def tells(laws, hidden, target):
    """Whether the law of a hidden target given the visible tokens depends on theta."""
    given = [alone(law, hidden, target) for law in laws]  # (.., values)
    first, *rest = [(law, law.sum(-1, keepdims=True)) for law in given]
    return any((law * first[1] != first[0] * total).any() for law, total in rest)


def informative_masks(model, targets):
    """Hidden sets under which the prediction of a hidden one of the targets depends on theta."""
    laws = [joint(model, theta) for theta in model.thetas]
    return [
        hidden
        for hidden in subsets(range(model.d + 1))
        if any(tells(laws, hidden, i) for i in hidden if i in targets)
    ]


def same_evidence(model):
    """What is visible when one position is hidden does not depend on theta.

    So the ratio of the predictions is P_theta(x0) / P_theta'(x0), whichever position is hidden.
    """
    laws = [joint(model, theta) for theta in model.thetas]
    return all((law.sum(i) == laws[0].sum(i)).all() for law in laws for i in range(model.d + 1))


# -- laws of random masks --------------------------------------------------


def fixed(q):
    """Each position hidden with probability q."""
    return lambda hidden, L: q**hidden * (1 - q) ** (L - hidden)


def uniform_t(hidden, L):
    """The same with q = t ~ U(0, 1): the integral of t^h (1-t)^(L-h), term by term."""
    visible = L - hidden
    return sum(
        Fraction((-1) ** j * math.comb(visible, j), hidden + j + 1) for j in range(visible + 1)
    )


def uniform_count(hidden, L):
    """The shipped baseline: a count uniform in 1..L, then that many random positions."""
    return Fraction(1, L * math.comb(L, hidden)) if hidden else Fraction(0)


def informative_probability(d, law, every=False):
    """P(Y alone is hidden), or P(one position alone is hidden) if every prediction counts."""
    return law(1, d + 1) * (d + 1 if every else 1)


# -- numbers that are not rational -----------------------------------------


def exp_brackets(x):
    """Ever closer rational (low, high) around exp(x), x >= 0: Taylor sums with remainder."""
    term, low = Fraction(1), Fraction(0)
    for k in itertools.count(1):
        low += term
        term = term * x / k
        if k >= x:
            yield low, low + term / (1 - x / (k + 1))


def below_exp(y, x):
    """Whether y < exp(-x), decided; y rational, x > 0 rational, so exp(-x) is irrational."""
    close = (b for b in exp_brackets(x) if y * b[1] <= 1 or y * b[0] >= 1)
    return y * next(close)[1] <= 1


BITS = 64  # powers are enclosed by multiples of 2^-BITS
LEVELS = 9  # of the search over s: 2^LEVELS cells


@lru_cache(maxsize=4096)
def power_bracket(x, k):
    """Integers low <= 2^BITS x^s <= high, for 0 < x <= 1 and s = k / 2^LEVELS in [0, 1]."""
    low, high = math.floor(x * 2**BITS), math.ceil(x * 2**BITS)
    product_low = product_high = 1 << BITS
    for bit in f"{k:0{LEVELS + 1}b}":  # x, then x^(1/2), x^(1/4), ..
        if bit == "1":
            product_low, product_high = times((product_low, product_high), (low, high))
        low, high = math.isqrt(low << BITS), math.isqrt(high << BITS) + 1
    return product_low, product_high


def times(a, b):
    return a[0] * b[0] >> BITS, -(-a[1] * b[1] >> BITS)


def chernoff_bracket(noise, shift):
    """Rational (low, high) around inf over s in (0, 1) of sum_z P(z)^(1-s) Q(z)^s.

    P is the noise and Q the shifted noise. Each term is monotone in s, so that on a cell it is at
    least its smaller end; the sum at any s gives `high`.
    """
    pairs = Counter(zip(noise, np.roll(noise, shift), strict=True))
    cells = 2**LEVELS
    powers = [
        [times(power_bracket(p, cells - k), power_bracket(q, k)) for p, q in pairs]
        for k in range(cells + 1)
    ]
    low = min(
        sum(n * min(a[0], b[0]) for n, a, b in zip(pairs.values(), left, right, strict=True))
        for left, right in itertools.pairwise(powers)
    )
    high = min(sum(n * p[1] for n, p in zip(pairs.values(), at, strict=True)) for at in powers)
    return Fraction(low, 2**BITS), Fraction(high, 2**BITS)


class Surd(NamedTuple):
    """x + y sqrt(D), rational x, D >= 0 and y >= 0; products are of numbers with the same D."""

    x: Fraction
    y: Fraction
    D: Fraction

    def __mul__(self, other):
        x = self.x * other.x + self.y * other.y * self.D
        return Surd(x, self.x * other.y + self.y * other.x, self.D)

    def above(self, value):
        return value < self.x or (value - self.x) ** 2 < self.y**2 * self.D

    def at_least(self, value):
        return value <= self.x or (value - self.x) ** 2 <= self.y**2 * self.D

    def __float__(self):
        return float(self.x) + float(self.y) * math.sqrt(self.D)


# -- identifiability -------------------------------------------------------


def bhattacharyya(model):
    """B = 2 sqrt(p r) + (m-2) r with p = 1 - eta, r = eta / (m-1)."""
    p, r = model.noise[:2]
    return Surd((model.m - 2) * r, Fraction(2), p * r)


def chernoff_is_minus_log_b(model):
    """The Chernoff information of every pair of thetas is -log B, and positive.

    Exactly: the pairs (P(z), Q(z)) are a (p, r), an (r, p) and m-2 times (r, r) for each u, and
    p^(1-s) r^s + r^(1-s) p^s >= 2 sqrt(p r), the geometric mean, met at s = 1/2. Independently:
    a search over s encloses the infimum, and B lies inside.
    """
    p, *_, r = (int(w) for w in model.weights)
    n = model.size**model.d
    expected = Counter({(p, r): n}) + Counter({(r, p): n}) + Counter({(r, r): (model.m - 2) * n})
    laws = [joint(model, theta).ravel().tolist() for theta in model.thetas]
    pairs = all(
        Counter(zip(P, Q, strict=True)) == expected for P, Q in itertools.permutations(laws, 2)
    )
    low, high = chernoff_bracket(model.noise, model.thetas.step)
    B = bhattacharyya(model)
    inside = B.at_least(low) and not B.above(high) and high - low < Fraction(1, 100)
    return pairs and inside and not B.at_least(1)


# -- the MAP estimator -----------------------------------------------------


@lru_cache
def map_errors(model, most):
    """e_0 .. e_most: the error of the MAP estimator given k informative samples, theta uniform.

    The likelihood of theta grows with the number of residuals y - sum u equal to it, as 1 - eta >
    eta/(m-1). The state: how often each wrong theta was hit, less how often the true one.
    """
    total, steps = int(model.weights.sum()), moves(model)
    law, errors = {(0,) * (model.size - 1): 1}, []
    for k in range(most + 1):
        wrong = sum(weight * chance_of_error(state) for state, weight in law.items())
        errors.append(Fraction(wrong) / total**k)
        law = convolve(law, steps)
    return tuple(errors)


def moves(model):
    """(step of the state, integer weight): the true theta is hit, or a wrong one, or none."""
    others, (true, wrong) = model.size - 1, model.weights[:2].tolist()
    one_wrong = [tuple(row) for row in np.eye(others, dtype=int).tolist()]
    steps = [(-1,) * others, *one_wrong, (0,) * others]
    weights = [true, *[wrong] * others, (model.m - model.size) * wrong]
    return list(zip(steps, weights, strict=True))


def chance_of_error(state):
    """1 if a wrong theta leads, else a fair draw among the theta level with the true one."""
    if max(state) > 0:
        return 1
    level = state.count(0)
    return Fraction(level, level + 1)


def convolve(law, steps):
    after = defaultdict(int)
    for state, weight in law.items():
        for step, chance in steps:
            after[tuple(a + b for a, b in zip(state, step, strict=True))] += weight * chance
    return after


def mixture(a, n, errors):
    """(low, high) around sum_k Bin(n, a)(k) e_k; equal if n < len(errors).

    e_k falls in k, so what lies past the last is between 0 and its probability times the last.
    """
    hit, miss = a.numerator, a.denominator - a.numerator
    weight, mass, low = miss**n, 0, Fraction(0)  # integers over a.denominator**n
    for k, error in enumerate(errors[: n + 1]):
        low += weight * error
        mass += weight
        weight = weight * (n - k) * hit // ((k + 1) * miss)
    whole = a.denominator**n
    return low / whole, (low + (whole - mass) * errors[-1]) / whole


def samples_needed(a, errors, delta):
    """The least n whose error is at most delta, decided by the bracket."""

    def reached(n):
        low, high = mixture(a, n, errors)
        assert high <= delta or low > delta, "undecided: allow more informative samples"
        return high <= delta

    return least(reached)


def least(holds):
    """The least n >= 1 for which a monotone statement holds."""
    high = 1
    while not holds(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def chernoff_bound(model, T, power=1):
    """(|Theta| - 1) B^(power T)."""
    B = bhattacharyya(model)
    bound = Surd(Fraction(model.size - 1), Fraction(0), B.D)
    for _ in range(power * T):
        bound = B * bound
    return bound


def oracle_bound_holds(model, most, power=1):
    errors = map_errors(model, most)
    return all(chernoff_bound(model, T, power).at_least(e) for T, e in enumerate(errors))


LOWER_BOUNDS = {  # whether y, the error over that of guessing, is at least ..
    "(1-a)^n": lambda y, a, n: y >= (1 - a) ** n,
    "exp(-an/(1-a))": lambda y, a, n: not below_exp(y, a * n / (1 - a)),
    "exp(-an)": lambda y, a, n: not below_exp(y, a * n),
}


def lower_bounds_hold(model, a, most, bounds=("(1-a)^n", "exp(-an/(1-a))")):
    """P(error) >= (1 - 1/|Theta|) bound(n) for n up to `most`."""
    chance, errors = 1 - Fraction(1, model.size), map_errors(model, most)
    relative = [mixture(a, n, errors)[0] / chance for n in range(most + 1)]
    return all(
        LOWER_BOUNDS[bound](y, a, n) for bound in bounds for n, y in enumerate(relative) if n
    )


def order_is_one_over_a(model, a, delta, needed):
    """(1-a)/a log((1-1/|Theta|)/delta) <= needed <= ceil(log((|Theta|-1)/delta) / (a (1-B))).

    Above: the error is at most (|Theta|-1) (1-a+aB)^n, and (1-x)^n <= exp(-xn). B is rounded up.
    """
    chance, wrong = 1 - Fraction(1, model.size), model.size - 1
    B = bhattacharyya(model)
    above_B = Fraction(least(lambda k: not B.above(Fraction(k, 1 << 20))), 1 << 20)
    enough = least(lambda n: not below_exp(delta / wrong, n * a * (1 - above_B)))
    return not below_exp(delta / chance, needed * a / (1 - a)) and needed <= enough


def observation_law(model, theta, q):
    """Law of what a random mask shows to a learner of Y: visible latents, and Y where hidden."""
    law = defaultdict(Fraction)
    P = joint(model, theta)
    for hidden in subsets(range(model.d + 1)):
        chance = fixed(q)(len(hidden), model.d + 1) / int(P.sum())
        for x0, weight in np.ndenumerate(P):
            seen = tuple("?" if i in hidden else token for i, token in enumerate(x0[:-1]))
            y = x0[-1] if model.d in hidden else "visible"
            law[(*seen, y)] += chance * int(weight)
    return law


def bayes_error(model, q, n):
    """The least error that any estimator can have from n samples, by enumerating all of them."""
    laws = [observation_law(model, theta, q) for theta in model.thetas]
    samples = itertools.product(laws[0], repeat=n)
    correct = sum(max(math.prod(law[o] for o in sample) for law in laws) for sample in samples)
    return 1 - Fraction(correct) / model.size


# -- the shipped buffer ----------------------------------------------------


class Sequences:
    """All of Z_m's sequences at theta = 0, each as often as its probability says.

    Y stands first, where no tie can make it come last.
    """

    def __init__(self, model):
        *u, y = np.indices((model.size,) * model.d + (model.m,))
        rows = np.stack([y, *(model.thetas.step * u_j for u_j in u)], -1).reshape(-1, model.d + 1)
        self.rows = rows.repeat(joint(model, 0).ravel(), axis=0)  # (N, L)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, indices):
        x0 = self.rows[indices]
        return x0, np.zeros_like(x0, dtype=bool)


class TruePosterior:
    """A lookup table in the model's place: x (B, L) -> logits (B, L, m), the law of x0 given x."""

    def __init__(self, model, rows):
        self.m, self.table = model.m, {}
        self.rows, self.counts = np.unique(rows, axis=0, return_counts=True)

    def __call__(self, x):
        states, row = torch.unique(x, dim=0, return_inverse=True)
        return torch.stack([self.logits(tuple(state)) for state in states.tolist()])[row]

    def logits(self, state):
        if state not in self.table:
            x = np.array(state)
            agree = ((x == self.m) | (x == self.rows)).all(1)  # the mask token is m
            one_hot = self.rows[agree][..., None] == np.arange(self.m)  # (n, L, m)
            law = (one_hot * self.counts[agree][:, None, None]).sum(0)
            self.table[state] = torch.from_numpy(law / law[0].sum()).log()
        return self.table[state]


def buffer(model, tau, rows, seed):
    data = Sequences(model)
    queue = ExampleQueue(data, rows, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    one_token_per_stage = [(0, 1)]
    stream = ProgressiveUnmasking(queue, model.m, generator, one_token_per_stage, tau)
    return stream, TruePosterior(model, data.rows)


def contexts(model, policy, tau, rows, steps, seed):
    """Run the shipped buffer; what it hid in every batch, (steps, rows, L)."""
    stream, posterior = buffer(model, tau, rows, seed)
    seen = []
    for iteration in range(steps):
        x0, x, hidden = stream.batch(iteration)
        seen.append(hidden)
        _, score, confidence = losses.predictions(posterior(x), x0, policy)
        stream.advance(score, confidence)
    return torch.stack(seen).numpy()


class Chains(NamedTuple):
    """Per chain, as many of each row: lengths, informative contexts, contexts with Y visible."""

    length: np.ndarray
    informative: np.ndarray
    y_visible: np.ndarray


def split(hidden):
    """Contexts (steps, B, L), Y first -> Chains.

    A chain begins where all is hidden, since each step reveals a token. It has at most L contexts:
    the first that a row finds in its buffer is left out, and so many are taken of every row that
    all of them end in time, or short chains would be counted more often.
    """
    steps, B, L = hidden.shape
    chain = hidden.all(-1).cumsum(0)  # (steps, B), 0 for what the buffer was filled with
    each = (steps - L) // L
    kept = (chain >= 1) & (chain <= each)
    place = ((chain - 1) * B + np.arange(B))[kept]
    informative = hidden[..., 0] & ~hidden[..., 1:].any(-1)
    counts = (np.bincount(place, w[kept]) for w in (kept, informative, ~hidden[..., 0]))
    return Chains(*(c.astype(int) for c in counts))


def y_is_last(chains):
    """Y is hidden in every context, and each chain has exactly one with all latents visible."""
    return one_informative(chains).all()


def one_informative(chains):
    return (chains.y_visible == 0) & (chains.informative == 1)


def chain_lengths(L):
    """Law of the number of contexts of a chain of L tokens at K = 1, {length: probability}.

    The target of stage n + 1 is round(L r), r ~ Unif(I_{n+1}): n + 1 or n + 2 tokens, evenly, and
    at most L - 1. At least one token is revealed, so the target may be passed; the stage follows.
    """
    ended, law = defaultdict(Fraction), {(0, 0): Fraction(1)}
    for length in range(1, L + 1):
        after = defaultdict(Fraction)
        for (stage, revealed), probability in law.items():
            for target in (min(stage + 1, L - 1), min(stage + 2, L - 1)):
                now = max(target, revealed + 1)
                if stage + 1 >= L or now == L:
                    ended[length] += probability / 2
                else:
                    after[now if now > target else stage + 1, now] += probability / 2
        law = after
    return dict(ended)


def chi_square(values, law):
    """p-value of integer values (n,) under a law {value: probability}; 0 if one is impossible."""
    observed = Counter(values.tolist())
    if not set(observed) <= set(law):
        return 0.0
    expected = {value: float(p) * len(values) for value, p in law.items()}
    statistic = sum((observed[v] - e) ** 2 / e for v, e in expected.items())
    half = torch.tensor([len(law) - 1, statistic], dtype=torch.float64) / 2
    return torch.special.gammaincc(*half).item() if len(law) > 1 else 1.0


def masks_seen(d, rows, batches, seed):
    """The shipped baseline's masks: 1 where Y alone is hidden, 2 a latent alone, 0 else; (n,)."""
    queue = ExampleQueue(Sequences(Model(4, d, Fraction(1, 20))), rows, seed=seed)
    stream = RandomMasking(queue, 4, torch.Generator().manual_seed(seed))
    hidden = torch.cat([stream.batch(i)[2] for i in range(batches)])
    alone = hidden.sum(1) == 1
    return torch.where(alone, 2 - hidden[:, 0].long(), 0).numpy()


def baseline_law(d):
    one = informative_probability(d, uniform_count)
    return {0: 1 - (d + 1) * one, 1: one, 2: d * one}


# -- what is verified ------------------------------------------------------
#
# Each function yields (holds, line of the table).


def verify_example(args):
    yield True, f"{'m':>3} {'|H|':>3} {'eta':>5} {'d':>5}   C from the search     -log B"
    cases = [(m, args.d, (1, 1)) for m in args.m] + [(m, min(args.d, 4), (1, 1, 1)) for m in (6, 9)]
    for (m, most, latent), eta in itertools.product(cases, args.eta):
        models = [Model(m, d, eta, latent) for d in range(1, most + 1)]
        holds = all(f(model) for model in models for f in EXAMPLE_CLAIMS)
        low, high = chernoff_bracket(models[0].noise, models[0].thetas.step)
        interval = f"[{-math.log(high):.5f}, {-math.log(low):.5f}]"
        minus_log_b = -math.log(bhattacharyya(models[0]))
        yield holds, f"{m:>3} {len(latent):>3} {eta!s:>5}  1..{most}  {interval}  {minus_log_b:.5f}"


def masks_that_tell(model, targets, informative):
    return informative_masks(model, targets) == informative


def only_y_hidden_tells(model):
    """For the prediction of Y, as in the paper."""
    return masks_that_tell(model, [model.d], [(model.d,)])


def one_hidden_tells(model):
    """For every prediction that the loss makes; and the evidence is that of a prediction of Y."""
    single = [(i,) for i in range(model.d + 1)]
    return masks_that_tell(model, range(model.d + 1), single) and same_evidence(model)


EXAMPLE_CLAIMS = (
    collapses,
    latents_come_first,
    chernoff_is_minus_log_b,
    only_y_hidden_tells,
    one_hidden_tells,
)


def occurs_with(d, law, expected):
    return informative_probability(d, law) == expected


def verify_probabilities(args):
    for name, law, formula in (
        ("q(1-q)^d at fixed q", fixed(args.q), lambda d: args.q * (1 - args.q) ** d),
        ("1/((d+1)(d+2)) under t ~ U(0,1)", uniform_t, lambda d: Fraction(1, (d + 1) * (d + 2))),
        ("1/(d+1)^2 under a uniform count", uniform_count, lambda d: Fraction(1, (d + 1) ** 2)),
    ):
        holds = all(occurs_with(d, law, formula(d)) for d in range(1, 65))
        yield holds, f"Y alone is hidden with probability {name}, d = 1..64"


def mask_laws(q):
    """Name -> the law of masks for d latents."""
    return {
        f"q = {q}": lambda d: fixed(q),
        "q = 1/(d+1)": lambda d: fixed(Fraction(1, d + 1)),
        "t ~ U(0,1)": lambda d: uniform_t,
        "count": lambda d: uniform_count,
    }


def map_is_optimal(model, q, most):
    """The closed form equals the least error of all estimators, by enumeration of n samples."""
    a, errors = q * (1 - q) ** model.d, map_errors(model, most)
    return all(mixture(a, n, errors)[0] == bayes_error(model, q, n) for n in range(most + 1))


def verify_random_masks(args):
    small = [
        Model(4, 1, args.eta[0]),
        Model(4, 2, args.eta[0]),
        Model(6, 1, args.eta[0], (1, 1, 1)),
    ]
    holds = all(map_is_optimal(model, args.q, 2) for model in small)
    yield holds, "closed form of the MAP error = least error of any estimator, n = 0..2, enumerated"
    cases = itertools.product(args.eta, range(1, args.d + 1), mask_laws(args.q).values())
    holds = all(
        lower_bounds_hold(Model(4, d, eta), informative_probability(d, law(d)), args.n)
        for eta, d, law in cases
    )
    yield holds, f"error >= 1/2 (1-a)^n >= 1/2 exp(-an/(1-a)): d = 1..{args.d}, n = 1..{args.n}"
    rates = [args.q * (1 - args.q) ** d for d in range(1, args.d + 1)]
    wrong_way = [below_exp((1 - a) ** n, a * n) for a in rates for n in range(1, args.n + 1)]
    yield (
        all(wrong_way),
        f"(1-a)^n < exp(-an), not >=, in {sum(wrong_way)} of {len(wrong_way)} cases",
    )
    yield from reversed_inequality()


def reversed_inequality(eta=Fraction(1, 100), q=Fraction(1, 2), d=2):
    """The exact error beside the bounds: with little noise it is below what the paper allows."""
    model, a = Model(4, d, eta), q * (1 - q) ** d
    errors = map_errors(model, 30)
    yield True, f"q={q} d={d} m=4 eta={eta}; the last column: the n that the paper deems necessary"
    yield True, f"{'n':>4}   error  (1-a)^n/2  exp(-an/(1-a))/2  paper: exp(-an)/2"
    for n in (1, 2, 5, 10, 20, 30):
        error = mixture(a, n, errors)[0]
        necessary = least(lambda k, error=error: not below_exp(2 * error, a * k))
        bounds = float((1 - a) ** n) / 2, math.exp(-a * n / (1 - a)) / 2, math.exp(-a * n) / 2
        line = f"{n:>4}  {float(error):.4f}  {bounds[0]:>9.4f}  {bounds[1]:>16.4f}"
        yield necessary > n, f"{line}  {bounds[2]:>17.4f}  VIOLATED: {necessary} > {n}"


def verify_oracle(args):
    yield (
        True,
        f"{'m':>3} {'|H|':>3} {'eta':>5}  e_T <= (|H|-1) B^T; least T to error {args.delta}",
    )
    cases = itertools.product([(m, (1, 1)) for m in args.m] + [(6, (1, 1, 1))], args.eta)
    for (m, latent), eta in cases:
        model = Model(m, 1, eta, latent)
        errors = map_errors(model, args.n)
        falls = all(a >= b for a, b in itertools.pairwise(errors))
        exact = next(T for T, error in enumerate(errors) if error <= args.delta)
        bound = least(lambda T, model=model: not chernoff_bound(model, T).above(args.delta))
        yield (
            falls and exact <= bound and oracle_bound_holds(model, args.n),
            f"{m:>3} {model.size:>3} {eta!s:>5}  T = 0..{args.n}; exact {exact}, bound {bound}",
        )


INFORMATIVE = 100  # the MAP error is exact up to so many informative samples; beyond, a bracket


def needed_by_masks(model, q, delta, every=False):
    """Regime -> (a, samples needed to error delta)."""
    errors, needed = map_errors(model, INFORMATIVE), {}
    for name, law in mask_laws(q).items():
        a = informative_probability(model.d, law(model.d), every)
        needed[name] = a, samples_needed(a, errors, delta)
    return needed


def needed_by_chains(model, delta):
    """(the paper's chains of d + 1 steps, the shipped buffer's at K = 1, on average)."""
    errors = map_errors(model, INFORMATIVE)
    chains = next(T for T, error in enumerate(errors) if error <= delta)
    mean = sum(length * p for length, p in chain_lengths(model.d + 1).items())
    return (model.d + 1) * chains, mean * chains


def verify_regimes(args):
    names = list(mask_laws(args.q))
    yield True, f"samples to error {args.delta}: m=4 eta={args.eta[0]}; in brackets if every"
    yield True, "prediction counts, not that of Y alone; chains: one informative sample each"
    header = "".join(f"{name:>16}" for name in names)
    yield True, f"{'d':>3}{header}{'oracle d+1':>12}{'buffer K=1':>12}"
    for d in range(1, args.d + 1):
        model = Model(4, d, args.eta[0])
        counts = [needed_by_masks(model, args.q, args.delta, every) for every in (False, True)]
        holds = all(
            order_is_one_over_a(model, a, args.delta, n) for c in counts for a, n in c.values()
        )
        cells = "".join(f"{f'{counts[0][k][1]} ({counts[1][k][1]})':>16}" for k in names)
        oracle, shipped = needed_by_chains(model, args.delta)
        yield holds, f"{d:>3}{cells}{oracle:>12}{float(shipped):>12.1f}"


def between(model):
    """A threshold between the confidence of Y while a latent is hidden, and that of a latent."""
    return float(early_confidence(model) + Fraction(1, model.size)) / 2


def verify_shipped(args):
    d, (rows, steps) = args.shipped_d, (args.rows, args.steps)
    yield True, f"shipped buffer, m=4 eta=1/20 d={d} K=1, Y in the leftmost place"
    yield (
        True,
        f"{'policy':>9} {'tau':>6} {'chains':>7}  with Y last and 1 informative  "
        "contexts per chain (exact)  p-value",
    )
    model = Model(4, d, Fraction(1, 20))
    for policy in (policies.top_k, policies.entropy):
        for tau in (None, 0.9, between(model)):
            chains = split(contexts(model, policy, tau, rows, steps, args.seed))
            law = {2: Fraction(1)} if tau and tau < 1 / 2 else chain_lengths(d + 1)
            p_value = chi_square(chains.length, law)
            exact = float(sum(length * p for length, p in law.items()))
            yield (
                y_is_last(chains) and p_value > P_VALUE,
                f"{policy.__name__:>9} {tau and round(tau, 3)!s:>6} {len(chains.length):>7}  "
                f"{one_informative(chains).sum():>29}  "
                f"{chains.length.mean():>14.4f} ({exact:.4f})  {p_value:>9.3f}",
            )
    yield shipped_masks(args)


def shipped_masks(args):
    d = args.shipped_d
    seen, law = masks_seen(d, args.rows, args.steps, args.seed), baseline_law(d)
    p_value = chi_square(seen, law)
    text = (
        f"shipped random masks, {len(seen)}: Y alone hidden in {(seen == 1).mean():.4f}, exactly "
    )
    return p_value > P_VALUE, f"{text}{law[1]} = {float(law[1]):.4f}; p-value {p_value:.3f}"


# -- what must fail --------------------------------------------------------


def shipped_chains(policy=policies.top_k, tau=None, d=3, seed=0):
    return split(contexts(Model(4, d, Fraction(1, 20)), policy, tau, 32, 60, seed))


TENTH = Fraction(1, 10)
CONTROLS = {  # name: (what is broken, the check that must notice)
    "biased-latents": (
        "posterior collapse with latents that are not uniform on H",
        lambda: collapses(Model(4, 3, TENTH, (2, 1))),
    ),
    "uniform-noise": (
        "Chernoff information with noise that is uniform on Z_m",
        lambda: chernoff_is_minus_log_b(Model(4, 2, Fraction(3, 4))),
    ),
    "two-symbols": (
        "latents surer than Y at m = 2, where both have confidence 1/2",
        lambda: latents_come_first(Model(2, 2, TENTH)),
    ),
    "y-only": (
        "only the mask that hides Y alone tells theta, though every prediction counts",
        lambda: masks_that_tell(Model(4, 2, TENTH), range(3), [(2,)]),
    ),
    "reversed": (
        "the paper's lower bound with exp(-an)",
        lambda: lower_bounds_hold(Model(4, 2, Fraction(1, 100)), Fraction(1, 8), 10, ["exp(-an)"]),
    ),
    "double-chernoff": (
        "the oracle bound with twice the Chernoff information",
        lambda: oracle_bound_holds(Model(4, 1, TENTH), 10, power=2),
    ),
    "mean-rate": (
        "t ~ U(0,1) as if it were fixed at its mean 1/2",
        lambda: occurs_with(3, uniform_t, Fraction(1, 16)),
    ),
    "quadratic-at-fixed-q": (
        "order d^2 at fixed q = 1/2",
        lambda: order_is_one_over_a(
            Model(4, 8, TENTH),
            Fraction(1, 90),
            TENTH / 10,
            needed_by_masks(Model(4, 8, TENTH), Fraction(1, 2), TENTH / 10)["q = 1/2"][1],
        ),
    ),
    "left-to-right": (
        "shipped chains in an order that reveals Y first",
        lambda: y_is_last(shipped_chains(policies.left_to_right)),
    ),
    "margin": (
        "shipped chains by margin, which is 0 for latents and Y alike: the leftmost, Y, goes first",
        lambda: y_is_last(shipped_chains(policies.margin)),
    ),
    "low-tau": (
        "shipped chains with tau below the confidence of Y: it is revealed with the latents",
        lambda: y_is_last(shipped_chains(tau=0.3)),
    ),
    "one-token-per-step": (
        "shipped chains as if each had exactly d + 1 contexts",
        lambda: chi_square(shipped_chains().length, {4: Fraction(1)}) > P_VALUE,
    ),
}


def run_controls(names):
    """Exit status 1 if each of the checks fails, as it should."""
    passed = 0
    for name in names:
        text, holds = CONTROLS[name]
        verdict = holds()
        passed += verdict
        print(f"{'HOLDS, but should not' if verdict else 'fails':>6}  {name}: {text}")
    return int(not passed)


# -- the figure and the program --------------------------------------------


def plot(args):
    import matplotlib.pyplot as plt

    axes = plt.figure(figsize=(7, 4.5)).subplots()
    d = range(1, args.d + 1)
    models = [Model(4, each, args.eta[0]) for each in d]
    for every, style in ((False, "o-"), (True, "x--")):
        needed = [needed_by_masks(model, args.q, args.delta, every) for model in models]
        for name, color in (("q = " + str(args.q), "C3"), ("t ~ U(0,1)", "C1")):
            label = f"{name}, {'every prediction' if every else 'Y only'}"
            axes.semilogy(d, [n[name][1] for n in needed], style, color=color, label=label)
    oracle = [needed_by_chains(model, args.delta)[0] for model in models]
    axes.semilogy(d, oracle, "s-", color="C0", label="oracle chains, d + 1 steps each")
    title = f"samples to error {args.delta} (MAP, exact), m = 4, eta = {args.eta[0]}"
    axes.set(xlabel="latents d", ylabel="samples", title=title)
    axes.legend()
    axes.figure.savefig(args.plot, dpi=150, bbox_inches="tight")


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--m", type=int, nargs="+", default=[4, 6, 8], help="sizes of Z_m, even")
    add("--d", type=int, default=8, help="1..d latents")
    etas = [Fraction(1, 5), Fraction(1, 20), Fraction(2, 5)]
    add("--eta", type=Fraction, nargs="+", default=etas, help="noise; the first for the figure")
    add("--q", type=Fraction, default=Fraction(1, 2), help="fixed masking rate")
    add("--n", type=int, default=30, help="bounds are checked for up to n samples, or chains")
    add("--delta", type=Fraction, default=Fraction(1, 100), help="error that the counts refer to")
    add("--shipped-d", type=int, default=6, help="latents in the runs of the shipped buffer")
    add("--rows", type=int, default=64, help="rows per batch in these runs")
    add("--steps", type=int, default=800, help="batches in these runs")
    add("--seed", type=int, default=0)
    add("--plot", metavar="FILE.png", help="draw samples needed against d")
    names = "; ".join(f"{name}: {text}" for name, (text, _) in CONTROLS.items())
    add("--break", dest="control", choices=["all", *CONTROLS], metavar="NAME", help=names + "; all")
    args = parser.parse_args()
    if any(m % 2 or m < 4 for m in args.m):
        parser.error("--m: even numbers, at least 4")
    return args


SECTIONS = {
    "Example Z_m: collapse, order, Chernoff information, masks that tell theta": verify_example,
    "An informative mask": verify_probabilities,
    "Random masks: the lower bound": verify_random_masks,
    "Oracle chains: the upper bound": verify_oracle,
    "Samples needed": verify_regimes,
    "Shipped code": verify_shipped,
}


def main():
    args = arguments()
    if args.control:
        return run_controls(CONTROLS if args.control == "all" else [args.control])
    failures = 0
    for title, verify in SECTIONS.items():
        print(f"\n{title}")
        for holds, line in verify(args):
            failures += not holds
            print(line if holds else f"{line}   FAILS")
    if args.plot:
        plot(args)
    print(f"\n{failures} failures" if failures else "\nall hold")
    return int(failures > 0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
