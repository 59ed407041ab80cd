"""run.py with stand-ins for the scripts that record their calls, and what catalogue.py asks for."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

import tasks
import train
from configurator import configure
from engine.files import Lock
from studies import plot, run
from studies.catalogue import STUDIES

STAND_IN = """
import json, os, signal, sys, time
call = sys.argv
out = next((arg.split("=", 1)[1] for arg in call if arg.startswith("--out_dir=")), "")
with open("calls", "a") as file:
    file.write(json.dumps([os.path.relpath(call[0]), *call[1:]]) + "\\n")
if call[0] == "train.py":
    open(out + "/checkpoint.pt", "w").close()
    if out.endswith(os.environ.get("STOPPING", "none")):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped, with a checkpoint"))
        os.kill(os.getppid(), signal.SIGTERM)
        time.sleep(30)
else:
    os.makedirs("out/runs/sudoku_mini/figures", exist_ok=True)
print("threads:", os.environ.get("OMP_NUM_THREADS"))
sys.exit(bool(out) and out.endswith(os.environ.get("FAILING", "none")))
"""


@pytest.fixture
def execute(tmp_path, monkeypatch, capsys):
    """Carries out a study among stand-ins; the calls that it made, and what went wrong."""
    (tmp_path / "studies").mkdir()
    for script in "train.py", "studies/plot.py":
        (tmp_path / script).write_text(STAND_IN)
    shutil.copytree(ROOT / "config", tmp_path / "config")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    handler = signal.getsignal(signal.SIGTERM)

    def execute(study="sudoku_mini", **settings):
        Path("calls").write_text("")
        for key, value in {"study": study, "seeds": [1, 2], **settings}.items():
            monkeypatch.setattr(run, key, value)
        try:
            run.main()
            error = ""
        except SystemExit as exit:
            error = f"{exit}\n{capsys.readouterr().err}"
        return recorded(), error

    yield execute
    signal.signal(signal.SIGTERM, handler)


def recorded():
    return [json.loads(line) for line in Path("calls").read_text().splitlines()]


def trainings(calls):
    return [call[1:] for call in calls if call[0] == "train.py"]


def out_of(call):
    """The name of the run in a call."""
    return next(Path(arg).name for arg in call if arg.startswith("--out_dir="))


def test_each_seed_is_trained_once_stopped_runs_go_on(execute, monkeypatch):
    monkeypatch.setenv("FAILING", "puma_2")
    calls, error = execute()
    assert "1 of 4 runs failed" in error
    assert "puma_2: exit code 1, see out/runs/sudoku_mini/puma_2/log.txt\n" in error
    assert Path("out/runs/sudoku_mini/puma_2/log.txt").read_text() == "threads: 1\n"
    assert sorted(map(out_of, calls)) == ["mdm_1", "mdm_2", "puma_1", "puma_2"]
    for call in calls:
        method, seed = out_of(call).split("_")
        assert {f"--method={method}", f"--seed={seed}"} <= {*call} and "init_from" not in str(call)

    monkeypatch.setenv("FAILING", "none")
    calls, error = execute()
    (again,) = trainings(calls)
    assert not error and "--seed=2" in again and again[-1] == "--init_from=resume"
    assert [call[0] for call in calls] == ["train.py", "studies/plot.py"]
    folders = [f"out/runs/sudoku_mini/{name}" for name in ("puma_1", "puma_2", "mdm_1", "mdm_2")]
    assert calls[1][1:3] == ["--figure=curves", f"--runs={','.join(folders)}"]
    assert trainings(execute()[0]) == []

    with Lock("out/runs/sudoku_mini/puma_1", "study.lock"):  # another study is at work there
        with open("config/sudoku_mini.py", "a") as file:
            file.write("lr = 1.0\n")
        calls, error = execute(seeds=[1])
        assert "puma_1 is in use by process" in error and len(trainings(calls)) == 1
    assert len(trainings(execute(seeds=[1])[0])) == 1


def test_other_settings_are_trained_anew(execute, monkeypatch):
    execute()
    Path("out/runs/sudoku_mini/mdm_1/settings.txt").write_text("others")
    monkeypatch.setenv("FAILING", "mdm_1")
    (anew,) = trainings(execute()[0])
    assert "--method=mdm" in anew and "--seed=1" in anew and "--init_from=resume" not in anew
    monkeypatch.setenv("FAILING", "none")
    assert trainings(execute()[0]) == [[*anew, "--init_from=resume"]]
    assert trainings(execute()[0]) == []
    Path("config/sudoku.py").write_text("lr = 1\n")  # any file: they build on each other
    anew = trainings(execute()[0])
    assert len(anew) == 4 and not any("--init_from=resume" in call for call in anew)


def test_a_stopped_run_does_not_go_on_from_a_checkpoint_of_other_settings(execute):
    """It was stopped before train.py set that checkpoint aside."""
    execute()
    folder = Path("out/runs/sudoku_mini/mdm_1")
    (folder / "complete").unlink()
    written = (folder / "settings.txt").stat().st_mtime
    os.utime(folder / "checkpoint.pt", (written - 9, written - 9))
    (anew,) = trainings(execute()[0])
    assert "--init_from=resume" not in anew


def test_runs_are_told_apart_by_configuration(execute):
    Path("config/mine.py").write_text("from config.sudoku_mini import *\n")
    Path("else where/mine/figures").mkdir(parents=True)
    calls, _ = execute(config="config/mine.py", seeds=[4, 4], out_dir="else where")
    assert [call[1] for call in trainings(calls)] == ["--seed=4"] * 2
    assert calls[-1][2] == "--runs=else where/mine/puma_4,else where/mine/mdm_4"
    assert {call[0] for call in trainings(calls)} == {"config/mine.py"}
    outs = {call[-1] for call in trainings(calls)}
    assert outs == {f"--out_dir=else where/mine/{name}_4" for name in ("puma", "mdm")}


def test_the_table_lies_beside_the_figure(execute, capsys):
    execute(seeds=[1])
    capsys.readouterr()
    Path("studies/plot.py").write_text("print('a table')")
    execute(seeds=[1])
    assert capsys.readouterr().out == "a table\n"
    assert Path("out/runs/sudoku_mini/figures/sudoku_mini.md").read_text() == "a table\n"
    Path("studies/plot.py").write_text("raise SystemExit('no')")
    assert "sudoku_mini.png: not drawn" in execute(seeds=[1])[1]


def test_sigterm_stops_the_trainings_and_a_later_call_goes_on(execute):
    flags = ["--study=sudoku_mini", "--seeds=[1,2]", "--jobs=1"]
    env = os.environ | {"PYTHONPATH": str(ROOT), "STOPPING": "puma_2"}
    command = [sys.executable, "-m", "studies.run", *flags]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=20)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.endswith("stopped: the same command resumes from there\n")
    assert [out_of(call) for call in recorded()] == ["puma_1", "puma_2"]
    assert not Path("out/runs/sudoku_mini/mdm_1").exists()
    calls, error = execute(jobs=1)
    assert not error and [out_of(call) for call in trainings(calls)] == ["puma_2", "mdm_1", "mdm_2"]
    assert [call[-1] == "--init_from=resume" for call in trainings(calls)] == [True, False, False]


def test_a_dry_run_prints_commands_and_does_nothing(execute, capsys):
    calls, error = execute(dry_run=True, seeds=[7])
    lines = capsys.readouterr().out.splitlines()
    assert (calls, error) == ([], "") and not Path("out").exists()
    assert lines[0] == "export OMP_NUM_THREADS=1"
    train = "python train.py config/sudoku_mini.py"
    assert [line.split(" --")[0] for line in lines[1:]] == [train, train, "python -m studies.plot"]


def test_a_study_that_is_not_there_is_named(execute):
    assert re.match("ValueError: study 'taus': expected sudoku_mini, k, tau", execute("taus")[1])


# -- the catalogue ---------------------------------------------------------------------------------
def test_without_a_study_all_are_listed(monkeypatch, capsys):
    monkeypatch.setattr(run, "study", "")
    run.main()
    said = capsys.readouterr().out
    assert all(f"\n{name}\n    {study.question}\n" in said for name, study in STUDIES.items())
    assert "config/sudoku_tiny.py: 3 x 8 runs, 23 minutes" in said


def test_studies_give_settings_that_exist_and_share_no_folder():
    """Where studies of one configuration have a run of the same name, it is the same run."""
    settings = {}
    for study in STUDIES.values():
        assert study.figure in plot.FIGURES
        planned = run.plan(study.runs, study.config, Path(study.config))
        for each in planned[:: len(run.seeds)]:
            assert settings.setdefault(each.folder, each.settings) == each.settings
            configure(dict(vars(train)), each.flags, lambda own: tasks.settings(own["dataset"]))
