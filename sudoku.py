"""Sudoku: the rules, grids as text, and the puzzles as a task (it never sees a model).

Grids are uint8 (N, L), row-major, L = n * n, digits 1..n, 0 = blank; box = (rows, columns) of a
box, n = rows * columns. For a model each cell is one token in place: digit d is token d - 1 and the
mask is token n, so a puzzle is the solution x0 (L,) and `prompt` (L,), True at the clues.

Puzzles on disk are one memory-mapped array (N, 2, L) of puzzles and solutions: generated if it does
not exist yet, or made by data/sudoku/prepare.py from other people's files.
Whether a puzzle is held out depends on the puzzle alone (data/sudoku/renaming.py), so no run trains
on another's test puzzles, and a run may start from the weights of any other.
Not here: generation (data/sudoku/), and tests that a solution is unique (files are trusted).
"""

import itertools
from pathlib import Path

import numpy as np

from data import files
from data.processes import cores
from data.sudoku.renaming import distinct, is_held_out
from tasks import Problems, Task

SLAB = 1 << 14  # rows processed at once: a file may have millions
DATA_SEED = 0  # the same puzzles for runs of every seed
SYMBOLS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
SYMBOL_BYTES = np.frombuffer(SYMBOLS.encode(), np.uint8)
FOLDER = Path(__file__).parent / "data" / "sudoku"  # of generated puzzles
# Strata of ratings, with the least rating of each: decades, but 10 to 99, where most of the hard
# puzzles of Sudoku-Extreme are, is split in two.
STRATA = {"0": 0, "1-9": 1, "10-29": 10, "30-99": 30, "100+": 100}


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
def symbol_table(n):
    """The digit that each byte stands for, uint8 (256,); 255 = none."""
    table = np.full(256, 255, np.uint8)
    table[ord(".")] = 0
    for digit, symbol in enumerate(SYMBOLS[: n + 1]):
        table[ord(symbol)] = table[ord(symbol.lower())] = digit
    return table


def decode(texts, box, name):
    """The digits of strings of L symbols, uint8 (N, L); name(row) as in `validate`."""
    cells = side(box) ** 2
    for row, text in enumerate(texts):
        if len(text) != cells:
            raise ValueError(f"{name(row)}: {len(text)} characters, must be {cells}")
    data = np.frombuffer("".join(texts).encode("latin-1", "replace"), np.uint8).reshape(-1, cells)
    digits = symbol_table(side(box))[data]
    if (digits == 255).any():
        row, cell = np.argwhere(digits == 255)[0]
        raise ValueError(
            f"{name(row)}: {texts[row][cell]!r} at cell {cell} is neither a digit up to "
            f"{SYMBOLS[side(box)]} nor a blank (0 or .)"
        )
    return digits


def parse(text, box):
    """The puzzle or grid written as L symbols, uint8 (L,); `0` and `.` are blanks.

    Digits above 9 are letters, A = 10; spaces and line breaks are ignored. Raises ValueError.
    """
    return decode(["".join(text.split())], box, lambda row: "puzzle")[0]


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


# -- prepared files --------------------------------------------------------------------------
def read_prepared(path, box):
    """Puzzles and solutions of a prepared file, memory-mapped uint8 (N, 2, L), and its description.

    Raises FileNotFoundError, or ValueError with the command that makes such a file.
    """
    try:
        pairs, about = files.open_kept(path)
    except ValueError as error:
        raise ValueError(
            f"{error}; if it is damaged, delete it; if it is not a prepared file, make one with "
            f"python data/sudoku/prepare.py --source={path} "
            f'--box="({box[0]},{box[1]})" --out=FILE.npy'
        ) from None
    form = {"box": [*box], "dtype": "|u1", "shape": [len(pairs), 2, side(box) ** 2]}
    if about != about | form:
        raise ValueError(f"{path} holds puzzles with box {about.get('box')}, not {tuple(box)}")
    return pairs, about


def held_out_file(path):
    """The file of a prepared file's held-out puzzles, if these have their own."""
    return Path(path).with_suffix(f".test{Path(path).suffix}")


def read_held_out(path, box, about):
    """Like `read_prepared`, of the held-out file; None if the prepared one (`about`) has none.

    Raises ValueError if the two were not prepared together.
    """
    other = held_out_file(path)
    if about.get("test") is None and not other.exists():
        return None
    pairs, found = read_prepared(other, box) if other.exists() else (None, {"array": None})
    if found["array"] != about.get("test"):
        raise ValueError(f"{path} and {other} were not prepared together: prepare them again")
    return pairs, found


# -- the task --------------------------------------------------------------------------------
class Examples:
    """Rows of a memory-mapped set of puzzles and solutions (N, 2, L), as tokens.

    `examples[indices]` -> x0 uint8 (B, L), prompt bool (B, L).
    """

    def __init__(self, pairs, rows, box):
        self.pairs, self.rows, self.box = pairs, rows, box

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, indices):
        pairs = self.pairs[self.rows[indices]]
        return pairs[..., 1, :] - 1, pairs[..., 0, :] > 0

    def puzzles(self, indices):
        """Digits, 0 = blank, uint8 (B, L)."""
        return self.pairs[self.rows[indices], 0]


class Puzzles(Problems):
    """Puzzles (N, L) to solve, 0 = blank; their solutions are not needed.

    ratings (N,): the number of guesses a solver needed, which gives the stratum; (0,) = unknown.
    """

    def __init__(self, puzzles, box, ratings=()):
        validate(puzzles, box)
        self.puzzles, self.box = np.asarray(puzzles), tuple(box)
        self.ratings = np.asarray(ratings, int)
        place = np.searchsorted([*STRATA.values()], self.ratings, "right") - 1
        self.stratum = np.array([*STRATA], object)[place]
        self.strata = [name for name in STRATA if name in self.stratum]

    def __len__(self):
        return len(self.puzzles)

    def __getitem__(self, indices):
        puzzles = self.puzzles[indices].astype(np.int64)
        return np.where(puzzles > 0, puzzles - 1, side(self.box)), puzzles == 0

    def judge(self, tokens, indices):
        puzzles, grids = self.puzzles[indices], np.asarray(tokens).astype(np.int64) + 1
        correct = solves(grids, puzzles, self.box)
        rated = [{}] * len(grids)
        if self.strata:
            known = zip(self.ratings[indices].tolist(), self.stratum[indices], strict=True)
            rated = [{"rating": rating, "stratum": stratum} for rating, stratum in known]
        return [
            {"kind": "correct" if ok else "wrong", "puzzle": to_text(puzzle), "grid": to_text(grid)}
            | rating
            for ok, puzzle, grid, rating in zip(correct, puzzles, grids, rated, strict=True)
        ]

    def pieces(self, tokens, seen=None):
        grid, cells = np.asarray(tokens) + 1, itertools.count()
        text = render(grid if seen is None else np.where(seen, grid, 0), self.box)
        return [(next(cells) if c in f".{SYMBOLS}" else None, c) for c in text]

    def verdict(self, record):
        return f"{record['grid']} {'solved' if record['kind'] == 'correct' else 'wrong'}"


class Sudoku(Task):
    """Training and test puzzles: `train` and `test` are `Examples`, disjoint up to renaming.

    `validation`, for the loss, is the test set, whose solutions are known. ratings: of the test
    puzzles, as in `Puzzles`.
    """

    def __init__(self, box, train, test, ratings=()):
        self.box, self.train, self.validation = tuple(box), train, test
        self.test = Puzzles(test.puzzles(np.arange(len(test))), box, ratings)
        self.length = side(box) ** 2
        self.mask = side(box)
        self.vocab_size = side(box) + 1

    def prompts(self, texts):
        """Puzzles that a user types, row by row."""
        return Puzzles(np.stack([parse(text, self.box) for text in texts]), self.box)

    def problems(self, name, file):
        """The puzzles in a file, as in data/sudoku/readers.py."""
        if name or not file:
            raise ValueError(f"problems {name!r}: Sudoku has no named sets, use --file")
        from data.sudoku.readers import read_puzzles  # only needed here

        puzzles, ratings = read_puzzles(file, self.box)
        return Puzzles(puzzles, self.box, ratings)

    @classmethod
    def generated(cls, box, clues, train, test, seed, folder=FOLDER, workers=1):
        """`train` and `test` generated puzzles, the first ones of data/sudoku/generated.py.

        Raises ValueError if there are not that many different puzzles.
        """
        from data.sudoku.generated import first_puzzles  # only needed here

        pairs, *rows = first_puzzles(folder, box, clues, seed, train, test, workers)
        return cls(box, *(Examples(pairs, part, box) for part in rows))

    @classmethod
    def from_file(cls, path, box, test):
        """The puzzles of a prepared file that are not held out, and `test` of those that are.

        One in renaming.HELD_OUT puzzles is held out; but if there is a file of held-out puzzles
        (`held_out_file`), exactly those. A larger test set starts with the smaller one. Raises
        ValueError if there are fewer than `test`.
        """
        pairs, about = read_prepared(path, box)
        keys, rows = distinct(pairs[:, 0], pairs[:, 1])
        others, about = read_held_out(path, box, about) or (pairs, about)
        if others is pairs:
            held_out = is_held_out(keys)
            other_rows = rows[held_out]
        else:
            other_keys, other_rows = distinct(others[:, 0], others[:, 1])
            held_out = np.isin(keys, other_keys)
        if len(other_rows) < test:
            raise ValueError(
                f"test_examples {test}: {path} has {len(rows)} different puzzles, {len(other_rows)}"
                " held out; ask for fewer, or prepare it with a --test_source"
            )
        train, test = np.sort(rows[~held_out]), other_rows[:test]
        ratings = np.array(about["ratings"])[test] if "ratings" in about else ()
        return cls(box, Examples(pairs, train, box), Examples(others, test, box), ratings)


def load(config):
    """The data set that the configuration of a run asks for (keys as in train.py)."""
    box, train, test = tuple(config["box"]), config["train_examples"], config["test_examples"]
    if config["data_file"]:
        return Sudoku.from_file(config["data_file"], box, test)
    return Sudoku.generated(box, config["clues"], train, test, DATA_SEED, workers=cores())
