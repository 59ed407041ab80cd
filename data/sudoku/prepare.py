"""Make a folder of Sudoku puzzles for train.py: generated ones, or other people's.

    python data/sudoku/prepare.py --box="(2,3)" --out=data/sudoku/minimal_6x6      # generated
    python data/sudoku/prepare.py --box="(2,3)" --clues=20 --out=data/sudoku/clues_20
    python data/sudoku/prepare.py --source=sudoku-3m.csv --max_rating=0 --out=data/sudoku/rated_0
    python data/sudoku/prepare.py --source=TRAIN.npy --test_source=TEST.npy --out=data/sudoku/shah

The folder has train.npy and test.npy, uint8 (N, 2, L): puzzles and solutions; train.npy comes last.
Generated puzzles (generate.py) are such that naked and hidden singles solve them; 200,000 of 6x6
take ten seconds, and the same command always makes the same ones. Files are read by read.py.
Puzzles that differ in the names of the digits count as one.

Held out are the puzzles of the test_source, else one in 32, whichever the set (held_out.py). No
puzzle to train on has the clues of a held-out one, even if it had another solution.
"""

import contextlib
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from configurator import configure
from data.files import atomic_path, progress_bar
from data.processes import cores, start
from data.sudoku import generate, read
from data.sudoku.held_out import clue_keys, is_held_out, puzzle_keys
from sudoku import BOXES

# -- what to write
out = ""  # folder
box = (3, 3)  # rows and columns of a box: (2,2), (2,3) or (3,3)
# -- generated puzzles
clues = None  # 1.. so many each; None = as few as can be, no clue can be taken away
train = 200_000  # 1.. puzzles to train on; of a source all
test = 1000  # 1.. held-out puzzles; of a source at most so many
# -- other people's puzzles, instead
source = ""  # .csv of puzzles and solutions, or .npy of solving steps (read.py)
test_source = ""  # another file, of held-out puzzles
max_rating = float("inf")  # keep the puzzles of a .csv rated at most this
# -- system
workers = None  # 1.. processes that generate; None = one per core
if __name__ == "__main__":
    configure(globals())


def main():
    if not out:
        raise ValueError("expected --out=FOLDER; --help lists all settings")
    if (Path(out) / "train.npy").exists():
        raise FileExistsError(f"{out}/train.npy exists: remove it, or choose another --out")
    if tuple(box) not in BOXES.values():
        raise ValueError(f"box={tuple(box)}: expected one of {(*BOXES.values(),)}")
    if (clues and source) or (test_source and not source):
        raise ValueError("clues is for generated puzzles, test_source for those of a --source")
    if max_rating < float("inf") and not source.endswith(".csv"):
        raise ValueError(f"max_rating={max_rating}: expected a --source=FILE.csv with ratings")
    if clues and clues >= (box[0] * box[1]) ** 2:
        raise ValueError(f"clues={clues} leave no cell of box={tuple(box)} blank")
    if source:
        pairs = read.read(source, tuple(box), max_rating)
        others = read.read(test_source, tuple(box), max_rating) if test_source else pairs[:0]
        save(out, *divided(pairs, others, test))
    else:
        print(f"making {train:,} puzzles to train on, {test:,} to test on: {out}", flush=True)
        save(out, *generated(tuple(box), clues, train, test, workers or cores()))


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
    chunks = contextlib.closing(generate.chunks(box, clues, 0, workers))
    with chunks as results, progress_bar(total=wanted.sum(), unit=" puzzles") as bar:
        while (found < wanted).any():
            pairs = np.stack(next(results), 1)
            keys = puzzle_keys(pairs)
            new = np.array([not (key in seen or seen.add(key)) for key in keys.tolist()], bool)
            held_out = is_held_out(keys)
            for split, rows in enumerate([new & ~held_out, new & held_out]):
                parts[split].append(pairs[rows])
                found[split] += rows.sum()
            bar.update(np.minimum(found, wanted).sum() - bar.n)
            if new.sum() < len(new) / 64 and (found < wanted).any():
                raise ValueError(f"{found} of {wanted} different puzzles found, ask for fewer")
    if clues and (least := np.count_nonzero(parts[0][0][:, 0], 1).min()) > clues:
        raise ValueError(
            f"clues={clues}: singles solve no puzzle of so few, the fewest has {least}"
        )
    return [np.concatenate(part)[:count] for part, count in zip(parts, wanted, strict=True)]


# -- other people's puzzles ------------------------------------------------------------------------
def divided(pairs, others, test):
    """Of pairs (N, 2, L) those to train on, and those to test on: others (M, 2, L), if there are.

    The held-out puzzles are taken in the order of their keys, which is as good as random.
    """
    every = np.concatenate([others, pairs])
    keys, rows = np.unique(puzzle_keys(every), return_index=True)
    held_out = rows < len(others) if len(others) else is_held_out(keys)
    trained = every[np.sort(rows[~held_out])]
    tested = every[rows[held_out]]
    new = ~np.isin(clue_keys(trained), clue_keys(tested))
    print(f"{len(every) - len(rows):,} puzzles are earlier ones but for the names of the digits")
    print(f"{(~new).sum():,} more have the clues of a held-out one, with another solution")
    print(f"{len(tested):,} are held out, of which --test={test} at most are written")
    if not new.any() or not len(tested):
        raise ValueError("too few to train on or to test on: give more, or a --test_source")
    return trained[new], tested[:test]


if __name__ == "__main__":
    start(main)
