"""The frame of the scripts: their command lines, the table, the controls."""

import runpy
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import report

THEORY = Path(report.__file__).parent


def run(monkeypatch, script, *flags):
    """The exit status of a script of theory/, run as python runs it."""
    monkeypatch.setattr(sys, "argv", [script, *flags])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(THEORY / script), run_name="__main__")
    return end.value.code


@pytest.mark.slow
@pytest.mark.parametrize("name", ["marginals", "minimizer", "sample_complexity", "collapse"])
def test_a_script_holds_whole_and_its_controls_fail(name, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, f"verify_{name}.py") == 0
    assert "FAILS" not in capsys.readouterr().out
    assert run(monkeypatch, f"verify_{name}.py", "--break=all") == 1
    assert "HOLDS" not in capsys.readouterr().out


def test_a_control_on_the_command_line(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, "verify_marginals.py", "--break=rates", "--worlds=2") == 1
    assert "FAILS" in capsys.readouterr().out


def test_a_claim_that_fails_is_reported(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["script.py"])
    with pytest.raises(SystemExit) as end:
        report.main("", lambda args: [("a", "", True), ("b", "", False)], {})
    assert end.value.code == 1
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["a", "holds"],
        ["b", "FAILS"],
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
