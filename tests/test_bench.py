"""bench.py at tiny shapes: what it prints, and that what it compares does the same work."""

import contextlib
import io
import json
from types import SimpleNamespace

import pytest
import torch
from conftest import run_script

from configurator import configure
from losses import row_mean
from studies import bench, conventional

SUDOKU = bench.Shape(5, 16, 0, 16, 2, 2, 24, tied=False, rows=3, K=4)
TEXT = bench.Shape(103, 16, 4, 16, 2, 2, 24, tied=True, rows=3, K=4)
LAID_OUT = SUDOKU._replace(vocab=6, length=32, prompt=16, K=8)


@pytest.fixture
def measured(monkeypatch, capsys):
    """A function: what a part prints, by name: the machine, the costs, and the ratios."""

    def reference(command, stdout, check):  # in this process
        configure(vars(conventional), command[3:])
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            conventional.main()
        return SimpleNamespace(stdout=printed.getvalue())

    def run(part):
        monkeypatch.setattr(bench, "parts", [part])
        bench.main()
        about, *lines = map(json.loads, capsys.readouterr().out.splitlines())
        assert {line["part"] for line in lines} == {part}
        ratios = {line["ratio of"]: line for line in lines if "ratio of" in line}
        return about, {line["what"]: line for line in lines if "what" in line}, ratios

    shapes = {"step": SUDOKU, "text_step": TEXT, "sample": SUDOKU}
    theirs = {"step": LAID_OUT, "text_step": TEXT, "sample": LAID_OUT}
    monkeypatch.setattr(bench, "subprocess", SimpleNamespace(run=reference, PIPE=None))
    monkeypatch.setattr(bench, "rounds", 1)
    monkeypatch.setattr(bench, "SHAPES", shapes)
    monkeypatch.setattr(conventional, "SHAPES", theirs)
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


@pytest.mark.parametrize("part", ["step", "text_step", "sample"])
def test_costs_and_their_ratios(part, measured):
    about, costs, ratios = measured(part)
    assert about["threads"] == 1 and about["versions"]
    assert about["dtype"] == "float32" and about["compiled"] is False
    for what, cost in costs.items():
        rows = 256 if what == "ours" else 3
        assert cost["rows_per_second"] * cost["seconds"] == pytest.approx(rows, rel=0.01)
        assert 0.1 < cost["peak_gb"] < 10
    first, *others = costs
    assert others == ["mdm"] * (part != "sample") + ["reference", "reference in bfloat16"]
    for what in others:
        key = "seconds" if what == "mdm" else "rows_per_second"
        expected = costs[first][key] / costs[what][key]
        assert ratios[f"{key}, {first} over {what}"]["median"] == pytest.approx(expected, rel=0.01)


def test_ratios_are_of_things_measured_in_the_same_round():
    turns = [{"puma": {"seconds": a}, "mdm": {"seconds": b}} for a, b in ((1, 2), (6, 3), (8, 1))]
    *costs, ratio = bench.report(turns)
    assert costs == [{"what": "puma", "seconds": 6}, {"what": "mdm", "seconds": 2}]
    assert ratio == {"ratio of": "seconds, puma over mdm", "median": 2, "from": 0.5, "to": 8}


def test_the_references_loss_is_that_of_the_objective():
    logits, x0 = torch.randn(3, 5, 7, dtype=torch.float64), torch.randint(7, (3, 5))
    hidden = torch.rand(3, 5) < 0.5
    log_probs = logits.log_softmax(-1)
    expected = row_mean(-log_probs.gather(-1, x0[..., None])[..., 0], hidden)
    torch.testing.assert_close(conventional.mean_loss(log_probs, x0, hidden), expected)


def test_the_references_sampler_fills_in_all(measured):
    x0, prompt = LAID_OUT.examples()[:3]
    x = x0.masked_fill(~prompt, 5)
    model, passes = LAID_OUT.model().eval(), []
    model.register_forward_hook(lambda *_: passes.append(1))
    conventional.solve(model, x, mask=5)
    assert x[prompt].equal(x0[prompt]) and (x < 5).all() and len(passes) == 16 / 2


def test_an_unknown_part_is_refused(refused):
    said = refused(run_script, "studies/bench.py", "--parts=['speed']")
    assert "parts ['speed']: expected some of step, text_step, sample" in said
