"""Sudoku as a task: puzzles to train on and to solve. The rules are in data/sudoku/rules.py.

For a model each cell is one token in place: digit d is token d - 1 and the mask is token n, so a
puzzle is the solution x0 (L,) and `prompt` (L,), True at the clues.

Puzzles on disk are one memory-mapped array (N, 2, L) of puzzles and solutions: generated if it does
not exist yet, or made by data/sudoku/prepare.py from other people's files.
Whether one is held out depends on the puzzle alone (data/sudoku/renaming.py): a run may start from
the weights of any other.
"""

import itertools
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data.sudoku.rules import SYMBOLS, render, side, solves, to_text, validate
from tasks import Problems, Task

DATA_SEED = 0  # the same puzzles for runs of every seed
FOLDER = Path(__file__).parents[1] / "data" / "sudoku"  # of generated puzzles


class Settings(NamedTuple):
    box: tuple = (2, 3)  # 1..32: rows and columns of a Sudoku box
    clues: int | None = None  # 1..: clues per generated puzzle; None = minimal puzzles
    data_file: str = ""  # real puzzles, a file from data/sudoku/prepare.py; "" = generate them


# -- the task --------------------------------------------------------------------------------
class Examples:
    """Rows of a memory-mapped set of puzzles and solutions (N, 2, L), as tokens.

    `examples[indices]` -> x0 uint8 (B, L), prompt bool (B, L).
    """

    def __init__(self, pairs, rows):
        self.pairs, self.rows = pairs, rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, indices):
        pairs = self.pairs[self.rows[indices]]
        return pairs[..., 1, :] - 1, pairs[..., 0, :] > 0

    def puzzles(self, indices):
        """Digits, 0 = blank, uint8 (B, L)."""
        return self.pairs[self.rows[indices], 0]


class Puzzles(Problems):
    """Puzzles (N, L) to solve, 0 = blank; their solutions are not needed."""

    def __init__(self, puzzles, box):
        validate(puzzles, box)
        self.puzzles, self.box = np.asarray(puzzles), tuple(box)

    def __len__(self):
        return len(self.puzzles)

    def __getitem__(self, indices):
        puzzles = self.puzzles[indices].astype(np.int64)
        return np.where(puzzles > 0, puzzles - 1, side(self.box)), puzzles == 0

    def judge(self, tokens, indices):
        puzzles, grids = self.puzzles[indices], np.asarray(tokens).astype(np.int64) + 1
        correct = solves(grids, puzzles, self.box)
        return [
            {"kind": "correct" if ok else "wrong", "puzzle": to_text(puzzle), "grid": to_text(grid)}
            for ok, puzzle, grid in zip(correct, puzzles, grids, strict=True)
        ]

    def pieces(self, tokens, seen=None):
        grid, cells = np.asarray(tokens) + 1, itertools.count()
        text = render(grid if seen is None else np.where(seen, grid, 0), self.box)
        return [(next(cells) if c in f".{SYMBOLS}" else None, c) for c in text]

    def verdict(self, record):
        return f"{record['grid']} {'solved' if record['kind'] == 'correct' else 'wrong'}"


class Sudoku(Task):
    """Training and test puzzles: `train` and `test` are `Examples`, disjoint up to renaming.

    `validation`, for the loss, is the test set, whose solutions are known.
    """

    def __init__(self, box, train, test):
        self.box, self.train, self.validation = tuple(box), train, test
        self.test = Puzzles(test.puzzles(np.arange(len(test))), box)
        self.length, self.vocab_size, self.mask = side(box) ** 2, side(box) + 1, side(box)

    def prompts(self, texts):
        """Puzzles that a user types, row by row."""
        from data.sudoku.readers import parse  # only needed here

        return Puzzles(np.stack([parse(text, self.box) for text in texts]), self.box)

    def problems(self, name, file):
        """The puzzles in a file, as in data/sudoku/readers.py."""
        if name or not file:
            raise ValueError(f"problems {name!r}: Sudoku has no named sets, use --file")
        from data.sudoku.readers import read_puzzles  # only needed here

        return Puzzles(read_puzzles(file, self.box), self.box)

    @classmethod
    def generated(cls, box, clues, train, test, seed, folder=FOLDER, workers=1):
        """`train` and `test` generated puzzles, the first ones of data/sudoku/generated.py.

        workers: processes, None = a process per core. Raises ValueError if there are not that many.
        """
        from data.processes import cores  # only needed here
        from data.sudoku.generated import first_puzzles

        pairs, *rows = first_puzzles(folder, box, clues, seed, train, test, workers or cores())
        return cls(box, *(Examples(pairs, part) for part in rows))

    @classmethod
    def from_file(cls, path, box, test):
        """The puzzles of a prepared file that are not held out, and `test` of those that are."""
        from data.sudoku.prepared import split  # only needed here

        pairs, train, others, held_out = split(path, box, test)
        return cls(box, Examples(pairs, train), Examples(others, held_out))


def load(config):
    """The data set that the configuration of a run asks for (keys as in train.py)."""
    box, train, test = tuple(config["box"]), config["train_examples"], config["test_examples"]
    if config["data_file"]:
        return Sudoku.from_file(config["data_file"], box, test)
    return Sudoku.generated(box, config["clues"], train, test, DATA_SEED, workers=None)
