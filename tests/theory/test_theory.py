"""The scripts of theory/: they hold, and their controls fail."""

import itertools
import math
import random
import runpy
import sys
from argparse import Namespace
from fractions import Fraction
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "theory"))  # its scripts import each other so

import exact
import numpy as np
import pytest
import verify_marginals as marginals
import verify_minimizer as minimizer
import verify_sample_complexity as complexity

SIZES = {
    "marginals": (marginals, dict(worlds=2, V=3, L=3, rows=2000, calls=6)),
    "minimizer": (minimizer, dict(worlds=3, V=2, L=3)),
    "sample_complexity": (complexity, dict(d=2, n=8, rows=2000, calls=6)),
}
HALF = Fraction(1, 2)


# -- the scripts -----------------------------------------------------------------------------------
@pytest.mark.parametrize("name", SIZES)
def test_claims_hold_and_every_row_of_every_control_fails(name, capsys):
    script, sizes = SIZES[name]
    assert exact.run(script.claims, script.CONTROLS, Namespace(broken=None, seed=0, **sizes)) == 0
    assert "FAILS" not in capsys.readouterr().out
    assert exact.run(script.claims, script.CONTROLS, Namespace(broken="all", seed=0, **sizes)) == 1
    out = capsys.readouterr().out
    assert "holds" not in out and out.count("--break") == len(script.CONTROLS)


def test_the_command_line(monkeypatch, capsys):
    for flags, status in ([], 0), (["--break=leak"], 1):
        monkeypatch.setattr(sys, "argv", ["script", "--worlds=3", "--L=2", *flags])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(minimizer.__file__, run_name="__main__")
        assert end.value.code == status
        assert ("FAILS" in capsys.readouterr().out) == status


def test_a_claim_that_fails_and_a_control_that_holds_change_the_status(capsys):
    rows = lambda args: ["Words.", ("b", "", True), ("c", "", False)]  # noqa: E731
    assert exact.run(rows, {}, Namespace(broken=None)) == 1
    assert "Words.\n  holds  b  \n  FAILS  c" in capsys.readouterr().out
    controls = {"caught": lambda args: rows(args)[2:], "missed": rows}
    status = {k: exact.run(None, controls, Namespace(broken=k)) for k in [*controls, "all"]}
    assert status == {"caught": 1, "missed": 0, "all": 0}


# -- mistakes in the mended rows -------------------------------------------------------------------
def count_from_zero(positions):
    L = len(positions)
    return {S: Fraction(1, (L + 1) * math.comb(L, len(S))) for S in exact.subsets(positions)[1:]}


def off_by_one(a, b, integral=exact.integral):
    return integral(a + 1, b)


def test_mistakes_in_an_integral_or_a_count(monkeypatch):
    assert minimizer.same_loss_row(4)[-1]
    assert not complexity.rate_row("uniform count", 3, count_from_zero)[-1]
    with monkeypatch.context() as patch:
        patch.setattr(exact, "uniform_count", count_from_zero)
        assert not minimizer.same_loss_row(4)[-1]
    monkeypatch.setattr(exact, "integral", off_by_one)
    assert not minimizer.same_loss_row(4)[-1]
    assert not complexity.rate_row("t ~ U(0,1)", 3)[-1]


def test_mistakes_in_iid_masks(monkeypatch):
    """Masks that look at a token shift the minimizer; another weight of the count shows too."""
    worlds = exact.instances(random.Random(0), 2, 2, 3)
    as_is = exact.random_contexts
    factors = {
        "right": lambda x0, z: 1,
        "peeks": lambda x0, z: 2 - x0[0] if z[0] == exact.MASK else 1,
        "weight": lambda x0, z: exact.per_hidden(z, 0),
    }
    rows = {}
    for name, factor in factors.items():
        change = lambda *a, f=factor: {k: p * f(*k[:2]) for k, p in as_is(*a).items()}  # noqa: E731
        monkeypatch.setattr(exact, "random_contexts", change)
        rows[name] = minimizer.iid_row(worlds)
    assert [row[-1] for row in rows.values()] == [True, False, False]
    assert ["0 shifted" in row[1] for row in rows.values()] == [True, False, True]
    monkeypatch.setattr(exact, "random_contexts", as_is)
    monkeypatch.setattr(exact, "integral", off_by_one)
    assert not minimizer.iid_row(worlds)[-1]


def test_mistakes_in_the_errors_of_random_masks(monkeypatch):
    law, formula = complexity.MASKS["q = 1/2"]
    mixture = complexity.mixture
    model = complexity.Model(4, 2, Fraction(1, 20))
    whole = complexity.evidence([complexity.laws(model)])  # x0, whatever is hidden

    def verdicts(owner, name, value):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            rows = complexity.random_mask_rows([model], ["q = 1/2"], 4)
        return [holds for _, _, holds in rows]

    zeros = lambda a, n, known: mixture(a, n, [HALF, *[0] * n])  # noqa: E731
    guesses = lambda a, n, known: mixture(a, n, [HALF] * (n + 1))  # noqa: E731
    assert verdicts(complexity, "mixture", zeros) == [False, True]
    assert verdicts(complexity, "mixture", guesses) == [False, True]
    low = {"q = 1/2": (law, lambda d: formula(d) / 2)}
    assert verdicts(complexity, "MASKS", low) == [False, False]
    assert verdicts(complexity, "random_mask", lambda model, law: whole) == [False, False]


# -- by hand and by brute force --------------------------------------------------------------------
def test_the_least_error_by_enumeration_of_all_samples():
    """Of three thetas, from up to two samples: no estimator errs less than the likeliest theta."""
    model = complexity.Model(6, 1, Fraction(1, 10), (1, 1, 1))
    P = [law.ravel() / law.sum() for law in complexity.laws(model)]
    found = complexity.errors(complexity.evidence([complexity.laws(model)]), 2)
    for n in range(3):
        samples = itertools.product(range(len(P[0])), repeat=n)
        right = sum(max(math.prod(p[o] for o in sample) for p in P) for sample in samples)
        assert float(found[n]) == pytest.approx(1 - right / 3)


def test_chi_square():
    """Known quantiles; what cannot happen; p is fair where many equally rare outcomes merge."""
    assert exact.survival(3.841459, 1) == pytest.approx(0.05, abs=1e-6)
    law = {"a": HALF, "b": HALF}
    assert exact.chi_square({"a": 50, "b": 50}, law, 100) == (1, 1.0)
    assert exact.chi_square({"a": 50, "c": 50}, law, 100) == (0, 0.0)
    rare = dict.fromkeys(range(200), Fraction(1, 200))
    draw = np.random.default_rng(0).integers(200, size=(50, 300))
    p = [exact.chi_square(exact.Counter(row.tolist()), rare, 300)[1] for row in draw]
    assert 0.35 < sum(p) / len(p) < 0.65
