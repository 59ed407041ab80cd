"""lab/evaluate.py against a loop over puzzles, subsets, and worked examples."""

import itertools
import runpy
import sys
import zipfile

import numpy as np
import pytest
import torch
from conftest import ROOT

import checkpoint
import policies
import sample
import sudoku
from lab import evaluate
from model import Transformer

WEIGHTS = ROOT / "results/weights/sudoku_mini"
CELLS = np.arange(36).reshape(6, 6)
BOXES = CELLS.reshape(3, 2, 2, 3).swapaxes(1, 2).reshape(6, 6)


@pytest.fixture
def call(monkeypatch, tmp_path):
    """Run lab/evaluate.py on a copy of the trained 6x6 model; returns its records."""
    monkeypatch.chdir(ROOT)
    saved = torch.load(WEIGHTS / "ckpt.pt", weights_only=True)
    torch.save(saved | {"config": saved["config"] | {"test_examples": 12}}, tmp_path / "ckpt.pt")

    def call(*flags):
        args = ["evaluate.py", f"--out_dir={tmp_path}", "--device=cpu", "--batch_size=7", *flags]
        monkeypatch.setattr(sys, "argv", args)
        runpy.run_path(str(ROOT / "lab/evaluate.py"), run_name="__main__")
        return evaluate.records(tmp_path)

    return call


def scores(policy, p):
    """What a policy thinks of each cell, from its probabilities (36, 7)."""
    best = p.sort(-1).values
    return {
        "margin": best[:, -1] - best[:, -2],
        "entropy": (p[:, :6] * p[:, :6].log()).sum(-1),
    }.get(policy, best[:, -1])


@torch.no_grad()
def slow(model, puzzle, truth, policy, tau):
    """Of one puzzle (36,): solved, share right, tokens, content, steps."""
    x = torch.tensor(puzzle - 1) % 7  # a blank is 6
    steps = 0
    while 6 in x:
        p = model.logits(model(x[None]))[0].softmax(-1)
        confidence, token = p.max(-1)
        score = scores(policy, p)
        left = sorted((x == 6).nonzero()[:, 0].tolist(), key=lambda i: -score[i])
        now = [i for i in left if confidence[i] > tau] or left[:9]
        x[now] = token[now]
        steps += 1
    solved = all(len({*x[unit].tolist()}) == 6 for unit in (*CELLS, *CELLS.T, *BOXES))
    blank = puzzle == 0
    right = (x.numpy() + 1 == truth)[blank].mean()
    return solved, right, blank.sum(), blank.sum(), steps


def test_records_and_table_agree_with_a_loop_over_puzzles(call, capsys):
    orders = ["", "margin", "entropy"]
    samplers = [(9, tau, policy) for tau in (1.0, 0.8) for policy in orders]
    records = call(f"--samplers={samplers}")
    model, _ = checkpoint.load_model(WEIGHTS, "cpu")
    puzzles, truths = np.load(WEIGHTS / "test.npy")[:12].astype(int).swapaxes(0, 1)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    seen = set()
    for _, tau, policy in samplers:
        rows = [slow(model, *each, policy, tau) for each in zip(puzzles, truths, strict=True)]
        solved, right, tokens, content, steps = np.mean(rows, 0)
        record = records[str((9, tau, policy))]
        expected = dict(solved=solved, right=right, tokens=tokens, content=content, steps=steps)
        assert record == pytest.approx(expected)
        rate = f"{tokens / steps:.2f}"
        assert sum(f"{rate} {rate} {steps:.1f} {100 * solved:.1f} [" in line for line in lines) > 0
        seen.add((solved, right, steps))
    assert len(records) == 6 and len(seen) > 3 and 0 < solved < 1


def test_several_samples_and_a_part_of_the_problems(call, capsys):
    record = call("--samplers=[(2,1.0,'random',1.0)]", "--samples=3")
    model, _ = checkpoint.load_model(WEIGHTS, "cpu")
    puzzles = np.load(WEIGHTS / "test.npy")[:12, 0]
    torch.manual_seed(1)
    solved = []
    for part in [puzzles[:7], puzzles[7:]] * 3:
        x = torch.from_numpy(part).long() - 1
        x, _ = sample.generate(model, x, x < 0, policies.random, 2, 1.0, 1.0)
        solved += sudoku.solves(x.numpy() + 1, part, (2, 3)).tolist()
    solved = np.reshape(solved, (3, 12))
    assert record["(2, 1.0, 'random', 1.0)"]["solved"] == solved.mean()
    assert 0 < solved.mean() < solved.any(0).mean()
    line = capsys.readouterr().out.splitlines()[-1]
    for k, share in (1, solved.mean()), (3, solved.any(0).mean()):
        low, high = evaluate.wilson(share, 12)  # of 12 problems, not 36 tries
        assert f"pass@{k} {100 * share:.1f} [{100 * low:.1f}, {100 * high:.1f}]" in line
    assert len(call("--samplers=[(9,1.0)]", "--examples=2")) == 1  # other problems leave no record


def test_pass_at_k_and_wilson():
    for solved, k in itertools.product(range(7), range(1, 7)):
        subsets = [*itertools.combinations(range(6), k)]
        share = np.mean([min(subset) < solved for subset in subsets])
        assert evaluate.pass_at_k(6, solved, k) == pytest.approx(share)
    assert evaluate.wilson(0.8, 10) == pytest.approx((0.49016, 0.94332), abs=1e-5)  # R's prop.test
    assert evaluate.wilson(0.0, 10) == pytest.approx((0, 0.27753), abs=1e-5)


def test_padding_is_not_content():
    end = 9
    prompt = np.array([[1, 0, 0, 0, 0, 0]] * 2, bool)
    x0 = np.array([[9, 1, 2, 9, 9, 9]] * 2)  # an end in the prompt ends nothing
    x = np.array([[9, 1, 9, 9, 5, 9], [9, 1, 2, 3, 4, 5]])
    found = evaluate.score(x, x0, prompt, end)
    assert found["right"].tolist() == pytest.approx([2 / 3, 2 / 3])  # of 1, 2, end
    assert found["tokens"].tolist() == [5, 5] and found["content"].tolist() == [2, 5]
    assert evaluate.score(x, x0, prompt, None)["content"].tolist() == [5, 5]


def test_a_sampler_of_the_variant_and_what_cannot_be_judged(call, monkeypatch, tmp_path):
    saved = torch.load(tmp_path / "ckpt.pt", weights_only=True)
    torch.save(saved | {"config": saved["config"] | {"variant": "lab.ar"}}, tmp_path / "ckpt.pt")
    (record,) = call("--samplers=[(9,1.0)]").values()
    assert record["steps"] == record["tokens"]  # one by one, from the left
    with pytest.raises(SystemExit, match="all are alike without"):
        call("--samples=2")
    with pytest.raises(SystemExit, match="expected top_k, margin"):
        call("--samplers=[(1,1.0,'topk')]")
    with pytest.raises(SystemExit, match="leaves no record"):
        call("--examples=2", "--weights=False")
    monkeypatch.setattr(sudoku.Sudoku, "judge", None)
    with pytest.raises(SystemExit, match="no judge"):
        call("--weights=False")
    assert (tmp_path / "ckpt.pt").exists()  # whatever was refused


def test_no_checkpoint_unfolds(tmp_path):
    with zipfile.ZipFile(tmp_path / "ckpt.pt", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("ckpt/data.pkl", bytes(10**6))  # 1 kB; it might be 10 GB
    with pytest.raises(SystemExit, match="compressed"):
        checkpoint.load(tmp_path)


@pytest.mark.parametrize("quota", [1, 2])
@pytest.mark.parametrize("seed", range(10))
def test_steps_above_a_threshold_are_those_of_diffusers(seed, quota):
    """Each step, unless its quota is two and one token is above: it adds the next, we do not."""
    theirs = pytest.importorskip("diffusers").BlockRefinementScheduler(threshold=0.9)
    theirs.set_timesteps(16 // quota, block_length=16)
    torch.manual_seed(seed)
    model = Transformer(30, 29, 16, dim=32, layers=2, heads=2, mlp=64, theta=50.0)
    for p in model.requires_grad_(False).parameters():
        torch.nn.init.normal_(p)
    states = []
    how = policies.top_k, quota, 0.9, 0.0, lambda x: states.append(x.clone())
    sample.generate(model, torch.randint(29, (8, 16)), torch.rand(8, 16) > 0.3, *how)
    for step, (x, ours) in enumerate(itertools.pairwise(states)):
        logits = model.logits(model(x))
        above = ((logits.softmax(-1).amax(-1) > 0.9) & (x == 29)).sum(1)
        adds = (quota == 2) & (above == 1) & ((x == 29).sum(1) > 1)
        found = theirs.step(logits, step, x, mask_token_id=29).prev_sample
        assert (found != ours).any(1).equal(adds)
