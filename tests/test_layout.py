"""The size of the root, in absolute numbers that no change raises: who adds, removes."""

import ast
import subprocess
import sys

import pytest
from conftest import ENV, ROOT, SMALL

FILES = sorted(ROOT.glob("*.py"))
NAMES = [
    "checkpoint", "configurator", "loss", "model", "muon", "policies", "puma", "sample", "sudoku",
    "text", "train",
]  # fmt: skip
TESTS = sorted((ROOT / "tests").glob("*.py"))
LOADED = """
import runpy, sys
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
print("LOADED", *{m.__file__ for m in [*sys.modules.values()] if getattr(m, "__file__", None)})
"""


def lines(*files):
    return sum(len(file.read_text().splitlines()) for file in files)


def test_eleven_files_and_what_they_import():
    assert [file.stem for file in FILES] == NAMES
    allowed = {"torch", "numpy", "tqdm", *sys.stdlib_module_names, *NAMES}
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            assert {name.split(".")[0] for name in names} <= allowed, file


def test_lines():
    assert lines(*FILES) <= 1350
    assert max(map(lines, FILES)) <= 300
    assert lines(*TESTS) <= 900
    assert lines(*(ROOT / "theory").glob("*.py")) <= 1300
    assert len([*(ROOT / "theory").glob("*.py")]) <= 5
    assert len((ROOT / "README.md").read_text().split()) <= 1100
    assert max(len(line) for file in FILES for line in file.read_text().splitlines()) <= 100


def test_the_whole_house():
    """What git follows: code, tests, files, words of pages."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone")
    listed = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True)
    files = [ROOT / name for name in listed.split("\n")[:-1]]
    python = {file for file in files if file.suffix == ".py"}
    tests = {file for file in python if "tests" in file.relative_to(ROOT).parts}
    pages = {file: len(file.read_text().split()) for file in files if file.suffix == ".md"}
    assert lines(*python - tests) <= 7900
    assert lines(*tests) <= 4800
    assert len(files) <= 155
    assert sum(pages.values()) <= 14_000
    findings = {"README.md", "older.md"}  # the two that are no page of a finding
    assert all(n <= 900 for file, n in pages.items()
               if file.parent.name == "results" and file.name not in findings)  # fmt: skip


def test_no_line_is_packed():
    """`a, b = c, d`: at most one in a hundred lines of any file."""
    for file in FILES:
        nodes = ast.walk(ast.parse(file.read_text()))
        packed = [
            node for node in nodes
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Tuple)
            and isinstance(node.value, ast.Tuple)
        ]  # fmt: skip
        assert 100 * len(packed) <= lines(file), (file, [node.lineno for node in packed])


def test_what_a_sudoku_run_loads(puzzles, tmp_path):
    flags = [*SMALL, f"--data={puzzles}", f"--out_dir={tmp_path}/a", "--max_iters=2"]
    command = [sys.executable, "-c", LOADED, "train.py", *flags]
    done = subprocess.run(command, cwd=ROOT, env=ENV, capture_output=True, text=True, check=True)
    loaded = done.stdout.split("LOADED ")[1].split()
    own = {file for file in FILES if str(file) in loaded} | {ROOT / "train.py"}
    assert len(own) == 10, own  # all but text.py
    assert lines(*own) <= 1200
