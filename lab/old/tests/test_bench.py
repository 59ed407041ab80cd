"""bench.py at tiny shapes: what it prints, and that what it compares does the same work."""

import json

import pytest
import torch
from conftest import run_script

from studies import bench

SUDOKU = bench.Shape(5, 16, 0, 16, 2, 2, 24, tied=False, rows=3, K=4)
TEXT = bench.Shape(103, 16, 4, 16, 2, 2, 24, tied=True, rows=3, K=4)


@pytest.fixture
def measured(monkeypatch, capsys):
    """A function: what a part prints, by name: the machine, the costs, and the ratios."""

    def run(part):
        monkeypatch.setattr(bench, "part", part)
        bench.main()
        about, *lines = map(json.loads, capsys.readouterr().out.splitlines())
        assert {line["part"] for line in lines} == {part}
        ratios = {line["ratio of"]: line for line in lines if "ratio of" in line}
        return about, {line["what"]: line for line in lines if "what" in line}, ratios

    shapes = {"step": SUDOKU, "text_step": TEXT}
    monkeypatch.setattr(bench, "rounds", 1)
    monkeypatch.setattr(bench, "SHAPES", shapes)
    monkeypatch.setattr(bench.machine, "compiles", lambda *_, **__: False)
    monkeypatch.setattr(bench.machine, "has_bfloat16", lambda device: False)
    return run


@pytest.mark.parametrize("shape", [SUDOKU, TEXT], ids=["puzzles", "text"])
def test_random_masks_hide_as_much_as_the_chains(shape, measured):
    trainer = bench.Trainer(shape, torch.device("cpu"))
    hidden = {trainer.chains: [], trainer.masks: []}
    step = trainer.step

    def spy(stream):
        hidden[stream].append(step(stream))
        return hidden[stream][-1]

    trainer.step = spy
    trainer.turn()
    ours, theirs = map(torch.stack, hidden.values())
    assert len(ours) == len(theirs) == trainer.steps == 8 and ours.unique().numel() > 4
    assert (theirs <= ours).all() and (shape is SUDOKU or theirs.equal(ours))  # other clues


@pytest.mark.parametrize("part", ["step", "text_step"])
def test_costs_and_their_ratios(part, measured):
    about, costs, ratios = measured(part)
    assert about["threads"] == 1 and about["versions"]
    assert about["dtype"] == "float32" and about["compiled"] is False
    for cost in costs.values():
        assert cost["rows_per_second"] * cost["seconds"] == pytest.approx(3, rel=0.01)
        assert 0.1 < cost["peak_gb"] < 10
    expected = costs["puma"]["seconds"] / costs["mdm"]["seconds"]
    assert ratios["seconds, puma over mdm"]["median"] == pytest.approx(expected, rel=0.01)


def test_ratios_are_of_things_measured_in_the_same_round():
    turns = [{"puma": {"seconds": a}, "mdm": {"seconds": b}} for a, b in ((1, 2), (6, 3), (8, 1))]
    *costs, ratio = bench.report(turns)
    assert costs == [{"what": "puma", "seconds": 6}, {"what": "mdm", "seconds": 2}]
    assert ratio == {"ratio of": "seconds, puma over mdm", "median": 2, "from": 0.5, "to": 8}


def test_an_unknown_part_is_refused(refused):
    said = refused(run_script, "studies/bench.py", "--part=speed")
    assert "part 'speed': expected step or text_step" in said
