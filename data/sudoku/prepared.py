"""Puzzles of a file from prepare.py: one memory-mapped array, and which of them are held out."""

from pathlib import Path

import numpy as np

from data import files
from data.sudoku.renaming import distinct, is_held_out
from data.sudoku.rules import side


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
    """The puzzles of the held-out file, (N, 2, L); None if the prepared one (`about`) has none.

    Raises ValueError if the two were not prepared together.
    """
    other, pairs, own = held_out_file(path), None, {}
    if other.exists():
        pairs, own = read_prepared(other, box)
    if own.get("array") != about.get("test"):
        raise ValueError(f"{path} and {other} were not prepared together: prepare them again")
    return pairs


def split(path, box, test):
    """Pairs (N, 2, L) and rows to train on, pairs and rows of `test` held-out ones.

    One in renaming.HELD_OUT puzzles is held out; but if there is a file of held-out puzzles
    (`held_out_file`), exactly those. A larger test set starts with the smaller one. Raises
    ValueError if there are fewer than `test`.
    """
    pairs, about = read_prepared(path, box)
    keys, rows = distinct(pairs[:, 0], pairs[:, 1])
    others = read_held_out(path, box, about)
    if others is not None:
        other_keys, other_rows = distinct(others[:, 0], others[:, 1])
        held_out = np.isin(keys, other_keys)
    else:
        held_out = is_held_out(keys)
        others, other_rows = pairs, rows[held_out]
    if len(other_rows) < test:
        raise ValueError(
            f"test_examples {test}: {path} has {len(rows)} different puzzles, {len(other_rows)}"
            " held out; ask for fewer, or prepare it with a --test_source"
        )
    other_rows = other_rows[:test]
    return pairs, np.sort(rows[~held_out]), others, other_rows
