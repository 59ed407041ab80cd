"""Proposition 2 and its lemma: on all contexts trained on, the loss is least at the posterior.

Lemma (weighted cross-entropy). L(q) = E[w(X) (-log q(Y | X))] is the sum over x of w(x) P(x)
(H(Y | x) + KL(P(Y | x) || q(. | x))): the minimiser is P(Y | x) where w(x) > 0, free where it is 0.

Proposition 2. The loss E[w(z) sum over hidden i of -log f_i(x0^i | z)], with weight 1/t (paper) or
1/|hidden| (losses.py), has for its minimiser the posterior p(x0^i | z) of p_data, for every z that
the masking process reaches with a hidden i, if p(z | x0, t) = alpha_t(z) 1{x0 agrees with z}.
In closed form the minimiser is C_i(z, .) / sum of C_i(z, .), with C_i(z, v) the sum over x0 with
x0^i = v of P(x0, z) w(z). Enumerated in fractions, compared with `==`:

  holds for       i.i.d. masks, teacher-forced chains under any policy, the buffer of puma.py
  not pinned      where the process does not go: C_i(z, .) = 0, and any f_i(. | z) does
  too strong      the paper asks for p(z | x0, t) only *proportional* to alpha_t(z) 1{agree}. If
                  that is normalised for each x0, Z_t(x0) does not cancel and the minimiser shifts.
                  It holds again when Z_t(x0) is constant on the support of p_data.
  fails for       a policy that peeks at hidden tokens of x0
  PAPL            weights 1 + alpha w^i, w^i = f_i(x0^i) / sum over hidden j of f_j(x0^j), look at
                  the target: is f = posterior still stationary? w detached or differentiated.

Logarithms are kept exact (logarithms.py). Last, a table of logits is trained by the shipped loss on
the shipped buffer, and on random masks.
"""

import random
import sys
from collections import Counter
from fractions import Fraction
from itertools import product

import exact
import logarithms
import masks
import papl
import program
import shipped
import torch
import training
from chi_square import LEVEL
from exact import hidden, instances, normalised
from minimiser import (
    NOTHING,
    all_steps,
    buffer_loss,
    coefficients,
    grid_loss,
    iid_loss,
    mean_shift,
    per_hidden,
    shifts,
    visits,
)
from shipped import Buffer, Peeking, losses

ONE = Fraction(1)
SETTINGS = (1, None, NOTHING), (2, None, NOTHING), (1, 0.6, {(): ONE / 2, (1,): ONE / 2})

# -- the lemma -------------------------------------------------------------


def random_joint(rng, X, V):
    """P(x, y), {x: V fractions}."""
    law = exact.random_law(rng, list(product(range(X), range(V))), zeros=False)
    return {x: [law[x, y] for y in range(V)] for x in range(X)}


def risk(joint, weight, q):
    """E[w(x, y) (-log q(y | x))], exactly."""
    return logarithms.total(
        logarithms.times_log(-weight(x, y) * p, q[x][y])
        for x, ps in joint.items()
        for y, p in enumerate(ps)
        if weight(x, y)
    )


def entropy_and_divergence(joint, weight, q):
    """The sum over x of w(x) P(x) (H(Y | x) + KL), for a weight of x alone."""
    terms = []
    for x, ps in joint.items():
        for p in ps:
            terms.append(logarithms.times_log(-weight(x, 0) * p, p / sum(ps)))
        for p, q_y in zip(ps, q[x], strict=True):
            terms.append(logarithms.times_log(weight(x, 0) * p, p / sum(ps) / q_y))
    return logarithms.total(terms)


def lemma(rng, n, X, V, weight_of):
    """The rows of the lemma for n random P(x, y), weights and predictors."""
    decomposed = least = free = True
    for _ in range(n):
        joint, weight = random_joint(rng, X, V), weight_of(rng, X)
        best = {x: normalised(ps) for x, ps in joint.items()}
        for x in joint:
            other = best | {x: normalised(random_joint(rng, 1, V)[0])}
            loss = risk(joint, weight, other)
            decomposed &= loss == entropy_and_divergence(joint, weight, other)
            more = logarithms.minus(loss, risk(joint, weight, best))
            if weight(x, 0) == 0:
                free &= more == {}
            else:
                least &= other == best or logarithms.positive(more)
    found = f"{n} joint laws of {X} x {V}"
    return [
        ("lemma: loss = entropy + KL", found, decomposed),
        ("lemma: least at the conditional only", found, least),
        ("lemma: free where the weight is 0", found, free),
    ]


def weight_of_x(rng, X):
    table = [Fraction(rng.randint(1, 9), rng.randint(1, 9)) for _ in range(X - 1)] + [0]
    return lambda x, y: table[x]


# -- minimisers in closed form ---------------------------------------------


def preserved(claim, worlds):
    """The row for (data, coefficients) pairs: the minimiser is the posterior wherever it is."""
    shift = [s for data, C in worlds for s in shifts(data, C).values()]
    moved = sum(s > 0 for s in shift)
    found = f"{len(shift)} predictions, {moved} shifted, by up to {float(max(shift)):.3g}"
    return claim, found, moved == 0


def same_loss(data, weigh=masks.paper_weight):
    """1/t with t ~ U(0, 1) is L times the shipped baseline, prediction for prediction."""
    paper, ours = iid_loss(data, weigh), iid_loss(data, masks.shipped_weight)
    same = all(paper[key][v] == data.L * c for key in ours for v, c in ours[key].items())
    return "1/t, t ~ U(0, 1) = L x the shipped baseline", f"{len(ours)} predictions", same


def shipped_weights(L, weigh=lambda hidden: Fraction(1, hidden)):
    """d losses.row_mean / d nll is 1/|hidden| at the hidden positions, for all 2^L - 1 masks."""
    sets = [m for m in product((False, True), repeat=L) if any(m)]
    equal = True
    for mask in sets:
        nll = torch.ones(1, L, dtype=torch.float64, requires_grad=True)
        losses.row_mean(nll, torch.tensor([mask])).backward()
        equal &= nll.grad.tolist() == [[float(h * weigh(sum(mask))) for h in mask]]
    return "losses.row_mean weighs by 1/|hidden|", f"{len(sets)} masks", equal


def shipped_masks(L, n, seed, law=masks.uniform_count):
    """puma.random_masks draws each set of h positions with probability 1 / (L comb(L, h))."""
    _, dof, p = shipped.baseline_masks(L, n, seed, law)
    return "puma.random_masks draws them so", f"{n} masks, {dof} dof, p {p:.2g}", p > LEVEL


def one_over_t(steps):
    return lambda z, j: Fraction(steps, steps - j)


def chains(rng, n, V, L):
    """Random policies that depend on z and t, under 1/t and under the shipped weight."""
    data = instances(rng, n, V, L)
    moves = [exact.random_policy(rng, wait=True) for _ in data]
    rows = []
    for name, weight in ("1/t", one_over_t(L + 1)), ("1/|hidden|", per_hidden):
        worlds = [(d, grid_loss(d, m, L + 1, weight)) for d, m in zip(data, moves, strict=True)]
        rows.append(preserved(f"chain, random g(i | z, t), {name}", worlds))
    return rows


def iid(rng, n, V, L):
    data = instances(rng, n, V, L)
    weights = masks.paper_weight, masks.shipped_weight
    worlds = [(d, iid_loss(d, weigh)) for d, weigh in product(data, weights)]
    return preserved("i.i.d. masks, 1/t and 1/|hidden|", worlds)


def one_over_share(z, n):
    """1/t for t = hidden / L_eff."""
    return Fraction(n[1], len(hidden(z)))


def buffers(rng, n, V, L):
    """Each policy, with several K, tau and given positions, under both weights."""
    data = instances(rng, n, V, L)
    rows = []
    for name in exact.choices(data[0]):
        joints = [(d, visits(d, name, *setting)) for d, setting in product(data, SETTINGS)]
        weights = per_hidden, one_over_share
        worlds = [(d, coefficients(joint, w)) for (d, joint), w in product(joints, weights)]
        rows.append(preserved(f"buffer, {name}", worlds))
    return rows


def unreached(rng, V, L, pinned="random"):
    """Where the minimiser of one p_data is not pinned: the states a chain never visits."""
    data = exact.random_data(rng, V, L)
    incomplete = {z for z in data.mass if hidden(z)}
    rows = []
    for name in exact.choices(data):
        missed = incomplete - {z for z, _ in buffer_loss(data, name)}
        found = f"{len(missed)} of {len(incomplete)} states"
        found += f", e.g. {shown(min(missed))}" if missed else ""
        rows.append((f"not pinned by {name}, K = 1", found, bool(missed) == (name != pinned)))
    return rows


def shown(z):
    return "".join("m" if token == exact.MASK else str(token) for token in z)


# -- how much freedom alpha has --------------------------------------------


def alpha_loss(data, alpha):
    """C of p(z | x0) = alpha(z) 1{x0 agrees with z} / Z(x0), under the shipped weight."""
    joint = {}
    for x0, p in data.p.items():
        Z = sum(alpha[z] for z in exact.contexts(x0))
        joint |= {(x0, z, 0): p * alpha[z] / Z for z in exact.contexts(x0) if alpha[z]}
    return coefficients(all_steps([joint]), per_hidden)


def random_alpha(rng, data):
    """Rationals in [0, 1], positive in the fully masked state."""
    alpha = {z: Fraction(rng.randint(0, 9), 9) for z in data.mass}
    return alpha | {(exact.MASK,) * data.L: ONE}


def absorbed(data, alpha):
    """The same on incomplete states; complete ones take what makes Z(x0) constant."""
    rest = {x0: sum(alpha[z] for z in exact.contexts(x0) if hidden(z)) for x0 in data.p}
    Z = max(rest.values())
    alpha = alpha | {x0: Z - share for x0, share in rest.items()}
    return {z: a / Z for z, a in alpha.items()}


def by_hand():
    """L = 1, p_data = (1/2, 1/2), alpha(m) = alpha(0) = 1, alpha(1) = 0."""
    data = exact.Data({(0,): ONE / 2, (1,): ONE / 2}, 2)
    c = alpha_loss(data, {(exact.MASK,): ONE, (0,): ONE, (1,): Fraction(0)})[(exact.MASK,), 0]
    minimiser = normalised([c[0], c[1]])
    found = f"minimiser {minimiser[0]}, {minimiser[1]}; p_data 1/2, 1/2"
    return "too strong: L = 1, alpha(1) = 0", found, minimiser == (ONE / 3, 2 * ONE / 3)


def too_strong(rng, n, V, L):
    """Any alpha, normalised per x0, shifts the minimiser; a constant Z(x0) brings it back."""
    data = instances(rng, n, V, L)
    alphas = [random_alpha(rng, d) for d in data]
    worlds = [(d, alpha_loss(d, a)) for d, a in zip(data, alphas, strict=True)]
    _, found, _ = preserved("", worlds)
    shifted = all(any(shifts(*world).values()) for world in worlds)
    constant = [(d, alpha_loss(d, absorbed(d, a))) for d, a in zip(data, alphas, strict=True)]
    return [
        by_hand(),
        ("too strong: any alpha, normalised per x0", found, shifted),
        preserved("corrected: the same with Z(x0) constant", constant),
    ]


SHARES = Fraction(0), Fraction(1, 100), Fraction(1, 10), Fraction(1, 2), ONE


def leak(rng, n, V, L):
    """(row, mean shifts) of policies that peek on a share of their steps."""
    data = instances(rng, n, V, L)
    mean = [sum(mean_shift(d, leaking_loss(d, share)) for d in data) / n for share in SHARES]
    found = ", ".join(f"{float(m):.2g} ({s})" for s, m in zip(SHARES, mean, strict=True))
    holds = mean[0] == 0 and all(mean[1:])
    return ("leak: mean TV (share of peeking steps)", found, holds), list(map(float, mean))


def leaking_loss(data, share):
    return grid_loss(data, exact.peeking_moves(data, share), data.L, per_hidden)


# -- given positions that tell about x0 ------------------------------------


def telling_prompts(rng, V, L):
    """Outside the proposition: x0 is drawn from another law where position 1 is given, not 0.

    A state does not say which of its tokens were given, so P(z | x0) is alpha(z) 1{agree} no more,
    for chains and for random masks. The first row, with one law for both, is the proposition.
    """
    one, other = (exact.random_data(rng, V, L) for _ in range(2))
    rows = [preserved("given positions independent of x0", two_prompts(one, one))]
    _, found, kept = preserved("", two_prompts(one, other))
    return [*rows, ("given positions that depend on x0: shifted", found, not kept)]


def two_prompts(one, other):
    """(data, C) of the buffer and of random masks, position 0 of `one` or 1 of `other` given."""
    both = exact.Data({x0: (p + other.p[x0]) / 2 for x0, p in one.p.items()}, one.V)
    chain, random_masks = Counter(), Counter()
    for data, given in (one, 0), (other, 1):
        buffer = Buffer(data, "left_to_right", 1, {(given,): ONE})
        chain += all_steps(buffer.joints(buffer.moves()))
        for x0, p in data.p.items():
            for z in exact.contexts(x0):
                if hidden(z) and z[given] != exact.MASK:
                    random_masks[x0, z, 0] += (
                        p * len(hidden(z)) * masks.shipped_weight(len(hidden(z)), data.L - 1)
                    )
    return [(both, coefficients(joint, per_hidden)) for joint in (chain, random_masks)]


# -- the whole -------------------------------------------------------------


def plot(path, curves, shares):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    _, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for name, curve in curves.items():
        left.semilogy(*zip(*curve, strict=True), label=name)
    left.axhline(training.ENOUGH, color="grey", linestyle=":")
    left.set(xlabel="training steps", ylabel="mean KL(posterior | model)")
    left.legend(fontsize="small")
    right.plot(list(map(float, SHARES)), shares, "o-")
    right.set(xlabel="share of peeking steps", ylabel="mean shift of the minimiser (TV)")
    plt.savefig(path, dpi=150)


def claims(args):
    rng = random.Random(args.seed)
    size = n, V, L = args.worlds, args.V, args.L
    rows = lemma(rng, n, 4, V, weight_of_x)
    rows += [shipped_weights(L + 1), shipped_masks(L, 100_000, args.seed)]
    rows += [same_loss(exact.random_data(rng, V, L)), iid(rng, *size)]
    rows += [*chains(rng, n, 2, L), *buffers(rng, n, 2, L + 1), *unreached(rng, 2, L + 1)]
    leak_row, shares = leak(rng, *size)
    rows += [
        *too_strong(rng, *size),
        leak_row,
        *telling_prompts(rng, 2, L),
        *papl.rows(rng, n, 2, L),
        papl.by_hand(),
        papl.shipped_weights(rng, n, 2, L),
    ]
    trained, curves = training.rows(args.seed, size_of(args))
    return rows + trained, curves, shares


def size_of(args):
    return args.rows, args.calls, args.seed


def break_lemma(args):
    """A weight that depends on y."""
    rng = random.Random(args.seed)

    def weight_of(rng, X):
        return lambda x, y: x * Fraction(1 + y)

    return lemma(rng, args.worlds, 4, args.V, weight_of)


def break_free(args):
    """A weight that is 0 for one value of y only."""
    rng = random.Random(args.seed)
    return lemma(rng, args.worlds, 4, args.V, lambda rng, X: lambda x, y: Fraction(x * y))


def break_row_mean(args):
    return [shipped_weights(args.L, lambda hidden: Fraction(1, args.L))]


def break_masks(args):
    return [shipped_masks(args.L, 10_000, args.seed, masks.uniform_t)]


def break_unweighted(args):
    """t ~ U(0, 1) without the weight 1/t."""
    return [same_loss(exact.random_data(random.Random(args.seed), 2, args.L), masks.uniform_t)]


def break_reached(args):
    """Top-k as if it reached every state."""
    return unreached(random.Random(args.seed), 2, args.L + 1, pinned="top_k")


def break_alpha(args):
    rng = random.Random(args.seed)
    data = instances(rng, args.worlds, args.V, args.L)
    worlds = [(d, alpha_loss(d, random_alpha(rng, d))) for d in data]
    return [preserved("any alpha, normalised per x0", worlds)]


def break_leak(args):
    data = instances(random.Random(args.seed), args.worlds, args.V, args.L)
    return [preserved("a policy that peeks at x0", [(d, leaking_loss(d, ONE)) for d in data])]


def break_weight(args):
    """The loss of each row divided by its probability: a weight that sees hidden tokens."""
    data = instances(random.Random(args.seed), args.worlds, args.V, args.L)
    worlds = []
    for d in data:
        joint = {(x0, z, 0): ONE for x0 in d.p for z in exact.contexts(x0) if hidden(z)}
        worlds.append((d, coefficients(joint, per_hidden)))
    return [preserved("a weight of 1 / p(x0)", worlds)]


def break_papl(args):
    data = instances(random.Random(args.seed), args.worlds, 2, args.L)
    return [papl.row("PAPL, w differs: stays", data, moves=False, vary=True)]


def break_papl_weights(args):
    """Weights normalised over all positions of a row, given ones too."""

    def weigh(nll, is_hidden, alpha):
        return losses.papl_weights(nll, torch.ones_like(is_hidden), alpha)

    return [papl.shipped_weights(random.Random(args.seed), args.worlds, 2, args.L, weigh=weigh)]


def break_training(args):
    return training.rows(args.seed, size_of(args), Peeking)[0]


BREAK = break_lemma, break_free, break_row_mean, break_masks, break_unweighted, break_reached
BREAK += break_alpha, break_leak, break_weight, break_papl, break_papl_weights, break_training
CONTROLS = {f.__name__.removeprefix("break_"): f for f in BREAK}


def main():
    parser = program.arguments(__doc__, CONTROLS)
    program.add_worlds(parser, worlds=10)
    parser.add_argument("--calls", type=int, default=400, help="training steps")
    sys.exit(program.run(parser.parse_args(), CONTROLS, claims, plot))


if __name__ == "__main__":
    main()
