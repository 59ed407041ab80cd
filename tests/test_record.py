"""An entry to the records: a run stops at the first evaluation that is good enough, is checked."""

import shlex

import pytest
from conftest import TINY, metrics

from studies import record


@pytest.mark.slow
def test_an_entry_is_timed_and_checked(trained, tmp_path, monkeypatch, capsys, refused):
    puzzles = metrics(trained)[0]["config"]["data"]["validation"]
    flags = shlex.join([*TINY, "--max_iters=5000", "--eval_interval=5", "--compile=False"])
    settings = {"flags": flags, "seeds": [1], "out_dir": str(tmp_path / "a"), "target": 0.0}
    for name, value in ({"PUZZLES": puzzles} | settings).items():
        monkeypatch.setattr(record, name, value)
    record.main()
    rows = metrics(tmp_path / "a/1")
    assert rows[-1]["iter"] < 5000
    seconds = next(row["seconds"] for row in rows if row.get("iter") == 5)
    printed = capsys.readouterr().out
    assert f"'updates': 5, 'seconds': {seconds}" in printed and "when solved again" in printed
    assert "exists" in refused(record.main)
    monkeypatch.setattr(record, "out_dir", str(tmp_path / "b"))
    monkeypatch.setattr(record, "PUZZLES", [40, 1])
    assert "other puzzles" in refused(record.main)
