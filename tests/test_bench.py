"""bench.py at tiny shapes: what it prints, and that what it compares does the same work."""

import json

import pytest
import torch
from conftest import run_script

from studies import bench

SUDOKU = bench.Shape(
    5, 16, dim=16, layers=2, heads=2, mlp=24, tied=False, rows=3, K=4, box=(2, 2),
    reference=("--shape=sudoku", "--steps=3"),
)  # fmt: skip
TEXT = SUDOKU._replace(words=103, tied=True, prompt=4, box=None)
CPU = torch.device("cpu")
THEIRS = {"seconds": 2.0, "sequences_per_second": 4.0, "peak_gb": 8.0}


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(bench, "SHAPES", {"sudoku": SUDOKU, "text": TEXT})
    monkeypatch.setattr(
        bench, "reference", lambda where, *flags: dict.fromkeys(bench.REFERENCES, THEIRS)
    )
    values = {"device": "cpu", "dtype": "float32", "compile": False, "rounds": 2}
    for name, value in values.items():
        monkeypatch.setattr(bench, name, value)
    return monkeypatch


def measured(part, tiny, capsys):
    """What a part prints: numbers by name, ratios by name, and the tables for people."""
    tiny.setattr(bench, "parts", [part])
    bench.main()
    out, errors = capsys.readouterr()
    about, *lines = map(json.loads, out.splitlines())
    assert about["device"] == "cpu" and about["threads"] == 1 and about["versions"]
    assert about["dtype"] == "float32" and about["compiled"] is False
    assert {line["part"] for line in lines} == {part}
    ratios = {line["ratio of"]: line for line in lines if "ratio of" in line}
    return {line["what"]: line for line in lines if "what" in line}, ratios, errors


@pytest.mark.parametrize("shape", [SUDOKU, TEXT], ids=["puzzles", "text"])
def test_random_masks_hide_as_much_as_the_chains(shape, tiny):
    trainer = bench.Trainer(shape, CPU)
    hidden = {trainer.chains: [], trainer.masks: []}
    step = trainer.step

    def spy(stream):
        hidden[stream].append(step(stream))
        return hidden[stream][-1]

    trainer.step = spy
    seconds, mean = trainer.round(5)
    ours, theirs = map(torch.stack, hidden.values())
    assert [len(times) for times in seconds.values()] == [5, 5] and mean == theirs.sum() / 5
    assert (theirs <= ours).all() and (shape is SUDOKU or theirs.equal(ours))  # other clues


@pytest.mark.parametrize("part", ["step", "text_step"])
def test_steps_of_both_methods(part, tiny, capsys):
    found, ratios, tables = measured(part, tiny, capsys)
    for name in ("puma", "mdm"):
        line = found[name]
        assert line["from"] <= line["ms_per_step"] <= line["to"] and line["rows"] == 3
        assert line["sequences_per_second"] == pytest.approx(3e3 / line["ms_per_step"], rel=1e-2)
        assert 0.1 < line["peak_gb"] < 10 and f"| {part} | {name} | 3 |" in tables
    assert found["puma"]["stages"] == 4
    ours = ratios["sequences/s, ours over reference"]["median"]
    assert ours == pytest.approx(found["puma"]["sequences_per_second"] / 4, rel=0.3)
    assert abs(ratios["peak memory, ours over reference"]["median"] - line["peak_gb"] / 8) < 6e-4
    assert ratios["seconds, puma over mdm"]["from"] <= ratios["seconds, puma over mdm"]["to"]


def test_solving(tiny, capsys):
    found, ratios, _ = measured("sample", tiny, capsys)
    seconds = found["ours"]["ms_per_pass"] * found["ours"]["passes"] / 1e3
    assert found["ours"]["puzzles_per_second"] == pytest.approx(256 / seconds, rel=0.3)
    assert found["reference"]["sequences_per_second"] == 4 and len(ratios) == 4


def test_an_unknown_part_is_refused(refused):
    said = refused(run_script, "studies/bench.py", "--parts=['speed']")
    assert "parts ['speed']: expected some of step, text_step, sample" in said
