"""Puzzles that are the same but for the names of the digits, and which of them are held out.

A model would know one by the other. Other symmetries of the grid (rows, columns or boxes that
change places) are not looked for; results/sudoku_mini.md says how many copies there are.

One puzzle in HELD_OUT is never trained on. Its key alone decides that, so it is one and the same
puzzle that is held out in every set of puzzles, whatever its size, seed, number of clues or source.
Another puzzle with the same solution, but with other clues, has another key: it may be trained on.
Only a file that was prepared with a test file holds out the puzzles of that file instead.
"""

import numpy as np

from data import files

SLAB = 1 << 14  # rows worked on at once
HELD_OUT = 32


def canonical(puzzles, solutions):
    """Both (N, L) with the digits renamed so that the solution opens with 1, 2, ..., n.

    Equal for puzzles that differ by renaming only; other symmetries are not undone.
    """
    n = round(solutions.shape[1] ** 0.5)
    names = np.zeros((len(solutions), n + 1), np.uint8)
    np.put_along_axis(names, solutions[:, :n], np.arange(1, n + 1, dtype=np.uint8)[None], 1)
    return np.take_along_axis(names, puzzles, 1), np.take_along_axis(names, solutions, 1)


def mix(x):
    """Hashes of uint64 (N,): the last steps of splitmix64 (Steele et al. 2014)."""
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return x ^ x >> np.uint64(31)


def renaming_keys(puzzles, solutions):
    """One uint64 a puzzle, equal up to renaming, (N,); two of millions clash with odds of 1e-5.

    The same on every machine and for every version of numpy: what is held out depends on them.
    """
    weights = mix(np.arange(1, 2 * puzzles.shape[1] + 1, dtype=np.uint64)).reshape(2, -1)
    keys = [np.empty(0, np.uint64)]
    for at in range(0, len(puzzles), SLAB):
        pair = canonical(puzzles[at : at + SLAB], solutions[at : at + SLAB])
        keys.append(
            mix(sum((grids * row).sum(1) for grids, row in zip(pair, weights, strict=True)))
        )
    return np.concatenate(keys)


def is_held_out(keys):
    """Which puzzles are to test on, bool (N,), by their keys."""
    return keys < np.uint64((1 << 64) // HELD_OUT)


# -- puzzles of a file from prepare.py -------------------------------------------------------------
def read_prepared(path, box):
    """Puzzles and solutions, memory-mapped uint8 (N, 2, L), and how many are from a test file.

    Those come first. Raises FileNotFoundError, or ValueError with the command that makes a file.
    """
    try:
        pairs, about = files.open_kept(path)
        if "from_test_file" not in about:
            raise ValueError(f"{path}: not a file of prepare.py")
    except ValueError as error:
        raise ValueError(
            f"{error}; if it is damaged, delete it; if it is not a prepared file, make one with "
            f"python data/sudoku/prepare.py --source={path} "
            f'--box="({box[0]},{box[1]})" --out=FILE.npy'
        ) from None
    form = {"box": [*box], "dtype": "|u1", "shape": [len(pairs), 2, (box[0] * box[1]) ** 2]}
    if about != about | form:
        raise ValueError(f"{path} holds puzzles with box {about.get('box')}, not {tuple(box)}")
    return pairs, about["from_test_file"]


def prepared_puzzles(path, box, test):
    """Pairs (N, 2, L), rows of them to train on, rows of `test` held-out ones.

    One in HELD_OUT puzzles is held out; but if the file was prepared with a test file, exactly the
    puzzles of that one. A larger test set starts with the smaller one. Raises ValueError if there
    are fewer than `test`.
    """
    pairs, from_test_file = read_prepared(path, box)
    keys, rows = np.unique(renaming_keys(pairs[:, 0], pairs[:, 1]), return_index=True)
    held_out = rows < from_test_file if from_test_file else is_held_out(keys)
    if held_out.sum() < test:
        raise ValueError(
            f"test_examples {test}: {path} has {len(rows)} different puzzles, {held_out.sum()}"
            " held out; ask for fewer, or prepare it with a --test_source"
        )
    return pairs, np.sort(rows[~held_out]), rows[held_out][:test]
