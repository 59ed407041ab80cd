import random
from fractions import Fraction
from math import comb

import exact
import masks
import pytest
import verify_minimizer as script


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


def test_mask_laws_are_laws():
    for law in (masks.fixed(Fraction(1, 3)), masks.uniform_t, masks.uniform_count):
        assert sum(law(h, 6) * comb(6, h) for h in range(7)) == 1
