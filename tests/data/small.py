"""What the tests of data/ share: small files, a script run in this process, slow Sudoku."""

import itertools
import json
import os
import runpy
import sys
from pathlib import Path

import pytest

from data import tokenizer

ROOT = Path(__file__).parents[2]
RANKS = ROOT / "data/wordproblems/vocabulary.tiktoken"
VOCABULARY = tokenizer.named(RANKS)


def write_lines(path, rows):
    """Write JSON lines; returns the path."""
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text(lines, encoding="utf-8")
    return path


def contents(folder):
    """{name: bytes} of its files."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def prepare(name, **flags):
    """data/NAME/prepare.py as a user runs it, but in this process alone; the folder it wrote."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "cpu_count", lambda: None)
        script = str(ROOT / "data" / name / "prepare.py")
        patch.setattr(sys, "argv", [script, *(f"--{k}={v}" for k, v in flags.items())])
        runpy.run_path(script, run_name="__main__")
    return Path(flags["out"])


# -- Sudoku by the book ----------------------------------------------------------------------------
def units_of(box):
    """Rows, columns and boxes by the book, as lists of cells."""
    n = box[0] * box[1]
    units = {}
    for r, c in itertools.product(range(n), repeat=2):
        for name in ("row", r), ("column", c), ("box", r // box[0], c // box[1]):
            units.setdefault(name, []).append(r * n + c)
    return list(units.values())


def candidates(grid, units):
    """{blank cell: the digits that no cell of its units has}"""
    left = {c: {*range(1, len(units[0]) + 1)} for c, digit in enumerate(grid) if not digit}
    for unit in units:
        for c in left.keys() & unit:
            left[c] -= {grid[p] for p in unit}
    return left


def solutions(grid, units):
    """All solutions (L,), by search with fewest candidates first."""
    options = candidates(grid, units)
    if not options:
        yield grid
        return
    cell = min(options, key=lambda c: len(options[c]))
    for digit in options[cell]:
        yield from solutions([*grid[:cell], digit, *grid[cell + 1 :]], units)


def renamed_clues(puzzle):
    """Its digits in the order of their first appearance: 1, 2, ..; 0 stays."""
    names = {0: 0}
    return tuple(names.setdefault(digit, len(names)) for digit in puzzle)
