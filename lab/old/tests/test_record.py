"""An entry to the records: a run stops at the first evaluation that is good enough, is checked."""

import json
import shlex

import pytest
from conftest import TINY, metrics

from studies import record


@pytest.fixture
def race(trained, tmp_path, monkeypatch):
    def run(name, target, *flags):
        values = {"flags": shlex.join([*TINY, "--compile=False", *flags]), "target": target}
        values |= {"PUZZLES": metrics(trained)[0]["config"]["data"]["validation"]}
        values |= {"out_dir": str(tmp_path / name), "seeds": [1]}
        for key, value in values.items():
            monkeypatch.setattr(record, key, value)
        record.main()
        return tmp_path / name

    return run


@pytest.mark.slow
def test_an_entry_is_timed_and_checked(race, capsys):
    rows = metrics(race("a", 0.0, "--max_iters=5000", "--eval_interval=5") / "1")
    assert rows[-1]["iter"] < 5000
    seconds = next(row["seconds"] for row in rows if row.get("iter") == 5)
    printed = capsys.readouterr().out
    assert f"'updates': 5, 'seconds': {seconds}" in printed and "when solved again" in printed


def test_what_is_no_entry(race, tmp_path, monkeypatch, refused):
    assert "has ended without solving 110%" in refused(race, "a", 1.1, "--max_iters=2")
    assert "exists" in refused(race, "a", 0.0)
    monkeypatch.setattr(record, "reached", lambda folder: {"seconds": 1.0})

    def solves_fewer(command, check):
        (tmp_path / "b/1").mkdir(parents=True, exist_ok=True)
        (tmp_path / "b/1/eval.json").write_text('[{"accuracy": 0.1}]')

    monkeypatch.setattr(record.subprocess, "run", solves_fewer)
    assert "no entry" in refused(race, "b", 0.2, "--max_iters=1")


def test_other_puzzles_and_starts_are_refused(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(record, "PUZZLES", [40, 1])
    with pytest.raises(ValueError, match="other puzzles"):
        record.reached(trained)
    row, *_ = metrics(trained)
    row["config"] |= {"data": {"validation": [40, 1]}, "init_from": "a.pt"}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(ValueError, match="began from other weights: no entry"):
        record.reached(tmp_path)
