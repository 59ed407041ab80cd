import itertools
import math
import random
from argparse import Namespace
from fractions import Fraction

import estimator
import example_zm
import irrational
import numpy as np
import pytest
import shipped
import torch
import verify_sample_complexity as script
from exact import MASK, NOTHING, hidden
from example_zm import Model

TENTH = Fraction(1, 10)
SMALL = [Model(4, 1, TENTH), Model(4, 3, TENTH), Model(6, 2, TENTH, (1, 1, 1))]
ARGS = Namespace(seed=1)


@pytest.mark.parametrize("name", script.CONTROLS)
def test_a_negative_control_is_caught(name):
    assert not any(verdict for *_, verdict in script.CONTROLS[name](ARGS))


@pytest.mark.parametrize("model", SMALL)
def test_the_joint_law_is_that_of_the_definition(model):
    theta = model.thetas[1]
    slow = np.zeros((model.size,) * model.d + (model.m,), int)
    for *u, e in np.ndindex(slow.shape):
        y = (theta + sum(model.thetas[j] for j in u) + e) % model.m
        slow[(*u, y)] += int(model.weights[e])
    assert (example_zm.joint(model, theta) == slow).all()
    assert [Fraction(int(w), int(model.weights.sum())) for w in model.weights] == model.noise


@pytest.mark.parametrize("model", SMALL)
@pytest.mark.parametrize("claim", script.EXAMPLE.values())
def test_the_example_has_each_property(model, claim):
    assert claim(model)


def test_with_all_latents_visible_y_depends_on_theta():
    model = Model(4, 2, TENTH)
    assert (example_zm.joint(model, 0) != example_zm.joint(model, 2)).any()


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
        low, high = irrational.sqrt_bracket(x)
        assert low**2 < x < high**2 or low**2 == x == high**2
        assert 0 <= high - low <= Fraction(1, 2**64)
        exponent = Fraction(draw.randint(1, 2000), 100)
        assert irrational.below_exp(Fraction(math.exp(-exponent)) * (1 - TENTH**12), exponent)
        assert not irrational.below_exp(Fraction(math.exp(-exponent)) * (1 + TENTH**12), exponent)
    assert irrational.sqrt_bracket(Fraction(9, 4)) == (Fraction(3, 2), Fraction(3, 2))


@pytest.mark.parametrize(
    "model", [Model(4, 1, TENTH), Model(4, 2, TENTH), Model(6, 1, TENTH, (1,) * 3)]
)
@pytest.mark.parametrize("q", [Fraction(1, 2), Fraction(1, 3)])
def test_the_map_error_is_the_least_error_of_any_estimator(model, q):
    assert estimator.map_is_optimal(model, q, 2)


def test_the_error_given_informative_samples_by_enumerating_noise():
    model = Model(6, 1, TENTH, (1, 1, 1))
    for k in range(5):
        error = Fraction(0)
        for noise in itertools.product(range(6), repeat=k):
            counts = [noise.count(h) for h in model.thetas]
            winners = [i for i, count in enumerate(counts) if count == max(counts)]
            right = Fraction(0 in winners, len(winners))
            error += math.prod(model.noise[e] for e in noise) * (1 - right)
        assert estimator.map_errors(model, 4)[k] == error


def test_the_bracket_holds_the_exact_error_and_decides_the_same_count():
    model, a = Model(4, 3, TENTH), Fraction(1, 16)
    full = estimator.map_errors(model, 200)
    for n in (10, 40, 150):
        (exact, same), (low, high) = (estimator.mixture(a, n, e) for e in (full, full[:15]))
        assert low <= exact == same <= high
    needed = estimator.samples_needed(a, full[:30], Fraction(1, 20))
    assert estimator.mixture(a, needed, full)[0] <= Fraction(1, 20)
    assert estimator.mixture(a, needed - 1, full)[0] > Fraction(1, 20)
    with pytest.raises(AssertionError, match="undecided"):
        estimator.samples_needed(a, full[:2], Fraction(1, 20))


def test_contexts_are_counted_as_by_a_loop():
    """The row of the table against the contexts of the same run, one by one."""
    model, size = Model(4, 2, TENTH), (16, 30, 0)
    buffer = shipped.Buffer(example_zm.data(model), "left_to_right", 1, NOTHING)
    stream, chains, contexts, y_visible, informative = buffer.stream(size), 0, 0, 0, 0
    table = shipped.log_table(buffer.data)
    objective = shipped.losses.Objective(shipped.Lookup(table, 4), shipped.policies.left_to_right)
    counted = [False] * 16
    for call, x, _, _ in shipped.training_steps(stream, objective, 30):
        for row, z in enumerate(x.tolist()):
            if hidden(z) == (0, 1, 2):
                counted[row] = 3 <= call < 27
                chains += counted[row]
            contexts += counted[row]
            y_visible += counted[row] and z[0] != MASK
            informative += counted[row] and hidden(z) == (0,)
    _, found, holds = script.buffer_row(model, "left_to_right", None, size)
    assert found.startswith(f"{chains} chains, {informative} informative, Y visible {y_visible}; ")
    assert f" {contexts / chains:.4f} contexts per chain" in found
    assert y_visible > informative == 0 and not holds


def test_the_lookup_model_is_the_conditional_of_the_data():
    model = Model(4, 2, TENTH)
    data = example_zm.data(model)
    lookup = shipped.Lookup(shipped.log_table(data), 4)
    states = torch.tensor([[MASK, MASK, 2], [MASK, 2, 2]])
    posterior, all_latents = lookup.logits(lookup(states)).exp()
    y, u, _ = posterior.tolist()
    assert y == pytest.approx([float(p) / (2 * 30) for p in example_zm.pi_0(model)])
    assert u == [0.5, 0, 0.5, 0]
    assert all_latents[0].tolist() == pytest.approx([float(p) for p in model.noise])


@pytest.mark.parametrize("tau", [None, 0.9])
def test_the_shipped_buffer_reveals_y_last(tau):
    (_, found, holds), *_ = script.few_chains(seed=1, tau=tau)
    assert holds and "Y visible 0" in found
