"""Which puzzles are held out, whatever set they are in, and which are the same for a model.

Puzzles that differ by the names of the digits are one: they have the same key. Other symmetries of
the grid (rows, columns or boxes that change places) are not looked for. The key alone decides that
one puzzle in HELD_OUT is never trained on: it is held out in every set, whatever its size, seed,
number of clues or source. Only a set that was prepared with a test file holds out that file's.
"""

import numpy as np

SLAB = 1 << 14  # rows worked on at once
HELD_OUT = 32


def renaming_keys(puzzles, solutions):
    """One uint64 a puzzle, equal up to renaming, (N,); two of millions clash with odds of 1e-5.

    The same on every machine and for every version of numpy: what is held out depends on them.
    """
    return hashes(named_by_solution, puzzles, solutions)


def clue_keys(puzzles):
    """As renaming_keys, of the clues alone, whatever the solutions."""
    return hashes(named_by_clues, puzzles)


def is_held_out(keys):
    """Which puzzles are to test on, bool (N,), by their keys."""
    return keys < np.uint64((1 << 64) // HELD_OUT)


def named_by_solution(puzzles, solutions):
    """Both, (N, 2 L), with the digits renamed so that the solution opens with 1, 2, ..., n."""
    n = round(solutions.shape[1] ** 0.5)
    names = np.zeros((len(solutions), n + 1), np.uint8)
    np.put_along_axis(names, solutions[:, :n], np.arange(1, n + 1, dtype=np.uint8)[None], 1)
    return np.take_along_axis(names, np.concatenate([puzzles, solutions], 1), 1)


def named_by_clues(puzzles):
    """Puzzles (N, L) with the digits renamed in the order in which they appear as clues."""
    count, cells = puzzles.shape
    n = round(cells**0.5)
    first = np.full((count, n + 1), -1)  # the blank comes before all
    for digit in range(1, n + 1):
        found = puzzles == digit
        first[:, digit] = np.where(found.any(1), found.argmax(1), cells)
    names = first.argsort(1, kind="stable").argsort(1).astype(np.uint8)
    return np.take_along_axis(names, puzzles, 1)


def hashes(renamed, *grids):
    """A uint64 for each row of renamed(*grids) (N, K)."""
    keys = [np.empty(0, np.uint64)]
    for at in range(0, len(grids[0]), SLAB):
        rows = renamed(*(part[at : at + SLAB] for part in grids))
        weights = mix(np.arange(1, rows.shape[1] + 1, dtype=np.uint64))
        keys.append(mix((rows * weights).sum(1)))
    return np.concatenate(keys)


def mix(x):
    """Hashes of uint64 (N,): the last steps of splitmix64 (Steele et al. 2014)."""
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return x ^ x >> np.uint64(31)
