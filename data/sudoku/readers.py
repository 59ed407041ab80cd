"""Readers of other people's files of Sudoku puzzles, in batches: a file may have millions.

What they read obeys the rules (sudoku.validate), or a ValueError says where it does not. Whether a
puzzle has only one solution is not checked.
"""

import csv
import itertools
import math
from pathlib import Path

import numpy as np

from data import files
from data.sudoku import rules as sudoku


def read(path, box, max_rating=None):
    """Batches (puzzles, solutions), uint8 (<= SLAB, L) twice, of a .csv or an .npy of steps."""
    if (suffix := Path(path).suffix) == ".csv":
        return read_csv(path, box, max_rating)
    if suffix != ".npy":
        raise ValueError(f"{path}: must end in .csv or .npy")
    if max_rating is not None:
        raise ValueError(f"{path}: max_rating={max_rating}, but an .npy of steps has no ratings")
    return read_steps(path, box)


# -- text ------------------------------------------------------------------------------------
def symbol_table(n):
    """The digit that each byte stands for, uint8 (256,); 255 = none."""
    table = np.full(256, 255, np.uint8)
    table[ord(".")] = 0
    for digit, symbol in enumerate(sudoku.SYMBOLS[: n + 1]):
        table[ord(symbol)] = table[ord(symbol.lower())] = digit
    return table


def decode(texts, box, name):
    """The digits of strings of L symbols, uint8 (N, L); name(row) as in `rules.validate`."""
    cells = sudoku.side(box) ** 2
    for row, text in enumerate(texts):
        if len(text) != cells:
            raise ValueError(f"{name(row)}: {len(text)} characters, must be {cells}")
    data = np.frombuffer("".join(texts).encode("latin-1", "replace"), np.uint8).reshape(-1, cells)
    digits = symbol_table(sudoku.side(box))[data]
    if (digits == 255).any():
        row, cell = np.argwhere(digits == 255)[0]
        raise ValueError(
            f"{name(row)}: {texts[row][cell]!r} at cell {cell} is neither a digit up to "
            f"{sudoku.SYMBOLS[sudoku.side(box)]} nor a blank (0 or .)"
        )
    return digits


def parse(text, box):
    """The puzzle or grid written as L symbols, uint8 (L,); `0` and `.` are blanks.

    Digits above 9 are letters, A = 10; spaces and line breaks are ignored. Raises ValueError.
    """
    return decode(["".join(text.split())], box, lambda row: "puzzle")[0]


# -- puzzles alone ----------------------------------------------------------------------------
def read_puzzles(path, box):
    """The puzzles of a file, uint8 (N, L): one per line, or a CSV file with a column `puzzle`.

    Raises FileNotFoundError, or ValueError that names the line.
    """
    rows = [*csv_rows(path)]
    header = names_in(rows[0][1]) if rows else []
    column = header.index("puzzle") if "puzzle" in header else None
    rows = rows if column is None else rows[1:]
    if not rows:
        raise ValueError(f"{path} has no puzzle: expected one per line")
    puzzles = []
    for line, row in rows:
        try:
            puzzles.append(parse(row[column or 0], box))
            sudoku.validate(puzzles[-1][None], box, name="puzzle".format)
        except (ValueError, IndexError) as error:
            raise ValueError(f"{path}, line {line}: {error}") from None
    return np.stack(puzzles)


# -- CSV -------------------------------------------------------------------------------------
def read_csv(path, box, max_rating=None):
    """Batches as in `read` of a CSV file with a header. Raises ValueError with row and line.

    Columns `puzzle` and `solution`, for `max_rating` also `difficulty` or `rating`; others are
    ignored. "3 million Sudoku puzzles with ratings" (Kaggle, D. Radcliffe) has them,
    Sudoku-Extreme as `question`, `answer` and `rating`.
    """
    records, first = csv_records(path, max_rating), 0
    while batch := list(itertools.islice(records, sudoku.SLAB)):
        lines, *texts = zip(*batch, strict=True)

        def name(row, lines=lines, first=first):
            return f"{path}, line {lines[row]} (row {first + row})"

        puzzles, solutions = (decode(text, box, name) for text in texts)
        sudoku.validate(puzzles, box, solutions, name)
        yield puzzles, solutions
        first += len(batch)


def csv_rows(path, errors="strict"):
    """(line number, fields) of the non-empty rows of a CSV file. Raises ValueError."""
    reader = csv.reader(files.lines(path, errors))
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise ValueError(f"{path}, line {reader.line_num}: {error}") from None
        if row:
            yield reader.line_num, row


def csv_records(path, max_rating):
    """(line number, puzzle and solution as strings) of the rows rated up to max_rating."""
    rows = csv_rows(path, errors="replace")
    puzzle, solution, rating = columns(next(rows, (0, []))[1], path)
    if max_rating is not None and rating is None:
        raise ValueError(f"{path}: max_rating={max_rating}, but no difficulty or rating column")
    for line, row in rows:
        try:
            record = line, row[puzzle], row[solution]
            rated = -math.inf if max_rating is None else float(row[rating])
            if math.isnan(rated):
                raise ValueError("no rating")
        except (IndexError, ValueError):
            raise ValueError(
                f"{path}, line {line}: not a puzzle, solution and rating: {files.brief(row)}"
            ) from None
        if max_rating is None or rated <= max_rating:
            yield record


def columns(header, path):
    """Indices of puzzle, solution and rating (None if absent) in a CSV header."""
    names = names_in(header)
    if "puzzle" not in names or "solution" not in names:
        raise ValueError(
            f"{path}: the header must name puzzle and solution, but it is {files.brief(header)}"
        )
    rating = next((names.index(name) for name in ("difficulty", "rating") if name in names), None)
    return names.index("puzzle"), names.index("solution"), rating


def names_in(header):
    names = [name.strip().lower() for name in header]
    return [{"question": "puzzle", "answer": "solution"}.get(name, name) for name in names]


# -- solving steps ---------------------------------------------------------------------------
def read_steps(path, box):
    """Batches as in `read` of an .npy of solving steps, (N, 1 + 4 L) whole numbers.

    Each row: the number of clues, then (row, column, value, strategy) of the clues and of the other
    cells in solving order, rows and columns from 0 (or from 1: the first row tells); this is the
    set of Shah et al. 2024 (1.8 million for training). Raises ValueError with the row.
    """
    table, _ = files.open_array(path)
    width = 1 + 4 * sudoku.side(box) ** 2
    if table.ndim != 2 or table.shape[1] != width:
        raise ValueError(f"{path}: shape {table.shape}, must be (N, {width})")
    base = 0
    for at in range(0, len(table), sudoku.SLAB):

        def name(row, at=at):
            return f"{path}, row {at + row}"

        with np.errstate(invalid="ignore"):  # of nan and infinity, which are refused
            rows = table[at : at + sudoku.SLAB].astype(np.int64)
        refuse((rows != table[at : at + sudoku.SLAB]).any(1), name, "not whole numbers")
        if at == 0:
            base = int(rows[0, 1:].reshape(-1, 4)[:, :2].min() > 0)
        puzzles, solutions = place(rows, box, base, name)
        sudoku.validate(puzzles, box, solutions, name)
        yield puzzles, solutions


def place(rows, box, base, name):
    """Puzzles and solutions (N, L) of rows (N, 1 + 4 L); `base` is the number of the first line."""
    n, count = sudoku.side(box), rows[:, 0]
    line, col, value = np.moveaxis(rows[:, 1:].reshape(len(rows), n * n, 4)[:, :, :3], 2, 0)
    line, col = line - base, col - base
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


def refuse(bad, name, complaint):
    """Raise ValueError at the first row where bad (N,) is True; name(row) as in `validate`."""
    if bad.any():
        raise ValueError(f"{name(int(bad.argmax()))}: {complaint}")
