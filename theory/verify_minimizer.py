"""Proposition 2: on every training context the posterior minimises the loss.

The minimizer in closed form (exact.coefficients) is enumerated in fractions and compared with `==`:
for i.i.d. masks, for teacher-forced chains under any policy and for the buffer of puma.py.
"""

import math
import random
from collections import Counter
from fractions import Fraction
from itertools import product

import exact
import torch
from exact import LEVEL, MASK, ONE, Buffer, Data, Sampled, coefficients, hidden, instances
from exact import per_hidden, policies, puma, subsets  # isort: skip


# -- the shipped loss and masks --------------------------------------------------------------------
def masks_row(data, n, seed, law=exact.uniform_count):
    """puma.RandomMasking on draws of p_data, half of them with position 1 given."""
    torch.manual_seed(seed)
    prompts = {(): ONE / 2, (1,): ONE / 2}
    examples = Sampled(Buffer(data, "random", 1, prompts=prompts).first(), n, seed)
    stream = puma.RandomMasking(puma.Queue(examples, n, "cpu", seed), MASK)
    seen = Counter((tuple(z), 0) for z in stream.batch(0).x.tolist())
    laws = [exact.random_contexts(data, law, given) for given in prompts]
    expected = exact.marginal(exact.mixture(prompts.values(), laws))
    dof, p = exact.chi_square(seen, expected, n)
    claim = "puma.RandomMasking draws a uniform count, then positions"
    return claim, f"{n} rows, {dof} dof, p {p:.2g}", p > LEVEL


def same_loss_row(most, law=exact.over_t):
    """The integral of P(S hidden | t) / t over t, against the enumerated baseline."""
    pairs = []
    for effective in range(1, most + 1):
        paper = law(range(effective))
        shipped = exact.uniform_count(range(effective))
        pairs += [(paper[S], effective * p / len(S)) for S, p in shipped.items()]
    claim = "E[1/t, S hidden], t ~ U(0, 1), is L_eff x the baseline's weight of S"
    return claim, f"{len(pairs)} masks, L_eff = 1..{most}", all(a == b for a, b in pairs)


def loss_row(data, law=exact.uniform_count):
    """Eq. 1 is a likelihood: at the posteriors it is the entropy of what is not given.

    policies.objective leaves out the factor L_eff of a row, which depends on the prompt alone.
    """
    entropy_off = 0
    gradient = 0
    prompts = subsets(range(data.L))[:-1]
    for given in prompts:
        model = exact.Lookup(data)
        model.table.requires_grad_()
        loss = 0
        for (x0, z, _), p in exact.random_contexts(data, law, given).items():
            x = torch.tensor([z])
            batch = x, torch.tensor([x0]), x == MASK
            loss += float(p) * policies.objective(model, policies.top_k, *batch)[0]
        loss.backward()
        eq_1 = (data.L - len(given)) * loss.item()
        entropy_off = max(entropy_off, abs(eq_1 - conditional_entropy(data, given)))
        gradient = max(gradient, model.table.grad.abs().max().item())
    claim = "L_eff x policies.objective, a prompt given: entropy of the rest, and least there"
    found = f"{len(prompts)} prompts, off by {entropy_off:.1g}, gradient {gradient:.1g}"
    return claim, found, entropy_off < 1e-6 and gradient < 1e-15


def conditional_entropy(data, given):
    """Of x0, given its tokens at these positions."""
    shown = Counter()
    for x0, p in data.p.items():
        shown[tuple(x0[i] for i in given)] += p
    entropies = [sum(-p * math.log(p) for p in law.values()) for law in (data.p, shown)]
    return entropies[0] - entropies[1]


# -- minimizers in closed form ---------------------------------------------------------------------
def preserved(claim, pairs):
    """The row for (data, C) pairs: the minimizer is the posterior wherever it is pinned."""
    shift = [s for data, C in pairs for s in exact.shifts(data, C).values()]
    found = f"{len(shift)} predictions, {sum(s > 0 for s in shift)} shifted, "
    return claim, f"{found}by up to {float(max(shift)):.3g}", not any(shift)


def iid_row(worlds, law=exact.over_t):
    """The paper's baseline. Its least loss, the entropy, tells the weight 1/t from any other."""
    joints = [(data, exact.random_contexts(data, law)) for data in worlds]
    as_drawn = [(data, coefficients([joint], lambda z, n: 1)) for data, joint in joints]
    claim, found, holds = preserved(
        "i.i.d. masks, t ~ U(0, 1), 1/t: least loss = entropy", as_drawn
    )
    entropies = sum(least_loss_is_entropy(data, joint) for data, joint in joints)
    found += f"; the entropy in {entropies} of {len(worlds)} worlds"
    return claim, found, holds and entropies == len(worlds)


def least_loss_is_entropy(data, joint):
    """In fractions: the factors of log P(z) in the loss at the posteriors, and in the entropy.

    -log P(x0^i | z) = log P(z) - log P(z with x0^i). At the start P(z) = 1, and log P(z) = 0.
    """
    factor = Counter()
    for (x0, z, _), p in joint.items():
        for i in hidden(z):
            factor[z] += p
            factor[exact.reveal(z, (i,), x0)] -= p
    del factor[(MASK,) * data.L]
    return all(factor[z] == -data.p.get(z, 0) for z in factor)


def grid_loss(data, moves, steps, weight):
    """C of a chain on the grid t_j = 1 - j / steps, with t uniform on the grid."""
    laws = exact.teacher_forced(data, moves, steps)[:-1]  # at t = 0 there is nothing to predict
    return coefficients(laws, weight)


def grid_row(rng, worlds):
    """Random policies that depend on z and t, under 1/t and under the shipped weight."""
    steps = worlds[0].L + 1
    weights = per_hidden, lambda z, j: Fraction(steps, steps - j)
    pairs = [(data, exact.random_policy(rng, wait=True)) for data in worlds]
    losses = [(data, grid_loss(data, g, steps, w)) for (data, g), w in product(pairs, weights)]
    return preserved("chain, random g(i | z, t)", losses)


SETTINGS = (1,), (2,), (1, 0.6, {(): ONE / 2, (1,): ONE / 2})


def buffer_row(name, worlds):
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
    return alpha | {x0: max(rest.values()) - share for x0, share in rest.items()}


def worked_example():
    """L = 1, p_data = (1/2, 1/2), alpha(m) = alpha(0) = 1, alpha(1) = 0."""
    data = Data({(0,): ONE / 2, (1,): ONE / 2}, 2)
    c = alpha_loss(data, {(MASK,): ONE, (0,): ONE, (1,): Fraction(0)})[(MASK,), 0]
    least = exact.minimizer(c)
    found = f"minimizer {least[0]}, {least[1]}; p_data 1/2, 1/2"
    return "too strong: L = 1, alpha(1) = 0", found, least == {0: ONE / 3, 1: 2 * ONE / 3}


def alpha_row(claim, rng, worlds, change=lambda data, alpha: alpha):
    losses = [(data, alpha_loss(data, change(data, random_alpha(rng, data)))) for data in worlds]
    return preserved(claim, losses)


# -- beyond the paper ------------------------------------------------------------------------------
def prompts_row(claim, one, other):
    """The buffer and random masks, position 0 of `one` or 1 of `other` given.

    Outside the proposition unless both laws are one.
    """
    both = Data({x0: (p + other.p[x0]) / 2 for x0, p in one.p.items()}, one.V)
    worlds = {(0,): one, (1,): other}
    chains = [Buffer(d, "left_to_right", 1, prompts={S: ONE}).joints for S, d in worlds.items()]
    masks = [exact.random_contexts(d, exact.uniform_count, S) for S, d in worlds.items()]
    joints = [*chains[0], *chains[1]], masks
    return preserved(claim, [(both, coefficients(laws, per_hidden)) for laws in joints])


def start_row(claim, rng, worlds, same=False):
    """A random mask decides what the next example gets: another one, or a chain.

    same: against the rules, the next example is the one that has decided.
    """
    losses = []
    for data in worlds:
        begins = {z: rng.random() < 0.5 for z in data.mass}
        following = {True: Counter(), False: Counter()}  # p of the examples after which a chain..
        for (x0, z, _), p in exact.random_contexts(data, exact.uniform_count).items():
            for x, q in [(x0, ONE)] if same else data.p.items():
                following[begins[z]][x] += p * q
        masked = exact.random_contexts(data, exact.uniform_count, p=following[False])
        first = {(x0, (MASK,) * data.L, 0): p for x0, p in following[True].items()}
        moves = exact.random_policy(rng, wait=True)
        joints = exact.teacher_forced(data, moves, data.L, first)
        losses.append((data, coefficients([masked, *joints], per_hidden)))
    return preserved(claim, losses)


# -- the whole -------------------------------------------------------------------------------------
def claims(args):
    rng = random.Random(args.seed)
    wide = instances(rng, args.worlds, args.V, args.L)
    narrow = instances(rng, args.worlds, 2, args.L)
    long = instances(rng, args.worlds, 2, args.L + 1)
    return [
        "The shipped loss is the paper's: the same masks, weights and minimum.",
        masks_row(long[0], 20_000, args.seed),
        same_loss_row(args.L + 3),
        loss_row(wide[0]),
        "Proposition 2: the loss is least at the data's posterior, under any policy that sees x.",
        iid_row(wide),
        grid_row(rng, narrow),
        *(buffer_row(name, long) for name in exact.POLICIES),
        "Proposition 2 as stated asks too little of the masks: a counterexample, a correction.",
        worked_example(),
        alpha_row("corrected: any alpha, Z(x0) constant", rng, wide, absorbed),
        "Proposition 2 beyond the paper: prompts, random masks before chains.",
        prompts_row("given positions independent of x0", narrow[0], narrow[0]),
        start_row("random masks, then chains", rng, narrow),
    ]


def worlds_of(args):
    return instances(random.Random(args.seed), args.worlds, 2, args.L)


def leak(args):
    """A policy that reveals by the hidden tokens."""
    losses = [(d, grid_loss(d, exact.peeking_moves(d), d.L, per_hidden)) for d in worlds_of(args)]
    return [preserved("a policy that peeks at x0", losses)]


def prompts(args):
    rng = random.Random(args.seed)
    one = exact.random_data(rng, 2, args.L)
    return [prompts_row("given depends on x0", one, exact.random_data(rng, 2, args.L))]


def start(args):
    rng = random.Random(args.seed)
    return [start_row("an example decides on its own chain", rng, worlds_of(args), same=True)]


def alpha(args):
    return [alpha_row("any alpha, Z(x0) varies", random.Random(args.seed), worlds_of(args))]


CONTROLS = {
    "masks": lambda args: [masks_row(worlds_of(args)[0], 10_000, args.seed, exact.fixed(ONE / 2))],
    "weight": lambda args: [same_loss_row(args.L, exact.uniform_t)],
    "loss": lambda args: [loss_row(worlds_of(args)[0], exact.over_t)],
    "iid": lambda args: [iid_row(worlds_of(args), exact.uniform_t)],
    "leak": leak,
    "per_x0": alpha,
    "prompts": prompts,
    "start": start,
}

if __name__ == "__main__":
    exact.main(__doc__, claims, CONTROLS, worlds=10, V=3, L=3)
