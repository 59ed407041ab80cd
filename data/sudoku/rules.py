"""Sudoku: the rules, and grids as text.

Grids are uint8 (N, L), row-major, L = n * n, digits 1..n, 0 = blank; box = (rows, columns) of a
box, n = rows * columns. Not here: puzzles as a task (tasks/sudoku.py), generation and files
(beside this file), and tests that a solution is unique (files are trusted).
"""

import numpy as np

SLAB = 1 << 14  # rows processed at once: a file may have millions
SYMBOLS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
SYMBOL_BYTES = np.frombuffer(SYMBOLS.encode(), np.uint8)


# -- rules -----------------------------------------------------------------------------------
def side(box):
    """n, the number of digits for this box."""
    return box[0] * box[1]


def unit_cells(box):
    """Cells of the n rows, n columns, n boxes, (3n, n)."""
    n = side(box)
    cells = np.arange(n * n).reshape(n, n)
    boxes = cells.reshape(n // box[0], box[0], n // box[1], box[1]).swapaxes(1, 2).reshape(n, n)
    return np.concatenate([cells, cells.T, boxes])


def digit_sets(grids, box):
    """The digits of each unit as a bit mask, (N, 3n) uint32; other values are ignored."""
    n = side(box)
    table = np.zeros(n + 1, np.uint32)
    table[1:] = 1 << np.arange(n)
    cells = table[np.where((grids >= 1) & (grids <= n), grids, 0)]
    return np.bitwise_or.reduce(cells[:, unit_cells(box)], -1)


def solves(grids, puzzles, box):
    """Whether each grid (N, L), of any integers, solves its puzzle (N, L), bool (N,).

    Every row, column and box must have every digit, and every clue must be kept.
    """
    grids, puzzles = np.asarray(grids), np.asarray(puzzles)
    complete = (digit_sets(grids, box) == (1 << side(box)) - 1).all(1)
    return complete & ((puzzles == 0) | (puzzles == grids)).all(1)


def faults(puzzles, box, solutions):
    """Yields (complaint, rows (N,) that it is about); a check assumes that earlier ones passed."""
    n = side(box)
    yield f"digits must be 0 (blank) to {n}", ((puzzles < 0) | (puzzles > n)).any(1)
    yield "no blank cell", (puzzles > 0).all(1)
    different = np.bitwise_count(digit_sets(puzzles, box))
    given = (puzzles > 0)[:, unit_cells(box)].sum(-1)
    yield "the same clue twice in a row, column or box", (different != given).any(1)
    if solutions is not None:
        yield "the solution breaks the rules", ~solves(solutions, np.zeros_like(puzzles), box)
        yield "the solution disagrees with the clues", ~solves(solutions, puzzles, box)


def validate(puzzles, box, solutions=None, name="row {}".format):
    """Raise ValueError for the first row of puzzles (N, L), solutions (N, L) that breaks the rules.

    `name(row)` is what the message calls a row (counted from 0).
    """
    for what, grids in (("puzzles", puzzles), ("solutions", solutions)):
        if grids is not None and grids.shape != (len(puzzles), side(box) ** 2):
            raise ValueError(
                f"{what} of shape {grids.shape}: must be ({len(puzzles)}, {side(box) ** 2})"
            )
    for at in range(0, len(puzzles), SLAB):
        part = slice(at, at + SLAB)
        solved = None if solutions is None else solutions[part]
        for complaint, bad in faults(puzzles[part], box, solved):
            if bad.any():
                raise ValueError(f"{name(at + int(bad.argmax()))}: {complaint}")


# -- text ------------------------------------------------------------------------------------
def to_text(grid):
    """The grid (L,) as L symbols, blanks as `0`."""
    return SYMBOL_BYTES[grid].tobytes().decode()


def render(grid, box):
    """The grid (L,) as lines for a terminal, blanks as `.`."""
    n, bands = side(box), []
    for row in np.asarray(grid).reshape(n, n):
        symbols = to_text(row).replace("0", ".")
        stacks = [" ".join(symbols[at : at + box[1]]) for at in range(0, n, box[1])]
        bands.append(" | ".join(stacks))
    rule = "-+-".join(["-" * (2 * box[1] - 1)] * (n // box[1]))
    groups = ["\n".join(bands[at : at + box[0]]) for at in range(0, n, box[0])]
    return f"\n{rule}\n".join(groups)
