"""eval.py: rows and records against the sampler itself, interruptions, mistakes."""

import json
import os

import numpy as np
import pytest
import torch
from conftest import Script, evaluate, metrics, train
from torch.utils._python_dispatch import TorchDispatchMode

import sample
import sudoku
import tasks
from engine import checkpoint, files
from engine.log import code
from eval import grid
from runs import validation
from runs.results import content
from runs.saved import open_run
from sample import Sampler
from sudoku import Puzzles, load
from tasks import gsm8k
from tasks.text import Questions

GRID = ["--policy=['top_k','margin']", "--reveal=[1,3]"]


@pytest.fixture
def run(trained, tmp_path):
    """A folder with the checkpoint of a small 4x4 run; see conftest.py."""
    (tmp_path / "checkpoint.pt").symlink_to(trained / "checkpoint.pt")
    return tmp_path


def rows(run):
    return json.loads((run / "eval.json").read_text())


def test_a_grid_is_every_combination():
    samplers = grid(["top_k", "random"], [1, 2], [None, 0.9], [None, 0.1], [0.0, 0.5], 1.0)
    assert len(samplers) == len(set(samplers)) == 2 * 2 * 3 * 2
    assert Sampler("random", 2, 0.9, None, 0.5) in samplers
    assert str(samplers[0]) == "top_k, 1 per step"
    words = {str(sampler) for sampler in samplers}
    assert "random, entropy below 0.1, else 2 per step, T = 0.5" in words
    assert "top_k, confidence above 0.9, else 1 per step" in words


@pytest.mark.parametrize("loops", [1, 2])
def test_rows_agree_with_the_records_and_with_the_sampler(run, loops):
    evaluate(run, *GRID)
    printed = evaluate(run, *GRID, f"--loops={loops}")
    assert printed == (run / "eval.md").read_text() and len(rows(run)) == 8
    records = files.read_lines(run / "eval.jsonl")
    saved = open_run(run / "checkpoint.pt")
    saved.model.model.loops = loops
    test = load(saved.config).test
    x, hidden = tasks.problems_on("cpu", test, range(40))
    for row in rows(run)[4:]:
        sampler = Sampler(*(row[field] for field in Sampler._fields))
        tokens, at, passes = sample.generate(saved.model, x, hidden, sampler, batch_size=64)
        grids = tokens.numpy() + 1
        solved = [sudoku.solves(grids[i : i + 1], test.puzzles[i : i + 1], (2, 2))[0]
                  for i in range(40)]  # fmt: skip
        mine = [record for record in records if record["id"] == row["id"]]
        assert [record["kind"] == "correct" for record in mine] == solved
        assert row["accuracy"] == np.mean(solved) and row["forward_passes"] == passes
        assert row["tokens_per_step"] == hidden.sum().item() / at.amax(1).sum().item()
        assert sum(row["kinds"].values()) == row["examples"] == 40
        low, high = row["interval"]
        assert 0 <= low <= row["accuracy"] <= high <= 1


def test_only_what_is_unsolved_is_tried_again_under_other_symmetries(run, monkeypatch):
    saved = open_run(run / "checkpoint.pt")
    test, indices = load(saved.config).test, np.arange(7, 27)
    solutions = load(saved.config).validation[indices][0]
    views = [test.again(attempt) for attempt in (1, 2)]
    for view in views:
        x, hidden = view[indices]
        assert (hidden.sum(1) == test[indices][1].sum(1)).all() and (x != test[indices][0]).any()
        assert (x[hidden] == saved.model.mask_token).all()
        # The same symmetry takes the solution along, and `judge` takes it back.
        turned = view.turned(solutions + 1, indices) - 1
        assert (turned == x)[~hidden].all()
        assert view.judge(turned, indices) == test.judge(solutions, indices)
        assert view.judge(np.roll(turned, 1, 0), indices)[0]["kind"] == "wrong"
    assert (views[0][indices][0] != views[1][indices][0]).any()
    assert views[0][[9]][0].tolist() == views[0][indices][0][[2]].tolist()

    # A solver that solves puzzles 4 and 5 at the second attempt, and 6 at the third
    solved = {1: {4, 5}, 2: {6}}

    def judge(view, tokens, rows):
        right = solved.get(getattr(view, "attempt", 0), ())
        return [{"kind": "correct" if i in right else "wrong"} for i in rows]

    monkeypatch.setattr(Puzzles, "judge", judge)
    monkeypatch.setattr(Puzzles, "broken", None)
    monkeypatch.setattr(type(views[0]), "judge", judge)
    printed = evaluate(run, "--tries=3", "--reveal=1")
    assert "tries: 1: 0.0%, 2: 5.0%, 3: 7.5%" in printed and "3 correct" in printed
    records = {record["index"]: record for record in files.read_lines(run / "eval.jsonl")}
    assert [records[i]["tries"] for i in range(3, 8)] == [3, 2, 2, 3, 3]
    assert all(r["steps"] == r["tokens"] * r["tries"] for r in records.values())


def test_a_try_ends_where_it_breaks_a_rule(run, monkeypatch):
    """Nothing revealed is taken back, so the same puzzles are solved, in fewer steps."""
    evaluate(run, "--tries=3", "--reveal=1")
    monkeypatch.setattr(Puzzles, "broken", None)
    evaluate(run, "--tries=3", "--reveal=1", "--seed=2")
    early, late = rows(run)
    assert early["within"] == late["within"] and early["kinds"] == late["kinds"]
    records = files.read_lines(run / "eval.jsonl")
    steps = [sum(r["steps"] for r in records if r["id"] == row["id"]) for row in (early, late)]
    assert steps[0] < steps[1]
    assert any("0" in record["grid"] for record in records if record["id"] == early["id"])
    assert not any("0" in record["grid"] for record in records if record["id"] == late["id"])


def test_two_processes_find_what_one_does_and_training_found(trained, run):
    accuracy = metrics(trained)[-1]["accuracy"]
    flags = f"--policy={[*accuracy]}", "--device=cpu", "--dtype=float32"
    with Script("eval.py", f"--out_dir={run}", *flags, processes=2) as script:
        script.wait(60)
        assert script.output(0) == (run / "eval.md").read_text() and not script.output(1)
    evaluate(run, flags[0])
    for found in rows(run)[:3], rows(run)[3:]:
        assert {row["policy"]: row["accuracy"] for row in found} == accuracy


def test_an_interrupted_grid_keeps_its_rows(run, monkeypatch):
    generate, calls = sample.generate, []

    def counted(*args, **options):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return generate(*args, **options)

    monkeypatch.setattr(sample, "generate", counted)
    with pytest.raises(SystemExit, match="interrupted: the same command continues"):
        evaluate(run, *GRID)
    before = rows(run)
    assert len(before) == 2
    evaluate(run, *GRID)
    assert len(calls) == 5 and rows(run)[:2] == before and len(rows(run)) == 4
    evaluate(run, *GRID, "--tau_entropy=0.2", "--policy=top_k")
    assert len(calls) == 7 and [row["tau_entropy"] for row in rows(run)] == [None] * 4 + [0.2] * 2


def test_records_of_an_interruption_are_used_and_their_cost_is_unknown(run):
    evaluate(run, "--reveal=4")
    (row,) = rows(run)
    assert row["forward_passes"] > 0 and row["seconds"] > 0
    (run / "eval.json").unlink()  # as if killed before the row was written
    printed = evaluate(run, "--reveal=4")
    (again,) = rows(run)
    for key in "accuracy", "tokens_per_step":
        assert again[key] == row[key]
    assert again["forward_passes"] is again["seconds"] is None and "None forward" not in printed


def test_a_changed_file_of_problems_is_evaluated_anew(run):
    file = run / "puzzles.txt"
    for puzzle in ("1...3..........3", "2...4..........4"):
        file.write_text(puzzle)
        assert ", of 1" in evaluate(run, f"--file={file}")
    grids = [record["puzzle"] for record in files.read_lines(run / "eval.jsonl")]
    assert grids == ["1000300000000003", "2000400000000004"]
    (one, two), path = rows(run), run / "eval.json"
    path.unlink(), os.mkfifo(path)  # it would never end
    with pytest.raises(SystemExit, match=r"eval.json: not a file"):
        evaluate(run)
    assert one["code"] == two["code"] == code()


def test_results_depend_on_all_that_a_set_of_problems_holds():
    found = {content(problems) for problems in (
        Puzzles(np.eye(1, 16, dtype=int), (2, 2)), Puzzles(2 * np.eye(1, 16, dtype=int), (2, 2)),
        *(Questions([gsm8k.Problem("How many?", answer)], None, 8) for answer in (1, 2, 1)),
    )}  # fmt: skip
    assert len(found) == 4


def test_other_weights_are_measured_anew(run):
    evaluate(run, *GRID, "--reveal=2")
    before, state = rows(run), checkpoint.load(run / "checkpoint.pt")
    (run / "checkpoint.pt").unlink()
    state["ema"]["lm_head.weight"] = state["ema"]["lm_head.weight"].flip(0)
    checkpoint.save(state, run / "checkpoint.pt")
    printed = evaluate(run, *GRID, "--reveal=2", "--examples=20")
    assert rows(run)[:2] == before and [row["examples"] for row in rows(run)] == [40, 40, 20, 20]
    assert len(printed.splitlines()) == 4  # those of the old weights are not in the table


@pytest.mark.parametrize(
    "flag, message",
    [
        ("--tau=[]", "an empty grid"),
        ("--out_dir=nowhere", "no checkpoint nowhere: train first, or name another run's"),
        ("--reference", "no reference solutions"),
        ("--problems=transfer", "Sudoku has no named sets, use --file"),
    ],
)
def test_mistakes_are_named(flag, message, run, refused):
    assert message in refused(evaluate, run, flag)
    assert [file.name for file in run.iterdir()] == ["checkpoint.pt"]


def test_an_edited_result_is_counted_anew(run):
    for flag in "--reveal=3", "--reveal=[4,5]":
        evaluate(run, "--reveal=3")
        files.write_json(run / "eval.json", [rows(run)[0] | {"accuracy": 0.999}])
        assert "99.9%" not in evaluate(run, flag)


def test_damaged_results_are_named(run, refused):
    for name in "eval.json", "eval.jsonl":
        for wrong in "[\n", '{"id": 3}\n':
            (run / name).write_text(wrong)
            assert f"{name}" in (said := refused(evaluate, run)) and "move" in said
        (run / name).unlink()


def test_a_causal_model_has_one_sampler_for_each_temperature(tmp_path):
    train(tmp_path, "--method=ar", "--max_iters=1")
    evaluate(tmp_path, *GRID, "--temperature=[0,1]")
    keys = "policy", "temperature", "tokens_per_step"
    found = [tuple(row[key] for key in keys) for row in rows(tmp_path)]
    assert found == [("left_to_right", 0, 1), ("left_to_right", 1, 1)]


def test_a_folder_that_is_being_evaluated_is_refused(run, refused):
    with files.Lock(run, "eval.lock"):
        assert "in use by process" in refused(evaluate, run)
    evaluate(run)
    assert rows(run) and not (run / "eval.lock").exists()


class Casts(TorchDispatchMode):
    """How often each weight of a model's linear layers is converted."""

    def __init__(self, model):
        super().__init__()
        layers = [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
        self.counts = {p.data_ptr(): 0 for layer in layers for p in layer.parameters()}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten._to_copy.default and args[0].data_ptr() in self.counts:
            self.counts[args[0].data_ptr()] += 1
        return function(*args, **kwargs or {})


def test_an_evaluation_in_bfloat16_casts_each_weight_once(tmp_path, monkeypatch):
    """And anew when the weights have changed: its result is that of casting at each use."""
    evaluation, results = validation.evaluate, []

    def counted(task, model, *settings):
        with Casts(model) as casts:
            results.append(evaluation(task, model, *settings))
        assert {*casts.counts.values()} == {1}
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False), Casts(model) as casts:
            assert evaluation(task, model, *settings) == results[-1]
        assert min(casts.counts.values()) > 10
        return results[-1]

    monkeypatch.setattr(validation, "evaluate", counted)
    train(tmp_path, "--dtype=bfloat16", "--max_iters=4", "--eval_interval=2")
    assert len(results) == 2 and results[0] != results[1]
