"""data/sudoku/generate.py against slow loops, search, and the rules by the book."""

import itertools

import numpy as np
import pytest
from small import candidates, solutions, units_of

from data.sudoku import generate


def slow_singles(puzzle, units):
    """What naked and hidden singles find, round by round."""
    grid = puzzle.tolist()
    while True:
        options = candidates(grid, units)
        found = [(c, *left) for c, left in options.items() if len(left) == 1]
        for unit, digit in itertools.product(units, range(1, len(units[0]) + 1)):
            places = [c for c in unit if digit in options.get(c, ())]
            if len(places) == 1:
                found.append((places[0], digit))
        if not found:
            return grid
        for cell, digit in found:
            grid[cell] = digit


def is_unique(puzzle, units):
    return len([*itertools.islice(solutions(puzzle.tolist(), units), 2)]) == 1


@pytest.mark.parametrize(
    ("box", "clues", "count"),
    [((2, 2), None, 9), ((2, 3), None, 9), ((2, 3), 20, 9), ((3, 3), None, 1), ((3, 3), 33, 9)],
)
def test_singles_solve_every_puzzle(box, clues, count):
    """It has one solution; a minimal one has two without any of its clues."""
    units = units_of(box)
    chunk = [part for _, part in zip(range(2), generate.chunks(box, clues, 3, 1), strict=False)]
    for puzzle, solution in zip(*np.concatenate(chunk, 1)[:, :count], strict=True):
        assert all({*solution[unit]} == {*range(1, len(unit) + 1)} for unit in units)
        assert ((puzzle == 0) | (puzzle == solution)).all()
        assert slow_singles(puzzle, units) == solution.tolist()
        assert is_unique(puzzle, units)
        assert not clues or (puzzle > 0).sum() == clues
        for cell in np.flatnonzero(puzzle) if not clues else ():
            assert not is_unique(np.where(np.arange(len(puzzle)) == cell, 0, puzzle), units)


def test_the_same_law_as_digging_for_uniqueness():
    box, count = (2, 3), 16
    units = units_of(box)
    rng = np.random.default_rng(5)
    grids = generate.fill(rng, 1024, box)[:64]
    order = rng.random(grids.shape).argsort(1)
    given = generate.dig(grids, order, 0, box)
    keep = generate.irreplaceable(grids, given, order, box)
    expected = []
    for row in range(count):
        puzzle = grids[row] + 1
        for cell in order[row]:
            clue, puzzle[cell] = puzzle[cell], 0
            if not is_unique(puzzle, units):
                puzzle[cell] = clue
        expected.append(slow_singles(puzzle, units) == (grids[row] + 1).tolist())
        assert (puzzle > 0).tolist() == given[row].tolist() or not expected[-1]
    assert keep[:count].tolist() == expected and 0 < sum(expected) < count
