"""lab/evaluate.py against a loop over puzzles, worked examples, and folders of strangers."""

import itertools
import os
import runpy
import sys

import numpy as np
import pytest
import torch
from conftest import ROOT

import checkpoint
import policies
import sample
import sudoku
from lab import evaluate, tables
from model import Transformer

WEIGHTS = ROOT / "results/weights/sudoku_mini"
CELLS = np.arange(36).reshape(6, 6)
BOXES = CELLS.reshape(3, 2, 2, 3).swapaxes(1, 2).reshape(6, 6)


@pytest.fixture
def call(monkeypatch, tmp_path):
    """Run lab/evaluate.py, from another folder, on the trained 6x6 model; returns its records."""
    monkeypatch.chdir(ROOT / "lab")
    weights, about = checkpoint.load_weights(WEIGHTS)

    def call(*flags, **settings):
        made = about["config"] | {"test_examples": 12} | settings
        checkpoint.save_weights(weights, about | {"config": made}, tmp_path)
        args = ["evaluate.py", f"--out_dir={tmp_path}", "--device=cpu", "--batch_size=7", *flags]
        monkeypatch.setattr(sys, "argv", args)
        runpy.run_path(str(ROOT / "lab/evaluate.py"), run_name="__main__")
        return evaluate.records(tmp_path)

    return call


@torch.no_grad()
def slow(model, puzzle, truth, policy, tau):
    """Of one puzzle (36,): solved, share right, tokens, content, steps."""
    x = torch.tensor(puzzle - 1) % 7  # a blank is 6
    steps = 0
    while 6 in x:
        p = model.logits(model(x[None]))[0].softmax(-1)
        confidence, token = p.max(-1)
        best = p.sort(-1).values
        certain = (p[:, :6] * p[:, :6].log()).sum(-1)
        score = {"margin": best[:, -1] - best[:, -2], "entropy": certain}.get(policy, confidence)
        left = sorted((x == 6).nonzero()[:, 0].tolist(), key=lambda i: -score[i])
        now = [i for i in left if confidence[i] > tau] or left[:12]
        x[now] = token[now]
        steps += 1
    solved = all(len({*x[unit].tolist()}) == 6 for unit in (*CELLS, *CELLS.T, *BOXES))
    blank = puzzle == 0
    right = (x.numpy() + 1 == truth)[blank].mean()
    return solved, right, blank.sum(), blank.sum(), steps


def test_records_and_table_agree_with_a_loop_over_puzzles(call, capsys):
    samplers = [(12, tau, policy) for tau in (1.0, 0.8) for policy in ("", "margin", "entropy")]
    records = call(f"--samplers={samplers}")
    model, _ = checkpoint.load_model(WEIGHTS, "cpu")
    puzzles, truths = np.load(WEIGHTS / "test.npy")[:12].astype(int).swapaxes(0, 1)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    seen = set()
    for _, tau, policy in samplers:
        rows = [slow(model, *each, policy, tau) for each in zip(puzzles, truths, strict=True)]
        solved, right, tokens, content, steps = np.mean(rows, 0)
        record = records[str((12, tau, policy))]
        expected = dict(solved=solved, right=right, tokens=tokens, content=content, steps=steps)
        assert {name: record[name] for name in expected} == pytest.approx(expected)
        rate = f"{tokens / steps:.2f}"
        assert any(f" {rate} {rate} {steps:.1f} solved {solved:.1%} [" in line for line in lines)
        seen.add((solved, right, steps))
    assert len(records) == 6 and len(seen) > 3 and 0 < solved < 1


def test_a_temperature_and_a_part_of_the_problems(call, capsys):
    record = call("--samplers=[(2,1.0,'random',1.0)]")["(2, 1.0, 'random', 1.0)"]
    model, _ = checkpoint.load_model(WEIGHTS, "cpu")
    puzzles = np.load(WEIGHTS / "test.npy")[:12, 0]
    torch.manual_seed(1)
    solved = []
    for part in puzzles[:7], puzzles[7:]:
        x = torch.from_numpy(part).long() - 1
        x, _ = sample.generate(model, x, x < 0, policies.random, 2, 1.0, 1.0)
        solved += sudoku.solves(x.numpy() + 1, part, (2, 3)).tolist()
    assert 0 < record["solved"] == np.mean(solved)
    low, high = tables.wilson(record["solved"], 12)
    said = f" solved {record['solved']:.1%} [{low:.1%}, {high:.1%}]\n"
    assert capsys.readouterr().out.endswith(said)
    assert len(call("--samplers=[(9,1.0)]", "--examples=2")) == 1  # other problems leave no record
    assert call("--samplers=[(36,1.0)]", test_examples=999)["(36, 1.0)"]["steps"] == 1  # all 100


def test_intervals():
    """R's prop.test(correct = FALSE), and qt(0.975, df) * sd / sqrt(n)."""
    assert tables.wilson(0.8, 10) == pytest.approx((0.49016, 0.94332), abs=1e-5)
    assert tables.wilson(0.0, 10) == pytest.approx((0, 0.27753), abs=1e-5)
    assert tables.spread([1, 2, 3]) == pytest.approx((2, 4.30265273 / 3**0.5))


def test_padding_is_not_content():
    prompt = np.array([[1, 0, 0, 0, 0, 0]] * 2, bool)
    x0 = np.array([[9, 1, 2, 9, 9, 9]] * 2)  # an end in the prompt ends nothing
    x = np.array([[9, 1, 9, 9, 5, 9], [9, 1, 2, 3, 4, 5]])
    found = evaluate.score(x, x0, prompt, 9)
    assert found["right"].tolist() == pytest.approx([2 / 3, 2 / 3])  # of 1, 2, end
    assert found["tokens"].tolist() == [5, 5] and found["content"].tolist() == [2, 5]
    assert evaluate.score(x, x0, prompt, None)["content"].tolist() == [5, 5]


def test_records_are_of_one_set_of_weights(call, tmp_path):
    assert [*call("--samplers=[(9,1.0)]")] == ["(9, 1.0)"]
    assert [*call("--samplers=[(9,0.7)]")] == ["(9, 1.0)", "(9, 0.7)"]
    records = call("--samplers=[(9,0.8)]", variant="lab.ar")  # as if it had been trained again
    assert [*records] == ["(9, 0.8)"]
    (tmp_path / "model.safetensors").unlink()
    assert evaluate.records(tmp_path) == records  # they stand for what is gone
    assert (
        records["(9, 0.8)"]["steps"] == records["(9, 0.8)"]["tokens"]
    )  # from the left, one by one


@pytest.mark.parametrize(
    "damage", ["pipe", "folder", "/dev/zero", "{", "[]", '{"a": {"b": "c"}}', "ÿ"]
)
def test_damaged_records_are_one_line(call, damage, tmp_path):
    path = tmp_path / "eval.json"
    made = {"pipe": os.mkfifo, "folder": os.mkdir, "/dev/zero": lambda to: to.symlink_to(damage)}
    made.get(damage, lambda to: to.write_text(damage, "latin-1"))(path)
    with pytest.raises(SystemExit, match=r"eval.json has no records of lab/evaluate.py: delete it"):
        call()


@pytest.mark.parametrize(
    "settings",
    ["test_examples=None", "test_examples=-1", "test_examples=10**12", "task='lab.view'", "data=5",
     "policy=['x']"],
)  # fmt: skip
def test_settings_of_a_stranger_are_one_line(call, settings):
    key, _, value = settings.partition("=")
    with pytest.raises(SystemExit, match=f"{key}|module with load"):
        call(**{key: eval(value)})


def test_what_cannot_be_judged(call, monkeypatch):
    with pytest.raises(SystemExit, match=r"expected .tokens"):
        call("--samplers=[2]")
    monkeypatch.setattr(sudoku.Sudoku, "judge", None)
    with pytest.raises(SystemExit, match="no judge"):
        call()


@pytest.mark.slow
@pytest.mark.parametrize("quota", [1, 2])
def test_steps_above_a_threshold_are_those_of_diffusers(quota):
    """Each step, unless its quota is two and one token is above: it adds the next, we do not."""
    theirs = pytest.importorskip("diffusers").BlockRefinementScheduler(threshold=0.9)
    theirs.set_timesteps(16 // quota, block_length=16)
    torch.manual_seed(0)
    model = Transformer(30, 29, 16, dim=32, layers=2, heads=2, mlp=64, theta=50.0)
    for p in model.requires_grad_(False).parameters():
        torch.nn.init.normal_(p)
    states = []
    how = policies.top_k, quota, 0.9, 0.0, lambda x: states.append(x.clone())
    sample.generate(model, torch.randint(29, (80, 16)), torch.rand(80, 16) > 0.3, *how)
    for step, (x, ours) in enumerate(itertools.pairwise(states)):
        logits = model.logits(model(x))
        above = ((logits.softmax(-1).amax(-1) > 0.9) & (x == 29)).sum(1)
        adds = (quota == 2) & (above == 1) & ((x == 29).sum(1) > 1)
        found = theirs.step(logits, step, x, mask_token_id=29).prev_sample
        assert (found != ours).any(1).equal(adds)
