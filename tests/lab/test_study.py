"""lab/study.py on runs made by hand and on small ones; its tables and figures."""

import json
import math
import multiprocessing
import runpy
import sys
import time
from unittest.mock import Mock, patch

import numpy as np
import pytest
import torch
from conftest import FORKS, ROOT, SMALL, forked

import checkpoint
from lab import evaluate, figures, study, tables

SHARES = {"mine": (0.70, 0.75, 0.83), "mdm": (0.50, 0.60, 0.70)}
PASSES = {"mine": (10, 12, 11), "mdm": (20, 22, 25)}
BOTH = [(1, 0.99), (2, 1.0)]


@pytest.fixture
def runs(tmp_path):
    for arm, shares in SHARES.items():
        for seed, (share, steps) in enumerate(zip(shares, PASSES[arm], strict=True), 1):
            (where := tmp_path / f"{arm}_{seed}").mkdir()
            config = {"max_iters": 9, "seed": seed, "tau": 1.0, "method": arm}
            if seed != 2:  # of which the records alone are kept
                torch.save({"iteration": 9, "config": config}, where / "ckpt.pt")
            record = {"solved": share, "steps": steps, "weights": evaluate.checksum(where)}
            records = {"(1, 0.99)": record, "(2, 1.0)": record | {"solved": 1 - share}}
            (where / "eval.json").write_text(json.dumps(records).replace("null", "0"))
            curve = [{"iter": i, "solved": share * i / 6} for i in (3, 6, 9)[: 5 - seed]]
            (where / "metrics.jsonl").write_text("".join(f"{json.dumps(x)}\n" for x in curve))
    own = dict(out=str(tmp_path), arms={"mine": "--tau=1", "mdm": "--method=mdm"}, seeds=4)
    with patch.multiple(study, **own, flags=["--max_iters=9"], samplers=BOTH):
        yield


@pytest.fixture
def saved():
    with patch.object(figures, "save", wraps=figures.save) as save:
        yield save


# -- tables and figures ----------------------------------------------------------------------------
def test_a_table_of_three_pairs_ends_with_above_99(runs, capsys):
    """By hand: 60 +- 4.303 * 10 / sqrt(3), and so on."""
    study.main()
    rows = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert rows[-3:] == [
        "above 0.99, else 1 % solved [95 %] difference passes difference",
        "mine 76.0 [59.7, 92.3] 16.0 [7.0, 25.0] 11.0 -11.3 [-17.1, -5.6]",
        "random masks 60.0 [35.2, 84.8] - 22.3 -",
    ]
    assert rows[-5].startswith("mine 24.0 [7.7, 40.3] -16.0 [-25.0, -7.0] 11.0 -11.3")
    assert "4 of eight seeds: this decides nothing; --seeds=8 goes on" in rows
    assert "differences to random masks, of pairs of the same seed: mine 3" in rows


def test_curves_of_a_study_and_of_any_run(runs, saved, tmp_path):
    with patch.multiple(study, curves=str(tmp_path / "new/a.png")):
        study.main()
        axes = saved.call_args.args[0]
        assert axes.lines[0].get_xydata() == pytest.approx(
            np.array([[3, 0.38], [6, 0.76]])
        )  # not 9
        band = axes.collections[0].get_paths()[0].vertices[:, 1]
        assert band.max() == pytest.approx(0.9229, abs=1e-4)
        names = [text.get_text() for text in axes.get_legend().get_texts()]
        assert names == [
            f"{arm}, mean of 3 seeds, 95 % interval" for arm in ("mine", "random masks")
        ]
        assert [line.get_color() for line in axes.lines] == ["C3", "C2"]
        with patch.object(study, "runs", str([f"{tmp_path}/mdm_1", f"{tmp_path}/mine_1"])):
            study.main()
        axes = saved.call_args.args[0]
        assert [line.get_xdata().tolist() for line in axes.lines] == [[3, 6, 9]] * 2
        names = [text.get_text() for text in axes.get_legend().get_texts()]
        assert names == [f"{tmp_path}/mdm_1", f"{tmp_path}/mine_1"]  # of one seed, no mean
        with patch.object(study, "runs", str(tmp_path)), pytest.raises(SystemExit, match="no eval"):
            study.main()
    assert [*(tmp_path / "new").iterdir()] == [tmp_path / "new/a.png"]


def test_accuracy_under_parallelism(runs, saved, tmp_path, capsys):
    """By hand: 1 * 90, + 1 * (90 + 90) / 2, + 2 * (90 + 86 W(86)) / 2; 80 is more than 5 below."""
    by_hand = 90 + 90 + 90 + 86 * math.exp(-3 * (1 - 86 / 90))
    assert tables.aup([(1, 90), (4, 86), (2, 90), (8, 80)], 90) == pytest.approx(by_hand)
    assert tables.aup([(1, 0), (2, 0)], 0) == 0
    samplers = [(1, 1.0), (1, 0.9), (1, 0.99), (1, 0.8)]
    rates = [1, 4, 2, 8]
    for arm, own in {"mine": (0.9, 0.86, 0.9, 0.8), "mdm": (0.4, 0.1, 0.4, 0)}.items():
        weights = evaluate.checksum(tmp_path / f"{arm}_1")
        said = {
            str(sampler): dict(solved=share, tokens=24, steps=24 / rate, weights=weights)
            for sampler, rate, share in zip(samplers, rates, own, strict=True)
        }
        (tmp_path / f"{arm}_1/eval.json").write_text(json.dumps(said))
    with patch.multiple(study, seeds=1, samplers=samplers):
        study.main()
        low = 40 * (1 + math.exp(3 * (4 / 9 - 1)))  # the second 40 weighs less, others are dropped
        rows = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert ["mine", f"{by_hand:.1f}", f"{by_hand - low:.1f}"] in rows
        assert ["random", "masks", f"{low:.1f}", "-"] in rows
        with patch.object(study, "figure", str(tmp_path / "new/a.png")):
            study.main()
    curve, point, *_ = (each[0] for each in saved.call_args.args[0].containers)
    assert curve.get_xdata().tolist() == [2, 4, 8] and curve.get_ydata().tolist() == [90, 86, 80]
    assert point.get_xydata().tolist() == [[1, 90]] and point.get_color() == "C3"
    assert (tmp_path / "new/a.png").stat().st_size


# -- runs ------------------------------------------------------------------------------------------
OTHER = {"flags": ["--max_iters=8"]}
OTHER_RUN = "mine_1 has another max_iters: choose another --out"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"against": "mmd"}, "expected mine, mdm"),
        ({"samplers": [2]}, "tokens a step, tau"),
        ({"samplers": []}, "tokens a step, tau"),
        ({"samplers": [(0, 0.9)]}, "tokens a step, tau"),  # no step would end
        ({"samplers": [(1, "0.9")]}, "tokens a step, tau"),
        ({"out": "none"}, "no run is finished; add --run"),
        ({"run": True, "every": 3}, "kept no weigh"),
        ({"curves": "a.xyz"}, "a.xyz is not written: Format"),
        ({"curves": "README.md/a.png"}, "a.png is not written"),
        (OTHER, OTHER_RUN),
        (OTHER | {"run": True}, OTHER_RUN),
        (OTHER | {"figure": "a.png"}, OTHER_RUN),
    ],
)
def test_mistakes_are_one_line(settings, message, runs, monkeypatch):
    monkeypatch.chdir(ROOT)
    with patch.multiple(study, **settings), pytest.raises(SystemExit, match=message):
        study.main()


def test_what_is_missing_is_trained(runs, capsys, tmp_path):
    own = dict(run=True, first=3, time=Mock())
    with patch.multiple(study, **own), patch("subprocess.Popen") as started:
        started.return_value.poll.return_value = started.return_value.returncode = 1
        study.main()
    flags = [call.args[0] for call in started.call_args_list]
    assert [each[1] for each in flags] == ["train.py"] * 6
    assert sum("--seed=6" in each for each in flags) == 2  # records stand for seed 3
    assert "mine_4 has stopped: " in capsys.readouterr().out
    torch.save({"iteration": 9, "config": {}}, tmp_path / "mdm_2/ckpt.pt")  # trained once more
    assert not study.judged(tmp_path / "mdm_2") and study.judged(tmp_path / "mdm_1")


def test_lines_of_a_race_fit_a_terminal(runs):
    said = [*study.lines(2)]
    assert len(said) == 3 and max(len(row) for text in said for row in text.split("\n")) <= 80
    assert [row.split()[-1] for row in said[1].split("\n")] == ["75.0%", "60.0%"]
    assert said[1].startswith("     6  seed 2  mine  ") and said[1].count("#") == 22 + 18


def here(script, *flags):
    with patch.object(sys, "argv", [script, *flags]):
        runpy.run_path(script, run_name="__main__")


class Child:
    """What subprocess.Popen starts, as a process that has loaded torch; the judge, here."""

    poll = property(lambda self: lambda: self.returncode)
    returncode = property(lambda self: self.process.exitcode)

    def __init__(self, command, stdout, stderr, env):
        assert command[0] == sys.executable and env["OMP_NUM_THREADS"] == "1"
        self.process = Mock(exitcode=0)
        if command[1] == "train.py":
            self.process = FORKS.Process(target=forked, args=(command[1:], stdout.name, {}))
            self.process.start()
        else:
            here(*command[1:])
        self.terminate = self.process.terminate
        self.wait = self.process.join


def test_a_race_that_is_stopped_goes_on(puzzles, tmp_path, capsys):
    """Lines as they happen, while it runs; then the table."""
    flags = [*SMALL, f"--data={puzzles}", "--max_iters=60"]

    def until_both_have_an_evaluation(seconds):
        time.sleep(0.02)
        if [*study.lines(1)]:
            raise KeyboardInterrupt

    own = dict(run=True, out=str(tmp_path), device="cpu", samplers=[(4, 1.0)], flags=flags)
    with patch.multiple(study, **own), patch("subprocess.Popen", Child):
        stop = patch.object(study, "time", Mock(sleep=until_both_have_an_evaluation))
        with stop, pytest.raises(SystemExit, match="stopped: the same command goes on"):
            study.main()
        assert not multiprocessing.active_children()
        saved = [checkpoint.load(tmp_path / name)["iteration"] for name in ("mdm_1", "puma_plus_1")]
        assert 5 <= min(saved) < 60
        with patch.object(study, "time", Mock(sleep=lambda seconds: time.sleep(0.02))):
            study.main()
    said = capsys.readouterr().out
    assert "    60  seed 1  PUMA+ " in said and "\n                random masks " in said
    record = evaluate.records(tmp_path / "mdm_1")["(4, 1.0)"]
    assert said.splitlines()[-1].split()[2::2] == [
        f"{100 * record['solved']:.1f}",
        f"{record['steps']:.1f}",
    ]


def test_weights_on_the_way_are_judged(tmp_path, puzzles, train):
    where = tmp_path / "mdm_1"
    train(puzzles, where, "--method=mdm", "--keep", "--save_interval=12")
    own = dict(out=str(tmp_path), every=12, samplers=[(8, 1.0), (1, 0.9)], flags=[])
    with patch.multiple(study, **own, arms={"mdm": "--method=mdm"}):
        while command := study.next_command("mdm", 1):
            assert study.judged(where) == {}
            here(*command)
        last, on_the_way = (evaluate.records(each)["(8, 1.0)"] for each in (where, where / "at/24"))
        assert study.judged(where)["(8, 1.0)"] == last | {"weights": evaluate.checksum(where)}
        assert on_the_way == last | {"weights": evaluate.checksum(where / "at/24")}
        assert [*study.curve(where)] == [12, 24]
        (where / "ckpt.pt").unlink()
        with patch.object(study, "samplers", BOTH), pytest.raises(SystemExit, match="no weights"):
            study.next_command("mdm", 1)  # else it would train once more
