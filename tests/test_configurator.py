"""Every promise of configurator.py, on a tiny script: what is set, what fails, what help says."""

import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from configurator import check_limits, configure, errors_as_messages

SCRIPT = '''"""Trains a toy.

    python toy.py config/base.py
"""

import sys

# -- data -----------------------------------------------------------------
task = "sudoku"        # which task module, never None: sudoku
batch_size = 128       # rows per step and process

# -- method ---------------------------------------------------------------
k_schedule = [         # (iteration, K) pairs
    (0, 9),
]
betas = (0.9, 0.95)    # of AdamW
tau: float | None = 0.9  # confidence threshold, None = off
names: list[str] = []  # of whatever
ema = True             # average the weights
device = ""            # "" = chosen by itself
compile: bool | None = None  # None = chosen by itself, True, False

# -- not keys -------------------------------------------------------------
_private = 1
LIMIT = 3
LIMITS = """
    1 <= batch_size <= 10**6
    -1 <= tau <= 2    # or None
    0 <= betas < 1
    tau <= batch_size
"""
computed = len(sys.argv)


def train():
    return task


below = 1

if __name__ == "__main__":
    from configurator import check_limits, configure, errors_as_messages

    configure(globals())
    print(train(), batch_size, tau)
'''


HELP = """Trains a toy.

    python toy.py config/base.py

usage: python toy.py [config/FILE.py ...] [--key=value ...]

data
  --task=sudoku          which task module, never None: sudoku
  --batch_size=128       rows per step and process

method
  --k_schedule=[(0, 9)]  (iteration, K) pairs
  --betas=(0.9, 0.95)    of AdamW
  --tau=0.9              confidence threshold, None = off
  --names=[]             of whatever
  --ema=True             average the weights
  --device=              "" = chosen by itself
  --compile=None         None = chosen by itself, True, False
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current directory, with toy.py and an empty config/ in it."""
    (tmp_path / "toy.py").write_text(SCRIPT)
    (tmp_path / "config").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(folder):
    return lambda *argv: configure(runpy.run_path("toy.py"), list(argv))


@pytest.fixture
def fails(run, capsys):
    """Runs, expects exit status 2 and returns the message."""

    def message(*argv):
        with pytest.raises(SystemExit) as stop:
            run(*argv)
        out, err = capsys.readouterr()
        assert stop.value.code == 2 and out == ""
        return err

    return message


def config(name, text):
    Path("config", name).write_text(text)
    return f"config/{name}"


def subprocess_run(folder, *argv, cwd=None):
    """The real command, with a copy of configurator.py beside the script as in the repository."""
    shutil.copy(sys.modules["configurator"].__file__, folder)
    command = [sys.executable, str(folder / "toy.py"), *argv]
    return subprocess.run(command, cwd=cwd or folder, capture_output=True, text=True)


def test_without_arguments_the_keys_are_the_literals_above_the_first_function(run):
    assert run() == {
        "task": "sudoku", "batch_size": 128, "k_schedule": [(0, 9)], "betas": (0.9, 0.95),
        "tau": 0.9, "names": [], "ema": True, "device": "", "compile": None,
    }  # fmt: skip


def test_the_globals_are_set_to_what_is_returned(folder):
    settings = runpy.run_path("toy.py")
    values = configure(settings, ["--batch_size=7"])
    assert values["batch_size"] == 7 and values.items() <= settings.items()
    assert settings["below"] == 1 and settings["computed"]


def test_later_arguments_win_whether_file_or_flag(run):
    a = config("a.py", "batch_size = 2 * 3\ntau = 0.5\n")
    b = config("b.py", "tau = 0.6\n")
    values = run("--batch_size=1", a, b)
    assert (values["batch_size"], values["tau"]) == (6, 0.6)
    assert run(b, a, "--tau=0.7")["tau"] == 0.7


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--tau=1", 1.0), ("--tau=None", None), ("--tau=none", None), ("--tau=-1e-3", -1e-3),
        ("--ema=False", False), ("--ema=false", False), ("--ema=0", False), ("--ema=1", True),
        ("--task=5", "5"), ("--task=a=b", "a=b"), ("--task=", ""), ("--task=None", "None"),
        ("--task='x'", "'x'"), ("--compile=false", False), ("--compile=1", True),
        ("--compile=None", None), ("--ema", True), ("--betas=[0.8, 0.9]", (0.8, 0.9)),
        ("--k_schedule=((0, 3), (5, 6))", [(0, 3), (5, 6)]),
    ],
)  # fmt: skip
def test_values_of_flags(run, flag, value):
    got = run(flag)[flag[2:].split("=")[0]]
    assert got == value and type(got) is type(value)


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--batch_size=abc", "--batch_size=abc: expected an int (like 128), got the str 'abc'\n"),
        ("--batch_size=3.0", "expected an int (like 128), got the float 3.0\n"),
        ("--batch_size=True", "got the bool True\n"),
        ("--batch_size=None", "expected an int (like 128), got None\n"),
        ("--batch_size=", "got the str ''\n"),
        ("--tau=high", "expected a float or None (like 0.9), got the str 'high'\n"),
        ("--tau=True", "got the bool True\n"),
        ("--ema=2", "expected a bool (like True), got the int 2\n"),
        ("--ema=yes", "got the str 'yes'\n"),
        ("--k_schedule=9", "expected a list (like [(0, 9)]), got the int 9\n"),
        ("--k_schedule=[(0, 9)", "got the str '[(0, 9)'\n"),
        ("--k_schedule={[]: 1}", "got the str"),
        ("--tau=1e400", "--tau=1e400: expected a float or None (like 0.9), got the float inf\n"),
        ("--tau=nan", "got the str 'nan'\n"),
        (f"--tau={'9' * 400}", "got the int 999"),
        (
            "--betas=(0.9,)",
            "expected a tuple of 2 float (like (0.9, 0.95)), got the tuple (0.9,)\n",
        ),
        ("--betas=(0.9,'x')", "got the tuple (0.9, 'x')\n"),
        ("--betas=(0.9,1e400)", "got the tuple (0.9, inf)\n"),
        ("--names=[3]", "expected a list of str (like []), got the list [3]\n"),
        ("--tau=\x1b[2J\n", "--tau=\\x1b[2J : expected a float"),
        (f"--tau={'[' * 5000}", "expected a float"),
    ],
)
def test_wrong_types_of_flags(fails, flag, message):
    assert message in fails(flag)


def test_wrong_types_in_files_name_the_file(fails):
    file = config("x.py", "batch_size = 'abc'\n")
    assert fails(file).startswith(f"{file}: batch_size: expected an int (like 128), got the str")
    assert "got the type" in fails(config("y.py", "class tau: pass\n"))
    assert "got None" in fails(config("z.py", "task = None\n"))


def test_the_type_is_that_of_the_default_not_of_the_value_before(run, fails):
    off = config("off.py", "tau = None\n")
    assert run(off, "--tau=0.5")["tau"] == 0.5
    assert "expected a float" in fails(off, "--tau=x")


def test_unknown_flag_names_the_nearest_key(fails):
    expected = "unknown key --bach_size; did you mean --batch_size?\n`python toy.py --help`"
    assert fails("--bach_size=1").startswith(expected)
    assert fails("--qqq=1").startswith("unknown key --qqq\n")


@pytest.mark.parametrize("name", ["_private", "computed", "below", "sys", "train"])
def test_what_is_no_key_cannot_be_set(fails, name):
    assert f"unknown key --{name}" in fails(f"--{name}=2")


def test_unknown_name_in_a_file_names_file_and_nearest_key(fails):
    file = config("x.py", "bach_size = 3\n")
    assert fails(file).startswith(f"{file}: unknown key bach_size; did you mean batch_size?\n")


def test_files_may_import_define_functions_and_keep_private_names(run):
    text = "import math\ndef half(x): return x / 2\n_steps = 8\ntau = half(math.sqrt(_steps * 2))\n"
    assert run(config("x.py", text))["tau"] == 2.0


@pytest.mark.parametrize("argv", [["--batch_size", "3"], ["-tau=3"], ["--tau"], ["-x"]])
def test_flags_need_two_dashes_and_an_equals_sign(fails, argv):
    assert f"cannot read {argv[0]}: write --key=value" in fails(*argv)


def test_broken_files_are_named_with_the_line(fails):
    assert fails("config/none.py").startswith("no config file 'config/none.py';")
    syntax = config("syntax.py", "tau = 1\nbatch_size = = 3\n")
    assert fails(syntax).startswith(f"{syntax}, line 2: SyntaxError: invalid syntax")
    raises = config("raises.py", "tau = 1\n\nbatch_size = 3 // 0\n")
    assert fails(raises).startswith(f"{raises}, line 3: ZeroDivisionError: ")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--batch_size=0"], "batch_size 0: expected 1 <= batch_size <= 10**6\n"),
        (["--tau=3"], "tau 3.0: expected -1 <= tau <= 2 (or None)\n"),
        (["--betas=(0.9, 1)"], "betas (0.9, 1.0): expected 0 <= betas < 1\n"),
        (["--tau=2", "--batch_size=1"], "tau 2.0, batch_size 1: expected tau <= batch_size\n"),
        (["config/tau.py", "--batch_size=1"], "tau 1.5, batch_size 1: expected tau <= batch_size"),
    ],
)
def test_values_out_of_their_limits_are_named(fails, argv, message):
    config("tau.py", "tau = 1.5")
    assert fails(*argv).startswith(message)


def test_limits_hold_for_what_is_left_in_the_end(run):
    assert run("--batch_size=0", "--batch_size=9")["batch_size"] == 9
    assert run("--tau=None", "--batch_size=1")["tau"] is None


def test_a_value_that_cannot_be_compared_is_out_of_its_limits():
    with pytest.raises(ValueError, match="a 'x': expected 0 <= a"):
        check_limits("0 <= a", {"a": "x"})
    check_limits("0 <= a", {"a": [1, None, 2]})


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        (b"import sys\ntau = 1\nsys.exit(0)", ", line 3", "SystemExit: 0"),
        (b"quit()", ", line 1", "SystemExit"),
        (b"\nraise KeyboardInterrupt", ", line 2", "KeyboardInterrupt"),
        (b"def f():\n    f()\nf()", ", line 2", "RecursionError"),
        (b"import json\njson.loads('{')", ", line 2", "JSONDecodeError"),
        (b"raise ValueError('a\\nb' * 999)", ", line 1", "ValueError: a ba b"),
        (bytes(range(256)), "", ""),
        (b"tau = 1\0", "", "null bytes"),
        (b"batch_size = 10**5000", ": batch_size", "got the int a huge int"),
        (b"names = []\nfor _ in range(10**5): names = [names]", ": names", "a huge list"),
    ],
)
def test_files_that_end_otherwise_are_named_in_one_line(fails, text, line, reason):
    Path("config/x.py").write_bytes(text)
    message, _ = fails("config/x.py").splitlines()
    assert message.startswith(f"config/x.py{line}") and reason in message and len(message) < 500


def test_errors_of_sizes_are_messages_and_mistakes_of_ours_are_not():
    for error in (RuntimeError("no memory:\nx"), MemoryError(), ValueError("a\nb")):
        with pytest.raises(SystemExit, match=type(error).__name__), errors_as_messages():
            raise error
    with pytest.raises(SystemExit, match=r"^interrupted$"), errors_as_messages():
        raise KeyboardInterrupt
    with pytest.raises(RuntimeError), errors_as_messages():
        raise RuntimeError("a mistake")


@pytest.mark.parametrize("argv", [["--help"], ["-h"], ["--tau=0.5", "--help"]])
def test_help_shows_every_key_with_default_comment_and_section(run, capsys, argv):
    with pytest.raises(SystemExit) as stop:
        run(*argv)
    assert stop.value.code == 0
    assert capsys.readouterr().out == HELP


def test_files_build_on_one_another_from_any_directory(folder, tmp_path_factory):
    config("base.py", "task = 'coins'\ntau = 0.5\n")
    config("child.py", "from config.base import *\n\ntau = 0.25\n")
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    done = subprocess_run(folder, f"{folder}/config/child.py", "--batch_size=4", cwd=elsewhere)
    assert (done.stdout, done.stderr, done.returncode) == ("coins 4 0.25\n", "", 0)


def test_an_error_in_the_file_built_upon_names_that_file(folder):
    config("base.py", "tau = 0.5\nbatch_size = undefined\n")
    config("child.py", "from config.base import *\n")
    done = subprocess_run(folder, "config/child.py")
    assert "base.py, line 2: NameError: name 'undefined'" in done.stderr and done.returncode == 2


def test_the_command_shows_no_traceback(folder):
    done = subprocess_run(folder, "--taau=1")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.splitlines()[0] == "unknown key --taau; did you mean --tau?"
    assert "Traceback" not in done.stderr
