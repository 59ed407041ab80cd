"""Sudoku puzzles in the files of the paper's two sources, each checked against the rules.

A .csv, as "3 million Sudoku puzzles with ratings" (Kaggle, D. Radcliffe): its header names `puzzle`
and `solution`, L digits each, 0 or a dot for a blank, and for max_rating `difficulty` or `rating`.

An .npy of solving steps, (N, 1 + 4 L) whole numbers, as the set of Shah et al. (arXiv 2409.10502).
A row: the number of clues, then (row, column, value, strategy) of the clues and of the other cells
in solving order; rows and columns from 0, or from 1.

Nothing here checks that a puzzle has only one solution.
"""

import csv
import math
import re
from pathlib import Path

import numpy as np

from data.sudoku.held_out import slabs
from sudoku import solves


def read(path, box, max_rating=math.inf):
    """Puzzles and solutions of a file, uint8 (N, 2, L). Raises ValueError, OSError."""
    is_steps = Path(path).suffix == ".npy"
    pairs = read_steps(path, box) if is_steps else read_csv(path, box, max_rating)
    if not len(pairs):
        raise ValueError(f"{path}: no puzzle, or none of a rating up to {max_rating}")
    for part in slabs(pairs):
        puzzles, solutions = part.swapaxes(0, 1)
        good = solves(solutions, puzzles, box) & (puzzles == 0).any(1)
        if not good.all():
            puzzle = "".join(map(str, puzzles[good.argmin()]))
            raise ValueError(f"{path}: {puzzle} has no blank cell, or its solution is wrong")
    return pairs


def read_csv(path, box, max_rating):
    n = box[0] * box[1]
    form = re.compile(rf"[.0-{n}]{{{n * n}}}[1-{n}]{{{n * n}}}")
    texts = []
    with open(path, newline="", encoding="utf-8-sig", errors="replace") as file:
        table = csv.DictReader(file, restval="")
        header = table.fieldnames or []
        rating = "difficulty" if "difficulty" in header else "rating"
        needed = ["puzzle", "solution"] + [rating] * (max_rating < math.inf)
        if not {*needed} <= {*header}:
            raise ValueError(f"{path}: expected a header with {', '.join(needed)}")
        for row in table:
            try:
                if max_rating < math.inf and not float(row[rating]) <= max_rating:
                    continue
            except ValueError as error:
                raise ValueError(f"{path}, line {table.line_num}: {error}") from None
            if not form.fullmatch(text := row["puzzle"] + row["solution"]):
                expected = f"two grids of {n * n} digits to {n}, blanks 0 or a dot, by --box={box}"
                raise ValueError(f"{path}, line {table.line_num}: expected {expected}")
            texts.append(text)
    digits = "".join(texts).replace(".", "0").encode()
    return np.frombuffer(digits, np.uint8).reshape(-1, 2, n * n) - np.uint8(ord("0"))


def read_steps(path, box):
    n = box[0] * box[1]
    try:
        table = np.load(path, mmap_mode="r")
    except (EOFError, ValueError) as error:
        raise ValueError(f"{path}: no whole .npy file: {error}") from None
    if table.shape[1:] != (1 + 4 * n * n,):
        raise ValueError(f"{path}: shape {table.shape}, expected (N, {1 + 4 * n * n}), by --box")
    base = table[:1, 1:].reshape(-1, 4)[:, :2].min(initial=1)  # the number of the first line
    pairs = np.zeros((len(table), 2, n * n), np.uint8)
    for rows, made in zip(slabs(table), slabs(pairs), strict=True):
        rows = rows.astype(int)
        line, col, value, _ = np.moveaxis(rows[:, 1:].reshape(-1, n * n, 4), 2, 0)  # (N, L)
        cell = (line - base) * n + col - base
        if (np.sort(cell) != np.arange(n * n)).any() or ((value < 1) | (value > n)).any():
            raise ValueError(f"{path}: a row that has not each cell once, with a digit to {n}")
        clue = np.arange(n * n) < rows[:, :1]
        np.put_along_axis(made[:, 0], cell, value * clue, 1)
        np.put_along_axis(made[:, 1], cell, value, 1)
    return pairs
