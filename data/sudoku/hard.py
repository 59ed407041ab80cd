"""9x9 puzzles that need search: minimal ones, changed clue by clue while they get no easier.

A puzzle is rated by the guesses of a search to its end: singles until they find nothing more, then
a guess that splits a cell of fewest candidates (the first such, its lowest digit) in two. A dead
end has a cell, or a digit of a unit, without a candidate. The tree is binary and one of its leaves
the solution, so there are as many dead ends as guesses. The mean over symmetric copies evens out
which cell is the first. 0: singles solve the puzzle.

Each puzzle climbs a random number of steps. A step adds clues at random, takes away what is no
longer needed, in random order, and is undone if the rating falls.
"""

import itertools
from functools import partial

import numpy as np

from data.processes import in_order
from data.sudoku import generate, generated
from data.sudoku.symmetries import symmetric

BOX = (3, 3)
VERSION = 1  # as in generated.py
STEPS = 64  # most steps of a puzzle; 15 on average
EXTRA = 5  # clues added in a step
COPIES = 4  # symmetric ones that are rated


def rating(rng, puzzles, copies=COPIES):
    """Mean guesses over symmetric copies of minimal puzzles uint8 (N, 81), float (N,)."""
    many = np.tile(puzzles[:, None], (copies, 1, 1))  # (copies * N, 1, 81)
    many = symmetric(many, rng.integers(1 << 62, size=len(many)), BOX)[:, 0]
    return guesses(many).reshape(copies, -1).mean(0)


def guesses(puzzles):
    """Dead ends of the whole search tree of puzzles with one solution, uint8 (N, 81) -> (N,).

    Breadth first, so what waits of a puzzle with many solutions does not fit into memory.
    """
    masks = np.append(511, 1 << np.arange(9)).astype(np.uint16)
    states, owner, dead = masks[puzzles], np.arange(len(puzzles)), np.zeros(len(puzzles), int)
    while len(states):
        left, contradictory, complete = generate.propagate(states, BOX)
        dead += np.bincount(owner[contradictory], minlength=len(dead))
        on = ~(contradictory | complete)
        resting = on & (left == states).all(1)
        with_digit, without = left[resting], left[resting]
        size = np.bitwise_count(with_digit)
        cell = np.arange(len(size)), np.where(size == 1, 99, size).argmin(1)
        options = with_digit[cell]
        with_digit[cell] = options & ~options + np.uint16(1)  # the lowest bit
        without[cell] ^= with_digit[cell]
        states = np.concatenate([left[on & ~resting], with_digit, without])
        owner = np.concatenate([owner[on & ~resting], owner[resting], owner[resting]])
    return dead


def make_minimal(rng, grids, given):
    """Take clues, given (B, 81) of grids (B, 81), while the solution stays unique; in place."""
    solution = np.uint16(1) << grids
    row, cell = np.nonzero(given)
    while len(row):
        needed = np.ones(len(row), bool)  # whether without this clue there is another solution
        states = generate.other_digit(solution[row], given[row], cell, BOX)
        generate.search(states, np.arange(len(row)), needed, BOX)
        spare = rng.permutation(np.flatnonzero(~needed))
        row, cell = row[spare], cell[spare]  # a clue that is needed now is also needed later
        _, first = np.unique(row, return_index=True)
        given[row[first], cell[first]] = False
        row, cell = np.delete(row, first), np.delete(cell, first)


def make_chunk(task):
    """Puzzles and solutions of one chunk, uint8 (<= size, 81) each, none solved by singles."""
    seed, index, size = task
    rng = np.random.default_rng([seed, index, 1])  # not the grids of the easy ones
    grids = np.empty((0, 81), np.uint8)
    while len(grids) < size:
        grids = np.concatenate([grids, generate.fill(rng, size, BOX)])[:size]
    given = generate.dig(grids, rng.random(grids.shape).argsort(1), 0, BOX)
    make_minimal(rng, grids, given)
    rated = rating(rng, (grids + 1) * given)
    steps = np.ceil(STEPS ** rng.random(size)).astype(int)  # each doubling is as likely
    for step in range(steps.max()):
        rows = np.flatnonzero(step < steps)
        other = given[rows]
        extra = (rng.random(other.shape) + other).argsort(1)[:, :EXTRA]
        np.put_along_axis(other, extra, True, 1)
        make_minimal(rng, grids[rows], other)
        new = rating(rng, (grids[rows] + 1) * other)
        kept = new >= rated[rows]
        given[rows[kept]], rated[rows[kept]] = other[kept], new[kept]
    puzzles = (grids + 1) * given
    return puzzles[rated > 0], grids[rated > 0] + 1


def first_puzzles(folder, seed, train, test, workers):
    """As generated.grown: puzzles that need search."""
    about = {"box": [*BOX], "kind": "hard", "seed": seed, "version": VERSION}
    return generated.grown(folder, about, partial(chunks, seed, workers), train, test)


def chunks(seed, workers, first):
    """Chunks without end, from number `first` on; the first are small, for who asks for few."""
    tasks = ((seed, i, min(generate.CHUNK, 64 << min(i, 6))) for i in itertools.count(first))
    return in_order(make_chunk, tasks, workers)


def mixed(folder, box, clues, seed, train, test, workers, share):
    """As `first_puzzles`, in memory; of both kinds of rows the share needs search.

    Raises ValueError for a box that is not 3x3.
    """
    if box != BOX:
        raise ValueError(f"hard={share}, box {box}: puzzles that need search are made for (3, 3)")
    many = [round(share * count) for count in (train, test)]
    few = [count - hard for count, hard in zip((train, test), many, strict=True)]
    easy = generated.first_puzzles(folder, box, clues, seed, *few, workers)
    hard = first_puzzles(folder, seed, *many, workers)
    kinds = [[pairs[rows] for rows in both] for pairs, *both in (easy, hard)]
    first, last = map(np.concatenate, zip(*kinds, strict=True))
    last = last[np.random.default_rng(0).permutation(test)]  # else the hard ones come last
    return np.concatenate([first, last]), np.arange(train), train + np.arange(test)
