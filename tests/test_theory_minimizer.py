import random
from argparse import Namespace
from fractions import Fraction
from itertools import product
from math import comb, log

import exact
import irrational
import masks
import papl
import pytest
import verify_minimizer as script

TINY = Namespace(seed=0, worlds=2, V=2, L=3, rows=2048, calls=100)


def test_every_claim_holds_on_tiny_sizes():
    rows, (training, leak) = script.claims(TINY)
    assert all(verdict for *_, verdict in rows), rows
    shares = leak.curves["leak"][-1]
    assert shares == sorted(shares) and shares[0] == 0
    *curves, _ = training.curves.values()
    assert len(curves) == 3 and all(kl[-1] < kl[0] for *_, kl in curves)


@pytest.mark.parametrize("name", script.CONTROLS)
def test_every_negative_control_is_caught(name):
    assert not any(verdict for *_, verdict in script.CONTROLS[name](TINY))


def test_logarithms_are_exact():
    half, two = Fraction(1, 2), Fraction(2)
    six = irrational.times_log(half, Fraction(36))
    assert six == irrational.total([irrational.times_log(1, Fraction(n)) for n in (2, 3)])
    assert irrational.minus(six, six) == {} and not irrational.positive({})
    a = irrational.minus(irrational.times_log(1, two), irrational.times_log(half, Fraction(4)))
    assert a == {}
    rng = random.Random(0)
    for _ in range(200):
        p, q = (Fraction(rng.randint(1, 40), rng.randint(1, 40)) for _ in range(2))
        k = Fraction(rng.randint(-9, 9), rng.randint(1, 9))
        a = irrational.total([irrational.times_log(1, p), irrational.times_log(k, q)])
        number = log(p) + k * log(q)
        assert irrational.positive(a) == (number > 1e-12)


def test_one_over_t_is_integrated_exactly():
    """Midpoint sums of t^(h - 1) (1 - t)^(L - h)."""
    n = 10_000
    for L, h in ((1, 1), (3, 1), (3, 2), (4, 4)):
        t = [(k + 0.5) / n for k in range(n)]
        integral = sum(s ** (h - 1) * (1 - s) ** (L - h) for s in t) / n
        assert float(masks.paper_weight(h, L)) == pytest.approx(integral, rel=1e-6)


def test_normaliser_constant_in_x0_keeps_alpha_on_incomplete_states():
    rng = random.Random(0)
    data = exact.random_data(rng, 2, 3, full_support=False)
    alpha = script.random_alpha(rng, data)
    after = script.absorbed(data, alpha)
    assert {sum(after[z] for z in exact.contexts(x0)) for x0 in data.p} == {1}
    ratio = {after[z] / a for z, a in alpha.items() if exact.hidden(z) and a}
    assert len(ratio) == 1 and all(0 <= a <= 1 for a in after.values())


def test_papl_gradient_against_finite_differences():
    """d loss / d logit of the whole PAPL loss in one state, f = posterior."""
    data = exact.random_data(random.Random(1), 2, 2)
    z, alpha, step = (-1, -1), 3, 1e-6
    f = data.posterior[z]

    def loss(i, v, shift):
        g = {j: [float(p) for p in ps] for j, ps in f.items()}
        g[i][v] *= 2.718281828459045**shift
        g = {j: [p / sum(ps) for p in ps] for j, ps in g.items()}
        total = 0.0
        for x0, p in data.consistent(z):
            w = papl.weights_of(g, x0)
            total -= float(p) * sum((1 + alpha * w[j]) * log(g[j][x0[j]]) for j in g)
        return total

    for i, v in product((0, 1), (0, 1)):
        rational, logs = papl.gradient(data, z, f, i, v, alpha)
        exactly = float(rational) + sum(float(q) * log(p) for p, q in logs.items())
        slope = (loss(i, v, step) - loss(i, v, -step)) / (2 * step)
        assert exactly == pytest.approx(slope, abs=1e-6)


def test_mask_laws_are_laws():
    for law in (masks.fixed(Fraction(1, 3)), masks.uniform_t, masks.uniform_count):
        assert sum(law(h, 6) * comb(6, h) for h in range(7)) == 1


def test_papl_fixed_points_are_those_of_the_iteration():
    p = {x0: Fraction(4, 9) / 2 ** sum(x0) for x0 in product((0, 1), repeat=2)}
    data, z = exact.Data(p, 2), (-1, -1)
    f = dict.fromkeys((0, 1), (2 / 3, 1 / 3))
    for _ in range(100):
        f = papl.minimizer(data, z, f, 3)
    low, high = papl.fixed_point(data, z, 3)
    assert low <= f[0][0] <= high and high - low < Fraction(1, 10**6)
