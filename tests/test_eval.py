import json
import re

import numpy as np
import pytest
import torch
from conftest import evaluate, run_script, train
from torch.utils._python_dispatch import TorchDispatchMode

import eval
import sample
import sudoku
import tasks
from engine import checkpoint, files
from eval import grid
from pretrained import runs
from sample import Sampler
from tasks.sudoku import load

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


def test_rows_agree_with_the_records_and_with_the_sampler(run):
    printed = evaluate(run, *GRID)
    assert printed == (run / "eval.md").read_text() and len(rows(run)) == 4
    records = files.read_lines(run / "eval.jsonl")
    saved = runs.open_run(run / "checkpoint.pt")
    test = load(saved.config).test
    x, hidden = tasks.problems_on("cpu", test, range(40))
    for row in rows(run):
        sampler = Sampler(*(row[field] for field in Sampler._fields))
        tokens, at, passes = sample.generate(saved.model, x, hidden, sampler, batch_size=64)
        grids = tokens.numpy() + 1
        solved = [sudoku.solves(grids[i : i + 1], test.puzzles[i : i + 1], (2, 2))[0]
                  for i in range(40)]  # fmt: skip
        mine = [each for each in records if each["id"] == row["id"]]
        assert [each["kind"] == "correct" for each in mine] == solved
        assert row["accuracy"] == np.mean(solved) and row["forward_passes"] == passes
        assert row["tokens_per_step"] == hidden.sum().item() / at.amax(1).sum().item()
        assert sum(row["kinds"].values()) == row["examples"] == 40
        low, high = row["interval"]
        assert 0 <= low <= row["accuracy"] <= high <= 1


def test_no_answer_reaches_the_sampler(trained):
    """x holds the mask token wherever a cell is hidden, so a wrong mask solves nothing."""
    config = checkpoint.load(trained / "checkpoint.pt")["config"]
    task = load(config)
    x, hidden = task.test[np.arange(40)]
    x0, prompt = task.validation[np.arange(40)]
    assert (x[hidden] == task.mask).all() and (x[~hidden] == x0[~hidden]).all()
    assert (hidden == ~prompt).all()
    model = runs.open_run(trained / "checkpoint.pt").model
    wrong = torch.zeros(40, 16, dtype=torch.bool)  # nothing is hidden, says this mask
    tokens, *_ = sample.generate(model, torch.as_tensor(x), wrong, Sampler())
    assert {each["kind"] for each in task.test.judge(tokens.numpy(), range(40))} == {"wrong"}


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


def test_what_an_interruption_leaves_is_used_and_its_cost_is_not_known(run):
    evaluate(run, "--reveal=4")
    (row,) = rows(run)
    assert row["forward_passes"] > 0 and row["seconds"] > 0
    (run / "eval.json").unlink()  # as if killed before the row was written
    printed = evaluate(run, "--reveal=4")
    (again,) = rows(run)
    assert (
        again["accuracy"] == row["accuracy"] and again["tokens_per_step"] == row["tokens_per_step"]
    )
    assert again["forward_passes"] is again["seconds"] is None and "None forward" not in printed


def test_another_file_of_the_same_name_is_evaluated_anew(run, tmp_path):
    file = tmp_path / "puzzles.txt"
    for puzzle in ("1...3..........3", "2...4..........4"):
        file.write_text(puzzle)
        evaluate(run, f"--file={file}")
    grids = [each["puzzle"] for each in files.read_lines(run / "eval.jsonl")]
    assert grids == ["1000300000000003", "2000400000000004"]


def test_other_weights_are_measured_anew(run):
    evaluate(run, *GRID, "--reveal=2")
    before, state = rows(run), checkpoint.load(run / "checkpoint.pt")
    (run / "checkpoint.pt").unlink()
    state["ema"]["lm_head.weight"] = state["ema"]["lm_head.weight"].flip(0)
    checkpoint.save(state, run / "checkpoint.pt")
    printed = evaluate(run, *GRID, "--reveal=2", "--examples=20")
    assert rows(run)[:2] == before and [row["examples"] for row in rows(run)] == [40, 40, 20, 20]
    assert len(printed.splitlines()) == 4  # those of the old weights are not in the table


def test_problems_from_a_file(run, tmp_path):
    file = tmp_path / "puzzles.csv"
    file.write_text("id,puzzle\n0,1...3..........3\n1,12343412........\n")
    assert ", of 2" in evaluate(run, f"--file={file}")
    records = files.read_lines(run / "eval.jsonl")
    assert [each["puzzle"] for each in records] == ["1000300000000003", "1234341200000000"]


def test_nelbo(run):
    printed = evaluate(run, "--nelbo", "--masks=3", "--examples=30")
    found = json.loads((run / "nelbo.json").read_text())
    assert f"{found['per_token']:.5g} +- " in printed and found["examples"] == 30
    assert found["per_token"] == found["per_token_without_padding"]  # a grid has none
    assert 0 < found["per_token_error"] < 0.1 * found["per_token"]
    assert 0.8 < found["per_token"] < 1.7  # log 4 = 1.39 where nothing is learned
    assert not [*run.glob("*.tmp")]


def test_the_checksum_tells_weights_apart():
    one, other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    other.load_state_dict(one.state_dict())
    assert checkpoint.checksum(one) == checkpoint.checksum(other)
    other.bias.data[1] += 1e-6
    assert checkpoint.checksum(one) != checkpoint.checksum(other)


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--nelbo", "--masks=0"], "masks 0: expected 1 <= masks"),
        (["--examples=0"], "examples 0"),
        (["--policy=['best']"], "unknown policy 'best'"),
        (["--policy=[3]"], r"--policy=\[3\]: expected a str .* got the list \[3\]"),
        (["--reveal=[0]"], r"reveal \[0\]: expected 1 <= reveal .*tokens per step"),
        (["--reveal=[1.5]"], r"--reveal=\[1.5\]: expected an int"),
        (["--temperature=[None]"], r"--temperature=\[None\]: expected a float"),
        (["--tau=['x']"], r"--tau=\['x'\]: expected a float"),
        (["--tau_entropy=[-1]"], r"tau_entropy \[-1.0\]: expected 0 <= tau_entropy .*nats"),
        (["--tau=0.9", "--tau_entropy=0.1"], "give one of them"),
        (["--tau=[]"], "an empty grid"),
        (["--out_dir=nowhere"], "no checkpoint"),
        (["--reference"], "no reference solutions"),
        (["--problems=transfer"], "use --file"),
        (["--problems=humaneval", "--file=p.csv"], "expected text or instructions"),
        (["--file=p.csv"], "p.csv, line 3: puzzle: no blank"),
        (["--file=nowhere.txt"], "nowhere.txt"),
    ],
)
def test_mistakes_are_named(flags, message, run, refused):
    (run / "p.csv").write_text("id,puzzle\n0,1...3..........3\n1,1234341221434321\n")
    flags = [flag.replace("p.csv", str(run / "p.csv")) for flag in flags]
    assert re.search(message, refused(evaluate, run, *flags))
    assert not (run / "eval.json").exists()


def test_a_damaged_table_is_named(run):
    (run / "eval.json").write_text("[")
    with pytest.raises(SystemExit, match=r"eval\.json is damaged, move it away"):
        evaluate(run, *GRID)


@pytest.mark.parametrize(
    "change, wrong",
    [
        ({"index": 99}, "problem 99 is not one of those"),
        ({}, "problem 0 occurs twice"),
        ({"index": -1}, "index: expected a whole number"),
        ({"kind": None}, "kind: expected a string"),
        ({"id": None}, "id: expected a string"),
    ],
)
def test_records_that_are_not_of_these_problems_do_not_count(change, wrong, run):
    evaluate(run)
    (run / "eval.json").unlink()
    first, *others = files.read_lines(run / "eval.jsonl")
    files.write_lines(run / "eval.jsonl", [first, *others, first | change])
    with pytest.raises(SystemExit, match=rf"eval\.jsonl, line {len(others) + 2}: {wrong}"):
        evaluate(run)


@pytest.mark.parametrize("text", ["[3]", "[{}]", "{}", '[{"id": "x"}]', "null"])
def test_rows_of_another_form_are_named(text, run):
    (run / "eval.json").write_text(text)
    with pytest.raises(SystemExit, match=r"eval\.json is damaged, move it away"):
        evaluate(run)


def test_a_causal_model_has_one_sampler_for_each_temperature(tmp_path):
    train(tmp_path, "--method=ar", "--max_iters=1")
    evaluate(tmp_path, *GRID, "--temperature=[0,1]")
    found = [(row["policy"], row["temperature"], row["tokens_per_step"]) for row in rows(tmp_path)]
    assert found == [("left_to_right", 0, 1), ("left_to_right", 1, 1)]


def test_a_folder_that_is_being_evaluated_is_refused(run):
    with files.Lock(run, "eval.lock"), pytest.raises(SystemExit, match="in use by process"):
        evaluate(run)
    evaluate(run)
    assert rows(run) and not (run / "eval.lock").exists()


class Casts(TorchDispatchMode):
    """How often each weight of a model is converted."""

    def __init__(self, model):
        super().__init__()
        self.of = {p.data_ptr(): 0 for p in model.parameters()}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten._to_copy.default and args[0].data_ptr() in self.of:
            self.of[args[0].data_ptr()] += 1
        return function(*args, **kwargs or {})

    def counts(self, model):
        """Of what products of matrices take: matrices and biases, but the embedding."""
        linear = [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
        return [self.of[p.data_ptr()] for layer in linear for p in layer.parameters()]


@pytest.mark.parametrize("ema", [0.0, 0.9999])
def test_an_evaluation_in_training_casts_each_weight_once(ema, tmp_path, monkeypatch):
    """And it finds to the bit what it finds when each use casts its weight again."""
    evaluation, calls = eval.evaluate, []

    def counted(task, model, *settings):
        with Casts(model) as casts:
            result = evaluation(task, model, *settings)
        with (
            torch.autocast("cpu", torch.bfloat16, cache_enabled=False),
            Casts(model) as again,
        ):
            assert evaluation(task, model, *settings) == result
        assert {*casts.counts(model)} == {1} and sum(casts.of.values()) == 2 * 10 + 1
        assert min(again.counts(model)) > 10
        x = torch.randint(5, (8, 16))
        with torch.no_grad():
            found = model.logits(model(x))
            with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
                assert model.logits(model(x)).equal(found)
            with torch.autocast("cpu", enabled=False):
                assert model.logits(model(x)).ne(found).any()
        calls.append(found)
        return result

    monkeypatch.setattr(eval, "evaluate", counted)
    train(tmp_path, "--dtype=bfloat16", "--max_iters=4", "--eval_interval=2", f"--ema={ema}")
    assert len(calls) == 2 and not calls[0].equal(calls[1])  # the second has the new weights


def test_a_grid_of_samplers_casts_each_weight_once(run, monkeypatch):
    generate, casts = sample.generate, []

    def counted(model, *settings, **others):
        casts[:] = casts or [Casts(model)]
        with casts[0]:
            found = generate(model, *settings, **others)
        assert {*casts[0].counts(model)} == {1}
        return found

    monkeypatch.setattr(sample, "generate", counted)
    run_script("eval.py", f"--out_dir={run}", "--device=cpu", "--dtype=bfloat16", *GRID)
    assert len(rows(run)) == 4
