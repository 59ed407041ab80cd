import itertools
import math
import random
from collections import Counter
from fractions import Fraction

import example_zm
import masks
import numpy as np
import pytest
from example_zm import Model

TENTH = Fraction(1, 10)
SMALL = [Model(4, 1, TENTH), Model(4, 3, TENTH), Model(6, 2, TENTH, (1, 1, 1))]


@pytest.mark.parametrize("model", SMALL)
def test_the_joint_law_is_that_of_the_definition(model):
    theta = model.thetas[1]
    slow = np.zeros((model.size,) * model.d + (model.m,), int)
    for *u, e in np.ndindex(slow.shape):
        y = (theta + sum(model.thetas[j] for j in u) + e) % model.m
        slow[(*u, y)] += int(model.weights[e])
    assert (example_zm.joint(model, theta) == slow).all()
    assert [Fraction(int(w), int(model.weights.sum())) for w in model.weights] == model.noise
    for (y, *latents), p in example_zm.data(model).p.items():
        assert p == model.noise[(y - sum(latents)) % model.m] / model.size**model.d
        assert {*latents} <= {*model.thetas}


@pytest.mark.parametrize("model", SMALL)
def test_the_chernoff_information_by_a_search_over_s(model):
    P, Q = (np.array(model.noise, float), np.roll(np.array(model.noise, float), model.thetas.step))
    sums = [(P ** (1 - s) * Q**s).sum() for s in np.linspace(0, 1, 1001)]
    low, high = example_zm.bhattacharyya(model)
    assert float(low) == pytest.approx(min(sums), rel=1e-12) and 0 <= high - low < TENTH**18


def test_roots_and_exponentials_are_enclosed():
    draw = random.Random(0)
    for _ in range(50):
        x = Fraction(draw.randint(1, 10**6), draw.randint(1, 10**6))
        low, high = example_zm.sqrt_bracket(x)
        assert low**2 < x < high**2 or low**2 == x == high**2
        assert 0 <= high - low <= Fraction(1, 2**64)
        exponent = Fraction(draw.randint(1, 2000), 100)
        assert example_zm.below_exp(Fraction(math.exp(-exponent)) * (1 - TENTH**12), exponent)
        assert not example_zm.below_exp(Fraction(math.exp(-exponent)) * (1 + TENTH**12), exponent)
    assert example_zm.sqrt_bracket(Fraction(9, 4)) == (Fraction(3, 2), Fraction(3, 2))


def observation_law(model, theta, q):
    """Law of what a random mask shows to a learner of Y: visible latents, and Y where hidden."""
    law = Counter()
    P = example_zm.joint(model, theta)
    for hides in itertools.product((False, True), repeat=model.d + 1):
        chance = masks.fixed(q)(sum(hides), model.d + 1) / int(P.sum())
        for x0, weight in np.ndenumerate(P):
            seen = (
                "?" if i_hides else token for i_hides, token in zip(hides[:-1], x0, strict=False)
            )
            law[(*seen, x0[-1] if hides[-1] else "visible")] += chance * int(weight)
    return law


@pytest.mark.parametrize("q", [Fraction(1, 2), Fraction(1, 3)])
@pytest.mark.parametrize("model", [Model(4, 2, TENTH), Model(6, 1, TENTH, (1, 1, 1))])
def test_the_map_error_is_the_least_error_of_any_estimator(model, q):
    """By enumerating all samples of n masks: no estimator errs less than the likeliest theta."""
    laws = [observation_law(model, theta, q) for theta in model.thetas]
    for n in range(3):
        samples = itertools.product(laws[0], repeat=n)
        correct = sum(max(math.prod(law[o] for o in sample) for law in laws) for sample in samples)
        error = example_zm.mixture(q * (1 - q) ** model.d, n, example_zm.map_errors(model, n))[0]
        assert error == 1 - Fraction(correct) / model.size


def test_the_bracket_holds_the_exact_error_and_decides_the_same_count():
    model, a = Model(4, 3, TENTH), Fraction(1, 16)
    full = example_zm.map_errors(model, 200)
    for n in (10, 40, 150):
        (exact, same), (low, high) = (example_zm.mixture(a, n, e) for e in (full, full[:15]))
        assert low <= exact == same <= high
    needed = example_zm.samples_needed(a, full[:30], Fraction(1, 20))
    assert example_zm.mixture(a, needed, full)[0] <= Fraction(1, 20)
    assert example_zm.mixture(a, needed - 1, full)[0] > Fraction(1, 20)
    with pytest.raises(AssertionError, match="undecided"):
        example_zm.samples_needed(a, full[:2], Fraction(1, 20))
