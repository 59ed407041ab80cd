"""lab/study.py on runs made by hand: table, curves, mistakes; and what a sampler solves."""

import json
from unittest.mock import Mock, patch

import numpy as np
import pytest
import torch
from conftest import ROOT

import checkpoint
import policies
import sample
import sudoku
from lab import race, study

SHARES = {"mine": (0.70, 0.75, 0.83), "mdm": (0.50, 0.60, 0.70)}


@pytest.fixture(autouse=True)
def runs(tmp_path):
    for arm, shares in SHARES.items():
        for seed, share in enumerate(shares, 1):
            (where := tmp_path / f"{arm}_{seed}").mkdir()
            config = {"max_iters": 9, "seed": seed, "tau": 1.0, "method": arm}
            if seed != 2:  # of which the records alone are kept
                torch.save({"iteration": 9, "config": config}, where / "ckpt.pt")
            (where / "eval.json").write_text(json.dumps({"(2, 1.0)": share}))
            curve = [{"iter": i, "solved": share * i / 6} for i in (3, 6, 9)[: 5 - seed]]
            (where / "metrics.jsonl").write_text("".join(f"{json.dumps(x)}\n" for x in curve))
    own = dict(out=str(tmp_path), arms={"mine": "--tau=1", "mdm": "--method=mdm"}, seeds=4)
    with patch.multiple(study, **own, flags=["--max_iters=9"], samplers=[(2, 1.0)]):
        yield


@patch("matplotlib.figure.Figure.savefig", autospec=True)
def test_table_and_curves_of_three_pairs(savefig, capsys):
    study.main()
    with patch.object(study, "figure", "a.png"):
        study.main()
    out = capsys.readouterr().out
    assert "mine       76.0 [59.7, 92.3] (70.0 75.0 83.0); 16.0 [7.0, 25.0], 3 pairs" in out
    assert "mdm        60.0 [35.2, 84.8] (50.0 60.0 70.0)\n" in out  # 60 +- 4.303 * 10 / sqrt(3)
    axes = savefig.call_args.args[0].axes[0]
    assert axes.lines[0].get_xydata() == pytest.approx(np.array([[3, 38], [6, 76]]))  # not 9
    assert axes.collections[1].get_paths()[0].vertices[:, 1].max() == pytest.approx(84.84, abs=0.01)


@patch("matplotlib.figure.Figure.savefig", autospec=True)
def test_a_panel_has_what_each_sampler_solves(savefig, tmp_path):
    with patch.object(study, "panels", {"one": str(tmp_path), "again": str(tmp_path)}):
        study.main()
        page = savefig.call_args.args[0]
        assert [axes.get_title() for axes in page.axes] == ["one", "again"]
        (bars,) = page.axes[0].containers[1].lines[2]  # of mdm
        assert bars.get_segments()[0][:, 1] == pytest.approx([35.16, 84.84], abs=0.01)
        with (
            patch.object(study, "panels", {"none": "none"}),
            pytest.raises(SystemExit, match="no run"),
        ):
            study.main()


@patch.object(study, "draw", Mock())
def test_mistakes_are_one_line(capsys):
    for name, value, message in [
        ("against", "mmd", "expected mine, mdm"), ("samplers", [2], "expected pairs"),
        ("flags", ["--max_iters=8"], "mine_1 has another max_iters: choose another --out"),
        ("out", "none", "no run is finished; add --run"),
    ]:  # fmt: skip
        with patch.object(study, name, value), pytest.raises(SystemExit, match=message):
            study.main()
    with patch.object(study, "run", True), patch("subprocess.Popen") as trained:
        study.main()
    assert trained.call_count == 2  # seed 4 of each arm; the records of seed 2 stand for it
    assert "mine, seed 4 has stopped; " in capsys.readouterr().out


def test_share_solved(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    saved = torch.load("results/weights/sudoku_mini/ckpt.pt", weights_only=True)
    saved["config"] |= {"policy": "margin", "test_examples": 70}
    torch.save(saved, tmp_path / "ckpt.pt")
    puzzles = np.load("results/weights/sudoku_mini/test.npy")[:70, 0]
    x = torch.from_numpy(puzzles).long() - 1
    model, _ = checkpoint.load_model(tmp_path, "cpu")
    x, _ = sample.generate(model, x, x < 0, policies.margin, 9, 0.8)
    solved = sudoku.solves(x.numpy() + 1, puzzles, (2, 3))
    assert 0 < study.share_solved(tmp_path, 9, 0.8) == solved.mean() < 1


def test_held_out_rows_that_are_trained_on_are_counted(puzzles, tmp_path, capsys):
    """The same puzzles, not others of the same grid."""
    train = np.unique(np.load(puzzles / "train.npy"), axis=0)
    for name, clues in ("clean", 1 - (train[:4, :1] > 0)), ("known", train[:4, :1] > 0):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "train.npy", train)
        test = np.concatenate([train[:4, 1:] * clues, train[:4, 1:]], 1)
        np.save(tmp_path / name / "test.npy", test.astype(np.uint8))
        study.say_what_is_known("sudoku", str(tmp_path / name), 4)
    said = capsys.readouterr().out
    assert said == f"{tmp_path}/known: 4 of 4 held-out rows are also trained on\n"


@patch.multiple(study, start=Mock(return_value=None), table=Mock())
def test_a_race_is_a_study_of_two_arms(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(study, "curve", lambda folder: {5: 0.25, 10: 0.5})
    folders = set()
    for against, names in [
        ("--policy=margin", ["as_it_is", "changed"]),
        ("--method=mdm", ["puma_plus", "mdm"]),
    ]:
        race.main(["config/sudoku_tiny.py", "--tau=0.8", f"--against={against}", "--seeds=2"])
        assert [*study.arms] == names and study.flags == ["config/sudoku_tiny.py", "--tau=0.8"]
        assert study.flags_of(names[1], 2)[-2:] == [against, "--seed=2"]
        assert study.table.call_args.args[0] == [(name, seed) for seed in (1, 2) for name in names]
        folders.add(study.out)
    out = capsys.readouterr().out
    assert "random masks ############              50.0%   seed 2" in out
    assert len(folders) == 2 and out.count("2 of eight seeds: this decides nothing") == 2
    with pytest.raises(SystemExit, match="expected a number from 1"):
        race.main(["config/sudoku_tiny.py", "--seeds=x"])


def test_what_a_run_prints_goes_through_no_link(tmp_path):
    (mine := tmp_path / "mine").write_text("precious")
    (tmp_path / "mine_4.log").symlink_to(mine)
    with pytest.raises(OSError, match="symbolic links"):
        study.train("mine", 4)
    assert mine.read_text() == "precious"
