"""Every promise of configurator.py, on a tiny script: what is set, what fails, what help says."""

import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from configurator import configure, errors_as_messages

SCRIPT = '''"""Trains a toy."""

# -- data -----------------------------------------------------------------
task = "sudoku"  # which task module, never None: sudoku
batch_size = 128  # 1..: rows per step and process

# -- method ---------------------------------------------------------------
k_schedule: list | int = [(0, 9)]  # (iteration, K) pairs
betas = (0.9, 0.95)  # 0..1: of AdamW
tau: float | None = 0.9  # -1..2: confidence threshold, None = off
names: list[str] = []  # of whatever
runs: str | list = "a"  # one or more
ema: bool | None = True  # average the weights
_private = 1
LIMIT = 3
computed = 1 + 1

if __name__ == "__main__":
    from configurator import configure

    inside = 1
    configure(globals())
    print(task, batch_size, tau)
'''

HELP = """Trains a toy.

usage: python toy.py [config/FILE.py ...] [--key=value ...]

data
  --task=sudoku          which task module, never None: sudoku
  --batch_size=128       1..: rows per step and process

method
  --k_schedule=[(0, 9)]  (iteration, K) pairs
  --betas=(0.9, 0.95)    0..1: of AdamW
  --tau=0.9              -1..2: confidence threshold, None = off
  --names=[]             of whatever
  --runs=a               one or more
  --ema=True             average the weights
"""
DEFAULTS = {
    "task": "sudoku", "batch_size": 128, "k_schedule": [(0, 9)], "betas": (0.9, 0.95), "tau": 0.9,
    "names": [], "runs": "a", "ema": True,
}  # fmt: skip


class Coins(NamedTuple):
    size: tuple = (2, 3)  # 1..9: of the board
    tosses: int = 5  # 1..:
    rate: float = 0.5  # 0..


class Twice(NamedTuple):
    tau: float = 0.5  # a key of the script too


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Configures toy.py in the current directory, which has an empty config/ too."""
    (tmp_path / "toy.py").write_text(SCRIPT)
    (tmp_path / "config").mkdir()
    monkeypatch.chdir(tmp_path)
    return lambda *argv, **options: configure(runpy.run_path("toy.py"), list(argv), **options)


@pytest.fixture
def fails(run, capsys):
    """Runs, expects exit status 2 and returns the message, without the line about --help."""

    def message(*argv, **options):
        with pytest.raises(SystemExit, match="2"):
            run(*argv, **options)
        first, second = capsys.readouterr().err.splitlines()
        assert second == "`python toy.py --help` lists all keys"
        return first

    return message


def config(name, text):
    Path("config", name).write_text(text)
    return f"config/{name}"


def coins(values):
    return Coins if values["task"] == "coins" else None


def test_the_values_are_returned_and_replace_the_globals(run):
    settings = runpy.run_path("toy.py")
    values = configure(settings, ["--batch_size=7"])
    assert values == DEFAULTS | {"batch_size": 7}
    assert values.items() <= settings.items() and settings["computed"]


VALUES = {
    "--tau=1": 1.0, "--tau=None": None, "--tau=none": None, "--tau=-1e-3": -1e-3, "--ema": True,
    "--ema=False": False, "--ema=false": False, "--ema=0": False, "--ema=1": True, "--task=5": "5",
    "--task=a=b": "a=b", "--task=": "", "--task=None": "None", "--task='x'": "'x'",
    "--task=[1]": "[1]", "--ema=None": None, "--batch_size=1": 1,
    "--betas=[0.8, 1]": (0.8, 1.0), "--k_schedule=((0, 3), (5, 6))": [(0, 3), (5, 6)],
    "--k_schedule=3": 3, "--names=['1']": ["1"], "--runs=1": "1", "--runs=['1', 'b']": ["1", "b"],
}  # fmt: skip


@pytest.mark.parametrize("flag, value", VALUES.items())
def test_values_of_flags(run, flag, value):
    assert repr(run(flag)[flag[2:].split("=")[0]]) == repr(value)


MISTAKES = {
    "--batch_size=abc": "expected an int from 1, got 'abc'; the default is 128",
    "--batch_size=3.0": "expected an int from 1, got 3.0; the default is 128",
    "--batch_size=True": "expected an int from 1, got True; the default is 128",
    "--batch_size=0": "expected an int from 1, got 0; the default is 128",
    "--tau=2.1": "expected a float or None from -1 to 2, got 2.1; the default is 0.9",
    "--tau": "expected a float or None from -1 to 2, got True; the default is 0.9",
    "--ema=2": "expected a bool or None, got 2; the default is True",
    "--k_schedule=[(": "expected a list or int, got '[('; the default is [(0, 9)]",
    "--betas=(0.9,)": "expected a tuple of float from 0 to 1, got [0.9]; "
    "the default is (0.9, 0.95)",
    "--betas=(0.9,'x')": "expected a float from 0 to 1, got 'x'; the default is (0.9, 0.95)",
    "--betas=(0.9,1.5)": "expected a float from 0 to 1, got 1.5; the default is (0.9, 0.95)",
    "--names=[3]": "expected a str, got 3; the default is []",
    "--task": "expected a str, got True; the default is 'sudoku'",
    "--bach_size=1": "unknown key; did you mean --batch_size?",
} | dict.fromkeys(["--_private=2", "--LIMIT=2", "--computed=2", "--inside=2"], "unknown key")


@pytest.mark.parametrize("flag, message", MISTAKES.items())
def test_a_flag_with_a_wrong_value_or_of_no_key(fails, flag, message):
    assert fails(flag) == f"{flag}: {message}"


@pytest.mark.parametrize("arg", ["-tau=3", "-x", "3", "\x1b[2J\n", "--tau=\x1b[2J\n" + "[" * 5000])
def test_other_arguments_are_no_config_files_and_no_message_harms_the_terminal(fails, arg):
    said = fails("--tau=1", arg)
    assert "expected a float" in said or said.endswith("'; write settings as --key=value")
    assert len(said) < 1000 and "\x1b" not in said


@pytest.mark.parametrize("argv", [["-h"], ["--tau=0.5", "--help"]])
def test_help_shows_every_key_with_default_comment_and_section(run, capsys, argv):
    with pytest.raises(SystemExit, match="0"):
        run(*argv, fields=Coins)
    fields, section = capsys.readouterr().out.removeprefix(HELP), "\ncoins\n"
    assert fields.startswith(f"{section}  --size=(2, 3)          1..9: of the board\n  --tosses=5 ")


def test_fields_of_a_class_are_settings_too(run, fails):
    assert run("--tosses=7", fields=Coins) == DEFAULTS | Coins(tosses=7)._asdict()
    for flag in "--tosses=0", "--size=(2,'x')", "--size=(2,10)", "--size=(2,3,4)", "--rate=1e400":
        assert fails(flag, fields=Coins).startswith(f"{flag}: expected a")
    assert "has the settings ['tau'] too" in fails(fields=Twice)


def test_fields_may_depend_on_the_settings_before_them(run, fails):
    file = config("coins.py", "task = 'coins'\ntosses = 3\n")
    assert run("--task=coins", "--tosses=7", fields=coins)["tosses"] == 7
    assert run(file, fields=coins)["tosses"] == 3 and run(fields=coins) == DEFAULTS
    assert fails(file, "--task=sudoku", fields=coins) == f"{file}: tosses: unknown key"


def test_fields_may_be_lists(run, fails):
    values = run("--tosses=[1,2]", "--rate=(0,0.5)", fields=Coins, lists=True)
    assert values == DEFAULTS | {"size": (2, 3), "tosses": [1, 2], "rate": [0.0, 0.5]}
    assert run("--tosses=3", fields=Coins, lists=True)["tosses"] == 3
    assert "expected an int from 1, got 0" in fails("--tosses=[1,0]", fields=Coins, lists=True)


def test_flags_alone_change_the_settings_of_a_saved_run(run, fails):
    saved = {"task": "coins", "tau": 0.3, "batch_size": 4, "tosses": 9, "gone": 1}
    options = dict(kept=lambda values: (saved, int(values["batch_size"]) < 3), fields=coins)
    file = config("x.py", "tau = 'high'\nbatch_size = 1\nbach_size = 1\n")
    own = {"task": "coins", "tau": 0.3, "batch_size": 2, "ema": False}
    expected = DEFAULTS | own | Coins(tosses=9)._asdict()
    assert run("--ema=0", "--batch_size=2", file, **options) == expected
    saved["tosses"] = "many"
    assert "saved tosses: expected an int" in fails("--batch_size=2", **options)


def test_what_is_saved_in_part_counts_more_than_files(run, fails):
    file = config("x.py", "tau = 0.1\nbatch_size = 3\n")
    options = dict(kept=lambda values: ({"tau": 0.3}, False))
    assert run(file, **options) == DEFAULTS | {"tau": 0.3, "batch_size": 3}
    assert run("--tau=0.2", file, **options)["tau"] == 0.2
    assert "unknown key" in fails(file, config("y.py", "bach_size = 1"), **options)


def test_later_arguments_win_whether_file_or_flag(run):
    a = config("a.py", "batch_size = 2 * 3\ntau = 0.5\n")
    b = config(
        "b.py", "import math\ndef half(x): return x / 2\n_x = 36\ntau = half(math.sqrt(_x))/5"
    )
    assert run("--batch_size=1", a, b) == DEFAULTS | {"batch_size": 6, "tau": 0.6}
    assert run(b, a, "--tau=0.7")["tau"] == 0.7


IN_FILES = {
    "batch_size = 'abc'": ": batch_size: expected an int from 1, got 'abc'; the default is 128",
    "class tau: pass\nbach_size = 3": ": bach_size: unknown key; did you mean batch_size?",
    "tau = 1\nbatch_size = = 3": ": SyntaxError: invalid syntax (x.py, line 2)",
    "tau = 1\n\nbatch_size = 3 // 0": ", line 3: ZeroDivisionError: ",
    "import sys\ntau = 1\nsys.exit(0)": ", line 3: SystemExit: 0",
    "\nraise KeyboardInterrupt": ", line 2: KeyboardInterrupt",
    "raise ValueError('a\\nb' * 999)": ", line 1: ValueError: a ba b",
}


@pytest.mark.parametrize("text, message", IN_FILES.items())
def test_a_mistake_in_a_file_is_named_with_its_line(fails, text, message):
    said = fails(file := config("x.py", text))
    assert said.startswith(f"{file}{message}") and len(said) < 400


def test_errors_of_settings_are_messages_and_bugs_are_not():
    for error in ValueError("a\nbreak"), MemoryError("break"), KeyboardInterrupt():
        with pytest.raises(SystemExit, match=r"^[^\n]*break$"), errors_as_messages("break"):
            raise error
    with pytest.raises(RuntimeError), errors_as_messages():
        raise RuntimeError("a mistake")


def test_files_build_on_one_another_from_any_directory(run, tmp_path, tmp_path_factory):
    """The real command, with a copy of configurator.py beside the script as in the repository."""
    shutil.copy(sys.modules["configurator"].__file__, tmp_path)
    config("base.py", "task = 'coins'\ntau = 0.5\n")
    child = config("child.py", "from config.base import *\n\ntau = 0.25\n")
    config("broken.py", "tau = 0.5\nbatch_size = undefined\n")
    heir = config("heir.py", "from config.broken import *\n")
    elsewhere = tmp_path_factory.mktemp("a")

    def command(*argv):
        line = [sys.executable, tmp_path / "toy.py", *argv]
        return subprocess.run(line, cwd=elsewhere, capture_output=True, text=True)

    done = command(tmp_path / child, "--batch_size=4")
    assert (done.stdout, done.stderr, done.returncode) == ("coins 4 0.25\n", "", 0)
    done = command(tmp_path / heir)
    assert "broken.py, line 2: NameError: name 'undefined'" in done.stderr
    assert done.returncode == 2 and "Traceback" not in done.stderr and done.stdout == ""
