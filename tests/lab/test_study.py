"""lab/study.py on runs made by hand and on small ones; its tables and figures."""

import contextlib
import json
import math
import runpy
import sys
from unittest.mock import Mock, patch

import numpy as np
import pytest
import torch
import tqdm
from conftest import ROOT, SMALL

import checkpoint
from lab import evaluate, figures, study, tables

SHARES = {"mine": (0.70, 0.75, 0.83), "mdm": (0.50, 0.60, 0.70)}
PASSES = {"mine": (10, 12, 11), "mdm": (20, 22, 25)}


def judge(where, *records):
    """Write (share solved, passes) of each of study.samplers."""
    known = {"tokens": 24, "weights": evaluate.checksum(where) or 0}
    pairs = zip(study.samplers, records, strict=True)
    kept = {str(sampler): known | {"solved": x, "steps": steps} for sampler, (x, steps) in pairs}
    (where / "eval.json").write_text(json.dumps(kept))


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    arms = {"mine": "--tau=1", "mdm": "--method=mdm"}
    own = dict(arms=arms, seeds=4, flags=["--max_iters=9"], samplers=[(1, 0.99), (2, 1.0)])
    with patch.multiple(study, out=str(tmp_path), **own):
        for arm, shares in SHARES.items():
            for seed, (share, steps) in enumerate(zip(shares, PASSES[arm], strict=True), 1):
                (where := tmp_path / f"{arm}_{seed}").mkdir()
                config = {"max_iters": 9, "seed": seed, "tau": 1.0, "method": arm}
                if seed != 2:  # of which the records alone are kept
                    about = {"iteration": 9, "config": config, "args": {}}
                    checkpoint.save_weights({"a": torch.ones(1)}, about, where)
                judge(where, (share, steps), (1 - share, steps))
                curve = [{"iter": i, "solved": share * i / 6} for i in (3, 6, 9)[: 5 - seed]]
                (where / "metrics.jsonl").write_text("".join(f"{json.dumps(x)}\n" for x in curve))
        yield


@pytest.fixture
def drawn():
    """The axes of the latest picture."""
    with patch.object(figures, "save", wraps=figures.save) as save:
        yield lambda: save.call_args.args[0]


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


def test_curves_of_a_study_and_of_any_run(runs, drawn, tmp_path):
    names = lambda: [text.get_text() for text in drawn().get_legend().get_texts()]  # noqa: E731
    with patch.object(study, "curves", str(tmp_path / "new/a.png")):
        study.main()
        line, other = drawn().lines
        assert line.get_xydata() == pytest.approx(np.array([[3, 0.38], [6, 0.76]]))  # not 9
        band = drawn().collections[0].get_paths()[0].vertices[:, 1]
        assert band.max() == pytest.approx(0.9229, abs=1e-4)
        assert [line.get_color(), other.get_color()] == ["C3", "C2"]
        assert names() == [
            f"{arm}, mean of 3 seeds, 95 % interval" for arm in ("mine", "random masks")
        ]
        folders = [f"{tmp_path}/mdm_1", f"{tmp_path}/mine_1"]
        with patch.object(study, "runs", str(folders)):
            study.main()
        assert names() == folders and len(drawn().lines[0].get_xdata()) == 3
        with patch.object(study, "runs", str(tmp_path)), pytest.raises(SystemExit, match="no eval"):
            study.main()


def test_accuracy_under_parallelism(runs, drawn, tmp_path, capsys):
    """By hand: 1 * 90, + 1 * (90 + 90) / 2, + 2 * (90 + 86 W(86)) / 2; 80 is more than 5 below."""
    by_hand = 90 + 90 + 90 + 86 * math.exp(-3 * (1 - 86 / 90))
    low = 40 * (1 + math.exp(3 * (4 / 9 - 1)))  # the second 40 weighs less, others are dropped
    assert tables.aup([(1, 0), (2, 0)], 0) == 0
    samplers = [(1, 1.0), (1, 0.9), (1, 0.99), (1, 0.8)]
    with patch.multiple(study, seeds=1, samplers=samplers):
        for arm, own in {"mine": (0.9, 0.86, 0.9, 0.8), "mdm": (0.4, 0.1, 0.4, 0)}.items():
            judge(tmp_path / f"{arm}_1", *zip(own, (24, 6, 12, 3), strict=True))
        study.main()
        rows = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert ["mine", f"{by_hand:.1f}", f"{by_hand - low:.1f}"] in rows
        assert ["random", "masks", f"{low:.1f}", "-"] in rows
        with patch.object(study, "figure", str(tmp_path / "new/a.png")):
            study.main()
    curve, point, *_ = (each[0] for each in drawn().containers)
    assert curve.get_xydata().tolist() == [[2, 90], [4, 86], [8, 80]]
    assert point.get_xydata().tolist() == [[1, 90]] and point.get_color() == "C3"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.png"]


# -- runs ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"against": "mmd"}, "expected mine, mdm"),
        ({"samplers": [(0, 0.9)]}, "tokens a step, tau"),  # no step would end
        ({"samplers": [(1, "0.9")]}, "tokens a step, tau"),
        ({"out": "none"}, "no run is finished; add --run"),
        ({"curves": "a.xyz"}, "a.xyz: expected a picture"),
        ({"figure": "README.md/a.png"}, "README.md"),
        ({"flags": ["--max_iters=8"]}, "mine_1 has another max_iters: choose another --out"),
    ],
)
def test_mistakes_are_one_line(settings, message, runs):
    with patch.multiple(study, **settings), pytest.raises((SystemExit, OSError), match=message):
        study.main()


def test_what_is_missing_is_trained(runs, capsys):
    with patch.dict(study.arms, {"last": "--init=out/a_SEED"}):
        assert study.flags_of("last", 3)[1:] == ["--init=out/a_3", "--seed=3"]
    own = dict(run=True, first=3, time=Mock())
    with patch.multiple(study, **own), patch("subprocess.Popen") as started:
        started.return_value.poll.return_value = started.return_value.returncode = 1
        study.main()
    flags = [call.args[0] for call in started.call_args_list]
    assert [each[1] for each in flags] == ["train.py"] * 6
    assert sum("--seed=6" in each for each in flags) == 2  # records stand for seed 3
    assert "mine_4 has stopped: " in capsys.readouterr().out


class Killed(BaseException):
    pass


class Bar(tqdm.tqdm):
    """Of a training that is killed before update 17, after a checkpoint at 15."""

    def __iter__(self):
        for update in super().__iter__():
            if update == 17:
                raise Killed
            yield update


def here(script, *flags):
    with patch.object(sys, "argv", [script, *flags]):
        runpy.run_path(script, run_name="__main__")


def test_a_race_that_is_stopped_goes_on(puzzles, tmp_path, capsys, train):
    """Lines as they happen, while it runs; then the table. All in this process."""
    processes = []

    def popen(command, stdout, stderr, env):
        assert command[0] == sys.executable and env["OMP_NUM_THREADS"] == "1"
        processes.append(Mock(returncode=None))  # if it is killed, it seems to run
        with contextlib.suppress(Killed):
            here(*command[1:])
            processes[-1].returncode = 0
        processes[-1].poll.return_value = processes[-1].returncode
        return processes[-1]

    flags = [*SMALL, f"--data={puzzles}"]
    own = dict(run=True, out=str(tmp_path), device="cpu", samplers=[(4, 1.0)], flags=flags)
    with patch.multiple(study, **own, time=Mock()), patch("subprocess.Popen", popen):
        study.time.sleep.side_effect = [None, KeyboardInterrupt]
        stopped = pytest.raises(SystemExit, match="stopped: the same command goes on")
        with patch("tqdm.tqdm", Bar), stopped:
            study.main()
        assert [process.terminate.called for process in processes] == [True, True]
        done = {checkpoint.load_weights(each)[1]["iteration"] for each in tmp_path.glob("*_1")}
        assert done == {15}
        said = capsys.readouterr().out
        assert "    12  seed 1  PUMA+ " in said and "\n                random masks " in said
        study.time.sleep.side_effect = None
        study.main()
    said = capsys.readouterr().out
    assert "    24  seed 1  PUMA+ " in said
    assert max(len(line) for line in said.splitlines() if line[:1] == " ") <= 80
    record = evaluate.records(tmp_path / "mdm_1")["(4, 1.0)"]
    last = [f"{100 * record['solved']:.1f}", "-", f"{record['steps']:.1f}", "-"]
    assert said.splitlines()[-1].split()[2:] == last


def test_weights_on_the_way_are_judged(tmp_path, puzzles, train):
    where = tmp_path / "mdm_1"
    train(puzzles, where, "--method=mdm", "--keep", "--save_interval=12")
    own = dict(out=str(tmp_path), every=12, samplers=[(8, 1.0), (1, 0.9)], flags=[])
    with patch.multiple(study, **own, arms={"mdm": "--method=mdm"}):
        while command := study.next_command("mdm", 1):
            assert study.judged(where) == {}
            here(*command)
        last, on_the_way = (evaluate.records(each)["(8, 1.0)"] for each in (where, where / "at/24"))
        assert study.judged(where)["(8, 1.0)"] == last
        assert on_the_way == last | {"weights": evaluate.checksum(where / "at/24")}
        assert [*study.curve(where)] == [12, 24]
        (where / "model.safetensors").unlink()
        with patch.object(study, "samplers", [(2, 1.0)]), pytest.raises(SystemExit, match="no wei"):
            study.next_command("mdm", 1)  # else it would train once more
