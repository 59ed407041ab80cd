import random
from fractions import Fraction

import exact
import pytest
import shipped
import verify_marginals as script


def test_laws_by_hand():
    """x0 is 00 or 11 with 1/3 and 2/3, left to right: the second token follows from the first."""
    data = exact.Data({(0, 0): Fraction(1, 3), (1, 1): Fraction(2, 3)}, 2)
    moves = exact.on_grid(exact.choices(data)["left_to_right"])
    start = {(x0, (-1, -1), 0): p for x0, p in data.p.items()}
    laws = exact.inference(data, moves, 2, start)
    assert laws[1] == {((0, -1), 1): Fraction(1, 3), ((1, -1), 1): Fraction(2, 3)}
    assert laws[2][(1, 1), 2] == Fraction(2, 3) and laws[2][(0, 1), 2] == 0
    both = exact.inference(data, exact.on_grid(exact.choices(data)["left_to_right"], 2), 1, start)
    assert both[1][(0, 1), 1] == Fraction(2, 9)


@pytest.mark.parametrize("policy, K", [("random", 1), ("top_k", 2)])
def test_chain_lengths_depend_on_neither_data_nor_policy(policy, K):
    """A chain has more than k contexts if it is still there at its visit k."""
    buffer = shipped.Buffer(exact.random_data(random.Random(0), 2, 5), policy, K)
    lengths = shipped.chain_lengths(5, K)
    for k, joint in enumerate(buffer.joints):
        assert sum(joint.values()) == sum(p for length, p in lengths.items() if length > k)


TAU = "K=1, two prompts, tau=0.701"


def one_stage_on(hidden, stage, *rest, step=shipped.puma.step):
    hidden, _, ended = step(hidden, stage, *rest)
    return hidden, stage + 1, ended


def floor(r, effective):
    return (r * effective).long().clamp(max=effective - 1)


def rightmost(score, is_hidden, count, reveal=shipped.puma.policies.reveal):
    return reveal(score.flip(1), is_hidden.flip(1), count).flip(1)


MUTANTS = {
    "ties to the rightmost": (shipped.puma.policies, "reveal", rightmost, "K=1, ties"),
    "never fast": (shipped.puma.policies, "fast_forward", lambda c, h, tau: h & False, TAU),
    "stage not recomputed": (shipped.puma, "step", one_stage_on, TAU),
    "rounded down": (shipped.puma, "tokens_at", floor, "K=2"),
}


@pytest.fixture(scope="module")
def buffers():
    return script.buffers(seed=0)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_buffer_with_other_rules_is_caught(mutant, monkeypatch, buffers):
    owner, name, replacement, setting = MUTANTS[mutant]
    buffer = buffers[setting]
    assert script.buffer_row("as it is", buffer, (512, 40, 0))[-1]
    monkeypatch.setattr(owner, name, replacement)
    assert not script.buffer_row(mutant, buffer, (512, 40, 0))[-1]


def test_chi_square():
    """Known quantiles, and what cannot happen."""
    assert shipped.survival(3.841459, 1) == pytest.approx(0.05, abs=1e-6)
    assert shipped.survival(18.307038, 10) == pytest.approx(0.05, abs=1e-6)
    half = {"a": Fraction(1, 2), "b": Fraction(1, 2)}
    assert shipped.chi_square({"a": 50, "b": 50}, half, 100) == (1, 1.0)
    assert shipped.chi_square({"a": 90, "b": 10}, half, 100)[1] < 1e-10
    for impossible in {"a": 50, "c": 50}, {"a": 50, "b": 49}:  # of the second, one has ended
        assert shipped.chi_square(impossible, half, 100)[1] == 0.0
