"""Puzzles that are the same but for the names of the digits: a model would know one by the other.

Other symmetries of the grid (rows, columns or boxes that change places) are not looked for.
"""

import numpy as np

SLAB = 1 << 14  # rows worked on at once


def canonical(puzzles, solutions):
    """Both (N, L) with the digits renamed so that the solution opens with 1, 2, ..., n.

    Equal for puzzles that differ by renaming only; other symmetries are not undone.
    """
    n = round(solutions.shape[1] ** 0.5)
    names = np.zeros((len(solutions), n + 1), np.uint8)
    np.put_along_axis(names, solutions[:, :n], np.arange(1, n + 1, dtype=np.uint8)[None], 1)
    return np.take_along_axis(names, puzzles, 1), np.take_along_axis(names, solutions, 1)


def renaming_keys(puzzles, solutions):
    """One uint64 a puzzle, equal up to renaming, (N,); two of millions clash with odds of 1e-5."""
    weights = np.random.default_rng(0).integers(0, 1 << 64, (2, puzzles.shape[1]), np.uint64)
    keys = []
    for at in range(0, len(puzzles), SLAB):
        pair = canonical(puzzles[at : at + SLAB], solutions[at : at + SLAB])
        keys.append(sum((grids * row).sum(1) for grids, row in zip(pair, weights, strict=True)))
    return np.concatenate(keys)


def distinct(puzzles, solutions):
    """The keys of puzzles that differ by more than renaming, and the first row of each, (M,)."""
    return np.unique(renaming_keys(puzzles, solutions), return_index=True)
