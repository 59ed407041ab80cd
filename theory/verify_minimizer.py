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
from collections import Counter, defaultdict
from fractions import Fraction
from itertools import product
from math import comb, factorial

import exact
import logarithms
import shipped
import torch
import torch.nn as nn
from exact import hidden
from shipped import Buffer, Objective, Peeking, losses, policies, puma

LEVEL = 1e-4  # a chi-square test fails below this
ENOUGH = 1e-3  # the KL divergence to reach
ONE, NOTHING = Fraction(1), {(): Fraction(1)}
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


def normalised(ps):
    return tuple(p / sum(ps) for p in ps)


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


def coefficients(joint, weight):
    """C {(z, i): {v: sum of P(x0, z, n) w(z, n)}} over the hidden positions of reached states."""
    C = defaultdict(Counter)
    for (x0, z, n), p in joint.items():
        for i in hidden(z):
            C[z, i][x0[i]] += p * weight(z, n)
    return C


def shifts(data, C):
    """{(z, i): total variation between the minimiser and the posterior of p_data}."""
    out = {}
    for (z, i), c in C.items():
        posterior = dict(enumerate(data.posterior[z][i]))
        minimiser = Counter({v: share / sum(c.values()) for v, share in c.items()})
        out[z, i] = exact.total_variation(minimiser, Counter(posterior))
    return out


def preserved(claim, worlds):
    """The row for (data, coefficients) pairs: the minimiser is the posterior wherever it is."""
    shift = [s for data, C in worlds for s in shifts(data, C).values()]
    moved = sum(s > 0 for s in shift)
    found = f"{len(shift)} predictions, {moved} shifted, by up to {float(max(shift)):.3g}"
    return claim, found, moved == 0


def per_hidden(z, n):
    """The weight of losses.row_mean, see `shipped_weights`."""
    return Fraction(1, len(hidden(z)))


def all_steps(laws):
    """A batch of visits: the laws of the steps, added up; complete states have no loss."""
    out = Counter()
    for law in laws:
        for (x0, z, n), p in law.items():
            if hidden(z):
                out[x0, z, n] += p
    return out


def iid_loss(data, weigh):
    """C of i.i.d. masks, weigh(L, h) = E[weight * P(these h positions hidden)]."""
    joint = {(x0, z, 0): p for x0, p in data.p.items() for z in exact.contexts(x0) if hidden(z)}
    return coefficients(joint, lambda z, n: weigh(data.L, len(hidden(z))))


def paper_weight(L, h):
    """The integral over t of 1/t t^h (1 - t)^(L - h)."""
    return Fraction(factorial(h - 1) * factorial(L - h), factorial(L))


def shipped_weight(L, h):
    """puma.random_masks draws h uniformly from 1..L, then positions; row_mean divides by h."""
    return Fraction(1, L * comb(L, h) * h)


def same_loss(data):
    """1/t with t ~ U(0, 1) is L times the shipped baseline, prediction for prediction."""
    paper, ours = iid_loss(data, paper_weight), iid_loss(data, shipped_weight)
    same = all(paper[key][v] == data.L * c for key in ours for v, c in ours[key].items())
    return "1/t, t ~ U(0, 1) = L x the shipped baseline", f"{len(ours)} predictions", same


def shipped_weights(L):
    """d losses.row_mean / d nll is 1/|hidden| at the hidden positions, for all 2^L - 1 masks."""
    masks = [m for m in product((False, True), repeat=L) if any(m)]
    equal = True
    for mask in masks:
        nll = torch.ones(1, L, dtype=torch.float64, requires_grad=True)
        losses.row_mean(nll, torch.tensor([mask])).backward()
        equal &= nll.grad.tolist() == [[float(Fraction(h, sum(mask))) for h in mask]]
    return "losses.row_mean weighs by 1/|hidden|", f"{len(masks)} masks", equal


def shipped_masks(L, n, seed):
    """puma.random_masks draws each set of h positions with probability 1 / (L comb(L, h))."""
    generator = torch.Generator().manual_seed(seed)
    masks = puma.random_masks(torch.zeros(n, L, dtype=torch.bool), generator)
    seen = Counter(map(tuple, masks.tolist()))
    sets = [m for m in product((False, True), repeat=L) if any(m)]
    law = {m: Fraction(1, L * comb(L, sum(m))) for m in sets}
    _, dof, p = shipped.chi_square(seen, law, n)
    return "puma.random_masks draws them so", f"{n} masks, {dof} dof, p {p:.2g}", p > LEVEL


def worlds_of(rng, n, V, L):
    return [exact.random_data(rng, V, L, full_support=k % 2 == 0) for k in range(n)]


def grid_loss(data, moves, steps, weight):
    """C of a chain of that many steps, t_j = 1 - j / steps and t uniform on the grid."""
    laws = exact.teacher_forced(data, moves, steps)[:-1]  # at t = 0 there is nothing to predict
    return coefficients(all_steps(laws), weight)


def one_over_t(steps):
    return lambda z, j: Fraction(steps, steps - j)


def chains(rng, n, V, L):
    """Random policies that depend on z and t, under 1/t and under the shipped weight."""
    data = worlds_of(rng, n, V, L)
    moves = [exact.random_policy(rng, wait=True) for _ in data]
    rows = []
    for name, weight in ("1/t", one_over_t(L + 1)), ("1/|hidden|", per_hidden):
        worlds = [(d, grid_loss(d, m, L + 1, weight)) for d, m in zip(data, moves, strict=True)]
        rows.append(preserved(f"chain, random g(i | z, t), {name}", worlds))
    return rows


def iid(rng, n, V, L):
    data = worlds_of(rng, n, V, L)
    worlds = [(d, iid_loss(d, weigh)) for d in data for weigh in (paper_weight, shipped_weight)]
    return preserved("i.i.d. masks, 1/t and 1/|hidden|", worlds)


def visits(data, policy, K, tau=None, prompts=NOTHING):
    """The exact law of what the shipped buffer hands out."""
    buffer = Buffer(data, policy, K, prompts, tau)
    return all_steps(buffer.joints(buffer.moves()))


def buffer_loss(data, policy):
    return coefficients(visits(data, policy, 1), per_hidden)


def one_over_share(z, n):
    """1/t for t = hidden / L_eff."""
    return Fraction(n[1], len(hidden(z)))


def buffers(rng, n, V, L):
    """Each policy, with several K, tau and given positions, under both weights."""
    data = worlds_of(rng, n, V, L)
    rows = []
    for name in exact.choices(data[0]):
        joints = [(d, visits(d, name, *setting)) for d, setting in product(data, SETTINGS)]
        weights = per_hidden, one_over_share
        worlds = [(d, coefficients(joint, w)) for (d, joint), w in product(joints, weights)]
        rows.append(preserved(f"buffer, {name}", worlds))
    return rows


def unreached(rng, V, L):
    """Where the minimiser of one p_data is not pinned: the states a chain never visits."""
    data = exact.random_data(rng, V, L)
    incomplete = {z for z in data.mass if hidden(z)}
    rows = []
    for name in exact.choices(data):
        missed = incomplete - {z for z, _ in buffer_loss(data, name)}
        found = f"{len(missed)} of {len(incomplete)} states"
        found += f", e.g. {shown(min(missed))}" if missed else ""
        rows.append((f"not pinned by {name}, K = 1", found, bool(missed) == (name != "random")))
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
    data = worlds_of(rng, n, V, L)
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
    data = worlds_of(rng, n, V, L)
    mean = [sum(mean_shift(d, leaking_loss(d, share)) for d in data) / n for share in SHARES]
    found = ", ".join(f"{float(m):.2g} ({s})" for s, m in zip(SHARES, mean, strict=True))
    holds = mean[0] == 0 and all(mean[1:])
    return ("leak: mean TV (share of peeking steps)", found, holds), list(map(float, mean))


def leaking_loss(data, share):
    return grid_loss(data, exact.peeking_moves(data, share), data.L, per_hidden)


def mean_shift(data, C):
    """The mean over the batch, each prediction with its weight in the loss."""
    weight = {key: sum(c.values()) for key, c in C.items()}
    return sum(weight[key] * s for key, s in shifts(data, C).items()) / sum(weight.values())


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
    chain, masks = Counter(), Counter()
    for data, given in (one, 0), (other, 1):
        buffer = Buffer(data, "left_to_right", 1, {(given,): ONE})
        chain += all_steps(buffer.joints(buffer.moves()))
        for x0, p in data.p.items():
            for z in exact.contexts(x0):
                if hidden(z) and z[given] != exact.MASK:
                    masks[x0, z, 0] += (
                        p * len(hidden(z)) * shipped_weight(data.L - 1, len(hidden(z)))
                    )
    return [(both, coefficients(joint, per_hidden)) for joint in (chain, masks)]


# -- PAPL ------------------------------------------------------------------


def papl_weights(f, x0):
    """w^i of the hidden positions i, the keys of f."""
    chance = {i: f[i][x0[i]] for i in f}
    return {i: chance[i] / sum(chance.values()) for i in f}


def consistent(data, z):
    return [(x0, p / data.mass[z]) for x0, p in data.p.items() if exact.agrees(x0, z)]


def papl_step(data, z, f, alpha):
    """The minimiser under the weights of f, ~ p_i(v) (1 + alpha E[w^i | x0^i = v])."""
    C = {i: [0] * data.V for i in f}
    for x0, p in consistent(data, z):
        for i, w in papl_weights(f, x0).items():
            C[i][x0[i]] += p * (1 + alpha * w)
    return {i: normalised(c) for i, c in C.items()}


def detached_moves(data, z, alpha=1):
    return papl_step(data, z, data.posterior[z], alpha) != data.posterior[z]


def differentiated_moves(data, z, alpha=1):
    """Whether the whole gradient in the logits is nonzero at f = posterior.

    With l_i = log f_i(x0^i): d loss / d l_i = -(1 + alpha w_i) - alpha w_i (l_i - sum_k w_k l_k),
    and d l_i / d logit_v = 1{x0^i = v} - f_i(v). A rational plus logarithms of rationals is zero
    only if both parts are (e^r is transcendental for every rational r but 0).
    """
    f = data.posterior[z]
    return any(gradient(data, z, f, i, v, alpha) != (0, {}) for i in f for v in range(data.V))


def gradient(data, z, f, i, v, alpha):
    """(rational part, logarithms) of d loss / d logit_v at position i."""
    rational, logs = Fraction(0), []
    for x0, p in consistent(data, z):
        w, slope = papl_weights(f, x0), p * ((x0[i] == v) - f[i][v])
        rational -= slope * (1 + alpha * w[i])
        for k in f:
            share = slope * alpha * w[i] * ((k == i) - w[k])
            logs.append(logarithms.times_log(-share, f[k][x0[k]]))
    return rational, logarithms.total(logs)


def weights_vary(data, z):
    """Whether w^i at f = posterior depends on the hidden tokens of x0, for some i."""
    weights = [papl_weights(data.posterior[z], x0) for x0, _ in consistent(data, z)]
    return any(w != weights[0] for w in weights)


def papl(rng, n, V, L):
    """The posterior is stationary where w^i is the same for all x0 that agree, and only there."""
    uniform = exact.Data(dict.fromkeys(product(range(V), repeat=L), ONE / V**L), V)
    data = [*worlds_of(rng, n, V, L), uniform]
    return [papl_row(f"PAPL, {name}", data, vary) for name, vary in PAPL_CASES.items()]


PAPL_CASES = {"w the same for all x0: stays": False, "w differs: moves": True}


def papl_row(claim, data, moves, vary=None):
    """Both gradients vanish nowhere (`moves`) or everywhere in the states where w varies or not."""
    vary = moves if vary is None else vary
    states = [(d, z) for d in data for z in d.mass if hidden(z) and weights_vary(d, z) == vary]
    single = sum(len(hidden(z)) == 1 for _, z in states)
    detached = sum(detached_moves(d, z) for d, z in states)
    whole = sum(differentiated_moves(d, z) for d, z in states)
    found = f"{len(states)} states ({single} of one hidden), moved {detached} (w detached), {whole}"
    return claim, found, {detached, whole} == {len(states) * moves}


def papl_by_hand(alphas=(1, 3, 5)):
    """(row, fixed points): two independent positions, p = (2/3, 1/3), w detached."""
    p = {x0: Fraction(4, 9) / 2 ** sum(x0) for x0 in product((0, 1), repeat=2)}
    data, z = exact.Data(p, 2), (exact.MASK,) * 2
    first = papl_step(data, z, data.posterior[z], 1)[0][0]
    fixed = [papl_fixed_point(data, z, alpha)[0][0] for alpha in alphas]
    found = f"p(0) 2/3, after a step {first}, fixed point "
    found += ", ".join(f"{f:.4f} (alpha={a})" for f, a in zip(fixed, alphas, strict=True))
    holds = first == Fraction(56, 81) and Fraction(2, 3) < fixed[0] < fixed[1] < fixed[2]
    return "PAPL by hand: sharpens", found, holds


def papl_fixed_point(data, z, alpha, steps=200):
    """Iterates `papl_step` in floats: here there is no closed form."""
    f = {i: tuple(map(float, p)) for i, p in data.posterior[z].items()}
    for _ in range(steps):
        f = papl_step(data, z, f, alpha)
    return f


# -- training --------------------------------------------------------------


class Table(shipped.Lookup):
    """A softmax for each state and position: every predictor there is."""

    def __init__(self, L, V):
        super().__init__(None, V)
        self.table = nn.Parameter(torch.zeros((V + 1) ** L, L, V, dtype=torch.float64))


def divergences(data, model):
    """KL(posterior | model) for every state and position."""
    log_p = shipped.log_table(data).log_softmax(-1)
    log_f = model.table.detach().log_softmax(-1)
    return (log_p.exp() * (log_p - log_f)).sum(-1)


def places(data, keys):
    """Index of (z, i) pairs into what `divergences` gives."""
    z, i = zip(*keys, strict=True)
    return shipped.state_code(torch.tensor(z), data.V), torch.tensor(i)


def train(data, stream, calls, objective_of=Objective, every=5):
    """[(step, divergences)] of a table under the shipped loss; Adagrad."""
    objective = objective_of(Table(data.L, data.V), policies.top_k)
    optimizer = torch.optim.Adagrad(objective.parameters(), lr=0.05)
    curve = []
    for step in range(calls):
        if step % every == 0:
            curve.append((step, divergences(data, objective.model)))
        x0, x, is_hidden = stream.batch(step)
        loss, score, confidence = objective(x, x0, is_hidden)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        stream.advance(score, confidence)
    return [*curve, (calls, divergences(data, objective.model))]


def mean(data, curve, C):
    """[(step, KL averaged as the loss C weighs it)], which is the loss less its least value."""
    weight = torch.tensor([float(sum(c.values())) for c in C.values()], dtype=torch.float64)
    where = places(data, C)
    return [(step, float(weight @ kl[where] / weight.sum())) for step, kl in curve]


def trained_row(claim, curve):
    needed = next((step for step, kl in curve if kl < ENOUGH), None)
    last = curve[-1][1]
    return claim, f"mean KL {last:.2g}, first below {ENOUGH} at step {needed}", last < ENOUGH


def training(seed, size, objective_of=Objective):
    """(rows, curves): PUMA with its own policy, and random masks, from zero logits."""
    data = exact.random_data(random.Random(seed), 2, 4)
    buffer = Buffer(data, "top_k", 1, NOTHING)
    on_chain, on_masks = buffer_loss(data, "top_k"), iid_loss(data, shipped_weight)
    queue = shipped.make_queue(data, buffer.starts, *size)
    masks = puma.RandomMasking(queue, exact.MASK, torch.Generator().manual_seed(seed))
    chain = train(data, buffer.stream(size), size[1], objective_of)
    random_masks = train(data, masks, size[1])
    curves = {
        "PUMA, on its chain": mean(data, chain, on_chain),
        "random masks, on the chain": mean(data, random_masks, on_chain),
        "random masks, on random masks": mean(data, random_masks, on_masks),
    }
    rows = [trained_row(f"trained, {name}", curve) for name, curve in curves.items()]
    return [*rows, free_row(data, chain, on_masks.keys() - on_chain.keys())], curves


def free_row(data, curve, missed):
    """What the chain never reaches stays wrong; a few it reached under an earlier policy."""
    worst = float(curve[-1][1][places(data, missed)].max())
    return "trained, PUMA: not pinned", f"{len(missed)} predictions, KL {worst:.2g}", worst > ENOUGH


# -- the whole -------------------------------------------------------------


def plot(path, curves, shares):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    _, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for name, curve in curves.items():
        left.semilogy(*zip(*curve, strict=True), label=name)
    left.axhline(ENOUGH, color="grey", linestyle=":")
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
        *papl(rng, n, 2, L),
        papl_by_hand(),
    ]
    trained, curves = training(args.seed, size_of(args))
    return rows + trained, curves, shares


def size_of(args):
    return args.rows, args.calls, args.seed


def break_lemma(args):
    """A weight that depends on y."""
    rng = random.Random(args.seed)

    def weight_of(rng, X):
        return lambda x, y: x * Fraction(1 + y)

    return lemma(rng, args.worlds, 4, args.V, weight_of)


def break_alpha(args):
    rng = random.Random(args.seed)
    data = worlds_of(rng, args.worlds, args.V, args.L)
    worlds = [(d, alpha_loss(d, random_alpha(rng, d))) for d in data]
    return [preserved("any alpha, normalised per x0", worlds)]


def break_leak(args):
    data = worlds_of(random.Random(args.seed), args.worlds, args.V, args.L)
    return [preserved("a policy that peeks at x0", [(d, leaking_loss(d, ONE)) for d in data])]


def break_weight(args):
    """The loss of each row divided by its probability: a weight that sees hidden tokens."""
    data = worlds_of(random.Random(args.seed), args.worlds, args.V, args.L)
    worlds = []
    for d in data:
        joint = {(x0, z, 0): ONE for x0 in d.p for z in exact.contexts(x0) if hidden(z)}
        worlds.append((d, coefficients(joint, per_hidden)))
    return [preserved("a weight of 1 / p(x0)", worlds)]


def break_papl(args):
    data = worlds_of(random.Random(args.seed), args.worlds, 2, args.L)
    return [papl_row("PAPL, w differs: stays", data, moves=False, vary=True)]


def break_training(args):
    return training(args.seed, size_of(args), Peeking)[0]


BREAK = break_lemma, break_alpha, break_leak, break_weight, break_papl, break_training
CONTROLS = {f.__name__.removeprefix("break_"): f for f in BREAK}


def main():
    parser = exact.arguments(__doc__, CONTROLS)
    parser.add_argument("--worlds", type=int, default=10, help="random p_data per claim")
    parser.add_argument("--V", type=int, default=3, help="vocabulary")
    parser.add_argument("--L", type=int, default=3, help="length")
    parser.add_argument("--rows", type=int, default=4096, help="batch size in training")
    parser.add_argument("--calls", type=int, default=400, help="training steps")
    args = parser.parse_args()
    if args.broken:
        sys.exit(exact.report(CONTROLS[args.broken](args)))
    rows, curves, shares = claims(args)
    if args.plot:
        plot(args.plot, curves, shares)
    sys.exit(exact.report(rows))


if __name__ == "__main__":
    main()
