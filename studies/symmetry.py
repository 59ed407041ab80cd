"""How new held-out Sudoku puzzles are: how many copy a training puzzle up to symmetry.

    python -m studies.symmetry

Held-out puzzles differ from training puzzles by more than the names of the digits. But the grid has
other symmetries: rows of a band can be swapped, and bands, columns of a stack, and stacks; with
square boxes the grid can be transposed. The solution may also occur in training under other clues.
Prints how many of the held-out puzzles of a generated set

    copies       become a training puzzle by a symmetry of the grid and a renaming of the digits
    solutions    have a solution that a training puzzle has, up to renaming
"""

import itertools

import numpy as np

from configurator import configure, errors_as_messages
from data.processes import cores
from data.sudoku.renaming import renaming_keys
from sudoku import side
from tasks.sudoku import DATA_SEED, Sudoku

box = (
    2,
    3,
)  # 2..3: rows and columns of a box; 3x3 has 3,359,232 symmetries: hours, and no copy expected
clues: int | None = None  # 1..: per puzzle; None = minimal puzzles
train_examples = 200_000  # 1..:
test_examples = 512  # 1..:


def main():
    with errors_as_messages():
        task = Sudoku.generated(
            box, clues, train_examples, test_examples, DATA_SEED, workers=cores()
        )
    train, test = (part.pairs[part.rows] for part in (task.train, task.validation))
    count = len(symmetries(box))
    print(f"{len(test)} held-out puzzles, {len(train):,} to train on, {count:,} symmetries")
    for name, found in ("copies", copies(train, test, box)), ("solutions", solutions(train, test)):
        print(f"{name:10} {found.sum():6d} {found.mean():8.2%}")


def symmetries(box):
    """The cells that take the places of cells 0, 1, ...; a row for each symmetry, (S, L)."""
    n = side(box)
    cells = np.arange(n * n).reshape(n, n)
    found = [
        cells[np.ix_(rows, columns)] for rows in lines(n, box[0]) for columns in lines(n, box[1])
    ]
    if box[0] == box[1]:
        found += [grid.T for grid in found]
    return np.stack(found).reshape(-1, n * n)


def lines(n, size):
    """Orders of n rows that keep the `size` rows of each band together."""
    for bands in itertools.permutations(range(0, n, size)):
        for inner in itertools.product(itertools.permutations(range(size)), repeat=len(bands)):
            yield [band + i for band, order in zip(bands, inner, strict=True) for i in order]


def copies(train, test, box):
    """Which of test (n, 2, L) are puzzles of train up to symmetry and renaming, bool (n,)."""
    places = symmetries(box)
    keys = np.stack([renaming_keys(*pair[:, places]) for pair in test])  # (n, S)
    return np.isin(keys, renaming_keys(train[:, 0], train[:, 1])).any(1)


def solutions(train, test):
    """Which of test (n, 2, L) have the solution of a training puzzle, up to renaming, bool (n,)."""
    ours, theirs = (renaming_keys(pairs[:, 1], pairs[:, 1]) for pairs in (test, train))
    return np.isin(ours, theirs)


if __name__ == "__main__":
    configure(globals())
    main()
