"""Proposition 2 and its lemma: on every training context the posterior minimises the loss.

Lemma (weighted cross-entropy). L(q) = E[w(X) (-log q(Y | X))] is the sum over x of w(x) P(x)
(H(Y | x) + KL(P(Y | x) || q(. | x))): the minimizer is P(Y | x) where w(x) > 0, free where it is 0.

Proposition 2. The loss E[w(z) sum over hidden i of -log f_i(x0^i | z)], with weight 1/t (paper) or
1/|hidden| (losses.py), has for its minimizer the posterior p(x0^i | z) of p_data, for every z that
the masking process reaches with a hidden i, if p(z | x0, t) = alpha_t(z) 1{x0 agrees with z}.
The minimizer is known in closed form (minimizer.py), enumerated in fractions, compared with `==`:
for i.i.d. masks, for teacher-forced chains under any policy and for the buffer of puma.py. In
states that the process never reaches nothing is pinned; a policy that peeks at hidden tokens shifts
the minimizer.

The paper only asks for p(z | x0, t) *proportional* to alpha_t(z) 1{agree}. That is too weak: if
it is normalised for each x0, Z_t(x0) does not cancel, unless it is constant on the support.
Last, PAPL (papl.py).
"""

import random
from collections import Counter
from fractions import Fraction
from itertools import chain, product

import exact
import irrational
import masks
import minimizer
import papl
import report
import torch
from chi_square import LEVEL, chi_square
from exact import NOTHING, ONE, hidden, instances, normalised
from minimizer import all_steps, coefficients, grid_loss, iid_loss, per_hidden, shifts
from shipped import Buffer, losses, puma

# -- the lemma -------------------------------------------------------------


def risk(weight, p, q):
    """The sum over y of w(y) p(y) (-log q(y)), as terms of irrational.log_sum."""
    return [(-w * p_y, q_y) for w, p_y, q_y in zip(weight, p, q, strict=True)]


def lemma(rng, n, V, weight_of):
    """The rows of the lemma, for n random p(y) = P(y | x) and q(y), at one x each."""
    decomposed = least = free = True
    for x in range(n):
        p, q = (list(exact.random_law(rng, range(V), zeros=False).values()) for _ in range(2))
        weight = [Fraction(weight_of(x % 4, y), 5) for y in range(V)]
        entropy = [(w * p_y, p_y) for w, p_y in zip(weight, p, strict=True)]
        excess = irrational.log_sum([*risk(weight, p, q), *entropy])
        KL = [(weight[0] * p_y, p_y / q_y) for p_y, q_y in zip(p, q, strict=True)]
        decomposed &= excess == irrational.log_sum(KL)
        if weight[0] == 0:
            free &= excess == {}
        else:
            least &= q == p or irrational.positive(excess)
    found = f"{n} laws of {V} tokens"
    return [
        ("lemma: loss = entropy + KL", found, decomposed),
        ("lemma: least at the conditional only", found, least),
        ("lemma: free where the weight is 0", found, free),
    ]


# -- minimizers in closed form ---------------------------------------------


def summary(shift):
    moved = sum(s > 0 for s in shift)
    return f"{len(shift)} predictions, {moved} shifted, by up to {float(max(shift)):.3g}"


def preserved(claim, losses):
    """The row for (data, C) pairs: the minimizer is the posterior wherever it is pinned."""
    shift = [s for data, C in losses for s in shifts(data, C).values()]
    return claim, summary(shift), not any(shift)


def shifted(claim, losses):
    """The row for (data, C) pairs: in each, some minimizer is not the posterior."""
    shift = [list(shifts(data, C).values()) for data, C in losses]
    return claim, summary(list(chain.from_iterable(shift))), all(map(any, shift))


def same_loss(data, weigh=masks.paper_weight):
    """1/t with t ~ U(0, 1) is L times the shipped baseline, prediction for prediction."""
    paper, ours = iid_loss(data, weigh), iid_loss(data, masks.shipped_weight)
    same = all(paper[key][v] == data.L * c for key in ours for v, c in ours[key].items())
    return "1/t, t ~ U(0, 1) = L x the shipped baseline", f"{len(ours)} predictions", same


def subsets(L):
    """The masks (L,) bool that hide something."""
    return [mask for mask in product((False, True), repeat=L) if any(mask)]


def shipped_weights(L, weigh=lambda hidden: Fraction(1, hidden)):
    """d losses.row_mean / d nll is 1/|hidden| at the hidden positions, for all masks."""
    equal = True
    for mask in subsets(L):
        nll = torch.ones(1, L, dtype=torch.float64, requires_grad=True)
        losses.row_mean(nll, torch.tensor([mask])).backward()
        equal &= nll.grad.tolist() == [[float(h * weigh(sum(mask))) for h in mask]]
    return "losses.row_mean weighs by 1/|hidden|", f"{2**L - 1} masks", equal


def shipped_masks(L, n, seed, law=masks.uniform_count):
    """puma.random_masks draws each set of h positions with probability 1 / (L comb(L, h))."""
    generator = torch.Generator().manual_seed(seed)
    drawn = puma.random_masks(torch.zeros(n, L, dtype=torch.bool), generator)
    expected = {mask: law(sum(mask), L) for mask in subsets(L)}
    _, dof, p = chi_square(Counter(map(tuple, drawn.tolist())), expected, n)
    return "puma.random_masks draws them so", f"{n} masks, {dof} dof, p {p:.2g}", p > LEVEL


def iid(worlds):
    weights = masks.paper_weight, masks.shipped_weight
    pairs = [(d, iid_loss(d, weigh)) for d, weigh in product(worlds, weights)]
    return preserved("i.i.d. masks, 1/t and 1/|hidden|", pairs)


def grid_chains(rng, worlds):
    """Random policies that depend on z and t, under 1/t and under the shipped weight."""
    steps = worlds[0].L + 1
    pairs = [(d, exact.random_policy(rng, wait=True)) for d in worlds]
    weights = {"1/t": lambda z, j: Fraction(steps, steps - j), "1/|hidden|": per_hidden}
    return [
        preserved(
            f"chain, random g(i | z, t), {name}", [(d, grid_loss(d, g, steps, w)) for d, g in pairs]
        )
        for name, w in weights.items()
    ]


SETTINGS = (1, None, NOTHING), (2, None, NOTHING), (1, 0.6, {(): ONE / 2, (1,): ONE / 2})


def buffer(name, worlds):
    """The buffer with several K, tau and given positions, under both weights."""
    weights = per_hidden, lambda z, n: n[1] * per_hidden(z, n)  # and 1/t, t = hidden / L_eff
    joints = [(d, minimizer.visits(d, name, *setting)) for d, setting in product(worlds, SETTINGS)]
    pairs = [(d, coefficients(joint, w)) for (d, joint), w in product(joints, weights)]
    return preserved(f"buffer, {name}", pairs)


def unreached(name, data, reaches_all):
    """A chain never visits some states; there the minimizer is free."""
    incomplete = {z for z in data.mass if hidden(z)}
    missed = incomplete - {z for z, _ in minimizer.buffer_loss(data, name)}
    found = f"{len(missed)} of {len(incomplete)} states"
    return f"not pinned by {name}, K = 1", found, reaches_all == (not missed)


# -- how much freedom alpha has --------------------------------------------


def alpha_loss(data, alpha):
    """C of p(z | x0) = alpha(z) 1{x0 agrees with z} / Z(x0), under the shipped weight."""
    joint = {}
    for x0, p in data.p.items():
        Z = sum(alpha[z] for z in exact.contexts(x0))
        joint |= {(x0, z, 0): p * alpha[z] / Z for z in exact.contexts(x0) if alpha[z]}
    return coefficients(joint, per_hidden)


def random_alpha(rng, data):
    """Rationals in [0, 1], positive in the fully masked state."""
    alpha = {z: Fraction(rng.randint(0, 9), 9) for z in data.mass}
    return alpha | {(exact.MASK,) * data.L: ONE}


def absorbed(data, alpha):
    """The same on incomplete states; complete ones absorb what makes Z(x0) constant."""
    rest = {x0: sum(alpha[z] for z in exact.contexts(x0) if hidden(z)) for x0 in data.p}
    Z = max(rest.values())
    alpha = alpha | {x0: Z - share for x0, share in rest.items()}
    return {z: a / Z for z, a in alpha.items()}


def worked_example():
    """L = 1, p_data = (1/2, 1/2), alpha(m) = alpha(0) = 1, alpha(1) = 0."""
    data = exact.Data({(0,): ONE / 2, (1,): ONE / 2}, 2)
    c = alpha_loss(data, {(exact.MASK,): ONE, (0,): ONE, (1,): Fraction(0)})[(exact.MASK,), 0]
    least = normalised([c[0], c[1]])
    found = f"minimizer {least[0]}, {least[1]}; p_data 1/2, 1/2"
    return "too strong: L = 1, alpha(1) = 0", found, least == (ONE / 3, 2 * ONE / 3)


def too_strong(rng, worlds):
    """Any alpha, normalised per x0, shifts the minimizer; a constant Z(x0) brings it back."""
    alphas = [(d, random_alpha(rng, d)) for d in worlds]
    free = [(d, alpha_loss(d, a)) for d, a in alphas]
    constant = [(d, alpha_loss(d, absorbed(d, a))) for d, a in alphas]
    return [
        worked_example(),
        shifted("too strong: any alpha, normalised per x0", free),
        preserved("corrected: the same with Z(x0) constant", constant),
    ]


# -- what sees x0 ----------------------------------------------------------

SHARES = Fraction(0), Fraction(1, 100), Fraction(1, 10), Fraction(1, 2), ONE


def leaking_loss(data, share):
    return grid_loss(data, exact.peeking_moves(data, share), data.L, per_hidden)


def leak(worlds):
    """The mean shifts by policies that peek on a share of their steps."""
    shift = [[minimizer.mean_shift(d, leaking_loss(d, s)) for d in worlds] for s in SHARES]
    mean = [sum(shifts) / len(worlds) for shifts in shift]
    found = ", ".join(f"{float(m):.2g} ({s})" for s, m in zip(SHARES, mean, strict=True))
    return "leak: mean TV (share of peeking steps)", found, mean[0] == 0 and all(mean[1:])


def prompts_that_leak(rng, V, L):
    """Outside the proposition: x0 follows one law where position 0 is given, another where 1 is.

    A state does not say which of its tokens were given, so P(z | x0) is no longer
    alpha(z) 1{agree}, for chains and for random masks. With one law for both it is.
    """
    one, other = (exact.random_data(rng, V, L) for _ in range(2))
    return [
        preserved("given positions independent of x0", two_prompts(one, one)),
        shifted("given positions that depend on x0: shifted", two_prompts(one, other)),
    ]


def two_prompts(one, other):
    """(data, C) of the buffer and of random masks, position 0 of `one` or 1 of `other` given."""
    both = exact.Data({x0: (p + other.p[x0]) / 2 for x0, p in one.p.items()}, one.V)
    chains, random_masks = Counter(), Counter()
    for data, given in (one, 0), (other, 1):
        chains += all_steps(Buffer(data, "left_to_right", 1, {(given,): ONE}).joints)
        for x0, p in data.p.items():
            for z in exact.contexts(x0):
                if z[given] != exact.MASK:
                    random_masks[x0, z, 0] += p * masks.uniform_count(len(hidden(z)), data.L - 1)
    return [(both, coefficients(joint, per_hidden)) for joint in (chains, random_masks)]


# -- the whole -------------------------------------------------------------


def claims(args):
    rng = random.Random(args.seed)
    sizes = (args.V, args.L), (2, args.L), (2, args.L + 1)
    wide, narrow, long = (instances(rng, args.worlds, *size) for size in sizes)
    names = exact.choices(long[0])
    return [
        *lemma(rng, 4 * args.worlds, args.V, lambda x, y: x),
        shipped_weights(args.L + 1),
        shipped_masks(args.L, 20_000, args.seed),
        same_loss(wide[0]),
        iid(wide),
        *grid_chains(rng, narrow),
        *(buffer(name, long) for name in names),
        *(unreached(name, long[0], reaches_all=name == "random") for name in names),
        *too_strong(rng, wide),
        leak(wide),
        *prompts_that_leak(rng, 2, args.L),
        papl.row("w the same for all x0: stays", narrow, vary=False, moves=False),
        papl.row("w differs: moves", narrow, vary=True, moves=True),
        papl.worked_example(),
        papl.shipped_weights(narrow),
    ]


def worlds_of(args):
    return instances(random.Random(args.seed), args.worlds, 2, args.L)


def weights_over_all_positions(nll, is_hidden, alpha):
    return losses.papl_weights(nll, torch.ones_like(is_hidden), alpha)


CONTROLS = {
    "lemma": lambda args: lemma(random.Random(args.seed), 40, args.V, lambda x, y: x + y),
    "row_mean": lambda args: [shipped_weights(args.L, lambda hidden: Fraction(1, args.L))],
    "masks": lambda args: [shipped_masks(args.L, 10_000, args.seed, masks.uniform_t)],
    "unweighted": lambda args: [same_loss(worlds_of(args)[0], masks.uniform_t)],
    "reached": lambda args: [unreached("top_k", worlds_of(args)[0], reaches_all=True)],
    "leak": lambda args: [
        preserved("a policy that peeks at x0", [(d, leaking_loss(d, ONE)) for d in worlds_of(args)])
    ],
    "papl": lambda args: [papl.row("w differs: stays", worlds_of(args), vary=True, moves=False)],
    "papl_weights": lambda args: [
        papl.shipped_weights(worlds_of(args), weigh=weights_over_all_positions)
    ],
}

if __name__ == "__main__":
    report.main(__doc__, claims, CONTROLS, worlds=10, V=3, L=3)
