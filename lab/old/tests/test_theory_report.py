"""The frame of the scripts: their command lines, the table, the controls."""

import importlib
import runpy
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import report

THEORY = Path(report.__file__).parent
SIZES = {  # of the worlds of a script, that all is checked in seconds
    "marginals": dict(worlds=2, V=3, L=3, rows=256, calls=24),
    "minimizer": dict(worlds=2, V=2, L=3),
    "sample_complexity": dict(d=2, n=16, rows=16, calls=40),
    "collapse": dict(worlds=2, L=3, steps=300, rows=2048, calls=8),
}


@pytest.mark.parametrize("name", SIZES)
def test_every_negative_control_is_caught_and_every_claim_holds_on_tiny_sizes(name):
    script = importlib.import_module(f"verify_{name}")
    args = Namespace(broken="all", seed=0, **SIZES[name])
    assert report.run_controls(script.CONTROLS, args) == 1
    if name != "collapse":  # which takes long; test_theory_collapse.py checks most of it
        assert report.show(script.claims(args)) == 0


def run(monkeypatch, script, *flags):
    """The exit status of a script of theory/, run as python runs it."""
    monkeypatch.setattr(sys, "argv", [script, *flags])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(THEORY / script), run_name="__main__")
    return end.value.code


@pytest.mark.slow
@pytest.mark.parametrize("name", SIZES)
def test_a_script_holds_whole_and_its_controls_fail(name, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, f"verify_{name}.py") == 0
    assert "FAILS" not in capsys.readouterr().out
    assert run(monkeypatch, f"verify_{name}.py", "--break=all") == 1
    assert "HOLDS" not in capsys.readouterr().out


def test_a_control_on_the_command_line(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, "verify_marginals.py", "--break=peek", "--worlds=2") == 1
    assert "FAILS" in capsys.readouterr().out


def test_a_claim_that_fails_is_reported(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["script.py"])
    with pytest.raises(SystemExit) as end:
        report.main("", lambda args: ["Words.", ("a", "", True), ("b", "", False)], {})
    assert end.value.code == 1
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        [],
        ["Words."],
        ["holds", "a"],
        ["FAILS", "b"],
    ]


def test_a_control_must_fail_in_every_row(capsys):
    def caught(args):
        return [("broken", "", False)]

    def missed(args):
        return [("broken", "", False), ("nothing is broken", "", True)]

    args = Namespace(broken="all")
    assert report.run_controls({"a": caught, "b": caught}, args) == 1
    assert report.run_controls({"a": caught, "c": missed}, args) == 0
    assert "HOLDS, but should not:\n  nothing is broken" in capsys.readouterr().out
