"""One prepared file of Sudoku puzzles for train.py, from other people's files: written and read.

    python prepare_sudoku.py --source=sudoku-3m.csv --max_rating=0 --out=sudoku.npy
    python prepare_sudoku.py --source=TRAIN.npy --test_source=TEST.npy --out=sudoku.npy

`python train.py config/sudoku.py --data_file=sudoku.npy` trains on it: uint8 (N, 2, L), puzzles and
solutions. The puzzles of --test_source come first and are held out; without one train.py holds
some out itself. The file appears once it is complete.

Every puzzle is checked: it obeys the rules (sudoku.validate), or a ValueError says which does not.
"""

import itertools
import math
from pathlib import Path

import numpy as np

import sudoku
from configurator import configure
from data import files
from data.growing import GrowingArray
from data.processes import start
from data.sudoku.held_out import is_held_out, renaming_keys
from engine.files import atomic_path

# -- what to read --------------------------------------------------------------------------------
source = ""  # a .csv (data/sudoku/README.md), or an .npy of solving steps
test_source = ""  # another file, of held-out puzzles
max_rating: float | None = None  # 0..: keep the puzzles of a .csv rated at most this; None = all
box = (3, 3)  # 1..32: rows and columns of a box
# -- what to write -------------------------------------------------------------------------------
out = ""  # FILE.npy


def main():
    if Path(out).suffix != ".npy":
        raise ValueError(f"out={out}: expected FILE.npy")
    with atomic_path(out) as partial:
        array = GrowingArray(partial, np.uint8, (2, sudoku.side(box) ** 2))
        for name in [test_source, source] if test_source else [source]:
            from_test_file = array.count  # in the end, what was there before `source`
            for pair in puzzles_of(name):
                array.append(np.stack(pair, 1))
        array.seal({"box": [*box], "from_test_file": from_test_file})


def puzzles_of(path):
    """Batches as in `read`; says how many puzzles there were. Raises ValueError if none."""
    numbers = []
    for batch in read(path, box, max_rating):
        numbers.append((batch[0] > 0).sum(1))
        yield batch
    if not numbers:
        raise ValueError(f"no puzzle in {path}")
    numbers = np.concatenate(numbers)
    given = f"{numbers.min()} to {numbers.max()} clues, {numbers.mean():.2f} on average"
    print(f"{path}: {len(numbers):,} puzzles, {given}")


# -- readers of other people's files ---------------------------------------------------------------
def read(path, box, max_rating=None):
    """Batches (puzzles, solutions), uint8 (<= SLAB, L) twice, of a .csv or an .npy of steps."""
    if (suffix := Path(path).suffix) == ".csv":
        return read_csv(path, box, max_rating)
    if suffix != ".npy":
        raise ValueError(f"source {str(path)!r}: must end in .csv or .npy")
    if max_rating is not None:
        raise ValueError(f"{path}: max_rating={max_rating}, but an .npy of steps has no ratings")
    return read_steps(path, box)


def read_csv(path, box, max_rating=None):
    """Batches as in `read` of a CSV file with a header. Raises ValueError with row and line.

    Columns `puzzle` and `solution`, for `max_rating` also `difficulty` or `rating`; others are
    ignored. "3 million Sudoku puzzles with ratings" (Kaggle, D. Radcliffe) has them,
    Sudoku-Extreme as `question`, `answer` and `rating`.
    """
    records, first = csv_records(path, max_rating), 0
    while batch := list(itertools.islice(records, sudoku.SLAB)):
        lines, *texts = zip(*batch, strict=True)

        def name(row, lines=lines, first=first):
            return f"{path}, line {lines[row]} (row {first + row})"

        puzzles, solutions = (sudoku.decode(text, box, name) for text in texts)
        sudoku.validate(puzzles, box, solutions, name)
        yield puzzles, solutions
        first += len(batch)


def csv_records(path, max_rating):
    """(line number, puzzle and solution as strings) of the rows rated up to max_rating."""
    rows = files.csv_rows(path, errors="replace")
    puzzle, solution, rating = columns(next(rows, (0, []))[1], path)
    if max_rating is not None and rating is None:
        raise ValueError(f"{path}: max_rating={max_rating}, but no difficulty or rating column")
    for line, row in rows:
        try:
            record = line, row[puzzle], row[solution]
            rated = -math.inf if max_rating is None else float(row[rating])
            if math.isnan(rated):
                raise ValueError("no rating")
        except (IndexError, ValueError):
            raise ValueError(
                f"{path}, line {line}: not a puzzle, solution and rating: {files.brief(row)}"
            ) from None
        if max_rating is None or rated <= max_rating:
            yield record


def columns(header, path):
    """Indices of puzzle, solution and rating (None if absent) in a CSV header."""
    names = sudoku.column_names(header)
    if "puzzle" not in names or "solution" not in names:
        raise ValueError(
            f"{path}: the header must name puzzle and solution, but it is {files.brief(header)}"
        )
    rating = next((names.index(name) for name in ("difficulty", "rating") if name in names), None)
    return names.index("puzzle"), names.index("solution"), rating


def read_steps(path, box):
    """Batches as in `read` of an .npy of solving steps, (N, 1 + 4 L) whole numbers.

    Each row: the number of clues, then (row, column, value, strategy) of the clues and of the other
    cells in solving order, rows and columns from 0 (or from 1: the first row tells); this is the
    set of Shah et al. 2024 (1.8 million for training). Raises ValueError with the row.
    """
    table, _ = files.open_array(path)
    width = 1 + 4 * sudoku.side(box) ** 2
    if table.ndim != 2 or table.shape[1] != width:
        raise ValueError(f"{path}: shape {table.shape}, must be (N, {width})")
    base = 0
    for at in range(0, len(table), sudoku.SLAB):

        def name(row, at=at):
            return f"{path}, row {at + row}"

        with np.errstate(invalid="ignore"):  # of nan and infinity, which are refused
            rows = table[at : at + sudoku.SLAB].astype(np.int64)
        refuse((rows != table[at : at + sudoku.SLAB]).any(1), name, "not whole numbers")
        if at == 0:
            base = int(rows[0, 1:].reshape(-1, 4)[:, :2].min() > 0)
        puzzles, solutions = place(rows, box, base, name)
        sudoku.validate(puzzles, box, solutions, name)
        yield puzzles, solutions


def place(rows, box, base, name):
    """Puzzles and solutions (N, L) of rows (N, 1 + 4 L); `base` is the number of the first line."""
    n, count = sudoku.side(box), rows[:, 0]
    line, col, value = np.moveaxis(rows[:, 1:].reshape(len(rows), n * n, 4)[:, :, :3], 2, 0)
    line, col = line - base, col - base
    refuse((count < 1) | (count >= n * n), name, "the number of clues is out of range")
    outside = (line < 0) | (line >= n) | (col < 0) | (col >= n)
    refuse(outside.any(1), name, f"a row or column is not in {base}..{n - 1 + base}")
    refuse(((value < 1) | (value > n)).any(1), name, f"a value is not in 1..{n}")
    puzzles, solutions = np.zeros((2, len(rows), n * n), np.uint8)
    np.put_along_axis(solutions, line * n + col, value.astype(np.uint8), 1)
    refuse((solutions == 0).any(1), name, "a cell occurs twice")
    clue = np.arange(n * n) < count[:, None]
    np.put_along_axis(puzzles, line * n + col, (value * clue).astype(np.uint8), 1)
    return puzzles, solutions


def refuse(bad, name, complaint):
    """Raise ValueError at the first row where bad (N,) is True; name(row) as in `validate`."""
    if bad.any():
        raise ValueError(f"{name(int(bad.argmax()))}: {complaint}")


# -- puzzles of a file from prepare.py -------------------------------------------------------------
def read_prepared(path, box):
    """Puzzles and solutions, memory-mapped uint8 (N, 2, L), and how many are from a test file.

    Those come first. Raises FileNotFoundError, or ValueError with the command that makes a file.
    """
    try:
        pairs, about = files.open_kept(path)
        if "from_test_file" not in about:
            raise ValueError(f"{path}: not a file of prepare.py")
    except ValueError as error:
        raise ValueError(
            f"{error}; if it is damaged, delete it; if it is not a prepared file, make one with "
            f"python prepare_sudoku.py --source={path} "
            f'--box="({box[0]},{box[1]})" --out=FILE.npy'
        ) from None
    form = {"box": [*box], "dtype": "|u1", "shape": [len(pairs), 2, (box[0] * box[1]) ** 2]}
    if about != about | form:
        raise ValueError(f"{path} holds puzzles with box {about.get('box')}, not {tuple(box)}")
    return pairs, about["from_test_file"]


def prepared_puzzles(path, box, test):
    """Pairs (N, 2, L), rows of them to train on, rows of `test` held-out ones.

    One in HELD_OUT puzzles is held out; but if the file was prepared with a test file, exactly the
    puzzles of that one. A larger test set starts with the smaller one. Raises ValueError if there
    are fewer than `test`.
    """
    pairs, from_test_file = read_prepared(path, box)
    keys, rows = np.unique(renaming_keys(pairs[:, 0], pairs[:, 1]), return_index=True)
    held_out = rows < from_test_file if from_test_file else is_held_out(keys)
    if held_out.sum() < test:
        raise ValueError(
            f"test_examples {test}: {path} has {len(rows)} different puzzles, {held_out.sum()}"
            " held out; ask for fewer, or prepare it with a --test_source"
        )
    return pairs, np.sort(rows[~held_out]), rows[held_out][:test]


if __name__ == "__main__":
    configure(globals())
    start(main)
