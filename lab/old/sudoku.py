"""Sudoku: the rules, grids as text, and puzzles as a task to train on and to solve.

A grid has L = n * n cells, row by row: uint8 (L,), digits 1..n, 0 = blank; box = (rows, columns) of
a box, n = rows * columns. For a model each cell is one token in place: digit d is token d - 1, the
mask is token n, so a puzzle is its solution x0 (L,) and `prompt` (L,), True at the clues.

Puzzles on disk are one memory-mapped array (N, 2, L) of puzzles and solutions: generated when a run
first asks for them (data/sudoku/generated.py), or made from other people's files by
prepare_sudoku.py. Whether one is held out depends on the puzzle alone
(data/sudoku/held_out.py), so a run may start from the weights of any other. Nothing here checks
that a puzzle has only one solution.
"""

import itertools
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data.files import csv_rows
from tasks import Problems, Task

SYMBOLS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"  # digit d is SYMBOLS[d]; 0 is a blank
SYMBOL_BYTES = np.frombuffer(SYMBOLS.encode(), np.uint8)
FOLDER = Path(__file__).parent / "data" / "sudoku"  # of generated puzzles
TRAINED = {36: "--out_dir=weights/sudoku_mini", 81: "--out_dir=weights/sudoku_nine"}  # by cells
DATA_SEED = 0  # the same puzzles for runs of every seed
SLAB = 1 << 14  # rows processed at once: a file may have millions


class Settings(NamedTuple):
    box: tuple = (2, 3)  # 1..32: rows and columns of a Sudoku box
    clues: int | None = None  # 1..: clues per generated puzzle; None = minimal puzzles
    data_file: str = ""  # real puzzles, a file from prepare_sudoku.py; "" = generate them
    hard: float = 0.0  # 0..1: share of generated puzzles that need search (data/sudoku/hard.py)
    symmetries: int = 1  # 1..: random symmetric copies of each training puzzle; 1 = as it is


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


def repeats(grids, box):
    """Whether a unit of each grid (N, L) has a digit twice, bool (N,)."""
    different = np.bitwise_count(digit_sets(grids, box))
    return (different != (grids > 0)[:, unit_cells(box)].sum(-1)).any(1)


def faults(puzzles, box, solutions):
    """Yields (complaint, rows (N,) that it is about); a check assumes that earlier ones passed."""
    n = side(box)
    yield f"digits must be 0 (blank) to {n}", ((puzzles < 0) | (puzzles > n)).any(1)
    yield "no blank cell", (puzzles > 0).all(1)
    yield "the same clue twice in a row, column or box", repeats(puzzles, box)
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
    n = side(box)
    bands = []
    for row in np.asarray(grid).reshape(n, n):
        symbols = to_text(row).replace("0", ".")
        stacks = [" ".join(symbols[at : at + box[1]]) for at in range(0, n, box[1])]
        bands.append(" | ".join(stacks))
    rule = "-+-".join(["-" * (2 * box[1] - 1)] * (n // box[1]))
    groups = ["\n".join(bands[at : at + box[0]]) for at in range(0, n, box[0])]
    return f"\n{rule}\n".join(groups)


def decode(texts, box, name):
    """The digits of strings of L symbols, uint8 (N, L); `name` and errors as in `validate`."""
    n = side(box)
    digit_of = np.full(256, 255, np.uint8)  # the digit that each byte stands for; 255 = none
    for digit, symbol in enumerate(SYMBOLS[: n + 1]):
        digit_of[[ord(symbol), ord(symbol.lower())]] = digit
    digit_of[ord(".")] = 0
    for row, text in enumerate(texts):
        if len(text) != n * n:
            raise ValueError(f"{name(row)}: {len(text)} characters, must be {n * n}")
    data = np.frombuffer("".join(texts).encode("latin-1", "replace"), np.uint8)
    digits = digit_of[data].reshape(-1, n * n)
    if (digits == 255).any():
        row, cell = np.argwhere(digits == 255)[0]
        raise ValueError(
            f"{name(row)}: {texts[row][cell]!r} at cell {cell} is neither a digit up to "
            f"{SYMBOLS[n]} nor a blank (0 or .)"
        )
    return digits


def parse(text, box):
    """The puzzle or grid written as L symbols, uint8 (L,); `0` and `.` are blanks.

    Digits above 9 are letters, A = 10; spaces and line breaks are ignored. Raises ValueError.
    """
    text = "".join(text.split())
    must = side(box) ** 2
    if len(text) != must and len(text) in TRAINED:
        raise ValueError(f"puzzle: {len(text)} characters, must be {must}; or {TRAINED[len(text)]}")
    return decode([text], box, "puzzle".format)[0]


def column_names(header):
    """The names of a CSV header, in small letters; Sudoku-Extreme's names are translated."""
    names = [name.strip().lower() for name in header]
    return [{"question": "puzzle", "answer": "solution"}.get(name, name) for name in names]


def read_puzzles(path, box):
    """The puzzles of a file, uint8 (N, L): one per line, or a CSV file with a column `puzzle`.

    Raises FileNotFoundError, or ValueError that names the line.
    """
    rows = [*csv_rows(path)]
    names = column_names(rows[0][1]) if rows else []
    column = names.index("puzzle") if "puzzle" in names else None
    rows = rows if column is None else rows[1:]
    if not rows:
        raise ValueError(f"{path} has no puzzle: expected one per line")
    puzzles = []
    for line, row in rows:
        try:
            puzzles.append(parse(row[column or 0], box))
            validate(puzzles[-1][None], box, name="puzzle".format)
        except (ValueError, IndexError) as error:
            raise ValueError(f"{path}, line {line}: {error}") from None
    return np.stack(puzzles)


# -- the task --------------------------------------------------------------------------------
class Examples:
    """examples[indices] -> x0 uint8 (B, L), prompt bool (B, L), of rows of pairs (N, 2, L)."""

    def __init__(self, pairs, rows):
        self.pairs, self.rows = pairs, rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, indices):
        pairs = self.pairs[self.rows[indices]]
        return pairs[:, 1] - 1, pairs[:, 0] > 0


class Puzzles(Problems):
    """Puzzles (N, L) to solve, 0 = blank; their solutions are not needed."""

    def __init__(self, puzzles, box, name="row {}".format):
        validate(puzzles, box, name=name)
        self.puzzles, self.box = np.asarray(puzzles), tuple(box)

    def __len__(self):
        return len(self.puzzles)

    def __getitem__(self, indices):
        puzzles = self.puzzles[indices].astype(np.int64)
        return np.where(puzzles > 0, puzzles - 1, side(self.box)), puzzles == 0

    def judge(self, tokens, indices):
        puzzles = self.puzzles[indices]
        grids = self.grids(tokens)
        correct = solves(grids, puzzles, self.box)
        return [
            {"kind": "correct" if ok else "wrong", "puzzle": to_text(puzzle), "grid": to_text(grid)}
            for ok, puzzle, grid in zip(correct, puzzles, grids, strict=True)
        ]

    def broken(self, tokens):
        return repeats(self.grids(tokens), self.box)

    def grids(self, tokens):
        """Tokens (n, L) as digits, the mask token as 0."""
        return (np.asarray(tokens).astype(np.int64) + 1) % (side(self.box) + 1)

    def again(self, attempt):
        from data.sudoku.symmetries import Symmetric  # only needed here

        return Symmetric(self, attempt)

    def pieces(self, tokens, seen=None):
        grid, cells = self.grids(tokens), itertools.count()
        text = render(grid if seen is None else np.where(seen, grid, 0), self.box)
        return [(next(cells) if c in f".{SYMBOLS}" else None, c) for c in text]

    def verdict(self, record):
        return f"{record['grid']} {'solved' if record['kind'] == 'correct' else 'wrong'}"


class Sudoku(Task):
    """Puzzles of pairs (N, 2, L): the rows `train` and `test`, disjoint up to renaming.

    `validation`, for the loss, is the test set, whose solutions are known.
    """

    def __init__(self, box, pairs, train, test):
        self.box = tuple(box)
        self.mask = side(box)
        self.length, self.vocab_size = self.mask**2, self.mask + 1
        self.train = Examples(pairs, train)
        self.validation = Examples(pairs, test)
        self.test = Puzzles(pairs[test, 0], box)

    def prompts(self, texts):
        """Puzzles that a user types, row by row."""
        puzzles = np.stack([parse(text, self.box) for text in texts])
        return Puzzles(puzzles, self.box, "puzzle".format)

    def problems(self, name, file):
        """The puzzles in a file, as in `read_puzzles`."""
        if name or not file:
            raise ValueError(f"problems {name!r}: Sudoku has no named sets, use --file")
        return Puzzles(read_puzzles(file, self.box), self.box)


def load(config):
    """The data set that the configuration of a run asks for (keys as in train.py).

    Raises FileNotFoundError or ValueError for its data_file, or if there are too few puzzles.
    """
    box = tuple(config["box"])
    task = Sudoku(box, *puzzles_of(config, box))
    if config.get("symmetries", 1) > 1:  # older weights lack it
        from data.sudoku.symmetries import Varied  # only needed here

        task.train = Varied(task.train, config["symmetries"], box)
    return task


def puzzles_of(config, box):
    """Pairs (N, 2, L), rows to train on, rows to test on; see `load`.

    Of both, the share config["hard"] needs search, and the rest singles.
    """
    if config["data_file"]:
        from prepare_sudoku import prepared_puzzles  # only needed here

        return prepared_puzzles(config["data_file"], box, config["test_examples"])
    from data.processes import cores  # only needed here
    from data.sudoku.generated import first_puzzles

    wanted = config["train_examples"], config["test_examples"]
    how = FOLDER, box, config["clues"], DATA_SEED
    if not config.get("hard"):
        return first_puzzles(*how, *wanted, cores())
    from data.sudoku.hard import mixed

    return mixed(*how, *wanted, cores(), config["hard"])
