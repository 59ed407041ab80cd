"""Make a folder of Sudoku puzzles for train.py: generated ones, or other people's.

    python data/sudoku/prepare.py --box="(2,3)" --out=data/sudoku/minimal_6x6      # generated
    python data/sudoku/prepare.py --box="(2,3)" --clues=20 --out=data/sudoku/clues_20
    python data/sudoku/prepare.py --source=sudoku-3m.csv --max_rating=0 --out=data/sudoku/rated_0
    python data/sudoku/prepare.py --source=TRAIN.npy --test_source=TEST.npy --out=data/sudoku/shah

The folder has train.npy and test.npy, uint8 (N, 2, L): puzzles and solutions; train.npy comes last.
Generated puzzles (generate.py) are such that naked and hidden singles solve them. Files are read
by read.py. Puzzles that differ in the names of the digits count as one.

Held out are the puzzles of the test_source, else one in 32, whichever the set (held_out.py). No
puzzle to train on has the clues of a held-out one, even if it had another solution.
"""

import contextlib
import sys
from pathlib import Path

import numpy as np

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from configurator import configure
from data.files import atomic_path, progress_bar
from data.processes import cores, positive, start
from data.sudoku import generate, read
from data.sudoku.held_out import clue_keys, is_held_out, renaming_keys
from sudoku import BOXES

# -- what to write
out = ""  # folder
box = (3, 3)  # rows and columns of a box: (2,2), (2,3) or (3,3)
# -- generated puzzles
clues = None  # so many each; None = as few as can be, no clue can be taken away
train = 200_000  # puzzles to train on; of a source all
test = 1000  # held-out puzzles; of a source at most so many
# -- other people's puzzles, instead
source = ""  # .csv of puzzles and solutions, or .npy of solving steps (read.py)
test_source = ""  # another file, of held-out puzzles
max_rating = None  # keep the puzzles of a .csv rated at most this; None = all
# -- system
workers = None  # processes that generate; None = one per core
if __name__ == "__main__":
    configure(globals())

SEED = 0  # of the generated puzzles


def main():
    if not out:
        raise ValueError("expected --out=FOLDER; --help lists all settings")
    if not source:
        if test_source or max_rating is not None:
            raise ValueError("test_source and max_rating need a --source")
        make(out, box, clues, train, test, workers)
        return
    if clues is not None:
        raise ValueError("clues is for generated puzzles, it selects none of a --source")
    convert(out, box, source, test_source, max_rating, test)


def make(folder, box, clues, train, test, workers=None):
    """Write a folder of so many generated puzzles: to train on, and to test on."""
    box = new_folder(folder, box)
    positive(clues=clues, train=train, test=test, workers=workers)
    cells = (box[0] * box[1]) ** 2
    if clues is not None and clues >= cells:
        raise ValueError(f"clues={clues}: must be None (minimal) or 1..{cells - 1}")
    print(f"making {train:,} puzzles to train on, {test:,} to test on: {folder}", flush=True)
    save(folder, *generated(box, clues, train, test, workers or cores()))


def convert(folder, box, source, test_source, max_rating, test):
    """Write a folder of the puzzles in files, all to train on and at most `test` to test on."""
    box = new_folder(folder, box)
    positive(test=test)
    if not isinstance(max_rating, int | float | None):
        raise ValueError(f"max_rating={max_rating!r}: expected a number")
    theirs = 0  # pairs from the test_source, which come first
    pairs = read.read(source, box, max_rating)
    print(f"{source}: {described(pairs)}")
    if test_source:
        others = read.read(test_source, box, max_rating)
        print(f"{test_source}: {described(others)}")
        theirs = len(others)
        pairs = np.concatenate([others, pairs])
    save(folder, *divided(pairs, theirs, test))


def new_folder(folder, box):
    """The box as a tuple. Raises ValueError if it is unknown, or if the folder has puzzles."""
    if (Path(folder) / "train.npy").exists():
        raise ValueError(f"{folder}/train.npy exists; delete it or choose another --out")
    if tuple(box) not in BOXES.values():
        raise ValueError(f"box={tuple(box)}: expected one of {(*BOXES.values(),)}")
    Path(folder).mkdir(parents=True, exist_ok=True)
    return tuple(box)


def described(pairs):
    clues = (pairs[:, 0] > 0).sum(1)
    return f"{len(pairs):,} puzzles, {clues.min()} to {clues.max()} clues, {clues.mean():.2f} each"


def save(folder, train, test):
    """Write train (N, 2, L) and test (M, 2, L); train.npy appears last."""
    for name, pairs in ("test", test), ("train", train):
        with atomic_path(Path(folder) / f"{name}.npy") as partial, open(partial, "wb") as file:
            np.save(file, pairs)
    print(f"{len(train):,} puzzles to train on, {len(test):,} to test on: {folder}")


# -- generated puzzles -----------------------------------------------------------------------------
def generated(box, clues, train, test, workers):
    """The first different puzzles: `train` (N, 2, L) of those not held out, `test` of the others.

    Raises ValueError where a chunk brings hardly anything new: 4x4 has a few thousand puzzles.
    """
    wanted = np.array([train, test])
    found = np.zeros(2, int)
    parts = [], []
    seen = set()
    chunks = contextlib.closing(generate.chunks(box, clues, SEED, workers))
    with chunks as results, progress_bar(total=wanted.sum(), unit=" puzzles") as bar:
        while (found < wanted).any():
            chunk = next(results)
            keys = renaming_keys(*chunk)
            pairs = np.stack(chunk, 1)
            new = np.array([not (key in seen or seen.add(key)) for key in keys.tolist()], bool)
            held_out = is_held_out(keys)
            for split, rows in enumerate([new & ~held_out, new & held_out]):
                parts[split].append(pairs[rows])
                found[split] += rows.sum()
            bar.update(np.minimum(found, wanted).sum() - bar.n)
            if new.sum() < len(new) / 64 and (found < wanted).any():
                raise ValueError(
                    f"{train:,} to train on and {test:,} to test on: of {len(seen):,} different "
                    f"puzzles {found[1]:,} are held out; ask for fewer"
                )
    return [np.concatenate(part)[:count] for part, count in zip(parts, wanted, strict=True)]


# -- other people's puzzles ------------------------------------------------------------------------
def divided(pairs, theirs, test):
    """Of pairs (N, 2, L), `theirs` from a test file first: those to train on, those to test on.

    The held-out puzzles are taken in the order of their keys, which is as good as random.
    """
    keys, rows = np.unique(renaming_keys(pairs[:, 0], pairs[:, 1]), return_index=True)
    held_out = rows < theirs if theirs else is_held_out(keys)
    others = np.sort(rows[~held_out])
    tested = rows[held_out]
    say_dropped(len(pairs) - len(rows), "same as an earlier one but for the names of the digits")
    recurs = np.isin(clue_keys(pairs[others, 0]), clue_keys(pairs[tested, 0]))
    say_dropped(recurs.sum(), "clues of a held-out puzzle, with another solution")
    say_dropped(max(0, len(tested) - test), f"held out, but more than --test={test}")
    others = others[~recurs]
    if not len(others) or not len(tested):
        raise ValueError(
            f"{len(others)} puzzles to train on, {len(tested)} held out: too few; give more, or a "
            "--test_source with other puzzles"
        )
    return pairs[others], pairs[tested[:test]]


def say_dropped(count, why):
    if count:
        print(f"dropped {count:,}: {why}")


if __name__ == "__main__":
    start(main)
