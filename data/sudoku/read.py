"""Sudoku puzzles in other people's files, each checked against the rules.

A .csv has a puzzle and its solution in a row, blanks as 0 or a dot: the columns `puzzle` and
`solution`, by one of their usual NAMES, wherever they are, or just these two columns and no header.
A `rating` or `difficulty` is needed only for max_rating. So are "3 million Sudoku puzzles with
ratings" (Kaggle, D. Radcliffe), "1 million Sudoku games" and Sudoku-Extreme.

An .npy of solving steps is (N, 1 + 4 L) whole numbers, as the set of Shah et al. 2024. A row: the
number of clues, then (row, column, value, strategy) of the clues and of the other cells in solving
order, rows and columns from 0, or from 1 (the first row tells).

Nothing here checks that a puzzle has only one solution.
"""

import itertools
import math
import re
from pathlib import Path

import numpy as np

from data.files import brief, csv_rows, regular
from sudoku import unit_cells

NAMES = {
    "puzzle": ("puzzle", "puzzles", "quiz", "quizzes", "question", "questions"),
    "solution": ("solution", "solutions", "answer", "answers"),
    "rating": ("rating", "difficulty"),
}
SLAB = 1 << 14  # rows checked at once


def read(path, box, max_rating=None):
    """Puzzles and solutions of a file, uint8 (N, 2, L). Raises ValueError, OSError."""
    suffix = Path(path).suffix
    if suffix == ".csv":
        batches = read_csv(path, box, max_rating)
    elif suffix != ".npy":
        raise ValueError(f"{path}: expected a .csv, or an .npy of solving steps")
    elif max_rating is not None:
        raise ValueError(f"{path}: max_rating={max_rating}, but an .npy of steps has no ratings")
    else:
        batches = read_steps(path, box)
    parts = []
    for puzzles, solutions, name in batches:
        check(puzzles, solutions, box, name)
        parts.append(np.stack([puzzles, solutions], 1))
    if not parts:
        limit = "" if max_rating is None else f" rated at most {max_rating}"
        raise ValueError(f"{path}: no puzzle{limit}")
    return np.concatenate(parts)


# -- rules -----------------------------------------------------------------------------------------
def check(puzzles, solutions, box, name):
    """Raise ValueError for the first row of puzzles, solutions (N, L) that breaks the rules.

    name(row) is what the message calls it.
    """
    refuse((puzzles > 0).all(1), name, "no blank cell")
    refuse(repeats(puzzles, box), name, "the same clue twice in a row, column or box")
    wrong = (solutions == 0).any(1) | repeats(solutions, box)
    refuse(wrong, name, "the solution breaks the rules")
    disagrees = (puzzles > 0) & (puzzles != solutions)
    refuse(disagrees.any(1), name, "the solution disagrees with the clues")


def repeats(grids, box):
    """Whether a row, column or box of grids (N, L) has a digit twice, bool (N,)."""
    ordered = np.sort(grids[:, unit_cells(box)], 2)  # (N, 3 n, n)
    equal = (ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] > 0)
    return equal.any((1, 2))


def refuse(bad, name, complaint):
    """Raise ValueError for the first row where bad (N,) is True."""
    if bad.any():
        raise ValueError(f"{name(int(bad.argmax()))}: {complaint}")


# -- tables ----------------------------------------------------------------------------------------
def read_csv(path, box, max_rating):
    """Yields puzzles and solutions, uint8 (<= SLAB, L) each, and what to call their rows."""
    records = csv_records(path, max_rating)
    while batch := list(itertools.islice(records, SLAB)):
        lines, *texts = zip(*batch, strict=True)

        def name(row, lines=lines):
            return f"{path}, line {lines[row]}"

        puzzles, solutions = (decode(column, box, name) for column in texts)
        yield puzzles, solutions, name


def csv_records(path, max_rating):
    """(line number, puzzle, solution) as strings, of the rows rated up to max_rating."""
    rows = csv_rows(path)
    line, first = next(rows, (0, []))
    if len(first) == 2 and all(re.fullmatch(r"[\d.]{16,}", field) for field in first):
        rows = itertools.chain([(line, first)], rows)
        columns = {"puzzle": 0, "solution": 1}
    else:
        columns = columns_of(first, path)
    if max_rating is not None and "rating" not in columns:
        raise ValueError(f"{path}: max_rating={max_rating}, but no column difficulty or rating")
    last = max(columns.values())
    rating = columns.get("rating")
    for line, row in rows:
        if len(row) <= last:
            raise ValueError(f"{path}, line {line}: too few columns: {brief(row)}")
        if max_rating is None or number(row[rating], path, line, first[rating]) <= max_rating:
            yield line, row[columns["puzzle"]], row[columns["solution"]]


def columns_of(header, path):
    """Where in a header puzzle, solution and, if it is there, rating are."""
    header = [field.lower() for field in header]
    found = {
        column: next(header.index(name) for name in names if name in header)
        for column, names in NAMES.items()
        if {*header} & {*names}
    }
    if not {"puzzle", "solution"} <= {*found}:
        raise ValueError(f"{path}: expected a header with puzzle and solution, got {brief(header)}")
    return found


def number(text, path, line, column):
    """The rating as a number. Raises ValueError."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        where = f"{path}, line {line}, column {column}"
        raise ValueError(f"{where}: the rating {brief(text)} is not a number")
    return value


def decode(texts, box, name):
    """The digits of strings of L characters, uint8 (N, L)."""
    n = box[0] * box[1]
    for row, text in enumerate(texts):
        if len(text) != n * n:
            raise ValueError(f"{name(row)}: {len(text)} cells, but --box={box} has {n * n}")
    codes = "".join(texts).replace(".", "0").encode("latin-1", "replace")
    digits = np.frombuffer(codes, np.uint8).reshape(-1, n * n) - np.uint8(ord("0"))
    refuse((digits > n).any(1), name, f"cells must be digits up to {n}, blanks 0 or a dot")
    return digits


# -- solving steps ---------------------------------------------------------------------------------
def read_steps(path, box):
    """Yields puzzles and solutions, uint8 (<= SLAB, L) each, and what to call their rows."""
    table = open_array(path)
    width = 1 + 4 * (box[0] * box[1]) ** 2
    if table.ndim != 2 or table.shape[1] != width:
        raise ValueError(f"{path}: shape {table.shape}, but steps for --box={box} are (N, {width})")
    for at in range(0, len(table), SLAB):

        def name(row, at=at):
            return f"{path}, row {at + row}"

        part = table[at : at + SLAB]
        with np.errstate(invalid="ignore"):  # of nan and infinity, which are refused
            rows = part.astype(np.int64)
        refuse((rows != part).any(1), name, "not whole numbers")
        if at == 0:
            base = int(rows[0, 1:].reshape(-1, 4)[:, :2].min() > 0)
        yield *place(rows, box, base, name), name


def open_array(path):
    """The numbers in an .npy file, memory-mapped. Raises ValueError that names the file."""
    path = regular(path)
    try:
        array = np.load(path, mmap_mode="r")
        if array.dtype.kind not in "iuf":
            raise ValueError(f"an array of {array.dtype}, expected numbers")
    except Exception as error:  # numpy's are of many kinds
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{path}: not a whole .npy file: {reason}") from None
    return array


def place(rows, box, base, name):
    """Puzzles and solutions (N, L) of rows (N, 1 + 4 L); base: the number of the first line."""
    n = box[0] * box[1]
    count = rows[:, 0]
    line, col, value = np.moveaxis(rows[:, 1:].reshape(-1, n * n, 4)[:, :, :3], 2, 0)
    line = line - base
    col = col - base
    refuse((count < 1) | (count >= n * n), name, "the number of clues is out of range")
    outside = (line < 0) | (line >= n) | (col < 0) | (col >= n)
    refuse(outside.any(1), name, f"a row or column is not in {base}..{n - 1 + base}")
    refuse(((value < 1) | (value > n)).any(1), name, f"a value is not in 1..{n}")
    puzzles, solutions = np.zeros((2, len(rows), n * n), np.uint8)
    np.put_along_axis(solutions, line * n + col, value.astype(np.uint8), 1)
    refuse((solutions == 0).any(1), name, "a cell occurs twice")
    clue = np.arange(n * n) < count[:, None]
    np.put_along_axis(puzzles, line * n + col, (value * clue).astype(np.uint8), 1)
    return puzzles, solutions
