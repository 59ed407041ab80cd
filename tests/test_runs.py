"""runs/*.sh with a stand-in for python that records its calls."""

import itertools
import json
import os
import re
import subprocess
import sys

import pytest
from conftest import ROOT

from configurator import read_flag, read_keys
from studies import plot

SCRIPTS = sorted(path.name for path in (ROOT / "runs").glob("*.sh") if path.name != "common.sh")
STAND_IN = f"""#!{sys.executable}
import json, os, sys
call = sys.argv[1:]
if call[0] == "-m":
    call = [call[1].replace(".", "/") + ".py", *call[2:]]
with open(os.environ["CALLS"], "a") as file:
    file.write(json.dumps(call) + "\\n")
if call[0] == "train.py":
    out = next(arg.split("=", 1)[1] for arg in sys.argv if arg.startswith("--out_dir="))
    open(out + "/checkpoint.pt", "w").close()
    print("the last words of", out)
    sys.exit(out.endswith(os.environ.get("FAILING", "none")))
"""


@pytest.fixture
def execute(tmp_path):
    """Runs a script; its calls of python since the last one, its error output and its code."""
    python, calls = tmp_path / "python", tmp_path / "calls"
    python.write_text(STAND_IN)
    python.chmod(0o755)

    def execute(script, **settings):
        calls.write_text("")
        settings |= {"PYTHON": str(python), "OUT": f"{tmp_path}/out", "CALLS": str(calls)}
        done = subprocess.run(
            ["bash", ROOT / "runs" / script], env=os.environ | settings,
            cwd=tmp_path, capture_output=True, text=True,
        )  # fmt: skip
        seen = [json.loads(line) for line in calls.read_text().splitlines()]
        return seen, done.stderr, done.returncode

    return execute


def trainings(calls):
    return [call[1:] for call in calls if call[0] == "train.py"]


def test_each_seed_is_trained_once_stopped_runs_go_on(execute, tmp_path):
    calls, error, code = execute("sudoku_mini.sh", FAILING="puma_2", SEEDS="1 2")
    assert code != 0 and f"the last words of {tmp_path}/out/puma_2" in error
    wanted = set(itertools.product(("puma", "mdm"), "12"))
    given = [dict(flag[2:].split("=", 1) for flag in call[1:]) for call in trainings(calls)]
    assert {(flags["method"], flags["seed"]) for flags in given} == wanted and len(given) == 4
    assert not any("init_from" in flags for flags in given)
    assert not any(call[0] == "studies/plot.py" for call in calls)

    calls, _, code = execute("sudoku_mini.sh", SEEDS="1 2")
    (again,) = trainings(calls)
    assert code == 0 and "--seed=2" in again and again[-1] == "--init_from=resume"
    assert [call[0] for call in calls] == ["train.py", "studies/plot.py", "studies/plot.py"]
    folders = [f"{tmp_path}/out/{method}_{seed}" for method, seed in sorted(wanted, reverse=True)]
    assert sorted(calls[1][1:5]) == sorted(folders)
    assert trainings(execute("sudoku_mini.sh", SEEDS="1 2")[0]) == []
    (tmp_path / "out/mdm_1/complete").write_text("of other settings")
    (anew,) = trainings(execute("sudoku_mini.sh", SEEDS="1 2")[0])
    assert "--method=mdm" in anew and "--seed=1" in anew and "--init_from=resume" not in anew


@pytest.mark.parametrize("script", sorted(SCRIPTS))
def test_scripts_give_keys_that_exist_and_plot_what_they_train(script, execute):
    calls, error, code = execute(script, SEEDS="7", JOBS="2")
    assert (code, error) == (0, "")
    keys = {}
    for call in calls:
        name, flags = call[0], [arg for arg in call[1:] if arg.startswith("--")]
        if name == "studies/plot.py":
            plot.arguments(call[1:])
        else:
            keys[name] = keys.get(name) or read_keys((ROOT / name).read_text())
            for flag in flags:
                read_flag(flag, keys[name])
    trained = {flag for call in trainings(calls) for flag in call if flag.startswith("--out_dir=")}
    plotted = [call for call in calls if call[0] == "studies/plot.py"]
    shown = {f"--out_dir={arg}" for call in plotted for arg in call[1:] if arg[:2] != "--"}
    assert plotted and shown <= trained
    assert len(trained) == len(trainings(calls)), "two trainings in one folder"


@pytest.mark.parametrize("script", SCRIPTS)
def test_headers_state_time(script):
    path = ROOT / "runs" / script
    header = path.read_text().split("source ")[0]
    assert os.access(path, os.X_OK) and "2 cores" in header and re.search(r"\d+ minutes", header)
