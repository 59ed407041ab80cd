import itertools
import math
import random
from fractions import Fraction

import numpy as np
import pytest

from theory import verify_sample_complexity as theory
from theory.verify_sample_complexity import Model

TENTH = Fraction(1, 10)
SMALL = [Model(4, 1, TENTH), Model(4, 3, TENTH), Model(6, 2, TENTH, (1, 1, 1))]
TINY = [
    "--m=4", "--d=2", "--eta=1/10", "--n=6", "--delta=1/20", "--shipped-d=2",
    "--rows=16", "--steps=40",
]  # fmt: skip


def run(monkeypatch, *flags):
    monkeypatch.setattr("sys.argv", ["verify_sample_complexity.py", *flags])
    return theory.main()


def test_everything_holds_on_tiny_sizes(monkeypatch, capsys, tmp_path):
    assert run(monkeypatch, *TINY, f"--plot={tmp_path / 'figure.png'}") == 0
    printed = capsys.readouterr().out
    assert "all hold" in printed and "VIOLATED" in printed and "FAILS" not in printed
    assert (tmp_path / "figure.png").stat().st_size > 0


@pytest.mark.parametrize("name", theory.CONTROLS)
def test_a_negative_control_is_caught(name, monkeypatch):
    assert run(monkeypatch, f"--break={name}") == 1


def test_a_control_that_is_not_caught_is_reported(monkeypatch):
    monkeypatch.setitem(theory.CONTROLS, "harmless", ("nothing is broken", lambda: True))
    assert run(monkeypatch, "--break=all") == 0


def test_a_claim_that_fails_is_reported(monkeypatch):
    monkeypatch.setattr(theory, "SECTIONS", {"none": lambda args: [(False, "a line")]})
    assert run(monkeypatch) == 1


@pytest.mark.parametrize("model", SMALL)
def test_the_joint_law_is_that_of_the_definition(model):
    theta = model.thetas[1]
    slow = np.zeros((model.size,) * model.d + (model.m,), int)
    for *u, e in np.ndindex(slow.shape):
        y = (theta + sum(model.thetas[j] for j in u) + e) % model.m
        slow[(*u, y)] += int(model.weights[e])
    assert (theory.joint(model, theta) == slow).all()
    assert [Fraction(int(w), int(model.weights.sum())) for w in model.weights] == model.noise


@pytest.mark.parametrize("model", SMALL)
@pytest.mark.parametrize("claim", theory.EXAMPLE_CLAIMS)
def test_the_example_has_each_property(model, claim):
    assert claim(model)


def test_with_all_latents_visible_y_depends_on_theta():
    model = Model(4, 2, TENTH)
    assert (theory.joint(model, 0) != theory.joint(model, 2)).any()


def test_powers_and_exponentials_are_enclosed():
    draw = random.Random(0)
    for _ in range(50):
        x, k = Fraction(draw.randint(1, 99), 100), draw.randint(0, 2**theory.LEVELS)
        low, high = theory.power_bracket(x, k)
        assert low <= high <= low + 100
        power = float(x) ** (k / 2**theory.LEVELS) * 2.0**theory.BITS
        assert low * (1 - 1e-14) <= power <= high * (1 + 1e-14)
        exponent = Fraction(draw.randint(1, 2000), 100)
        assert theory.below_exp(Fraction(math.exp(-exponent)) * (1 - TENTH**12), exponent)
        assert not theory.below_exp(Fraction(math.exp(-exponent)) * (1 + TENTH**12), exponent)


def test_surds_compare_and_multiply_exactly():
    root = theory.Surd(Fraction(1), Fraction(1), Fraction(2))  # 1 + sqrt 2
    assert root * root == (3, 2, 2)
    below, above = Fraction(2414213562, 10**9), Fraction(2414213563, 10**9)
    assert root.above(below) and not root.above(above) and not root.at_least(above)
    four = theory.Surd(Fraction(2), Fraction(1), Fraction(4))
    assert four.at_least(4) and not four.above(4)


@pytest.mark.parametrize(
    "model", [Model(4, 1, TENTH), Model(4, 2, TENTH), Model(6, 1, TENTH, (1,) * 3)]
)
@pytest.mark.parametrize("q", [Fraction(1, 2), Fraction(1, 3)])
def test_the_map_error_is_the_least_error_of_any_estimator(model, q):
    assert theory.map_is_optimal(model, q, 2)


def test_the_error_given_informative_samples_by_enumerating_noise():
    model = Model(6, 1, TENTH, (1, 1, 1))
    for k in range(5):
        error = Fraction(0)
        for noise in itertools.product(range(6), repeat=k):
            counts = [noise.count(h) for h in model.thetas]
            winners = [i for i, count in enumerate(counts) if count == max(counts)]
            right = Fraction(0 in winners, len(winners))
            error += math.prod(model.noise[e] for e in noise) * (1 - right)
        assert theory.map_errors(model, 4)[k] == error


def test_the_bracket_holds_the_exact_error_and_decides_the_same_count():
    model, a = Model(4, 3, TENTH), Fraction(1, 16)
    full = theory.map_errors(model, 200)
    for n in (10, 40, 150):
        (exact, same), (low, high) = (theory.mixture(a, n, e) for e in (full, full[:15]))
        assert low <= exact == same <= high
    needed = theory.samples_needed(a, full[:30], Fraction(1, 20))
    assert theory.mixture(a, needed, full)[0] <= Fraction(1, 20)
    assert theory.mixture(a, needed - 1, full)[0] > Fraction(1, 20)
    with pytest.raises(AssertionError, match="undecided"):
        theory.samples_needed(a, full[:2], Fraction(1, 20))


def test_mask_laws_are_laws():
    for law in (theory.fixed(Fraction(1, 3)), theory.uniform_t, theory.uniform_count):
        assert sum(law(h, 6) * math.comb(6, h) for h in range(7)) == 1


def test_chains_are_told_apart_as_by_a_loop():
    hidden = np.random.default_rng(0).integers(0, 2, (40, 3, 2)).astype(bool)
    hidden[::2] |= np.random.default_rng(1).integers(0, 2, (20, 3, 1)).astype(bool)
    expected = []
    for b in range(3):
        begins = np.flatnonzero(hidden[:, b].all(1))
        for place, (i, j) in enumerate(zip(begins, [*begins[1:], 40], strict=True)):
            chain = hidden[i:j, b]
            informative = sum(row.tolist() == [True, False] for row in chain)
            expected.append((place, b, j - i, informative, int((~chain[:, 0]).sum())))
    expected = [row[2:] for row in sorted(expected) if row[0] < (40 - 2) // 2]
    chains = theory.split(hidden)
    got = [row for row in zip(*chains, strict=True) if row[0]]  # a random row may have too few
    assert [tuple(map(int, row)) for row in got] == expected


def test_chain_lengths_of_short_rows():
    assert theory.chain_lengths(2) == {2: 1}
    assert theory.chain_lengths(4) == {3: Fraction(3, 4), 4: Fraction(1, 4)}
    for L in range(2, 12):
        assert sum(theory.chain_lengths(L).values()) == 1


def test_true_posterior_is_the_conditional_of_the_data():
    model = Model(4, 2, TENTH)
    posterior = theory.TruePosterior(model, theory.Sequences(model).rows)
    y, u, v = posterior.logits((4, 4, 2)).exp()  # 4 is the mask token
    assert y.tolist() == pytest.approx([float(p) / (2 * 30) for p in theory.pi_0(model)])
    assert u.tolist() == [0.5, 0, 0.5, 0] and v.tolist() == [0, 0, 1, 0]
    assert posterior.logits((4, 2, 2))[0].exp().tolist() == pytest.approx(
        [float(p) for p in model.noise]
    )


@pytest.mark.parametrize("tau", [None, 0.9])
def test_the_shipped_buffer_reveals_y_last(tau):
    chains = theory.shipped_chains(tau=tau, seed=1)
    assert theory.y_is_last(chains)
    assert theory.chi_square(chains.length, theory.chain_lengths(4)) > theory.P_VALUE


def test_chi_square_against_known_values():
    """Statistic 4 with one degree of freedom: P = erfc(sqrt(2))."""
    values = np.array([0] * 60 + [1] * 40)
    fair = {0: Fraction(1, 2), 1: Fraction(1, 2)}
    assert theory.chi_square(values, fair) == pytest.approx(math.erfc(math.sqrt(2)))
    assert theory.chi_square(values, {0: Fraction(1)}) == 0
