"""Proposition 1: the teacher-forced chain and idealised inference visit states with the same law.

Everything is enumerated in fractions and compared with `==`. Last, the buffer of puma.py runs with
a lookup table for its model, and its states are compared with the exact law of its rules.
"""

import random
from fractions import Fraction
from itertools import product

import exact
from exact import LEVEL, ONE, Buffer, instances, loss, policies


# -- one index per step ----------------------------------------------------------------------------
def agreement(claim, worlds, policy, steps):
    """Chains under policy(data): equality of the laws, and of posterior and conditional."""
    worst = Fraction(0)
    states = 0
    conditional = True
    for data in worlds:
        moves = policy(data)
        joints = exact.teacher_forced(data, moves, steps)
        worst = max(worst, *exact.gaps(data, moves, joints))
        states += sum(len(exact.marginal(joint)) for joint in joints)
        conditional &= all(posterior_is_conditional(data, joint) for joint in joints)
    sign = "=" if conditional else "!="
    found = f"{len(worlds)} worlds, {states} states: TV {float(worst):.3g}, posterior {sign} data's"
    return claim, found, worst == 0 and conditional


def posterior_is_conditional(data, joint):
    """P(x0, z) P(x0' agrees with z) == P(z) p(x0) 1{x0 agrees with z} for all x0 and reached z."""
    return all(
        joint[x0, z, n] * data.mass[z] == law * p * exact.agrees(x0, z)
        for (z, n), law in exact.marginal(joint).items()
        for x0, p in data.p.items()
    )


# -- several indices per step ----------------------------------------------------------------------
def several_indices(worlds, name):
    """Zero for one index, positive for more; the mean TV for |S| = 1..L."""
    sizes = range(1, worlds[0].L + 1)
    gap = [[gap_of(data, exact.choice(data, name), size) for data in worlds] for size in sizes]
    found = ", ".join(f"{float(sum(tv) / len(tv)):.3f} (|S|={k})" for k, tv in enumerate(gap, 1))
    return f"several indices, {name}: TV > 0", found, not any(gap[0]) and all(map(all, gap[1:]))


def oracle_row(tau=0.9):
    """What no training mends (arXiv 2602.19619): exact posteriors, all above tau drawn at once."""
    p = Fraction(19, 20)
    copies = exact.Data({(0,) * 4: p, (1,) * 4: 1 - p}, 2)
    one, at_once = (gap_of(copies, exact.choice(copies, "top_k"), 1, least) for least in (1, tau))
    found = f"TV {float(one):.3g} one at a time, {float(at_once):.3g} all at once"
    holds = one == 0 and at_once == 1 - p**4 - (1 - p) ** 4
    return "oracle, four copies: TV 0, and 1 - p^4 - (1-p)^4", found, holds


def gap_of(data, choose, size, tau=1):
    """The largest TV of chains that reveal `size` indices at each step, or all above tau."""

    def moves(z, j, x0=None):
        sure = tuple(i for i, p in data.posterior[z].items() if max(p) > tau)
        return [(g, sure or S, j + 1) for S, g in choose(z, size).items()]

    return max(exact.gaps(data, moves, exact.teacher_forced(data, moves, -(-data.L // size))))


# -- the shipped buffer ----------------------------------------------------------------------------
def buffers(seed):
    """Settings of the shipped buffer. Weights of six digits: no ties but in `even`."""
    rng = random.Random(seed)
    six = exact.random_data(rng, 2, 6, most=10**6)
    three = exact.random_data(rng, 3, 4, most=10**6)
    even = {x0: ONE / 16 for x0 in product(range(2), repeat=5) if sum(x0) % 2 == 0}
    sparse = exact.random_data(rng, 2, 5, full_support=False, most=10**6)
    copies = exact.Data({(a,) * 5: ONE / 2 for a in (0, 1)}, 2)
    half = {(0, 2, 5): ONE}
    mixed = {(): ONE / 2, (1, 3): ONE / 2}
    return {
        "K=1, half given: one index a visit": Buffer(six, "top_k", 1, prompts=half),
        "the same, random policy": Buffer(six, "random", 1, prompts=half),
        "K=1, ties": Buffer(exact.Data(even, 2), "margin", 1),
        "K=1, entropy": Buffer(three, "entropy", 1),
        "K=2": Buffer(six, "top_k", 2),
        "K=1, two prompts, tau=0.7": Buffer(sparse, "top_k", 1, 0.7, mixed),
        "K=2, margin, tau=0.6": Buffer(six, "margin", 2, 0.6),
        "K=1, tau=0.9, all follows from the first": Buffer(copies, "top_k", 1, 0.9, {(0,): ONE}),
    }


def buffer_row(claim, buffer, args, objective=loss.objective):
    """The shipped buffer against its exact law, and the chains of that against inference."""
    dof, p = exact.running(buffer, args.rows, args.calls, args.seed, objective)
    gap = max(exact.gaps(buffer.data, buffer.moves, buffer.joints))
    most = most_at_once(buffer)
    found = f"{dof} dof, p {p:.2g}; |S| <= {most}, TV {float(gap):.4f}"
    return f"buffer, {claim}", found, p > LEVEL and (gap == 0 or most > 1)


def most_at_once(buffer):
    """The largest |S| among the moves after which a chain continues."""
    states = {state for joint in buffer.joints for state in exact.marginal(joint)}
    moves = (move for state in states for move in buffer.moves(*state))
    return max((len(S) for _, S, after in moves if after is not None), default=0)


def peeking_objective(model, policy, x, x0, is_hidden):
    """Against the rules: hidden positions whose true token is 0 go first."""
    mean, _, confidence = loss.objective(model, policy, x, x0, is_hidden)
    return mean, (x0 == 0).to(confidence), confidence


def other_objective(model, policy, *batch):
    """Another policy than the law knows."""
    return loss.objective(model, policies.top_k, *batch)


# -- the whole -------------------------------------------------------------------------------------
def claims(args):
    rng = random.Random(args.seed)
    wide = instances(rng, args.worlds, args.V, args.L)
    narrow = instances(rng, args.worlds, 2, args.L)
    full = [exact.random_data(rng, 2, args.L + 1) for _ in range(args.worlds)]
    return [
        "Proposition 1: chain and sampler visit each state equally often, one index per step.",
        agreement("random g(i | z, t)", wide, exact.random_policies(rng), args.L),
        agreement("the same, may wait", narrow, exact.random_policies(rng, wait=True), args.L + 1),
        "Where Proposition 1 stops: a sampler draws several indices of a step independently.",
        *(several_indices(full, name) for name in ("random", "top_k")),
        oracle_row(),
        "Algorithm 1 as shipped: the states of the running buffer have the law of its rules.",
        *(buffer_row(name, buffer, args) for name, buffer in buffers(args.seed).items()),
    ]


def peek(args):
    worlds = instances(random.Random(args.seed), args.worlds, 2, args.L)
    return [agreement("a policy that peeks at x0", worlds, exact.peeking_moves, args.L)]


def broken_buffer(claim, setting, objective):
    return lambda args: [buffer_row(claim, buffers(args.seed)[setting], args, objective)]


CONTROLS = {
    "peek": peek,
    "at-once": lambda args: [oracle_row(tau=0.96)],
    "rank": broken_buffer("ranked by another policy", "K=1, entropy", other_objective),
    "buffer_peek": broken_buffer("a score that peeks at x0", "K=2", peeking_objective),
}

if __name__ == "__main__":
    exact.main(__doc__, claims, CONTROLS, worlds=20, V=3, L=3, rows=30_000, calls=12)
