"""run.py with stand-ins for the scripts that record their calls, and what catalogue.py asks for."""

import importlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT

import tasks
from configurator import configure
from engine.files import Lock
from sample import Sampler
from studies import plot, run
from studies.catalogue import STUDIES

STAND_IN = """
import json, os, signal, sys, time
call = sys.argv
out = next((arg.split("=", 1)[1] for arg in call if arg.startswith("--out_dir=")), "")

def record(event):
    with open("calls", "a") as file:
        file.write(json.dumps([event, os.path.relpath(call[0]), *call[1:]]) + "\\n")

record("begin")
if call[0] == "train.py":
    open(out + "/checkpoint.pt", "w").close()
    if out.endswith(os.environ.get("SLOW", "none")):
        time.sleep(0.3)
    if out.endswith(os.environ.get("STOPPING", "none")):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped, with a checkpoint"))
        os.kill(os.getppid(), signal.SIGTERM)
        time.sleep(30)
print("threads:", os.environ["OMP_NUM_THREADS"])
print("\\r  2%|2      | 1/50 [00:07<00:13, 2it/s, loss=0.8]the last words of", out)
print("\\r  4%|4      | 2/50 [00:07<00:12, 2it/s, loss=0.8]")
record("end")
sys.exit(bool(out) and out.endswith(os.environ.get("FAILING", "none")))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Of the repository, with stand-ins; it becomes the working directory."""
    (tmp_path / "studies").mkdir()
    for script in ("train.py", "eval.py", *(f"studies/{n}.py" for n in ("plot", "trajectories"))):
        (tmp_path / script).write_text(STAND_IN)
    shutil.copytree(ROOT / "config", tmp_path / "config")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return tmp_path


@pytest.fixture
def execute(folder, monkeypatch, capsys):
    """Carries out a study; the calls that began since the last one, and what went wrong."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def execute(study, **settings):
        Path("calls").write_text("")
        for key, value in {"study": study, "seeds": [1, 2], **settings}.items():
            monkeypatch.setattr(run, key, value)
        try:
            run.main()
            error = ""
        except SystemExit as exit:
            error = f"{exit}\n{capsys.readouterr().err}"
        return [call for event, *call in recorded() if event == "begin"], error

    yield execute
    for number, handler in handlers.items():
        signal.signal(number, handler)


def recorded():
    return [json.loads(line) for line in Path("calls").read_text().splitlines()]


def trainings(calls):
    return [call[1:] for call in calls if call[0] == "train.py"]


def out_of(call):
    """The name of the run in a call."""
    return next(Path(arg).name for arg in call if arg.startswith("--out_dir="))


def test_each_seed_is_trained_once_stopped_runs_go_on(execute, monkeypatch):
    monkeypatch.setenv("FAILING", "puma_2")
    calls, error = execute("sudoku_mini")
    assert "1 of 4 runs failed" in error
    assert "puma_2/log.txt: exit code 1: the last words of out/runs/sudoku_mini/puma_2\n" in error
    wanted = set(itertools.product(("puma", "mdm"), "12"))
    given = [dict(flag[2:].split("=", 1) for flag in call[1:]) for call in trainings(calls)]
    assert {(flags["method"], flags["seed"]) for flags in given} == wanted and len(given) == 4
    assert {flags["out_dir"] for flags in given} == {
        f"out/runs/sudoku_mini/{method}_{seed}" for method, seed in wanted
    }
    assert not any("init_from" in flags for flags in given)
    assert not any(call[0] == "studies/plot.py" for call in calls)

    monkeypatch.setenv("FAILING", "none")
    calls, error = execute("sudoku_mini")
    (again,) = trainings(calls)
    assert not error and "--seed=2" in again and again[-1] == "--init_from=resume"
    assert [call[0] for call in calls] == ["train.py", "studies/plot.py", "studies/plot.py"]
    folders = [f"out/runs/sudoku_mini/{name}" for name in ("puma_1", "puma_2", "mdm_1", "mdm_2")]
    assert calls[1][1] == f"--runs={','.join(folders)}"
    assert trainings(execute("sudoku_mini")[0]) == []

    with Lock("out/runs/sudoku_mini/puma_1", "study.lock"):  # another study is at work there
        with open("config/sudoku_mini.py", "a") as file:
            file.write("lr = 1.0\n")
        calls, error = execute("sudoku_mini", seeds=[1])
        assert "puma_1 is in use by process" in error and len(trainings(calls)) == 1
    assert len(trainings(execute("sudoku_mini", seeds=[1])[0])) == 1


def test_other_settings_are_trained_anew(execute, monkeypatch):
    execute("sudoku_mini")
    Path("out/runs/sudoku_mini/mdm_1/settings.txt").write_text("others")
    monkeypatch.setenv("FAILING", "mdm_1")
    (anew,) = trainings(execute("sudoku_mini")[0])
    assert "--method=mdm" in anew and "--seed=1" in anew and "--init_from=resume" not in anew
    monkeypatch.setenv("FAILING", "none")
    assert trainings(execute("sudoku_mini")[0]) == [[*anew, "--init_from=resume"]]
    assert trainings(execute("sudoku_mini")[0]) == []
    Path("config/sudoku.py").write_text("lr = 1\n")  # any file: they build on each other
    anew = trainings(execute("sudoku_mini")[0])
    assert len(anew) == 4 and not any("--init_from=resume" in call for call in anew)


def test_a_stopped_run_does_not_go_on_from_a_checkpoint_of_other_settings(execute):
    """It was stopped before train.py set that checkpoint aside."""
    execute("sudoku_mini")
    folder = Path("out/runs/sudoku_mini/mdm_1")
    (folder / "complete").unlink()
    written = (folder / "settings.txt").stat().st_mtime
    os.utime(folder / "checkpoint.pt", (written - 9, written - 9))
    (anew,) = trainings(execute("sudoku_mini")[0])
    assert "--init_from=resume" not in anew


def test_runs_are_shared_between_studies_and_told_apart_by_configuration(execute):
    execute("sudoku_mini")
    calls, _ = execute("nelbo")
    assert trainings(calls) == [] and [call[0] for call in calls[:4]] == ["eval.py"] * 4
    (Path("config") / "mine.py").write_text("from config.sudoku_mini import *\n")
    calls, _ = execute("sudoku_mini", config="config/mine.py", seeds=[4], out_dir="else where")
    assert [call[1] for call in trainings(calls)] == ["--seed=4"] * 2
    assert {call[0] for call in trainings(calls)} == {"config/mine.py"}
    assert {call[-1] for call in trainings(calls)} == {
        f"--out_dir=else where/mine/{name}_4" for name in ("puma", "mdm")
    }


def test_a_run_waits_for_the_one_that_it_starts_from(execute, monkeypatch):
    monkeypatch.setenv("SLOW", "ar_1")
    _, error = execute("ar", jobs=3)
    events = [(call[0], out_of(call)) for call in recorded() if call[1] == "train.py"]
    for seed in (1, 2):
        for name in (f"ar_to_puma_{seed}", f"ar_to_mdm_{seed}"):
            assert events.index(("end", f"ar_{seed}")) < events.index(("begin", name))
    starts = [arg for call in recorded() for arg in call if arg.startswith("--init_from")]
    assert not error and set(starts) == {
        f"--init_from=out/runs/gsm_tiny/ar_{seed}/checkpoint.pt" for seed in (1, 2)
    }


def test_what_starts_from_a_run_that_fails_is_not_trained(execute, monkeypatch):
    monkeypatch.setenv("FAILING", "ar_1")
    calls, error = execute("ar")
    names = {out_of(call) for call in trainings(calls)}
    assert "3 of 10 runs failed" in error and "ar_to_mdm_1: not trained, because" in error
    assert "ar_to_mdm_2" in names and not names & {"ar_to_mdm_1", "ar_to_puma_1"}
    monkeypatch.setenv("FAILING", "none")
    again = trainings(execute("ar")[0])
    assert sorted(map(out_of, again)) == ["ar_1", "ar_to_mdm_1", "ar_to_puma_1"]


def test_other_settings_of_a_start_make_what_starts_from_it_anew(folder):
    one = run.plan({"ar": "--lr=1", "next": "--init_from={ar}"}, "config/gsm_tiny.py", folder)
    two = run.plan({"ar": "--lr=2", "next": "--init_from={ar}"}, "config/gsm_tiny.py", folder)
    assert one[-1].flags == two[-1].flags and one[-1].settings != two[-1].settings


def test_tables_lie_beside_figures_that_have_one(execute):
    Path("studies/plot.py").write_text("import sys\nprint(*(a for a in sys.argv if 'metric' in a))")
    execute("sudoku_mini")
    figures = Path("out/runs/sudoku_mini/figures")
    assert (figures / "sudoku_mini_loss.md").read_text() == "--metric=val_loss\n"
    Path("studies/plot.py").write_text("")
    execute("sudoku_mini")
    assert list(figures.iterdir()) == []
    Path("studies/plot.py").write_text("raise SystemExit('no')")
    assert "sudoku_mini.png: not drawn" in execute("sudoku_mini")[1]


def test_sigterm_stops_the_trainings_and_a_later_call_goes_on(execute):
    flags = ["--study=sudoku_mini", "--seeds=[1,2]", "--jobs=1"]
    env = os.environ | {"PYTHONPATH": str(ROOT), "STOPPING": "puma_2"}
    done = subprocess.run(
        [sys.executable, "-m", "studies.run", *flags],
        capture_output=True, text=True, env=env, timeout=20,
    )  # fmt: skip
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.endswith("stopped: the same command resumes from there\n")
    assert [out_of(call) for event, *call in recorded() if event == "begin"] == ["puma_1", "puma_2"]
    assert not Path("out/runs/sudoku_mini/mdm_1").exists()
    calls, error = execute("sudoku_mini", jobs=1)
    assert not error and {out_of(call): call[-1] for call in trainings(calls)} == {
        "puma_2": "--init_from=resume",
        "mdm_1": "--out_dir=out/runs/sudoku_mini/mdm_1",
        "mdm_2": "--out_dir=out/runs/sudoku_mini/mdm_2",
    }


def test_a_configuration_that_changes_meanwhile_completes_nothing(execute, monkeypatch):
    versions = itertools.chain(["00000001"], itertools.repeat("00000002"))
    monkeypatch.setattr(run, "version", lambda file: next(versions))
    _, error = execute("sudoku_mini", seeds=[1])
    assert "puma_1: a configuration has changed: start the study again" in error
    assert not [*Path("out").rglob("complete")]


def test_a_dry_run_prints_commands_and_does_nothing(execute, capsys):
    calls, error = execute("trajectories", dry_run=True, seeds=[7])
    lines = capsys.readouterr().out.splitlines()
    assert (calls, error) == ([], "") and not Path("out").exists()
    assert lines[0] == "export OMP_NUM_THREADS=1"
    assert [line.split(" --")[0] for line in lines[1:]] == [
        *["python train.py config/sudoku_mini.py", "python -m studies.trajectories"] * 2,
        "python -m studies.plot",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"study": "taus"}, "study 'taus': expected sudoku_mini, "),
        ({"seeds": [1, 1]}, "seeds .*: expected different integers"),
        ({"config": "config/none.py"}, "no config file 'config/none.py'"),
    ],
)
def test_mistakes_are_named(settings, message, execute):
    _, error = execute(**{"study": "tau"} | settings)
    assert re.match(f"ValueError: {message}", error)


# -- the catalogue ---------------------------------------------------------------------------------
def planned(name):
    """The runs of a study, and the commands of its scripts and of its figures."""
    study, folder = STUDIES[name], Path("out")
    runs = run.plan(study.runs, study.config, folder)
    scripts = [command for each in runs for command in run.script_commands(study.scripts, each)]
    figures = run.figure_commands(study.figures, run.shown_runs(runs), folder)
    return runs, scripts, [*figures.values()]


def settings_of(command):
    """The values of all settings of a script under these arguments."""
    module = command[1] if command[0] == "-m" else command[0].removesuffix(".py")
    flags = command[2:] if command[0] == "-m" else command[1:]
    fields = Sampler if module == "eval" else None
    if module == "train":
        fields = lambda values: tasks.settings(values["dataset"])  # noqa: E731
    script = dict(vars(importlib.import_module(module)))
    return configure(script, flags, fields, lists=module == "eval")


@pytest.mark.parametrize("name", STUDIES)
def test_studies_give_keys_that_exist_and_plot_what_they_train(name):
    runs, scripts, figures = planned(name)
    for command in [["train.py", *each.flags] for each in runs[:: len(run.seeds)]] + scripts[:1]:
        settings_of(command)
    assert figures
    for command in figures:
        settings = settings_of(command)
        assert settings["figure"] in plot.FIGURES
        drawn = settings["runs"].split(",")
        assert {*drawn} <= {str(each.folder) for each in runs}
        assert len({*drawn}) == len(drawn) >= len(run.seeds)


def test_no_two_trainings_share_a_folder():
    """Where studies of one configuration have a run of the same name, it is the same run."""
    flags = {}
    for name, study in STUDIES.items():
        runs, _, _ = planned(name)
        assert len({each.folder for each in runs}) == len(runs) == len(study.runs) * len(run.seeds)
        for each in runs:
            assert flags.setdefault((study.config, each.folder), each.settings) == each.settings


def test_an_archive_gives_the_runs_of_a_study(monkeypatch, tmp_path):
    """In the order of the table, of the seeds alone; without those from which others start."""
    names = "puma_10", "puma_2", "puma_k3_1", "mdm_1", "ar_1", "ar_to_puma_1"
    file = tmp_path / "all.zip"
    with zipfile.ZipFile(file, "w") as opened:
        for name in names:
            opened.writestr(f"{name}/metrics.jsonl", b"")
    monkeypatch.setattr(run, "archive", str(file))

    def archived(seeds, study):
        monkeypatch.setattr(run, "seeds", seeds)
        return run.archived_runs(run.plan(study, "config/gsm_tiny.py", tmp_path))

    study = {"ar": "", "ar_to_puma": "--init_from={ar}", "mdm": "", "puma": ""}
    expected = [f"{file}/{name}" for name in ("ar_to_puma_1", "mdm_1", "puma_2", "puma_10")]
    assert archived([1, 2, 10], study) == expected
    assert archived([2, 3], study) == [f"{file}/puma_2"]
    with pytest.raises(ValueError, match="has no run of the study"):
        archived([2], {"other": ""})
