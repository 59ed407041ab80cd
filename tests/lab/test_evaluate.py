"""lab/evaluate.py against a loop over puzzles, subsets, and a worked example."""

import itertools
import json
import runpy
import shutil
import sys
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from conftest import ROOT

import checkpoint
import sample
import sudoku
from lab import evaluate

WEIGHTS = ROOT / "results/weights/sudoku_mini"
CELLS = np.arange(36).reshape(6, 6)
BOXES = CELLS.reshape(3, 2, 2, 3).swapaxes(1, 2).reshape(6, 6)


@pytest.fixture
def call(monkeypatch, tmp_path):
    """Run lab/evaluate.py on a copy of the trained 6x6 model; returns its lines."""
    monkeypatch.chdir(ROOT)
    shutil.copy(WEIGHTS / "ckpt.pt", tmp_path)

    def call(*flags):
        args = ["evaluate.py", f"--out_dir={tmp_path}", "--device=cpu", "--batch_size=7", *flags]
        monkeypatch.setattr(sys, "argv", args)
        runpy.run_path(str(ROOT / "lab/evaluate.py"), run_name="__main__")
        return [*map(json.loads, (tmp_path / "eval.jsonl").read_text().splitlines())]

    return call


@torch.no_grad()
def slow(model, puzzle, tau):
    """Steps of one puzzle (36,), and whether all rows, columns and boxes are whole."""
    x = torch.tensor(puzzle - 1) % 7  # a blank is 6
    steps = 0
    while 6 in x:
        confidence, token = model.logits(model(x[None]))[0].softmax(-1).max(-1)
        left = sorted((x == 6).nonzero()[:, 0].tolist(), key=lambda i: -confidence[i])
        now = [i for i in left if confidence[i] > tau] or left[:9]
        x[now] = token[now]
        steps += 1
    return steps, all(len({*x[unit].tolist()}) == 6 for unit in (*CELLS, *CELLS.T, *BOXES))


def test_records_and_table_agree_with_a_loop_over_puzzles(call, capsys):
    _, *records = call("--reveal=[9]", "--tau=[1.0,0.8]", "--examples=12")
    model, _ = checkpoint.load_model(WEIGHTS, "cpu")
    puzzles = np.load(WEIGHTS / "test.npy")[:12, 0].astype(int)
    for record, (tau, i) in zip(records, itertools.product((1.0, 0.8), range(12)), strict=True):
        steps, solved = slow(model, puzzles[i], tau)
        sampler = {"policy": "top_k", "reveal": 9, "tau": tau, "temperature": 0.0, "try": 0}
        found = {"index": i, "tokens": (puzzles[i] == 0).sum(), "steps": steps, "solved": solved}
        assert record == sampler | found
    count, cost, found = (sum(r[k] for r in records[:12]) for k in ("tokens", "steps", "solved"))
    assert 0 < found < 12
    line = " ".join(capsys.readouterr().out.splitlines()[2].split())
    assert f"9 a step {count / cost:.2f} {cost / 12:.1f} {found / 0.12:.1f} [" in line


def test_several_samples(call, capsys):
    _, *records = call("--policy=['random']", "--temperature=[1.0]", "--samples=3", "--examples=8")
    solved = np.array([r["solved"] for r in records]).reshape(3, 8)
    assert [r["try"] for r in records] == [0] * 8 + [1] * 8 + [2] * 8
    assert 0 < solved.mean() < solved.any(0).mean()
    line = capsys.readouterr().out.splitlines()[-1]
    for k, share in (1, solved.mean()), (3, solved.any(0).mean()):
        assert f"pass@{k} {100 * share:.1f} [" in line


def test_pass_at_k_and_wilson():
    for solved, k in itertools.product(range(7), range(1, 7)):
        subsets = [*itertools.combinations(range(6), k)]
        share = np.mean([min(subset) < solved for subset in subsets])
        assert evaluate.pass_at_k(6, solved, k) == pytest.approx(share)
    assert evaluate.wilson(0.8, 10) == pytest.approx((0.49016, 0.94332), abs=1e-5)  # R's prop.test
    assert evaluate.wilson(0.0, 10) == pytest.approx((0, 0.27753), abs=1e-5)


def test_an_interruption_keeps_the_records_and_no_link_is_followed(call, monkeypatch, tmp_path):
    filled = torch.zeros(7, 36), torch.ones(7)
    monkeypatch.setattr(sample, "generate", Mock(side_effect=[filled, filled, KeyboardInterrupt]))
    with pytest.raises(SystemExit, match="has the records so far"):
        call("--examples=30")
    mine = (tmp_path / "eval.jsonl").rename(tmp_path / "mine")
    (tmp_path / "eval.jsonl").symlink_to(mine)
    with pytest.raises(OSError):
        call("--examples=1")
    records = mine.read_text().splitlines()[1:]
    assert [json.loads(record)["index"] for record in records] == [*range(14)]


def test_a_sampler_of_the_method_kinds_and_no_judge(call, monkeypatch, tmp_path):
    saved = torch.load(tmp_path / "ckpt.pt", weights_only=True)
    torch.save(saved | {"config": saved["config"] | {"variant": "lab.ar"}}, tmp_path / "ckpt.pt")
    kinds = ["correct", "timeout"]
    monkeypatch.setattr(sudoku.Sudoku, "kinds", lambda *_: kinds, raising=False)
    _, *records = call("--examples=2", "--reveal=[9]")
    assert all(r["steps"] == r["tokens"] for r in records)  # one by one, from the left
    assert [(r["kind"], r["solved"]) for r in records] == [("correct", True), ("timeout", False)]
    monkeypatch.setattr(sudoku.Sudoku, "judge", None)
    with pytest.raises(SystemExit, match="no judge"):
        call()
