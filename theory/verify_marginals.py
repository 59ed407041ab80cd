"""Proposition 1: the teacher-forced chain and idealised inference visit states with the same law.

Everything is enumerated in fractions and compared with `==`. Last, the buffer of puma.py runs with
a lookup table for its model, and its states are compared with the exact law of its rules.
"""

import random
from fractions import Fraction
from itertools import pairwise, product

import exact
import report
import shipped
from exact import ONE, hidden, instances
from shipped import LEVEL, Buffer


# -- one index per step ----------------------------------------------------------------------------
def posterior_is_conditional(data, joint):
    """P(x0, z) P(x0' agrees with z) == P(z) p(x0) 1{x0 agrees with z} for all x0 and reached z."""
    return all(
        joint[x0, z, n] * data.mass[z] == law * p * exact.agrees(x0, z)
        for (z, n), law in exact.marginal(joint).items()
        for x0, p in data.p.items()
    )


def agreement(claim, worlds, steps):
    """The row for (data, moves) pairs: equality of the laws, and of posterior and conditional."""
    worst, states, conditional = Fraction(0), 0, True
    for data, moves in worlds:
        joints = exact.teacher_forced(data, moves, steps)
        worst = max(worst, *exact.gaps(data, moves, joints))
        states += sum(len(exact.marginal(joint)) for joint in joints)
        conditional &= all(posterior_is_conditional(data, joint) for joint in joints)
    sign = "=" if conditional else "!="
    found = f"{len(worlds)} worlds, {states} states: TV {float(worst):.3g}, posterior {sign} data's"
    return claim, found, worst == 0 and conditional


def random_policies(claim, rng, worlds, wait):
    moves = [(d, exact.random_policy(rng, wait)) for d in worlds]
    return agreement(claim, moves, worlds[0].L + wait)


def parity(L, V=2):
    """Uniform on the sequences of even sum: every confidence ties until one token is hidden."""
    even = [x0 for x0 in product(range(V), repeat=L) if sum(x0) % 2 == 0]
    return exact.Data({x0: Fraction(1, len(even)) for x0 in even}, V)


def same_order(worlds, scores):
    """Whether positions sorted by the shipped score descend in the exact one, {policy: score}."""
    states = wrong = 0
    for d, (name, score) in product(worlds, scores.items()):
        for z, shipped_score in shipped.scores(d, name).items():
            order = sorted(hidden(z), key=lambda i, s=shipped_score: -s[i])
            keys = [score(d.posterior[z][i], i) for i in order]
            states += 1
            wrong += any(a < b for a, b in pairwise(keys))
    return (
        "policies.py ranks by the exact scores",
        f"{states} states: {wrong} misordered",
        not wrong,
    )


# -- several indices per step ----------------------------------------------------------------------
def several_indices(worlds, name):
    """Zero for one index, positive for more; the mean TV for |S| = 1..L."""
    gap = []
    for size in range(1, worlds[0].L + 1):
        moves = [(d, exact.on_grid(exact.choices(d)[name], size)) for d in worlds]
        steps = -(-worlds[0].L // size)
        gap += [[max(exact.gaps(d, m, exact.teacher_forced(d, m, steps))) for d, m in moves]]
    mean = [float(sum(tv) / len(worlds)) for tv in gap]
    found = ", ".join(f"{tv:.3f} (|S|={size})" for size, tv in enumerate(mean, 1))
    return f"several indices, {name}: TV > 0", found, not any(gap[0]) and all(map(all, gap[1:]))


# -- the shipped buffer ----------------------------------------------------------------------------
def buffers(seed):
    """The settings in which the shipped buffer runs.

    Confidences have denominators below 1000, so none equals tau and rounding decides nothing.
    """
    rng = random.Random(seed)
    six = exact.random_data(rng, 2, 6)
    five = exact.random_data(rng, 2, 5)
    sparse = exact.random_data(rng, 2, 5, full_support=False)
    given, mixed = {(0, 2, 5): ONE}, {(): ONE / 2, (1, 3): ONE / 2}
    copies = exact.Data({(a,) * 5: ONE / 2 for a in (0, 1)}, 2)
    return {
        "K=1, half given: one index a visit": Buffer(six, "top_k", 1, prompts=given),
        "the same, random policy": Buffer(six, "random", 1, prompts=given),
        "K=1, ties": Buffer(parity(5), "margin", 1),
        "K=1, nothing given": Buffer(five, "entropy", 1),
        "K=2": Buffer(six, "top_k", 2),
        "K=1, two prompts, tau=0.701": Buffer(sparse, "top_k", 1, 0.701, mixed),
        "K=2, semi_ar_2, tau=0.601": Buffer(six, "semi_ar_2", 2, 0.601),
        "K=1, tau=0.9, all follows from the first": Buffer(copies, "top_k", 1, 0.9, {(0,): ONE}),
    }


def buffer_row(claim, buffer, size, objective_of=shipped.losses.Objective):
    """Counts of the shipped buffer against the exact law, and that against inference."""
    seen = buffer.run(size, objective_of)
    visits = sum(counts.total() for counts in seen)
    chains = seen[0].total()
    dof, p = shipped.bonferroni(seen, buffer.joints, chains)
    gap = max(exact.gaps(buffer.data, buffer.moves, buffer.joints))
    most = most_at_once(buffer)
    found = f"{visits} visits, {chains} chains, {dof} dof, p {p:.2g}; "
    found += f"|S| <= {most}, TV {float(gap):.4f}"
    return f"buffer, {claim}", found, p > LEVEL and (gap == 0 or most > 1)


def most_at_once(buffer):
    """The largest |S| among the moves after which a chain continues."""
    states = {state for joint in buffer.joints for state in exact.marginal(joint)}
    moves = (move for state in states for move in buffer.moves(*state))
    return max((len(S) for _, S, after in moves if after is not None), default=0)


class Peeking(shipped.losses.Objective):
    """Against the rules: hidden positions whose true token is 0 go first."""

    def forward(self, x, x0, is_hidden):
        loss, _, confidence = super().forward(x, x0, is_hidden)
        return loss, (x0 == 0).to(confidence), confidence


# -- the whole -------------------------------------------------------------------------------------
def claims(args):
    rng = random.Random(args.seed)
    wide, narrow = (instances(rng, args.worlds, V, args.L) for V in (args.V, 2))
    full = [exact.random_data(rng, 2, args.L + 1) for _ in range(args.worlds)]
    return [
        "Proposition 1: chain and sampler visit each state equally often, one index per step.",
        random_policies("random g(i | z, t), one index a step", rng, wide, wait=False),
        random_policies("random g(i | z, t) that may wait", rng, narrow, wait=True),
        same_order([*wide, parity(args.L)], exact.SCORES),
        "Where Proposition 1 stops: a sampler draws several indices of a step independently.",
        *(several_indices(full, name) for name in ("random", "top_k")),
        "Algorithm 1 as shipped: the states of the running buffer have the law of its rules.",
        *(buffer_row(name, b, report.size(args)) for name, b in buffers(args.seed).items()),
    ]


def worlds_of(args):
    return instances(random.Random(args.seed), args.worlds, 2, args.L)


def peeking(args):
    worlds = [(d, exact.peeking_moves(d)) for d in worlds_of(args)]
    return agreement("a policy that peeks at x0", worlds, args.L)


def peeking_buffer(args):
    buffer = buffers(args.seed)["K=2"]
    return buffer_row("a score that peeks at x0", buffer, report.size(args), Peeking)


CONTROLS = {
    "peek": lambda args: [peeking(args)],
    "rank": lambda args: [same_order(worlds_of(args), {"entropy": exact.SCORES["left_to_right"]})],
    "buffer_peek": lambda args: [peeking_buffer(args)],
}

if __name__ == "__main__":
    report.main(__doc__, claims, CONTROLS, worlds=20, V=3, L=3, rows=4096, calls=100)
