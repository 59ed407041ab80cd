"""The scripts of theory/: they hold, and their controls fail."""

import itertools
import math
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
