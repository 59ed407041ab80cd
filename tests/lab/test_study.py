"""lab/study.py on runs made by hand and on small ones; its tables and figures."""

import json
import math
import signal
import subprocess
import sys
from unittest.mock import patch

import numpy as np
import pytest
import torch
from conftest import ENV, ROOT, SMALL

import checkpoint
from lab import evaluate, study, tables

SHARES = {"mine": (0.70, 0.75, 0.83), "mdm": (0.50, 0.60, 0.70)}
ONE = (2, 1.0)


@pytest.fixture
def runs(tmp_path):
    for arm, shares in SHARES.items():
        for seed, share in enumerate(shares, 1):
            (where := tmp_path / f"{arm}_{seed}").mkdir()
            config = {"max_iters": 9, "seed": seed, "tau": 1.0, "method": arm}
            if seed != 2:  # of which the records alone are kept
                torch.save({"iteration": 9, "config": config}, where / "ckpt.pt")
            (where / "eval.json").write_text(json.dumps({str(ONE): {"solved": share}}))
            curve = [{"iter": i, "solved": share * i / 6} for i in (3, 6, 9)[: 5 - seed]]
            (where / "metrics.jsonl").write_text("".join(f"{json.dumps(x)}\n" for x in curve))
    own = dict(out=str(tmp_path), arms={"mine": "--tau=1", "mdm": "--method=mdm"}, seeds=4)
    with patch.multiple(study, **own, flags=["--max_iters=9"], samplers=[ONE]):
        yield


# -- tables and figures ----------------------------------------------------------------------------
@patch("matplotlib.figure.Figure.savefig", autospec=True)
def test_table_and_curves_of_three_pairs(savefig, runs, capsys):
    study.main()
    with patch.object(study, "curves", "a.png"):
        study.main()
    out = capsys.readouterr().out
    assert "mine       76.0 [59.7, 92.3] (70.0 75.0 83.0); 16.0 [7.0, 25.0], 3 pairs" in out
    assert "mdm        60.0 [35.2, 84.8] (50.0 60.0 70.0)\n" in out  # 60 +- 4.303 * 10 / sqrt(3)
    assert "4 of eight seeds: this decides nothing" in out
    axes = savefig.call_args.args[0].axes[0]
    assert axes.lines[0].get_xydata() == pytest.approx(np.array([[3, 38], [6, 76]]))  # not 9
    assert axes.collections[1].get_paths()[0].vertices[:, 1].max() == pytest.approx(84.84, abs=0.01)


@patch("matplotlib.figure.Figure.savefig", autospec=True)
def test_accuracy_under_parallelism(savefig, runs, tmp_path, capsys):
    """By hand: 1 * 90, + 1 * (90 + 90) / 2, + 2 * (90 + 86 W(86)) / 2; 80 is more than 5 below."""
    by_hand = 90 + 90 + 90 + 86 * math.exp(-3 * (1 - 86 / 90))
    assert tables.aup([(1, 90), (4, 86), (2, 90), (8, 80)], 90) == pytest.approx(by_hand)
    assert tables.aup([(1, 0), (2, 0)], 0) == 0
    shares = {"mine": {1: 0.9, 2: 0.9, 4: 0.86, 8: 0.8}, "mdm": {1: 0.4, 2: 0.4, 4: 0.1, 8: 0}}
    for arm, own in shares.items():
        said = {str((n, 1.0)): dict(solved=own[n], tokens=24, steps=24 / n) for n in own}
        (tmp_path / f"{arm}_1/eval.json").write_text(json.dumps(said))
    samplers = [(n, 1.0) for n in (1, 2, 4, 8)]
    with patch.multiple(study, seeds=1, samplers=samplers, figure="a.png"):
        study.main()
    axes = savefig.call_args.args[0].axes[0]
    assert axes.lines[0].get_xdata().tolist() == [1, 2, 4, 8]
    with patch.multiple(study, seeds=1, samplers=samplers):
        study.main()
    low = 40 * (1 + math.exp(3 * (4 / 9 - 1)))  # the second 40 weighs less, the others are dropped
    expected = f"mine       {by_hand:.0f}; {by_hand - low:.0f}\n  mdm        {low:.0f}\n"
    assert expected in capsys.readouterr().out


def test_students_t():
    """R's qt(0.975, df)."""
    known = {1: 12.70620474, 2: 4.30265273, 7: 2.36462425, 12: 2.17881283, 999: 1.96234146}
    for df, t in known.items():
        assert tables.student(df) == pytest.approx(t, abs=1e-8)


def test_updates_to_a_level(runs, capsys):
    """At or above it, not interpolated; a pair of which one never gets there is not counted."""
    assert tables.crossing({1: 0.1, 2: 0.5, 3: 0.4, 4: 0.9}, 0.5) == 2
    assert tables.crossing({1: 0.1, 2: 0.4}, 0.5) is None
    curves = {("a", 1): {10: 1.0}, ("m", 1): {10: 0.0, 20: 1.0}, ("a", 2): {10: 1.0},
              ("m", 2): {80: 1.0}, ("a", 3): {9: 1.0}, ("m", 3): {9: 0.1}}  # fmt: skip
    tables.speed(curves, ["a", "m"], "m", [50])
    out = capsys.readouterr().out
    assert "(10 10 9); 4.00 [0.00, 2" in out and ", 2 of 3 pairs\n" in out  # 2 and 8 times
    assert "  m          (20 80 never)\n" in out
    high = float(out.partition("[0.00, ")[2].partition("]")[0])
    assert high == pytest.approx(4 * math.exp(12.70620474 * math.log(8 / 2) / 2), rel=1e-5)
    with patch.object(study, "levels", [80]):
        study.main()
    out = capsys.readouterr().out
    assert "as training has logged it" in out
    assert "mine       (9 9 6); 1.00, 1 of 3 pairs" in out and "mdm        (9 9 6)" not in out


# -- runs ------------------------------------------------------------------------------------------
OTHER = {"flags": ["--max_iters=8"]}
OTHER_RUN = "mine_1 has another max_iters: choose another --out"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"against": "mmd"}, "expected mine, mdm"),
        ({"samplers": [2]}, "tokens a step, tau"),
        ({"out": "none"}, "no run is finished; add --run"),
        ({"run": True, "every": 3}, "kept no weigh"),
        (OTHER, OTHER_RUN),
        (OTHER | {"run": True}, OTHER_RUN),
        (OTHER | {"figure": "a.png"}, OTHER_RUN),
    ],
)
def test_mistakes_are_one_line(settings, message, runs):
    with patch.multiple(study, **settings), pytest.raises(SystemExit, match=message):
        study.main()


def test_what_is_missing_is_trained(runs, capsys):
    with patch.object(study, "run", True), patch("subprocess.Popen") as started:
        started.return_value.poll.return_value = started.return_value.returncode = 1
        study.main()
    flags = [call.args[0] for call in started.call_args_list]
    assert [each[1] for each in flags] == ["train.py"] * 2
    assert ["--seed=4" in each for each in flags] == [True, True]  # records stand for seed 2
    assert "mine_4 has stopped: " in capsys.readouterr().out


def test_what_a_run_prints_goes_through_no_link(runs, tmp_path):
    (mine := tmp_path / "mine").write_text("precious")
    (tmp_path / "mine_4.log").symlink_to(mine)
    with pytest.raises(OSError, match="symbolic links"):
        study.start(("", "mine", 4))
    assert mine.read_text() == "precious"


def test_a_race_that_is_stopped_goes_on(puzzles, tmp_path):
    """Lines as they happen, while it runs; then the table."""
    flags = [*SMALL, f"--data={puzzles}", "--max_iters=600"]
    command = [sys.executable, "lab/study.py", "--run", f"--out={tmp_path}", "--device=cpu"]
    command += ["--samplers=[(4,1.0)]", "--levels=[1]", f"--flags={flags}"]
    first = subprocess.Popen(command, cwd=ROOT, env=ENV, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
    next(line for line in first.stdout if "seed 1" in line)  # both have an evaluation
    first.send_signal(signal.SIGINT)
    said = first.stdout.read()
    stopped = "stopped, with checkpoints: the same command goes on\n"
    assert first.wait() == 1 and said.endswith(stopped)
    saved = [checkpoint.load(tmp_path / name)["iteration"] for name in ("mdm_1", "puma_plus_1")]
    assert all(12 <= each < 600 for each in saved)
    done = subprocess.run(command, cwd=ROOT, env=ENV, text=True, capture_output=True, check=True)
    assert "   600  PUMA+ " in done.stdout and "random masks" in done.stdout
    assert "0 of 1 pairs" in done.stdout or "1 of 1 pairs" in done.stdout
    record = evaluate.records(tmp_path / "mdm_1")["(4, 1.0)"]
    assert f"; {record['tokens'] / record['steps']:.2f} tokens a pass" in done.stdout


def test_weights_on_the_way_are_judged(tmp_path, puzzles, train):
    where = tmp_path / "mdm_1"
    train(puzzles, where, "--method=mdm", "--keep", "--save_interval=12")
    samplers = [(8, 1.0), (1, 0.9)]
    own = dict(tasks={"": ""}, arms={"mdm": "--method=mdm"}, flags=[], weights=False)
    with patch.multiple(study, out=str(tmp_path), every=12, samplers=samplers, **own):
        while command := study.next_command("", "mdm", 1):
            assert study.judged(where) == {}
            subprocess.run([sys.executable, *command], cwd=ROOT, env=ENV, check=True)
        assert study.judged(where)["(8, 1.0)"] == evaluate.records(where / "at/24")["(8, 1.0)"]
        assert [*study.curve(where, (8, 1.0))] == [12, 24]
        with patch.object(study, "samplers", [ONE]), pytest.raises(SystemExit, match="no weights"):
            study.next_command("", "mdm", 1)  # else it would train once more
    assert not [*where.glob("**/ckpt.pt")]
