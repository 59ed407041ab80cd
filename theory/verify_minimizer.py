"""Proposition 2: on every training context the posterior minimises the loss.

The minimizer in closed form (minimizer.py) is enumerated in fractions and compared with `==`: for
i.i.d. masks, for teacher-forced chains under any policy and for the buffer of puma.py.
"""

import random
from collections import Counter
from fractions import Fraction
from itertools import chain, product

import exact
import masks
import minimizer
import report
import torch
from exact import MASK, ONE, hidden, instances
from minimizer import coefficients, grid_loss, iid_loss, per_hidden, shifts
from shipped import LEVEL, Buffer, Lookup, chi_square, log_table, losses, puma


# -- the shipped loss and masks --------------------------------------------------------------------
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
    dof, p = chi_square(Counter(map(tuple, drawn.tolist())), expected, n)
    return "puma.random_masks draws them so", f"{n} masks, {dof} dof, p {p:.2g}", p > LEVEL


def same_loss(data, weigh=masks.paper_weight):
    """1/t with t ~ U(0, 1) is L times the shipped baseline, prediction for prediction."""
    paper = iid_loss(data, weigh)
    ours = iid_loss(data, masks.shipped_weight)
    same = all(paper[key][v] == data.L * c for key in ours for v, c in ours[key].items())
    return "1/t, t ~ U(0, 1) = L x the shipped baseline", f"{len(ours)} predictions", same


def stationary(data, joints):
    """The gradient of the shipped loss, weighted by exact laws of contexts, at the posteriors.

    The loss is convex in the logits of each prediction: it is least where the gradient vanishes.
    """
    table = log_table(data).requires_grad_()
    objective, loss = losses.Objective(Lookup(table, data.V)), 0
    for (x0, z, _), p in chain.from_iterable(joint.items() for joint in joints):
        x = torch.tensor([z])
        loss += float(p) * objective(x, torch.tensor([x0]), x == MASK)[0]
    (gradient,) = torch.autograd.grad(loss, table)
    worst = gradient.abs().max().item()
    return "losses.Objective is least at the posteriors", f"gradient {worst:.1g}", worst < 1e-15


# -- minimizers in closed form ---------------------------------------------------------------------
def preserved(claim, pairs):
    """The row for (data, C) pairs: the minimizer is the posterior wherever it is pinned."""
    shift = [s for data, C in pairs for s in shifts(data, C).values()]
    found = f"{len(shift)} predictions, {sum(s > 0 for s in shift)} shifted, "
    return claim, f"{found}by up to {float(max(shift)):.3g}", not any(shift)


def grid_chains(rng, worlds):
    """Random policies that depend on z and t, under 1/t and under the shipped weight."""
    steps = worlds[0].L + 1
    weights = per_hidden, lambda z, j: Fraction(steps, steps - j)
    pairs = [(d, exact.random_policy(rng, wait=True)) for d in worlds]
    chains = [(d, grid_loss(d, g, steps, w)) for (d, g), w in product(pairs, weights)]
    return preserved("chain, random g(i | z, t)", chains)


SETTINGS = (1,), (2,), (1, 0.6, {(): ONE / 2, (1,): ONE / 2})


def buffer(name, worlds):
    """The buffer with several K, tau and given positions, under both weights."""
    weights = per_hidden, lambda z, n: n[1] * per_hidden(z, n)  # and 1/t, t = hidden / L_eff
    buffers = [Buffer(data, name, *setting) for data, setting in product(worlds, SETTINGS)]
    pairs = [(b.data, coefficients(b.joints, w)) for b, w in product(buffers, weights)]
    return preserved(f"buffer, {name}", pairs)


# -- how much freedom alpha has --------------------------------------------------------------------
def alpha_loss(data, alpha):
    """C of p(z | x0) = alpha(z) 1{x0 agrees with z} / Z(x0), under the shipped weight."""
    joint = {}
    for x0, p in data.p.items():
        Z = sum(alpha[z] for z in exact.contexts(x0))
        joint |= {(x0, z, 0): p * alpha[z] / Z for z in exact.contexts(x0) if alpha[z]}
    return coefficients([joint], per_hidden)


def random_alpha(rng, data):
    """Rationals in [0, 1], positive in the fully masked state."""
    alpha = {z: Fraction(rng.randint(0, 9), 9) for z in data.mass}
    return alpha | {(MASK,) * data.L: ONE}


def absorbed(data, alpha):
    """The same on incomplete states; complete ones absorb what makes Z(x0) constant."""
    rest = {x0: sum(alpha[z] for z in exact.contexts(x0) if hidden(z)) for x0 in data.p}
    Z = max(rest.values())
    alpha = alpha | {x0: Z - share for x0, share in rest.items()}
    return {z: a / Z for z, a in alpha.items()}


def worked_example():
    """L = 1, p_data = (1/2, 1/2), alpha(m) = alpha(0) = 1, alpha(1) = 0."""
    data = exact.Data({(0,): ONE / 2, (1,): ONE / 2}, 2)
    c = alpha_loss(data, {(MASK,): ONE, (0,): ONE, (1,): Fraction(0)})[(MASK,), 0]
    least = minimizer.minimizer(c)
    found = f"minimizer {least[0]}, {least[1]}; p_data 1/2, 1/2"
    return "too strong: L = 1, alpha(1) = 0", found, least == {0: ONE / 3, 1: 2 * ONE / 3}


def random_alphas(rng, worlds, constant):
    """(data, C) of a random alpha, normalised for each x0 or with Z(x0) constant."""
    alphas = [(d, random_alpha(rng, d)) for d in worlds]
    return [(d, alpha_loss(d, absorbed(d, a) if constant else a)) for d, a in alphas]


# -- given positions that depend on x0 -------------------------------------------------------------
def two_prompts(one, other):
    """(data, C) of the buffer and of random masks, position 0 of `one` or 1 of `other` given.

    Outside the proposition unless both laws are one.
    """
    both = exact.Data({x0: (p + other.p[x0]) / 2 for x0, p in one.p.items()}, one.V)
    chains, random_masks = [], Counter()
    for data, given in (one, 0), (other, 1):
        chains += Buffer(data, "left_to_right", 1, prompts={(given,): ONE}).joints
        for x0, p in data.p.items():
            for z in exact.contexts(x0):
                if z[given] != MASK:
                    random_masks[x0, z, 0] += p * masks.uniform_count(len(hidden(z)), data.L - 1)
    return [(both, coefficients(joints, per_hidden)) for joints in (chains, [random_masks])]


# -- random masks first, then chains ---------------------------------------------------------------
def started(rng, worlds, same=False):
    """(data, C) where a random mask decides what the next example gets: another, or a chain.

    same: against the rules, the next example is the one that has decided.
    """
    for data in worlds:
        begins = {z: rng.random() < 0.5 for z in data.mass}
        first, masked = Counter(), Counter()
        for x0, p in masked_states(data.p, data.L):
            for other, q in [(x0[0], ONE)] if same else data.p.items():
                if begins[x0[1]]:
                    first[other, (MASK,) * data.L, 0] += p * q
                else:
                    for (_, z), share in masked_states({other: ONE}, data.L):
                        masked[other, z, 0] += p * q * share
        policy = exact.random_policy(rng, wait=True)
        joints = exact.teacher_forced(data, policy, data.L, first)
        yield data, coefficients([masked, *joints], per_hidden)


def masked_states(p, L):
    """[((x0, context), probability)] of the shipped random masks."""
    return [
        ((x0, z), q * masks.uniform_count(len(hidden(z)), L))
        for x0, q in p.items()
        for z in exact.contexts(x0)
    ]


# -- a carry ---------------------------------------------------------------------------------------
def with_history(data, moves, known=lambda path, x0: path):
    """(data, C) for each value of what a carry may tell: known(path of states before, x0)."""
    parts = {}
    first = {(x0, (MASK,) * data.L, ()): p for x0, p in data.p.items()}

    def recording(z, path, x0=None):
        return [(g, S, (*path, z)) for g, S, _ in moves(z, len(path), x0)]

    for law in exact.teacher_forced(data, recording, data.L, first):
        for (x0, z, path), p in law.items():
            parts.setdefault(known(path, x0), Counter())[x0, z, 0] += p
    return [(data, coefficients([joint], per_hidden)) for joint in parts.values()]


def carried(rng, worlds, claim="chain, given its history", **known):
    chains = [with_history(d, exact.random_policy(rng, wait=True), **known) for d in worlds]
    return preserved(claim, [pair for pairs in chains for pair in pairs])


# -- the whole -------------------------------------------------------------------------------------
def claims(args):
    rng = random.Random(args.seed)
    sizes = (args.V, args.L), (2, args.L), (2, args.L + 1)
    wide, narrow, long = (instances(rng, args.worlds, *size) for size in sizes)
    return [
        "The shipped loss is the paper's: the same weights and masks, least at the posterior.",
        shipped_weights(args.L + 1),
        shipped_masks(args.L, 20_000, args.seed),
        same_loss(wide[0]),
        stationary(long[0], Buffer(long[0], "random", 1).joints),
        "Proposition 2: the loss is least at the data's posterior, under any policy that sees x.",
        preserved("i.i.d. masks", [(d, iid_loss(d, masks.shipped_weight)) for d in wide]),
        grid_chains(rng, narrow),
        *(buffer(name, long) for name in exact.choices(long[0])),
        "Proposition 2 as stated asks too little of the masks: a counterexample, a correction.",
        worked_example(),
        preserved("corrected: any alpha, Z(x0) constant", random_alphas(rng, wide, constant=True)),
        "Proposition 2 beyond the paper: prompts, random masks before chains, a carried state.",
        preserved("given positions independent of x0", two_prompts(narrow[0], narrow[0])),
        preserved("random masks, then chains", started(rng, narrow)),
        carried(rng, narrow),
    ]


def worlds_of(args):
    return instances(random.Random(args.seed), args.worlds, 2, args.L)


def leak(args):
    """A policy that reveals by the hidden tokens."""
    chains = [(d, grid_loss(d, exact.peeking_moves(d), d.L, per_hidden)) for d in worlds_of(args)]
    return preserved("a policy that peeks at x0", chains)


def normalised_per_x0(args):
    alphas = random_alphas(random.Random(args.seed), worlds_of(args), constant=False)
    return preserved("any alpha, Z(x0) varies", alphas)


def prompts_that_leak(args):
    rng = random.Random(args.seed)
    one, other = (exact.random_data(rng, 2, args.L) for _ in range(2))
    return preserved("given depends on x0", two_prompts(one, other))


def start_by_the_same_example(args):
    pairs = started(random.Random(args.seed), worlds_of(args), same=True)
    return preserved("an example decides when its own chain begins", pairs)


def carry_of_another_row(args):
    """As if a chain got the carry of a row with the same example, which shows the last token."""
    another = {"known": lambda path, x0: (path, x0[-1])}
    return carried(random.Random(args.seed), worlds_of(args), "the carry of another row", **another)


def peeking_is_stationary(args):
    data = worlds_of(args)[0]
    return stationary(data, exact.teacher_forced(data, exact.peeking_moves(data), data.L))


CONTROLS = {
    "row_mean": lambda args: [shipped_weights(args.L, lambda hidden: Fraction(1, args.L))],
    "masks": lambda args: [shipped_masks(args.L, 10_000, args.seed, masks.uniform_t)],
    "unweighted": lambda args: [same_loss(worlds_of(args)[0], masks.uniform_t)],
    "stationary": lambda args: [peeking_is_stationary(args)],
    "leak": lambda args: [leak(args)],
    "per_x0": lambda args: [normalised_per_x0(args)],
    "prompts": lambda args: [prompts_that_leak(args)],
    "start": lambda args: [start_by_the_same_example(args)],
    "carry": lambda args: [carry_of_another_row(args)],
}

if __name__ == "__main__":
    report.main(__doc__, claims, CONTROLS, worlds=10, V=3, L=3)
