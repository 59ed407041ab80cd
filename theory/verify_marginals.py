"""Proposition 1: the teacher-forced chain and idealised inference visit states with the same law.

Both start fully masked and walk over the grid t_j = 1 - j/l. In state z at step j, both take a set
S of hidden positions from the policy g(S | z, t_j). Inference draws each token of S from the
posterior p(x0^i | z); the teacher-forced chain reveals the tokens of an x0 ~ p_data that it was
given at the start. With q_j the law of z under the first and q~_j under the second:

    |S| = 1                      q_j = q~_j for every state and step             (Proposition 1)
                                 P(x0 | z_j = z) = p_data(x0 | x0 agrees with z)
    continuous time, rate        Q L = L R, with Q(z, z') the generator of inference, R that of
    lambda(i | z, t)             (x0, z) under teacher forcing and L(z, (x0, z)) = p(x0 | z). Hence
                                 Q = L R P with P the map (x0, z) -> z: the generators agree, and
                                 so do the laws of z, e^Q = L e^R P, at all times
    several indices a step       q_j != q~_j: inference draws the tokens of S independently

Everything is enumerated in fractions and compared with `==`. Last, the buffer of puma.py runs with
a lookup table for a model, and the states it hands out are compared with the exact law of its rules
(chi-square, each visit of a chain on its own, p-values after Bonferroni).
"""

import random
import sys
from collections import Counter, defaultdict
from fractions import Fraction
from itertools import pairwise, product
from math import comb, prod

import exact
import program
import shipped
from chi_square import LEVEL, chi_square
from exact import hidden, instances
from shipped import Buffer, Objective, Peeking, near

GRIDS = 8, 16, 32, 64, 128
ONE = Fraction(1)


def gaps(joints, ideal):
    """Total variation between teacher forcing and inference at each step."""
    return [exact.total_variation(exact.marginal(p), q) for p, q in zip(joints, ideal, strict=True)]


def posterior_is_conditional(data, joint):
    """P(x0, z) P(x0' agrees with z) == P(z) p(x0) 1{x0 agrees with z} for all x0 and reached z."""
    return all(
        joint[x0, z, n] * data.mass[z] == law * p * exact.agrees(x0, z)
        for (z, n), law in exact.marginal(joint).items()
        for x0, p in data.p.items()
    )


def agreement(claim, worlds, steps, model=None):
    """The row for (data, moves) pairs: equality of the laws, and of posterior and conditional."""
    worst, states, conditional = Fraction(0), 0, True
    for data, moves in worlds:
        joints = exact.teacher_forced(data, moves, steps)
        ideal = exact.inference(data, moves, steps, model=model and model(data))
        worst = max(worst, *gaps(joints, ideal))
        states += sum(map(len, ideal))
        conditional &= all(posterior_is_conditional(data, joint) for joint in joints)
    sign = "=" if conditional else "!="
    found = f"{len(worlds)} worlds, {states} states: TV {float(worst):.3g}, posterior {sign} data's"
    return claim, found, worst == 0 and conditional


def random_policies(rng, n, V, L):
    worlds = [(data, exact.random_policy(rng)) for data in instances(rng, n, V, L)]
    return agreement("random g(i | z, t), one index a step", worlds, L)


def waiting_policies(rng, n, V, L):
    worlds = [(d, exact.random_policy(rng, wait=True)) for d in instances(rng, n, V, L)]
    return agreement("random g(i | z, t) that may wait", worlds, L + 1)


def shipped_policies(rng, n, V, L):
    """The policies of policies.py, which rank the positions by the posteriors in float64."""
    data = [*instances(rng, n, V, L), parity(L)]
    rows = [same_order(data, exact.SCORES)]
    for name in exact.SCORES:
        worlds = [(d, exact.on_grid(in_order(shipped.shipped_order(d, name)))) for d in data]
        rows.append(agreement(f"policy {name}", worlds, L))
    worlds = [(d, exact.on_grid(exact.uniform_choice)) for d in data]
    return [*rows, agreement("policy random", worlds, L)]


def in_order(order):
    return lambda z, count: {order[z][:count]: ONE}


def parity(L, V=2):
    """Uniform on the sequences of even sum: every confidence ties until one token is hidden."""
    even = [x0 for x0 in product(range(V), repeat=L) if sum(x0) % 2 == 0]
    return exact.Data({x0: Fraction(1, len(even)) for x0 in even}, V)


def same_order(data, scores):
    """The shipped order of every state descends in the exact scores {policy: score}.

    Exact ties go to the leftmost, unless the last bit of a float breaks them (then the policy is
    still a function of z, which is all that the proposition asks).
    """
    states = wrong = rounded = 0
    for d, (name, score) in product(data, scores.items()):
        for z, order in shipped.shipped_order(d, name).items():
            keys = [(-score(d.posterior[z][i], i), i) for i in order]
            states += 1
            wrong += any(a[0] > b[0] for a, b in pairwise(keys))
            rounded += keys != sorted(keys)
    found = f"{states} states: {wrong} misordered, {rounded} ties broken by rounding"
    return "policies.py ranks by the exact scores", found, wrong == 0


def random_rates(rng):
    """lambda(i | z, t) = a(i | z) + t b(i | z): what holds at two times holds at all."""
    table = {}

    def rates(z, t, x0=None):
        if z not in table:
            table[z] = [(rng.randint(0, 9), rng.randint(0, 9)) for _ in z]
        return {i: Fraction(table[z][i][0]) + t * table[z][i][1] for i in hidden(z)}

    return rates


def inference_generator(data, rates, t):
    """Q {(z, z'): rate} over the states of positive mass."""
    Q = Counter()
    for z in data.mass:
        for i, rate in rates(z, t).items():
            for v, p in enumerate(data.posterior[z][i]):
                Q[z, exact.put(z, (i,), (v,))] += rate * p
                Q[z, z] -= rate * p
    return Q


def forced_generator(data, rates, t):
    """R {((x0, z), (x0, z')): rate} over the states that agree with x0."""
    R = Counter()
    for x0 in data.p:
        for z in exact.contexts(x0):
            for i, rate in rates(z, t, x0).items():
                R[(x0, z), (x0, exact.reveal(z, (i,), x0))] += rate
                R[(x0, z), (x0, z)] -= rate
    return R


def product_of(A, B):
    """The matrix product of {(row, column): entry}, without its zeros."""
    rows = {}
    for (k, column), b in B.items():
        rows.setdefault(k, []).append((column, b))
    out = Counter()
    for (row, k), a in A.items():
        for column, b in rows.get(k, ()):
            out[row, column] += a * b
    return {key: entry for key, entry in out.items() if entry}


def generators(rng, n, V, L, make_rates=random_rates):
    worlds = [(data, make_rates(rng)) for data in instances(rng, n, V, L)]
    holds = all(intertwined(data, rates, t) for data, rates in worlds for t in (0, 1))
    found = f"{n} worlds, {(V + 1) ** L} x {(V + 1) ** L}; Q L {'==' if holds else '!='} L R"
    return "continuous time, rates linear in t", found, holds


def intertwined(data, rates, t):
    """Q L == L R and Q == L R P."""
    lift = {(z, (x0, z)): p / data.mass[z] for x0, p in data.p.items() for z in exact.contexts(x0)}
    forget = {((x0, z), z): 1 for x0 in data.p for z in exact.contexts(x0)}
    Q, R = inference_generator(data, rates, t), forced_generator(data, rates, t)
    lifted = product_of(lift, R)
    same = {key: entry for key, entry in Q.items() if entry} == product_of(lifted, forget)
    return same and product_of(Q, lift) == lifted


def grid_moves(choose, steps, speed=ONE):
    """Reveals one index with probability |masked| / t_j / steps, and waits otherwise."""

    def moves(z, j, x0=None):
        rate = speed * len(hidden(z)) / (steps - j)  # |masked| / t_j / steps
        some = [(rate * g, S, j + 1) for S, g in choose(z, 1).items()] if rate else []
        return [*some, (1 - rate, (), j + 1)]

    return moves


def continuous_law(data, choose, t):
    """The law at t where each position is hidden with probability t, which one g decides.

    The number of revealed tokens is Binomial(L, 1 - t), and given the number the state is that of
    the chain with one index a step.
    """
    law = Counter()
    for k, revealed in enumerate(exact.inference(data, exact.on_grid(choose), data.L)):
        weight = comb(data.L, k) * (1 - t) ** k * t ** (data.L - k)
        for (z, _), q in revealed.items():
            law[z] += weight * q
    return dict(law)


def grid_gap(data, choose, steps, speed=ONE):
    """Total variation at t = 1/2 between the grid of that many steps and continuous time."""
    on_grid = exact.inference(data, grid_moves(choose, steps, speed), steps // 2)[-1]
    law = {z: q for (z, _), q in on_grid.items()}
    return exact.total_variation(law, continuous_law(data, choose, Fraction(1, 2)))


def convergence(rng, V, L, speed=ONE):
    """TV <= L (2L + 1) / l at t = 1/2, and falling.

    A step of length h under rates Q_t errs by at most h^2 / 2 (|Q|^2 + |Q'|) in L1; here
    |Q| <= 2 L / t <= 4 L and |Q'| <= 2 L / t^2 <= 8 L, over l / 2 steps with h = 1/l.
    """
    data = exact.random_data(rng, V, L)
    choose = exact.choices(data)["top_k"]
    gap = [grid_gap(data, choose, steps, speed) for steps in GRIDS]
    bounded = all(g <= Fraction(L * (2 * L + 1), k) for g, k in zip(gap, GRIDS, strict=True))
    falling = all(after < before for before, after in pairwise(gap))
    curve = [float(g) for g in gap]
    found = "TV " + ", ".join(f"{g:.4f} (l={k})" for g, k in zip(curve, GRIDS, strict=True))
    return ("grid of l steps to continuous time", found, bounded and falling), curve


def gap_of_several(data, choose, size):
    """The largest total variation over the steps when `size` indices are revealed at once."""
    moves, steps = exact.on_grid(choose, size), -(-data.L // size)
    joints = exact.teacher_forced(data, moves, steps)
    return max(gaps(joints, exact.inference(data, moves, steps)))


def several_indices(rng, n, V, L):
    """(rows, {policy: mean TV for |S| = 1..L}): zero for one index, positive for more."""
    data = [exact.random_data(rng, V, L) for _ in range(n)]
    rows, curves = [], {}
    for name in ("random", "top_k"):
        choose = [exact.choices(d)[name] for d in data]
        gap = [list(map(gap_of_several, data, choose, [s] * n)) for s in range(1, L + 1)]
        curves[name] = [float(sum(column) / n) for column in gap]
        found = ", ".join(f"{tv:.3f} (|S|={s})" for s, tv in enumerate(curves[name], 1))
        holds = not any(gap[0]) and all(map(all, gap[1:]))
        rows.append((f"several indices, {name}: TV > 0", found, holds))
    return [*rows, independent([independent_data(rng, V, L) for _ in range(n)])], curves


def independent_data(rng, V, L):
    law = [exact.random_law(rng, range(V), zeros=False) for _ in range(L)]
    sequences = product(range(V), repeat=L)
    return exact.Data({x0: prod(law[i][v] for i, v in enumerate(x0)) for x0 in sequences}, V)


def independent(data):
    """Where the positions of x0 are independent, several indices a step do no harm."""
    gap = max(gap_of_several(d, exact.choices(d)["top_k"], s) for d in data for s in (1, 2, d.L))
    return "several indices, independent positions", f"TV {float(gap):.3g}", gap == 0


def buffer_row(claim, buffer, size, objective_of=Objective, moves=None):
    """Counts of the shipped buffer against the exact law, and that against inference."""
    seen, chains = buffer.run(size, objective_of)
    joints = buffer.joints(moves or buffer.moves())
    laws = [exact.marginal(joint) for joint in joints]
    tests = [chi_square(at_visit(seen, v), law, chains) for v, law in enumerate(laws)]
    tests += [chi_square(*pair, chains) for pair in by_stage(seen, laws).values()]
    p = min(1.0, len(tests) * min(p for *_, p in tests))
    dof = sum(dof for _, dof, _ in tests)
    gap, most = max(gaps(joints, buffer.inference(buffer.moves()))), most_at_once(buffer, laws)
    found = f"{sum(seen.values())} visits, {dof} dof, p {p:.2g}; |S| <= {most}, TV {float(gap):.4f}"
    return claim, found, p > LEVEL and (gap == 0 or most > 1)


def most_at_once(buffer, laws):
    """The largest |S| among the moves after which a chain goes on."""
    moves = buffer.moves()
    states = {state for law in laws for state in law}
    return max(len(S) for z, n in states for _, S, after in moves(z, n) if after is not None)


def at_visit(seen, visit):
    return {(z, n): count for (v, n, z), count in seen.items() if v == visit}


def by_stage(seen, laws):
    """{(stage, L_eff): (counts, law) of the number of revealed tokens}."""
    observed, expected = defaultdict(Counter), defaultdict(Counter)
    for (_, n, z), count in seen.items():
        observed[n][n[1] - len(hidden(z))] += count
    for law in laws:
        for (z, n), q in law.items():
            expected[n][n[1] - len(hidden(z))] += q
    return {n: (observed[n], law) for n, law in expected.items()}


def stage_row(buffer, size):
    """How many tokens are revealed at each stage, seen / exact; a share is of all chains."""
    seen, chains = buffer.run(size)
    stages = by_stage(seen, [exact.marginal(joint) for joint in buffer.joints(buffer.moves())])
    found = "; ".join(
        f"stage {stage}: "
        + ", ".join(f"{k} {count[k] / chains:.3f}/{float(law[k]):.3f}" for k in sorted(law))
        for (stage, _), (count, law) in sorted(stages.items())
    )
    p = min(chi_square(*pair, chains)[2] for pair in stages.values())
    return "buffer, K=2: revealed, seen/exact", found, p > LEVEL


def peeking_rates(rng):
    honest = random_rates(rng)

    def rates(z, t, x0=None):
        return {i: r + bool(x0 and x0[0] == 0) for i, r in honest(z, t).items()}

    return rates


def blunt_model(data):
    """Negative control: the posterior mixed half and half with the uniform law."""
    return {
        z: {i: tuple(p / 2 + Fraction(1, 2 * data.V) for p in ps) for i, ps in posterior.items()}
        for z, posterior in data.posterior.items()
    }


def floored(stage, effective, stages):
    """Negative control: the target counts if they were rounded down."""
    law = Counter()
    low, high = (Fraction((stage + k) * effective, stages) for k in (1, 2))
    for k in range(2 * effective + 1):
        law[min(k, effective - 1)] += max(0, min(high, k + 1) - max(low, k)) / (high - low)
    return {k: p for k, p in law.items() if p}


def buffers(rng):
    """The settings in which the shipped buffer runs."""
    six, five = exact.random_data(rng, 2, 6), exact.random_data(rng, 2, 5)
    sparse = exact.random_data(rng, 2, 5, full_support=False)
    given, nothing, mixed = {(0, 2, 5): ONE}, {(): ONE}, {(): ONE / 2, (1, 3): ONE / 2}
    return {
        "K=1, half given: one index a visit": Buffer(six, "top_k", 1, given),
        "the same, random policy": Buffer(six, "random", 1, given),
        "K=1, ties": Buffer(parity(5), "margin", 1, nothing),
        "K=1, nothing given": Buffer(five, "entropy", 1, nothing),
        "K=2": Buffer(six, "top_k", 2, nothing),
        "K=1, two prompts, tau=0.7": Buffer(sparse, "top_k", 1, mixed, near(sparse, 0.7)),
        "K=2, semi_ar_2, tau=0.6": Buffer(six, "semi_ar_2", 2, nothing, near(six, 0.6)),
    }


def size_of(args):
    return args.rows, args.calls, args.seed


def buffer_rows(rng, size):
    settings = buffers(rng)
    rows = [buffer_row(f"buffer, {name}", b, size) for name, b in settings.items()]
    return [*rows, stage_row(settings["K=2"], size)]


def plot(path, several, grid):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    _, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for name, curve in several.items():
        left.plot(range(1, len(curve) + 1), curve, "o-", label=name)
    left.set(xlabel="indices revealed per step |S|", ylabel="total variation to inference")
    left.set_xticks(range(1, len(curve) + 1))
    left.legend(title="policy")
    right.loglog(GRIDS, grid, "o-", label="grid")
    right.loglog(GRIDS, [grid[0] * GRIDS[0] / steps for steps in GRIDS], ":", label="1 / l")
    right.set(xlabel="grid steps l", ylabel="total variation to continuous time")
    right.legend()
    plt.savefig(path, dpi=150)


def claims(args):
    """All rows of the table, and the curves of the figure."""
    rng = random.Random(args.seed)
    n, V, L = args.worlds, args.V, args.L
    rows = [random_policies(rng, n, V, L), waiting_policies(rng, n, 2, L)]
    rows += [*shipped_policies(rng, n, V, L), generators(rng, n, 2, L)]
    grid_row, grid = convergence(rng, 2, L)
    several_rows, several = several_indices(rng, n, 2, L + 1)
    rows += [grid_row, *several_rows, *buffer_rows(rng, size_of(args))]
    return rows, several, grid


def broken_worlds(args, moves):
    return [(d, moves(d)) for d in instances(random.Random(args.seed), args.worlds, 2, args.L)]


def break_peek(args):
    worlds = broken_worlds(args, exact.peeking_moves)
    return [agreement("a policy that peeks at x0", worlds, args.L)]


def break_several(args):
    worlds = broken_worlds(args, lambda d: exact.on_grid(exact.choices(d)["top_k"], 2))
    return [agreement("two indices a step", worlds, args.L - 1)]


def break_model(args):
    worlds = broken_worlds(args, lambda d: exact.on_grid(exact.choices(d)["top_k"]))
    return [agreement("inference with another model", worlds, args.L, blunt_model)]


def break_rank(args):
    data = instances(random.Random(args.seed), args.worlds, args.V, args.L)
    return [same_order(data, {"entropy": exact.left_to_right})]


def break_rates(args):
    return [generators(random.Random(args.seed), args.worlds, 2, args.L, peeking_rates)]


def break_grid(args):
    return [convergence(random.Random(args.seed), 2, args.L, speed=ONE / 2)[0]]


def break_dependent(args):
    return [independent([exact.random_data(random.Random(args.seed), 2, args.L)])]


def buffer_control(args, claim, name, objective_of=Objective, **changed):
    buffer = buffers(random.Random(args.seed))[name]
    return [buffer_row(claim, buffer, size_of(args), objective_of, buffer.moves(**changed))]


def break_buffer_peek(args):
    return buffer_control(args, "the buffer, a score that peeks at x0", "K=2", Peeking)


def break_buffer_rounding(args):
    return buffer_control(args, "the buffer, targets rounded down", "K=2", aim=floored)


def break_buffer_tau(args):
    return buffer_control(args, "the buffer, tau ignored", "K=1, two prompts, tau=0.7", tau=None)


BREAK = break_peek, break_several, break_model, break_rank, break_rates, break_grid
BREAK += break_dependent, break_buffer_peek, break_buffer_rounding, break_buffer_tau
CONTROLS = {f.__name__.removeprefix("break_"): f for f in BREAK}


def main():
    parser = program.arguments(__doc__, CONTROLS)
    program.add_worlds(parser, worlds=20)
    parser.add_argument("--calls", type=int, default=100, help="batches taken from the buffer")
    sys.exit(program.run(parser.parse_args(), CONTROLS, claims, plot))


if __name__ == "__main__":
    main()
