"""Make one prepared file of Sudoku puzzles for train.py, from other people's files or generated.

    python data/sudoku/prepare.py --source=sudoku-3m.csv --max_rating=0 --out=sudoku.npy
    python data/sudoku/prepare.py --source=TRAIN.npy --test_source=TEST.npy --out=sudoku.npy
    python data/sudoku/prepare.py --count=1000 --clues=33 --out=puzzles.csv        generated

`python train.py config/sudoku.py --data_file=sudoku.npy` trains on it. The held-out puzzles of
--test_source become sudoku.test.npy beside it; without one train.py holds some out itself. A .csv
is for people and other programs. Files appear once they are complete.
"""

import contextlib
import sys
from pathlib import Path

import numpy as np

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from configurator import configure
from data.growing import GrowingArray
from data.processes import cores, start
from data.sudoku import readers
from data.sudoku.generate import make_puzzles
from data.sudoku.prepared import held_out_file
from data.sudoku.rules import side, to_text
from engine.files import atomic_path

# -- what to read --------------------------------------------------------------------------------
source = ""  # a .csv (data/sudoku/README.md), or an .npy of solving steps; "" = generate puzzles
test_source = ""  # another file, of held-out puzzles
max_rating: float | None = None  # 0..: keep the puzzles of a .csv rated at most this; None = all
box = (3, 3)  # 1..32: rows and columns of a box
# -- what to generate ----------------------------------------------------------------------------
count = 1000  # 1..: puzzles
clues: int | None = None  # 1..1023: per puzzle; None = minimal puzzles
seed = 0  # 0..18446744073709551615: another seed, other puzzles
# -- what to write -------------------------------------------------------------------------------
out = ""  # FILE.npy for train.py, or FILE.csv


def main():
    if Path(out).suffix not in WRITERS:
        raise ValueError(f"out={out}: expected FILE.npy or FILE.csv")
    with contextlib.ExitStack() as stack:  # both files appear once both are complete
        test = None
        if test_source:
            batches = readers.read(test_source, box, max_rating)
            test = write(held_out_file(out), stack, batches)
        write(out, stack, readers.read(source, box, max_rating) if source else generated(), test)
    if not test_source and Path(out).suffix == ".npy":
        held_out_file(out).unlink(missing_ok=True)  # of an earlier file of this name


def generated():
    yield make_puzzles(count, box, clues, seed, cores(), progress=True)


def write(path, stack, batches, test=None):
    """Write the batches of readers.read, say how many; returns what the writer returns.

    The file appears when the stack of contexts ends. Raises ValueError if there is no batch.
    """
    numbers = []

    def counted():
        for batch in batches:
            numbers.append((batch[0] > 0).sum(1))
            yield batch

    partial = stack.enter_context(atomic_path(path))
    checksum = WRITERS[Path(path).suffix](partial, counted(), test)
    if not numbers:
        raise ValueError(f"no puzzle to write to {path}")
    numbers = np.concatenate(numbers)
    clues = f"{numbers.min()} to {numbers.max()} clues, {numbers.mean():.2f} on average"
    print(f"{path}: {len(numbers):,} puzzles, {clues}")
    return checksum


def write_npy(path, batches, test):
    """Write uint8 (N, 2, L) by batches; returns its checksum. test: that of the held-out file."""
    array = GrowingArray(path, np.uint8, (2, side(box) ** 2))
    for pair in batches:
        array.append(np.stack(pair, 1))
    array.seal({"box": [*box], "test": test})
    return array.checksum


def write_csv(path, batches, test):
    with open(path, "w", newline="") as file:
        file.write("puzzle,solution\n")
        for puzzles, solutions in batches:
            pairs = zip(puzzles, solutions, strict=True)
            file.writelines(f"{to_text(p)},{to_text(s)}\n" for p, s in pairs)


WRITERS = {".npy": write_npy, ".csv": write_csv}

if __name__ == "__main__":
    configure(globals())
    start(main)
