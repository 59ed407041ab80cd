"""Every promise of configurator.py, on a tiny script: what is set, what fails, what help says."""

import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from configurator import configure, errors_as_messages

SCRIPT = '''"""Trains a toy.

    python toy.py config/base.py
"""

import sys

# -- data -----------------------------------------------------------------
task = "sudoku"        # which task module, never None: sudoku
batch_size = 128       # 1..: rows per step and process

# -- method ---------------------------------------------------------------
k_schedule = [         # (iteration, K) pairs
    (0, 9),
]
betas = (0.9, 0.95)    # 0..1: of AdamW
tau: float | None = 0.9  # -1..2: confidence threshold, None = off
names: list[str] = []  # of whatever
ema = True             # average the weights
compile: bool | None = None  # None = chosen by itself, True, False

# -- not keys -------------------------------------------------------------
_private = 1
LIMIT = 3
computed = len(sys.argv)


def train():
    return task


below = 1

if __name__ == "__main__":
    from configurator import configure

    configure(globals())
    print(train(), batch_size, tau)
'''

HELP = """Trains a toy.

    python toy.py config/base.py

usage: python toy.py [config/FILE.py ...] [--key=value ...]

data
  --task=sudoku          which task module, never None: sudoku
  --batch_size=128       1..: rows per step and process

method
  --k_schedule=[(0, 9)]  (iteration, K) pairs
  --betas=(0.9, 0.95)    0..1: of AdamW
  --tau=0.9              -1..2: confidence threshold, None = off
  --names=[]             of whatever
  --ema=True             average the weights
  --compile=None         None = chosen by itself, True, False
"""


class Coins(NamedTuple):
    size: tuple = (2, 3)  # 1..9: of the board
    tosses: int = 5  # 1..


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current directory, with toy.py and an empty config/ in it."""
    (tmp_path / "toy.py").write_text(SCRIPT)
    (tmp_path / "config").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(folder):
    return lambda *argv, **options: configure(runpy.run_path("toy.py"), list(argv), **options)


@pytest.fixture
def fails(run, capsys):
    """Runs, expects exit status 2 and returns the message."""

    def message(*argv, **options):
        with pytest.raises(SystemExit) as stop:
            run(*argv, **options)
        out, err = capsys.readouterr()
        assert stop.value.code == 2 and out == ""
        return err

    return message


def config(name, text):
    Path("config", name).write_text(text)
    return f"config/{name}"


# -- flags -----------------------------------------------------------------------------------------
def test_the_keys_are_the_literals_above_the_first_function(folder):
    settings = runpy.run_path("toy.py")
    values = configure(settings, ["--batch_size=7"])
    assert values == {
        "task": "sudoku", "batch_size": 7, "k_schedule": [(0, 9)], "betas": (0.9, 0.95),
        "tau": 0.9, "names": [], "ema": True, "compile": None,
    }  # fmt: skip
    assert values.items() <= settings.items() and settings["below"] == 1 and settings["computed"]


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--tau=1", 1.0), ("--tau=None", None), ("--tau=none", None), ("--tau=-1e-3", -1e-3),
        ("--ema=False", False), ("--ema=false", False), ("--ema=0", False), ("--ema=1", True),
        ("--task=5", "5"), ("--task=a=b", "a=b"), ("--task=", ""), ("--task=None", "None"),
        ("--task='x'", "'x'"), ("--compile=false", False), ("--compile=1", True),
        ("--compile=None", None), ("--ema", True), ("--betas=[0.8, 0.9]", (0.8, 0.9)),
        ("--k_schedule=((0, 3), (5, 6))", [(0, 3), (5, 6)]), ("--batch_size=1", 1),
    ],
)  # fmt: skip
def test_values_of_flags(run, flag, value):
    final = run(flag)[flag[2:].split("=")[0]]
    assert final == value and type(final) is type(value)


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--batch_size=abc", "--batch_size=abc: expected an int from 1 (like 128), got the str"),
        ("--batch_size=3.0", "got the float 3.0\n"),
        ("--batch_size=True", "got the bool True\n"),
        ("--batch_size=0", "expected an int from 1 (like 128), got the int 0\n"),
        ("--tau=high", "expected a float or None from -1 to 2 (like 0.9), got the str 'high'\n"),
        ("--tau=2.1", "got the float 2.1\n"),
        ("--tau=1e400", "got the float inf\n"),
        (f"--tau={'[' * 5000}", "expected a float"),
        ("--tau=\x1b[2J\n", "--tau=\\x1b[2J : expected a float"),
        ("--ema=2", "expected a bool (like True), got the int 2\n"),
        ("--k_schedule=[(0, 9)", "expected a list (like [(0, 9)]), got the str '[(0, 9)'\n"),
        ("--betas=(0.9,)", "expected a tuple of float from 0 to 1 (like (0.9, 0.95)), got"),
        ("--betas=(0.9,'x')", "got the tuple (0.9, 'x')\n"),
        ("--betas=(0.9,1.5)", "got the tuple (0.9, 1.5)\n"),
        ("--names=[3]", "expected a list of str (like []), got the list [3]\n"),
    ],
)
def test_values_of_another_type_or_out_of_their_range(fails, flag, message):
    assert message in fails(flag)


def test_an_unknown_flag_names_the_nearest_key(fails):
    expected = "unknown key --bach_size; did you mean --batch_size?\n`python toy.py --help`"
    assert fails("--bach_size=1").startswith(expected)
    assert fails("--qqq=1").startswith("unknown key --qqq\n")


@pytest.mark.parametrize("name", ["_private", "LIMIT", "computed", "below", "sys", "train"])
def test_what_is_no_key_cannot_be_set(fails, name):
    assert f"unknown key --{name}" in fails(f"--{name}=2")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["-tau=3"], "cannot read -tau=3: write --key=value, with two dashes\n"),
        (["-x"], "cannot read -x: write --key=value, with two dashes\n"),
        (["--tau"], "--tau: expected a float or None from -1 to 2 (like 0.9), got the bool True\n"),
        (["--batch_size", "3"], "no config file '3'; write settings as --key=value\n"),
    ],
)
def test_flags_need_two_dashes_and_an_equals_sign(fails, argv, message):
    assert fails(*argv).startswith(message)


@pytest.mark.parametrize("argv", [["-h"], ["--tau=0.5", "--help"]])
def test_help_shows_every_key_with_default_comment_and_section(run, capsys, argv):
    with pytest.raises(SystemExit, match="0"):
        run(*argv)
    assert capsys.readouterr().out == HELP


# -- fields ----------------------------------------------------------------------------------------
def test_fields_of_a_class_are_settings_too(run, fails, capsys):
    assert run("--tosses=7", fields=Coins).items() >= {"tosses": 7, "size": (2, 3)}.items()
    assert "expected an int from 1 (like 5), got the int 0" in fails("--tosses=0", fields=Coins)
    for value in "(2,'x')", "(2,10)", "(2,3,4)":
        message = "expected a tuple of int from 1 to 9 (like (2, 3)), got the tuple"
        assert message in fails(f"--size={value}", fields=Coins)
    with pytest.raises(SystemExit):
        run("--help", fields=Coins)
    assert "\ntest_configurator coins\n  --size=(2, 3)" in capsys.readouterr().out


def test_fields_may_depend_on_the_settings_before_them(run, fails):
    def fields(values):
        return Coins if values["task"] == "coins" else None

    file = config("coins.py", "task = 'coins'\ntosses = 3\n")
    assert run("--task=coins", "--tosses=7", fields=fields)["tosses"] == 7
    assert run(file, fields=fields)["tosses"] == 3 and "tosses" not in run(fields=fields)
    assert f"{file}: unknown key tosses\n" in fails(file, "--task=sudoku", fields=fields)


def test_fields_may_be_lists(run, fails):
    values = run("--tosses=[1,2]", fields=Coins, lists=True)
    assert values["tosses"] == [1, 2] and values["task"] == "sudoku"
    assert "got the list [1, 0]" in fails("--tosses=[1,0]", fields=Coins, lists=True)


# -- files -----------------------------------------------------------------------------------------
def test_later_arguments_win_whether_file_or_flag(run):
    a = config("a.py", "batch_size = 2 * 3\ntau = 0.5\n")
    b = config("b.py", "tau = 0.6\n")
    values = run("--batch_size=1", a, b)
    assert (values["batch_size"], values["tau"]) == (6, 0.6)
    assert run(b, a, "--tau=0.7")["tau"] == 0.7
    assert run(config("off.py", "tau = None\n"), "--tau=0.5")["tau"] == 0.5


def test_files_may_import_define_functions_and_have_private_names(run):
    text = "import math\ndef half(x): return x / 2\n_steps = 8\ntau = half(math.sqrt(_steps * 2))\n"
    assert run(config("x.py", text))["tau"] == 2.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch_size = 'abc'", ": batch_size: expected an int from 1 (like 128), got the str"),
        ("class tau: pass\nbach_size = 3", ": unknown key bach_size; did you mean batch_size?\n"),
        ("tau = 1\nbatch_size = = 3", ", line 2: SyntaxError: invalid syntax"),
        ("tau = 1\n\nbatch_size = 3 // 0", ", line 3: ZeroDivisionError: "),
        ("import sys\ntau = 1\nsys.exit(0)", ", line 3: SystemExit: 0"),
        ("\nraise KeyboardInterrupt", ", line 2: KeyboardInterrupt"),
        ("raise ValueError('a\\nb' * 999)", ", line 1: ValueError: a ba b"),
    ],
)
def test_a_mistake_in_a_file_is_named_with_its_line(fails, text, message):
    file = config("x.py", text)
    said = fails(file)
    assert said.startswith(f"{file}{message}") and len(said.splitlines()) == 2 and len(said) < 500


# -- the command -----------------------------------------------------------------------------------
def test_errors_of_settings_are_messages_and_bugs_are_not():
    for error in (MemoryError(), ValueError("a\nb")):
        with pytest.raises(SystemExit, match=type(error).__name__), errors_as_messages():
            raise error
    with pytest.raises(SystemExit, match=r"^interrupted$"), errors_as_messages():
        raise KeyboardInterrupt
    with pytest.raises(RuntimeError), errors_as_messages():
        raise RuntimeError("a mistake")


def test_files_build_on_one_another_from_any_directory(folder, tmp_path_factory):
    """The real command, with a copy of configurator.py beside the script as in the repository."""
    shutil.copy(sys.modules["configurator"].__file__, folder)
    config("base.py", "task = 'coins'\ntau = 0.5\n")
    config("child.py", "from config.base import *\n\ntau = 0.25\n")
    config("broken.py", "tau = 0.5\nbatch_size = undefined\n")
    config("heir.py", "from config.broken import *\n")

    def command(*argv):
        line, elsewhere = [sys.executable, folder / "toy.py", *argv], tmp_path_factory.mktemp("a")
        return subprocess.run(line, cwd=elsewhere, capture_output=True, text=True)

    done = command(folder / "config/child.py", "--batch_size=4")
    assert (done.stdout, done.stderr, done.returncode) == ("coins 4 0.25\n", "", 0)
    done = command(folder / "config/heir.py")
    assert "broken.py, line 2: NameError: name 'undefined'" in done.stderr
    assert done.returncode == 2 and "Traceback" not in done.stderr and done.stdout == ""
