"""What the tests of data/ share: small files, a script run in this process, slow Sudoku."""

import functools
import itertools
import json
from pathlib import Path

import datasets
import pytest

from data import rows

ROOT = Path(__file__).parents[2]
VOCABULARY = rows.tokenizer(ROOT / "data/wordproblems/vocabulary.tiktoken")


def write_lines(path, objects):
    """Write JSON lines; what is text is written as it is. Returns the path."""
    lines = (row if isinstance(row, str) else json.dumps(row) for row in objects)
    path.write_text("".join(line + "\n" for line in lines))
    return path


def contents(folder):
    """{name: bytes} of its files."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def header(folder):
    return json.loads((folder / "header.json").read_text())


def run_main(module, out, **settings):
    """main() of a prepare.py with these settings, in pieces of 96 rows; the folder it wrote."""
    settings = {"out": str(out), "length": 64, "val": 0.1, "workers": 1} | settings
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "PIECE", 96)
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", Path(out).parent / "cache")
        for name, value in settings.items():
            patch.setattr(module, name, value)
        module.main()
    return Path(out)


# -- Sudoku by the book ----------------------------------------------------------------------------
def units_of(box):
    """Rows, columns and boxes by the book, as lists of cells."""
    n = box[0] * box[1]
    units = {}
    for r, c in itertools.product(range(n), repeat=2):
        for name in ("row", r), ("column", c), ("box", r // box[0], c // box[1]):
            units.setdefault(name, []).append(r * n + c)
    return list(units.values())


@functools.cache
def peers_of(box):
    cells = range((box[0] * box[1]) ** 2)
    return [{p for u in units_of(box) if c in u for p in u} - {c} for c in cells]


def candidates(grid, box):
    """{blank cell: the digits that none of its peers has}"""
    digits = {*range(1, box[0] * box[1] + 1)}
    peers = peers_of(box)
    return {c: digits - {grid[p] for p in peers[c]} for c, digit in enumerate(grid) if not digit}


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
