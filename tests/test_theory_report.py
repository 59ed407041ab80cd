"""The frame of the scripts: their command lines, the table, the controls, the figure."""

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


@pytest.mark.parametrize(
    "script, flags",
    [
        ("verify_marginals.py", ["--break=rates", "--worlds=2"]),
        ("verify_minimizer.py", ["--break=leak", "--worlds=2"]),
        ("verify_sample_complexity.py", ["--break=reversed"]),
        ("verify_collapse.py", ["--break=tau-off"]),
    ],
)
def test_a_control_on_the_command_line(monkeypatch, capsys, tmp_path, script, flags):
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, script, *flags) == 1
    printed = capsys.readouterr().out
    assert "FAILS" in printed and "HOLDS" not in printed


def test_everything_holds_and_is_drawn(monkeypatch, capsys, tmp_path):
    figure = tmp_path / "figure.png"
    tiny = ["--d=2", "--n=16", "--rows=16", "--calls=40"]
    assert run(monkeypatch, "verify_sample_complexity.py", *tiny, f"--plot={figure}") == 0
    printed = capsys.readouterr().out
    assert "the paper deems n = 11 necessary" in printed and "FAILS" not in printed
    assert figure.stat().st_size > 0


def test_a_claim_that_fails_is_reported(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["script.py"])
    with pytest.raises(SystemExit) as end:
        report.main("", lambda args: ([("a", "", True), ("b", "", False)], []), {})
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
