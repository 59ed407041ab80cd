"""Which puzzles are held out, whatever set they are in, and which are the same for a model.

Puzzles that differ by the names of the digits are one: they have the same key. Other symmetries of
the grid are not looked for. The key alone decides that one puzzle in HELD_OUT is never trained on,
in whatever set. Only a set that was prepared with a test file holds out that file's.
"""

import numpy as np

SLAB = 1 << 14  # rows worked on at once
HELD_OUT = 32


def slabs(rows):
    """Views of at most SLAB rows; of none, one view."""
    return (rows[at : at + SLAB] for at in range(0, max(1, len(rows)), SLAB))


def puzzle_keys(pairs):
    """One uint64 for each of pairs (N, 2, L), equal up to renaming, (N,).

    Two of millions clash with odds of 1e-5. The same on every machine and for every version of
    numpy: what is held out depends on them.
    """
    n = round(pairs.shape[2] ** 0.5)  # the first row of a solution has each digit
    both = pairs.reshape(len(pairs), 2 * n * n)
    return np.concatenate([hashes(part, part[:, n * n :][:, :n]) for part in slabs(both)])


def clue_keys(pairs):
    """The same of the clues alone."""
    return np.concatenate([hashes(part, part) for part in slabs(pairs[:, 0])])


def is_held_out(keys):
    """Which puzzles are to test on, bool (N,), by their keys."""
    return keys < np.uint64((1 << 64) // HELD_OUT)


def hashes(grids, by):
    """A uint64 for each of grids (N, K), its digits named in their order in by (N, M); 0 stays."""
    first = np.full((len(by), 10), -1)
    for digit in range(1, 10):
        found = by == digit
        first[:, digit] = np.where(found.any(1), found.argmax(1), by.shape[1])
    names = first.argsort(1, kind="stable").argsort(1).astype(np.uint8)
    renamed = np.take_along_axis(names, grids, 1)
    weights = mix(np.arange(1, grids.shape[1] + 1, dtype=np.uint64))
    return mix((renamed * weights).sum(1))


def mix(x):
    """Hashes of uint64 (N,): the last steps of splitmix64 (Steele et al. 2014)."""
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return x ^ x >> np.uint64(31)
