"""What the tests of data/ share: small files, a script run in this process, slow Sudoku."""

import functools
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


def write_lines(path, objects):
    """Write JSON lines; what is text is written as it is. Returns the path."""
    lines = (row if isinstance(row, str) else json.dumps(row) for row in objects)
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def contents(folder):
    """{name: bytes} of its files."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def prepare(name, **flags):
    """data/NAME/prepare.py as a user runs it, but in this process alone; the folder it wrote."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "cpu_count", lambda: None)
        script = ROOT / "data" / name / "prepare.py"
        patch.setattr(sys, "argv", [str(script), *(f"--{k}={v}" for k, v in flags.items())])
        runpy.run_path(str(script), run_name="__main__")
    return Path(flags.get("out", ""))


# -- Sudoku by the book ----------------------------------------------------------------------------
@functools.cache
def units_of(box):
    """Rows, columns and boxes by the book, as lists of cells."""
    n = box[0] * box[1]
    units = {}
    for r, c in itertools.product(range(n), repeat=2):
        for name in ("row", r), ("column", c), ("box", r // box[0], c // box[1]):
            units.setdefault(name, []).append(r * n + c)
    return list(units.values())


def candidates(grid, box):
    """{blank cell: the digits that none of its peers has}"""
    left = {c: {*range(1, box[0] * box[1] + 1)} for c, digit in enumerate(grid) if not digit}
    for unit in units_of(box):
        for c in left.keys() & unit:
            left[c] -= {grid[p] for p in unit}
    return left


def solutions(puzzle, box):
    """All solutions (L,), by search with fewest candidates first."""
    grid = [*map(int, puzzle)]

    def search():
        options = candidates(grid, box)
        if not options:
            yield [*grid]
            return
        cell = min(options, key=lambda c: len(options[c]))
        for digit in options[cell]:
            grid[cell] = digit
            yield from search()
        grid[cell] = 0

    return search()


def renamed_clues(puzzle):
    """Its digits in the order of their first appearance: 1, 2, ..; 0 stays."""
    names = {0: 0}
    return tuple(names.setdefault(digit, len(names)) for digit in puzzle)
