"""Generated puzzles on disk: all different, in a file that grows when a run asks for more.

The file holds the puzzles of the first chunks of generate.chunks, without those that are equal to
an earlier one up to renaming. So a larger set begins with the puzzles of a smaller one, and runs
that differ in train_examples and test_examples share one file.
"""

import contextlib
import functools
from pathlib import Path

import numpy as np

from data import files
from data.files import atomic_path, progress_bar
from data.sudoku import generate
from data.sudoku.held_out import is_held_out, renaming_keys

VERSION = 1  # raise it with every change of what is generated, which a test knows by its checksum


def first_puzzles(folder, box, clues, seed, train, test, workers):
    """As `grown`: puzzles that singles solve; minimal ones, or with so many clues."""
    kind = "minimal" if clues is None else f"clues{clues}"
    about = {"box": [*box], "kind": kind, "seed": seed, "version": VERSION}
    chunks = functools.partial(generate.chunks, box, clues, seed, workers)
    return grown(folder, about, chunks, train, test)


def grown(folder, about, chunks, train, test):
    """Puzzles and solutions (N, 2, L), memory-mapped, and rows of them: `train` and `test` ones.

    The first puzzles that are not held out, and the first that are; made, if they are not there
    yet. about: what names the file; chunks(n) yields all chunks but the first n. Raises ValueError
    where there are not so many different puzzles, or for a damaged file.
    """
    name = "{}x{}-{kind}-seed{seed}-v{version}.npy".format(*about["box"], **about)
    path = Path(folder) / name
    while True:  # another run may write the file too, and leave a shorter one
        pairs, done, keys = read(path, about)
        held_out = is_held_out(keys)
        rows = np.flatnonzero(~held_out)[:train], np.flatnonzero(held_out)[:test]
        if [*map(len, rows)] == [train, test]:
            return pairs, *rows
        print(f"making puzzles, {train:,} to train and {test:,} to test on: {path}", flush=True)
        parts = [pairs]  # one more for each chunk, whenever this is interrupted
        try:
            with contextlib.closing(chunks(done)) as results:
                collect(results, parts, keys, (train, test))
        finally:  # what an interruption leaves has fewer chunks, but is whole
            if len(parts) > 1:
                write(path, about | {"chunks": done + len(parts) - 1}, parts)


def read(path, about):
    """Pairs (N, 2, L), the number of chunks that they are of, and the keys (N,); none without file.

    Raises ValueError for a file that is damaged, or another's.
    """
    cells = (about["box"][0] * about["box"][1]) ** 2
    if not path.exists():
        return np.empty((0, 2, cells), np.uint8), 0, np.empty(0, np.uint64)
    try:
        pairs, found = files.open_kept(path)
    except ValueError as error:
        raise ValueError(f"{error}; delete it to make it again") from None
    form = {"dtype": "|u1", "shape": [len(pairs), 2, cells]}
    if found != found | about | form:
        raise ValueError(f"{path} holds other puzzles than it should: delete it to make it again")
    return pairs, found["chunks"], renaming_keys(pairs[:, 0], pairs[:, 1])


def collect(results, parts, keys, wanted):
    """Append what is new of each chunk to the parts, until there are as many as wanted.

    Raises ValueError where a chunk brings hardly anything new: 4x4 has a few thousand puzzles.
    """
    seen = set(keys.tolist())
    found, enough = counts(keys), np.array(wanted)
    done = np.minimum(found, enough).sum()
    with progress_bar(total=enough.sum(), initial=done, unit="puzzle") as bar:
        for chunk in results:
            new = renaming_keys(*chunk)
            first = [i for i, key in enumerate(new.tolist()) if not (key in seen or seen.add(key))]
            parts.append(np.stack(chunk, 1)[first])
            found = found + counts(new[first])
            bar.update(np.minimum(found, enough).sum() - bar.n)
            if (found >= enough).all():
                return
            if len(first) < len(new) / 64:
                raise ValueError(
                    f"{wanted[0]} + {wanted[1]} puzzles: only {len(seen)} are different, and "
                    f"{found[1]} of them held out"
                )


def counts(keys):
    """How many are to train on, and how many held out."""
    held_out = is_held_out(keys).sum()
    return np.array([len(keys) - held_out, held_out])


def write(path, about, parts):
    from data.growing import GrowingArray  # only needed here

    with atomic_path(path) as partial:
        array = GrowingArray(partial, np.uint8, parts[0].shape[1:])
        for part in parts:
            array.append(part)
        array.seal(about)
