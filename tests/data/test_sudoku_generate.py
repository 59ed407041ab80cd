"""data/sudoku/generate.py and held_out.py against slow loops, search, and the rules by the book."""

import itertools

import numpy as np
import pytest
from small import candidates, renamed_clues, solutions, units_of

from data.sudoku import generate, held_out


def puzzles_of(count, box, clues=None):
    """The first puzzles and solutions, uint8 (count, L) each."""
    chunks = itertools.islice(generate.chunks(box, clues, 3, 1), 2)
    return np.concatenate([np.stack(chunk, 1) for chunk in chunks])[:count].swapaxes(0, 1)


def slow_singles(puzzle, box):
    """What naked and hidden singles find, one cell at a time."""
    grid = puzzle.tolist()
    while True:
        options = candidates(grid, box)
        found = [(c, *left) for c, left in options.items() if len(left) == 1]
        for unit, digit in itertools.product(units_of(box), range(1, box[0] * box[1] + 1)):
            places = [c for c in unit if digit in options.get(c, ())]
            if len(places) == 1 and all(grid[c] != digit for c in unit):
                found.append((places[0], digit))
        if not found:
            return grid
        for cell, digit in found:
            grid[cell] = digit


def count_solutions(puzzle, box):  # up to 2
    return len([*itertools.islice(solutions(puzzle, box), 2)])


@pytest.mark.parametrize(
    ("box", "clues", "count"),
    [((2, 2), None, 9), ((2, 3), None, 9), ((2, 3), 20, 9), ((3, 3), None, 1), ((3, 3), 33, 9)],
)
def test_singles_solve_every_puzzle(box, clues, count):
    """It has one solution; a minimal one has two without any of its clues."""
    cells = (box[0] * box[1]) ** 2
    for puzzle, solution in zip(*puzzles_of(count, box, clues), strict=True):
        assert all({*solution[unit]} == {*range(1, len(unit) + 1)} for unit in units_of(box))
        assert ((puzzle == 0) | (puzzle == solution)).all()
        assert slow_singles(puzzle, box) == solution.tolist()
        assert count_solutions(puzzle, box) == 1
        if clues:
            assert (puzzle > 0).sum() == clues
        else:
            for cell in np.flatnonzero(puzzle):
                assert count_solutions(np.where(np.arange(cells) == cell, 0, puzzle), box) == 2


@pytest.mark.parametrize(
    ("box", "count"), [((2, 3), 16), pytest.param((3, 3), 6, marks=pytest.mark.slow)]
)
def test_the_same_law_as_digging_for_uniqueness(box, count):
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
            if count_solutions(puzzle, box) > 1:
                puzzle[cell] = clue
        expected.append(slow_singles(puzzle, box) == (grids[row] + 1).tolist())
        assert (puzzle > 0).tolist() == given[row].tolist() or not expected[-1]
    assert keep[:count].tolist() == expected
    assert 0 < sum(expected) < count


# -- equality up to renaming -----------------------------------------------------------------------
def slow_key(digits):
    """As splitmix64 and held_out.py have it, in Python's integers."""

    def mix(x):
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
        return x ^ x >> 31

    return mix(sum(mix(i) * digit for i, digit in enumerate(digits, start=1)) % 2**64)


def test_keys_are_those_of_a_slow_loop(monkeypatch):
    monkeypatch.setattr(held_out, "SLAB", 64)
    puzzles, solutions = puzzles_of(150, (3, 3), 33)
    keys, clue_keys = [], []
    for puzzle, solution in zip(puzzles.tolist(), solutions.tolist(), strict=True):
        names = {0: 0} | {digit: name for name, digit in enumerate(solution[:9], start=1)}
        keys.append(slow_key([names[digit] for digit in puzzle + solution]))
        clue_keys.append(slow_key(renamed_clues(puzzle)))
    assert held_out.is_held_out(np.array([2**59 - 1, 2**59])).tolist() == [True, False]
    names = np.random.default_rng(0).permuted(np.tile(np.arange(1, 10), (150, 1)), axis=1)
    names = np.insert(names, 0, 0, 1).astype(np.uint8)
    renamed = [np.take_along_axis(names, grids, 1) for grids in (puzzles, solutions)]
    for grids in (puzzles, solutions), renamed:
        pairs = np.stack(grids, 1)
        assert held_out.puzzle_keys(pairs).tolist() == keys
        assert held_out.clue_keys(pairs).tolist() == clue_keys
