import random
import sys
from argparse import Namespace
from fractions import Fraction
from itertools import product
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "theory"))
import chi_square
import exact
import shipped
import verify_marginals as script

TINY = Namespace(seed=0, worlds=2, V=2, L=3, rows=512, calls=30)


def holds(rows):
    return {claim: verdict for claim, _, verdict in rows}


def test_every_claim_holds_on_tiny_sizes():
    rows, several, grid = script.claims(TINY)
    assert all(holds(rows).values()), rows
    assert several["random"][0] == 0 and min(several["random"][1:]) > 0
    assert len(grid) == len(script.GRIDS)


@pytest.mark.parametrize("name", script.CONTROLS)
def test_every_negative_control_is_caught(name):
    rows = script.CONTROLS[name](TINY)
    assert not any(holds(rows).values()), rows


def test_each_control_breaks_its_claim_only():
    """The peeking policy fails both halves of the claim; a wrong model leaves the posterior."""
    assert "!=" in script.CONTROLS["peek"](TINY)[0][1]
    assert "posterior = data's" in script.CONTROLS["model"](TINY)[0][1]


def test_laws_by_hand():
    """x0 is 00 or 11 with 1/3 and 2/3, left to right: the second token follows from the first."""
    data = exact.Data({(0, 0): Fraction(1, 3), (1, 1): Fraction(2, 3)}, 2)
    moves = exact.on_grid(exact.choices(data)["left_to_right"])
    laws = exact.inference(data, moves, 2)
    assert laws[1] == {((0, -1), 1): Fraction(1, 3), ((1, -1), 1): Fraction(2, 3)}
    assert laws[2][(1, 1), 2] == Fraction(2, 3) and laws[2][(0, 1), 2] == 0
    both = exact.inference(data, exact.on_grid(exact.choices(data)["left_to_right"], 2), 1)
    assert both[1][(0, 1), 1] == Fraction(2, 9)


@pytest.mark.parametrize("stages, effective", [(2, 5), (3, 7), (5, 5), (8, 3), (6, 1)])
def test_target_law_is_that_of_the_rounded_share(stages, effective):
    n = 20_000
    for stage in range(stages):
        law = shipped.target_law(stage, effective, stages)
        assert sum(law.values()) == 1
        r = (stage + 1 + (torch.arange(n) + 0.5) / n) / stages
        target = (r * effective).round().clamp(max=effective - 1).long()
        for k, count in enumerate(target.bincount(minlength=effective).tolist()):
            assert abs(law[k] - Fraction(count, n)) <= Fraction(2, n)


def test_chain_lengths_of_short_rows():
    assert shipped.chain_lengths(2, 2) == {2: 1}
    assert shipped.chain_lengths(4, 4) == {3: Fraction(3, 4), 4: Fraction(1, 4)}
    for L in range(2, 12):
        assert sum(shipped.chain_lengths(L, L).values()) == 1


@pytest.mark.parametrize("policy, K", [("random", 1), ("top_k", 2)])
def test_chain_lengths_are_those_of_the_exact_law(policy, K):
    """A chain has more than k contexts if it is still there at its visit k."""
    buffer = shipped.Buffer(exact.random_data(random.Random(0), 2, 5), policy, K, {(): Fraction(1)})
    lengths = shipped.chain_lengths(5, buffer.stages)
    for k, joint in enumerate(buffer.joints(buffer.moves())):
        assert sum(joint.values()) == sum(p for length, p in lengths.items() if length > k)


def test_buffer_moves_are_laws_of_chains_that_end():
    data = exact.random_data(random.Random(0), 2, 4)
    for name, K, tau in product(("random", "top_k"), (1, 2), (None, 0.6)):
        buffer = shipped.Buffer(data, name, K, {(): Fraction(1, 2), (1, 2): Fraction(1, 2)}, tau)
        moves = buffer.moves()
        laws = [exact.marginal(joint) for joint in buffer.joints(moves)]
        assert sum(laws[0].values()) == 1
        for law in laws:
            assert all(sum(g for g, *_ in moves(z, n)) == 1 for z, n in law)
        assert all(after is None for z, n in laws[-1] for *_, after in moves(z, n))


TAU = "K=1, two prompts, tau=0.7"


def stage_kept(stream, revealed, effective):
    return stream.stage[0] + 1


@staticmethod
def floor(r, effective):
    return (r * effective).long().clamp(max=effective - 1)


def rightmost(score, is_hidden, count):
    order = (
        score.masked_fill(~is_hidden, -torch.inf)
        .flip(1)
        .argsort(dim=1, descending=True, stable=True)
    )
    return is_hidden & (order.argsort(1).flip(1) < count[:, None])


MUTANTS = {
    "ties to the rightmost": (shipped.policies, "reveal", rightmost, "K=1, ties"),
    "never fast": (shipped.policies, "fast_forward", lambda c, h, tau: h & False, TAU),
    "stage not recomputed": (shipped.puma.ProgressiveUnmasking, "stage_of", stage_kept, TAU),
    "rounded down": (shipped.puma.ProgressiveUnmasking, "tokens_at", floor, "K=2"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_buffer_with_other_rules_is_caught(mutant, monkeypatch):
    owner, name, replacement, setting = MUTANTS[mutant]
    buffer = script.buffers(random.Random(0))[setting]
    assert script.buffer_row("as it is", buffer, (512, 40, 0))[-1]
    monkeypatch.setattr(owner, name, replacement)
    assert not script.buffer_row(mutant, buffer, (512, 40, 0))[-1]


def test_chi_square_against_known_quantiles():
    assert chi_square.survival(3.841459, 1) == pytest.approx(0.05, abs=1e-6)
    assert chi_square.survival(18.307038, 10) == pytest.approx(0.05, abs=1e-6)


def test_chi_square_refutes_what_cannot_happen():
    half = {"a": Fraction(1, 2), "b": Fraction(1, 2)}
    assert chi_square.chi_square({"a": 50, "b": 50}, half, 100)[2] == 1.0
    assert chi_square.chi_square({"a": 90, "b": 10}, half, 100)[2] < 1e-10
    assert chi_square.chi_square({"a": 50, "c": 50}, half, 100)[2] == 0.0
    assert chi_square.chi_square({"a": 50, "b": 49}, half, 100)[2] == 0.0  # one has ended


def test_states_survive_their_code():
    states = list(product((-1, 0, 1), repeat=3))
    codes = shipped.state_code(torch.tensor(states), 2).tolist()
    assert sorted(codes) == list(range(27))
    key = (5 * 4 + 3) * 4 + 2  # visit 5, stage 3 of 4, L_eff 2
    for z, code in zip(states, codes, strict=True):
        assert shipped.unpack(key * 27 + code, 4, 3, 2) == (5, (3, 2), z)


def test_command_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["verify_marginals.py", "--break=rates", "--worlds=2"])
    with pytest.raises(SystemExit) as end:
        script.main()
    assert end.value.code == 1 and "FAILS" in capsys.readouterr().out


def test_figure(tmp_path):
    script.plot(tmp_path / "figure.png", {"top_k": [0.0, 0.1]}, [0.1, 0.05, 0.02, 0.01, 0.005])
    assert (tmp_path / "figure.png").stat().st_size > 0
