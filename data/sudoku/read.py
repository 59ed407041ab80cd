"""Sudoku puzzles in other people's files, each checked against the rules.

A .csv has a puzzle and its solution in a row, L digits each, 0 or a dot for a blank, and a header
that says where (COLUMNS). A rating is needed only for max_rating. So are "3 million Sudoku puzzles
with ratings" (Kaggle, D. Radcliffe), "1 million Sudoku games" and Sudoku-Extreme.

An .npy of solving steps is (N, 1 + 4 L) whole numbers, as the set of Shah et al. (arXiv
2409.10502), on which the paper trains. A row: the number of clues, then (row, column, value,
strategy) of the clues and of the other cells in solving order; rows and columns from 0, or from 1.

Nothing here checks that a puzzle has only one solution.
"""

import csv
import itertools
import math
from pathlib import Path

import numpy as np

from sudoku import solves

COLUMNS = [  # their usual names
    ("puzzle", "quizzes", "question"),
    ("solution", "solutions", "answer"),
    ("rating", "difficulty"),
]
SLAB = 1 << 14  # rows read at once


def read(path, box, max_rating=math.inf):
    """Puzzles and solutions of a file, uint8 (N, 2, L). Raises ValueError, OSError."""
    is_steps = Path(path).suffix == ".npy"
    if is_steps and max_rating < math.inf:
        raise ValueError(f"{path}: max_rating={max_rating}, but an .npy of steps has no ratings")
    slabs = read_steps(path, box) if is_steps else read_csv(path, box, max_rating)
    parts = []
    for places, pairs in slabs:
        puzzles, solutions = pairs.swapaxes(0, 1)
        refuse((puzzles > 0).all(1), path, places, "no blank cell")
        wrong = ~solves(solutions, puzzles, box)
        refuse(wrong, path, places, "the solution breaks the rules or disagrees with the clues")
        parts.append(pairs.astype(np.uint8))
    if not parts:
        raise ValueError(f"{path}: no puzzle, or none of a rating up to {max_rating}")
    return np.concatenate(parts)


def refuse(bad, path, places, complaint):
    """Raise ValueError for the first row where bad (N,) is True; places: what they are called."""
    if bad.any():
        raise ValueError(f"{path}, {places[bad.argmax()]}: {complaint}")


def read_csv(path, box, max_rating):
    """Yields lists of lines ("line 7"), and their puzzles and solutions (<= SLAB, 2, L)."""
    with open(path, newline="", encoding="utf-8-sig", errors="replace") as file:
        table = csv.reader(file)
        header = [name.strip().lower() for name in next(table, [])]
        puzzle, solution, rating = (column(header, names) for names in COLUMNS)
        if None in (puzzle, solution) or (max_rating < math.inf and rating is None):
            raise ValueError(f"{path}: expected a header with {COLUMNS}, got {header!s:.99}")
        while slab := [(table.line_num, row) for row in itertools.islice(table, SLAB)]:
            try:
                slab = [(at, row) for at, row in slab if row]
                if max_rating < math.inf:
                    slab = [(at, row) for at, row in slab if float(row[rating]) <= max_rating]
                texts = [(at, row[puzzle].strip(), row[solution].strip()) for at, row in slab]
            except (IndexError, ValueError) as error:
                raise ValueError(f"{path}, lines up to {table.line_num}: {error}") from None
            if texts:
                yield decoded(path, box, *zip(*texts, strict=True))


def column(header, names):
    """Where in a header one of the names is, or None."""
    return next((header.index(name) for name in names if name in header), None)


def decoded(path, box, lines, *columns):
    """The names of lines, and the digits of columns of N strings each, uint8 (N, 2, L)."""
    n = box[0] * box[1]
    places = [f"line {line}" for line in lines]
    grids = []
    for texts in columns:
        wrong = np.array([len(text) != n * n for text in texts])
        refuse(wrong, path, places, f"expected {n * n} cells, as --box={box} has")
        codes = "".join(texts).replace(".", "0").encode("latin-1", "replace")
        grids.append(np.frombuffer(codes, np.uint8).reshape(-1, n * n) - np.uint8(ord("0")))
        refuse((grids[-1] > n).any(1), path, places, f"cells are digits to {n}, blanks 0 or a dot")
    return places, np.stack(grids, 1)


def read_steps(path, box):
    """As read_csv, of an .npy of solving steps."""
    n = box[0] * box[1]
    try:
        table = np.load(path, mmap_mode="r")
    except (EOFError, ValueError) as error:
        raise ValueError(f"{path}: no whole .npy file: {error}") from None
    if table.shape[1:] != (1 + 4 * n * n,):
        raise ValueError(f"{path}: shape {table.shape}, expected (N, {1 + 4 * n * n}), by --box")
    first = table[:1, 1:].reshape(-1, 4)
    base = int(first[:, :2].min(initial=1))  # the number of the first line
    for at in range(0, len(table), SLAB):
        rows = table[at : at + SLAB].astype(int)
        places = [f"row {at + i}" for i in range(len(rows))]
        line, col, value, _ = np.moveaxis(rows[:, 1:].reshape(-1, n * n, 4), 2, 0)  # (N, L)
        cell = (line - base) * n + col - base
        refuse((np.sort(cell) != np.arange(n * n)).any(1), path, places, "not each cell once")
        clue = np.arange(n * n) < rows[:, :1]
        pairs = np.zeros((len(rows), 2, n * n), int)
        np.put_along_axis(pairs[:, 0], cell, value * clue, 1)
        np.put_along_axis(pairs[:, 1], cell, value, 1)
        yield places, pairs
