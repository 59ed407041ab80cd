import itertools
import math
import random
import sys
from argparse import Namespace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "theory"))
import estimator
import example_zm
import irrational
import shipped
import verify_sample_complexity as script
from chi_square import LEVEL
from exact import MASK, hidden
from example_zm import Model

TENTH = Fraction(1, 10)
SMALL = [Model(4, 1, TENTH), Model(4, 3, TENTH), Model(6, 2, TENTH, (1, 1, 1))]
TINY = [
    "--m=4", "--d=2", "--eta=1/10", "--n=6", "--delta=1/20", "--shipped-d=2",
    "--rows=16", "--calls=40",
]  # fmt: skip


def run(monkeypatch, *flags):
    monkeypatch.setattr("sys.argv", ["verify_sample_complexity.py", *flags])
    return script.main()


def test_everything_holds_on_tiny_sizes(monkeypatch, capsys, tmp_path):
    assert run(monkeypatch, *TINY, f"--plot={tmp_path / 'figure.png'}") == 0
    printed = capsys.readouterr().out
    assert "all hold" in printed and "VIOLATED" in printed and "FAILS" not in printed
    assert (tmp_path / "figure.png").stat().st_size > 0


@pytest.mark.parametrize("name", script.CONTROLS)
def test_a_negative_control_is_caught(name, monkeypatch):
    assert run(monkeypatch, f"--break={name}") == 1


def test_a_claim_that_fails_is_reported(monkeypatch):
    monkeypatch.setattr(script, "SECTIONS", {"none": lambda args: [(False, "a line")]})
    assert run(monkeypatch) == 1


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
@pytest.mark.parametrize("claim", script.EXAMPLE_CLAIMS)
def test_the_example_has_each_property(model, claim):
    assert claim(model)


def test_with_all_latents_visible_y_depends_on_theta():
    model = Model(4, 2, TENTH)
    assert (example_zm.joint(model, 0) != example_zm.joint(model, 2)).any()


def test_powers_and_exponentials_are_enclosed():
    draw = random.Random(0)
    for _ in range(50):
        x, k = Fraction(draw.randint(1, 99), 100), draw.randint(0, 2**irrational.LEVELS)
        low, high = irrational.power_bracket(x, k)
        assert low <= high <= low + 100
        power = float(x) ** (k / 2**irrational.LEVELS) * 2.0**irrational.BITS
        assert low * (1 - 1e-14) <= power <= high * (1 + 1e-14)
        exponent = Fraction(draw.randint(1, 2000), 100)
        assert irrational.below_exp(Fraction(math.exp(-exponent)) * (1 - TENTH**12), exponent)
        assert not irrational.below_exp(Fraction(math.exp(-exponent)) * (1 + TENTH**12), exponent)


def test_surds_compare_and_multiply_exactly():
    root = irrational.Surd(Fraction(1), Fraction(1), Fraction(2))  # 1 + sqrt 2
    assert root * root == (3, 2, 2)
    below, above = Fraction(2414213562, 10**9), Fraction(2414213563, 10**9)
    assert root.above(below) and not root.above(above) and not root.at_least(above)
    four = irrational.Surd(Fraction(2), Fraction(1), Fraction(4))
    assert four.at_least(4) and not four.above(4)


@pytest.mark.parametrize(
    "model", [Model(4, 1, TENTH), Model(4, 2, TENTH), Model(6, 1, TENTH, (1,) * 3)]
)
@pytest.mark.parametrize("q", [Fraction(1, 2), Fraction(1, 3)])
def test_the_map_error_is_the_least_error_of_any_estimator(model, q):
    assert script.map_is_optimal(model, q, 2)


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


def test_chains_are_counted_as_by_a_loop():
    """The counts of one run against those of its states, one by one."""
    model, size = Model(4, 2, TENTH), (16, 30, 0)
    buffer = shipped.Buffer(example_zm.data(model), "left_to_right", 1, {(): Fraction(1)})
    seen, number = buffer.run(size)
    chains = script.shipped_chains(model, "left_to_right", None, size)
    assert chains.number == number == sum(chains.lengths.values())
    assert sum(n * length for length, n in chains.lengths.items()) == sum(seen.values())
    assert chains.y_visible == sum(n for (_, _, z), n in seen.items() if 0 not in hidden(z)) > 0
    assert chains.informative == 0


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
    chains = script.few_chains(Namespace(seed=1), tau=tau)
    assert script.y_is_last(chains)
    assert script.length_p_value(chains, script.chain_lengths(3)) > LEVEL
