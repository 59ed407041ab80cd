"""Puzzles that are the same up to a symmetry of the grid and the names of the digits.

A symmetry orders bands, rows of a band, stacks and columns of a stack anew, and may exchange rows
and columns if boxes are square: 3,359,232 of 9x9, times 9! names. Boxes as in generate.py.
"""

import zlib
from functools import cache
from itertools import permutations

import numpy as np

from data.sudoku.held_out import SLAB, mix


class Varied:
    """Examples (sudoku.py) `copies` times: index i is row i % N under a symmetry drawn from i."""

    def __init__(self, examples, copies, box):
        self.examples, self.copies, self.box = examples, copies, box
        first = self[np.arange(min(len(examples), SLAB))]
        self.checksum = zlib.crc32(np.stack(first))  # of the training data, that a run records

    def __len__(self):
        return len(self.examples) * self.copies

    def __getitem__(self, indices):
        x0, prompt = self.examples[indices % len(self.examples)]
        pairs = symmetric(np.stack([x0 + 1, prompt * (x0 + 1)], 1), indices, self.box)
        return pairs[:, 0] - 1, pairs[:, 1] > 0


class Symmetric:
    """Problems (sudoku.Puzzles) under symmetries, others at each attempt; judged turned back."""

    def __init__(self, puzzles, attempt):
        self.puzzles, self.attempt = puzzles, attempt

    def __getitem__(self, indices):
        x, _ = self.puzzles[indices]
        grids = self.turned(self.puzzles.grids(x), indices)
        return np.where(grids > 0, grids - 1, x.max()), grids == 0

    def judge(self, tokens, indices):
        back = self.turned(self.puzzles.grids(tokens), indices, back=True)
        return self.puzzles.judge(back - 1, indices)

    def turned(self, grids, indices, back=False):
        """Grids (n, L) of the puzzles at indices, int (n, L)."""
        keys = np.asarray(indices) + (self.attempt << 32)
        grids = grids[:, None].astype(np.uint8)
        return symmetric(grids, keys, self.puzzles.box, back)[:, 0].astype(int)


def symmetric(grids, keys, box, back=False):
    """Grids uint8 (N, K, L), the K of a row under one symmetry that its key, uint64 (N,), draws.

    back: undo the symmetry.
    """
    n = box[0] * box[1]
    sizes = n // box[0], n, n // box[1], n, n, 1
    streams = mix(np.arange(1, sum(sizes) + 1, dtype=np.uint64))
    drawn = mix(mix(keys.astype(np.uint64) + np.uint64(1))[:, None] + streams)
    bands, rows, stacks, columns, names, turn = np.split(drawn, np.cumsum(sizes[:-1]), 1)
    cells = n * lines(bands, rows)[:, :, None] + lines(stacks, columns)[:, None]  # (N, n, n)
    turned = (turn[:, :, None] & np.uint64(box[0] == box[1])).astype(bool)
    cells = np.where(turned, cells.swapaxes(1, 2), cells).reshape(len(cells), 1, n * n)
    names = np.pad(names.argsort(1) + 1, ((0, 0), (1, 0))).astype(np.uint8)[:, None]
    if back:
        cells, names = cells.argsort(2), names.argsort(2).astype(np.uint8)
    return np.take_along_axis(names, np.take_along_axis(grids, cells, 2), 2)


def lines(groups, members):
    """Random orders of n lines that keep groups together, (N, n), from numbers (N, g), (N, n)."""
    count, g = groups.shape
    inside = members.reshape(count, g, -1).argsort(2)
    return (groups.argsort(1)[:, :, None] * inside.shape[2] + inside).reshape(members.shape)


# -- which puzzles are the same --------------------------------------------------------------------
def copies(puzzles, others, box):
    """Rows of puzzles (N, L) that a symmetry takes into one of the others (M, L)."""
    keys, theirs = (symmetry_keys(each, box) for each in (puzzles, others))
    forms = {canonical(other, box).tobytes() for other in others[np.isin(theirs, keys)]}
    near = np.flatnonzero(np.isin(keys, theirs))
    return [int(row) for row in near if canonical(puzzles[row], box).tobytes() in forms]


def symmetry_keys(puzzles, box):
    """A uint64 each, (N,): equal under symmetries; if equal, `canonical` tells.

    Colours of cells, made from the sums of colours in row, column, box and digit three times.
    """
    n = box[0] * box[1]
    keys = [np.empty(0, np.uint64)]
    for at in range(0, len(puzzles), SLAB):
        digits = puzzles[at : at + SLAB].reshape(-1, n // box[0], box[0], n // box[1], box[1])
        colours = mix((digits > 0) + np.uint64(1))
        for _ in range(3):
            row, column, block = (
                mix(colours.sum(axes, keepdims=True)) for axes in ((3, 4), (1, 2), (2, 4))
            )
            new = colours + row + column + mix(block)
            for digit in range(1, n + 1):
                has = digits == digit
                new += has * mix(mix((colours * has).sum((1, 2, 3, 4), keepdims=True)))
            colours = mix(new)
        keys.append(colours.sum((1, 2, 3, 4)))
    return np.concatenate(keys)


def canonical(puzzle, box):
    """The least of a puzzle (L,) and all that are symmetric to it; read row by row, blanks last."""
    n = box[0] * box[1]
    grids = np.stack([puzzle.reshape(n, n), puzzle.reshape(n, n).T][: 1 + (box[0] == box[1])])
    rows, columns = orders(n, box[0]), orders(n, box[1])
    # What begins as the least does: a grid, orders of rows (from `first` on, those that agree in
    # the rows so far), an order of columns, the names of digits
    turn, order = (part.ravel() for part in np.indices((len(grids), len(columns))))
    first = np.zeros(len(turn), int)
    names = np.zeros((len(turn), n + 1), np.int64)
    names[:, 0] = n + 1
    least, agree = [], len(rows)
    for at in range(n):
        step = len(rows) // len(np.unique(rows[:, : at + 1], axis=0))
        ways = agree // step
        first = (first[:, None] + np.arange(0, agree, step)).ravel()
        turn, order, names = (part.repeat(ways, 0) for part in (turn, order, names))
        digits = grids[turn[:, None], rows[first, at][:, None], columns[order]]
        row = np.take_along_axis(names, digits, 1)
        row = np.where(row, row, names[:, 1:].max(1, keepdims=True) + (row == 0).cumsum(1))
        np.put_along_axis(names, digits, row, 1)
        value = row @ (n + 2) ** np.arange(n)[::-1]
        best = value == value.min()
        least.append(row[best.argmax()] % (n + 1))
        turn, order, names, first = (part[best] for part in (turn, order, names, first))
        agree = step
    return np.concatenate(least).astype(np.uint8)


@cache
def orders(n, size):
    """All orders of n lines that keep groups of `size` together, sorted, (M, n)."""
    every = np.array([*permutations(range(n))])
    group = every.reshape(len(every), -1, size) // size
    return every[(group == group[:, :, :1]).all((1, 2))]
