"""Sudoku: the rules, readers of puzzle files, and the data set (a task; it never sees a model).

A grid is uint8 (N, L) row-major, L = n * n, digits 1..n, 0 = blank; box = (rows, columns) of a box,
n = rows * columns. To a model every cell is a token in place: digit d is token d - 1 and the mask
is token n, so a puzzle is the solution x0 (L,) and `prompt` (L,), True at the clues.

Nothing here tests that a puzzle has one solution: files are trusted in that, generated puzzles have
one by construction. Command line: `python sudoku.py --help`.
"""

import argparse
import csv
import hashlib
import itertools
import os
import time
from pathlib import Path

import numpy as np

from data.sudoku.generate import generate
from tasks import Problems

SLAB = 1 << 14  # rows worked on at once: a file may have millions
DATA_SEED = 0  # the same puzzles, and the same held out, for runs of every seed
SYMBOLS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
SYMBOL_BYTES = np.frombuffer(SYMBOLS.encode(), np.uint8)


def side(box):
    """n, the digits of a grid with such boxes."""
    return box[0] * box[1]


def unit_cells(box):
    """Cells of the n rows, n columns, n boxes, (3n, n)."""
    n = side(box)
    cells = np.arange(n * n).reshape(n, n)
    boxes = cells.reshape(n // box[0], box[0], n // box[1], box[1]).swapaxes(1, 2).reshape(n, n)
    return np.concatenate([cells, cells.T, boxes])


def _digit_sets(grids, box):
    """Digits of each unit as a bit mask, (N, 3n) uint32; what isn't a digit is ignored."""
    n = side(box)
    table = np.zeros(n + 1, np.uint32)
    table[1:] = 1 << np.arange(n)
    cells = table[np.where((grids >= 1) & (grids <= n), grids, 0)]
    return np.bitwise_or.reduce(cells[:, unit_cells(box)], -1)


def check(grids, puzzles, box):
    """Which grids (N, L) of any integers solve their puzzles (N, L), bool (N,).

    Every row, column and box has every digit, and every clue is kept.
    """
    grids, puzzles = np.asarray(grids), np.asarray(puzzles)
    complete = (_digit_sets(grids, box) == (1 << side(box)) - 1).all(1)
    return complete & ((puzzles == 0) | (puzzles == grids)).all(1)


def _faults(puzzles, box, solutions):
    """Pairs of a complaint and the rows (N,) it holds for; later ones rely on the earlier."""
    n = side(box)
    yield f"digits must be 0 (blank) to {n}", ((puzzles < 0) | (puzzles > n)).any(1)
    yield "no blank cell", (puzzles > 0).all(1)
    distinct = np.bitwise_count(_digit_sets(puzzles, box))
    given = (puzzles > 0)[:, unit_cells(box)].sum(-1)
    yield "the same clue twice in a row, column or box", (distinct != given).any(1)
    if solutions is not None:
        yield "the solution breaks the rules", ~check(solutions, np.zeros_like(puzzles), box)
        yield "the solution disagrees with the clues", ~check(solutions, puzzles, box)


def _row_number(row):
    return f"row {row}"


def validate(puzzles, box, solutions=None, name=_row_number):
    """Raise ValueError at the first row of puzzles (N, L), solutions (N, L) that breaks the rules.

    `name(row)` says in the message where a row (0-based) comes from.
    """
    for what, grids in (("puzzles", puzzles), ("solutions", solutions)):
        if grids is not None and grids.shape != (len(puzzles), side(box) ** 2):
            raise ValueError(
                f"{what} of shape {grids.shape}: must be ({len(puzzles)}, {side(box) ** 2})"
            )
    for at in range(0, len(puzzles), SLAB):
        part = slice(at, at + SLAB)
        for complaint, bad in _faults(
            puzzles[part], box, None if solutions is None else solutions[part]
        ):
            if bad.any():
                raise ValueError(f"{name(at + int(bad.argmax()))}: {complaint}")


def _symbol_table(n):
    """Digit of each byte, uint8 (256,); 255 where it is none."""
    table = np.full(256, 255, np.uint8)
    table[ord(".")] = 0
    for digit, symbol in enumerate(SYMBOLS[: n + 1]):
        table[ord(symbol)] = table[ord(symbol.lower())] = digit
    return table


def _decode(texts, box, name):
    """Digits of strings of L symbols, uint8 (N, L); name(row) as in `validate`."""
    cells = side(box) ** 2
    for row, text in enumerate(texts):
        if len(text) != cells:
            raise ValueError(f"{name(row)}: {len(text)} characters, must be {cells}")
    data = np.frombuffer("".join(texts).encode("latin-1", "replace"), np.uint8).reshape(-1, cells)
    digits = _symbol_table(side(box))[data]
    if (digits == 255).any():
        row, cell = np.argwhere(digits == 255)[0]
        raise ValueError(
            f"{name(row)}: {texts[row][cell]!r} at cell {cell} is neither a digit up to "
            f"{SYMBOLS[side(box)]} nor a blank (0 or .)"
        )
    return digits


def parse(text, box):
    """The puzzle or grid written as L symbols, uint8 (L,); `0` and `.` are blanks.

    Digits above 9 are letters, A = 10; spaces and line breaks are ignored. Raises ValueError.
    """
    return _decode(["".join(text.split())], box, lambda row: "puzzle")[0]


def to_text(grid):
    """The grid (L,) as L symbols, blanks as `0`."""
    return SYMBOL_BYTES[grid].tobytes().decode()


def render(grid, box):
    """The grid (L,) as lines for a terminal, blanks as `.`."""
    n, bands = side(box), []
    for row in np.asarray(grid).reshape(n, n):
        symbols = to_text(row).replace("0", ".")
        stacks = [" ".join(symbols[at : at + box[1]]) for at in range(0, n, box[1])]
        bands.append(" | ".join(stacks))
    rule = "-+-".join(["-" * (2 * box[1] - 1)] * (n // box[1]))
    groups = ["\n".join(bands[at : at + box[0]]) for at in range(0, n, box[0])]
    return f"\n{rule}\n".join(groups)


def canonical(puzzles, solutions):
    """Both (N, L) with the digits renamed so that the solution opens with 1, 2, ..., n.

    Equal for puzzles that differ by renaming only; other symmetries are not undone.
    """
    n = round(solutions.shape[1] ** 0.5)
    names = np.zeros((len(solutions), n + 1), np.uint8)
    np.put_along_axis(names, solutions[:, :n], np.arange(1, n + 1, dtype=np.uint8)[None], 1)
    return np.take_along_axis(names, puzzles, 1), np.take_along_axis(names, solutions, 1)


def _keys(puzzles, solutions):
    """One uint64 a puzzle, equal up to renaming, (N,); two of millions clash with odds of 1e-5."""
    weights = np.random.default_rng(0).integers(0, 1 << 64, (2, puzzles.shape[1]), np.uint64)
    keys = []
    for at in range(0, len(puzzles), SLAB):
        pair = canonical(puzzles[at : at + SLAB], solutions[at : at + SLAB])
        keys.append(sum((grids * row).sum(1) for grids, row in zip(pair, weights, strict=True)))
    return np.concatenate(keys)


def split(puzzles, solutions, test, seed):
    """Row numbers (train,) ascending and (test,) in random order; no two rows equal up to renaming.

    Raises ValueError if the set has no more than `test` such rows.
    """
    distinct = np.unique(_keys(puzzles, solutions), return_index=True)[1]
    if test >= len(distinct):
        raise ValueError(f"test={test}: the set has {len(distinct)} different puzzles in all")
    rows = np.random.default_rng(seed).permutation(distinct)
    return np.sort(rows[test:]), rows[:test]


def _columns(header, path):
    """Places of puzzle, solution and rating (None if absent) in a CSV header."""
    names = [name.strip().lower() for name in header]
    if "puzzle" not in names or "solution" not in names:
        raise ValueError(f"{path}: the header must name puzzle and solution, it is {header}")
    rating = next((names.index(name) for name in ("difficulty", "rating") if name in names), None)
    return names.index("puzzle"), names.index("solution"), rating


def _csv_records(path, max_rating):
    """(line number, puzzle, solution) as strings, of the rows rated up to max_rating."""
    with open(path, newline="", encoding="utf-8-sig", errors="replace") as file:
        reader = csv.reader(file)
        puzzle, solution, rating = _columns(next(reader, []), path)
        if max_rating is not None and rating is None:
            raise ValueError(f"{path}: max_rating={max_rating}, but no difficulty or rating column")
        for row in filter(None, reader):
            try:
                record = reader.line_num, row[puzzle], row[solution]
                wanted = max_rating is None or float(row[rating]) <= max_rating
            except (IndexError, ValueError):
                raise ValueError(
                    f"{path}, line {reader.line_num}: not a puzzle, solution and rating: {row}"
                ) from None
            if wanted:
                yield record


def read_csv(path, box, max_rating=None):
    """Batches (puzzles, solutions), uint8 (<= SLAB, L) each, of a CSV file with a header.

    Columns `puzzle` and `solution`, for `max_rating` also `difficulty` or `rating`; others are
    ignored. That is "3 million Sudoku puzzles with ratings" (Kaggle, D. Radcliffe) and kin.
    Raises ValueError with row and line.
    """
    records, first = _csv_records(path, max_rating), 0
    while batch := list(itertools.islice(records, SLAB)):
        lines, *texts = zip(*batch, strict=True)

        def name(row, lines=lines, first=first):
            return f"{path}, line {lines[row]} (row {first + row})"

        puzzles, solutions = (_decode(text, box, name) for text in texts)
        validate(puzzles, box, solutions, name)
        yield puzzles, solutions
        first += len(batch)


def _refuse(bad, name, complaint):
    if bad.any():
        raise ValueError(f"{name(int(bad.argmax()))}: {complaint}")


def _place(rows, box, base, name):
    """Puzzles and solutions (N, L) of rows (N, 1 + 4 L): clue count, (row, col, value, how) ..."""
    n, count = side(box), rows[:, 0]
    line, col, value = np.moveaxis(rows[:, 1:].reshape(len(rows), n * n, 4)[:, :, :3], 2, 0)
    line, col = line - base, col - base
    _refuse((count < 1) | (count >= n * n), name, "the number of clues is out of range")
    outside = (line < 0) | (line >= n) | (col < 0) | (col >= n)
    _refuse(outside.any(1), name, f"a row or column is not in {base}..{n - 1 + base}")
    _refuse(((value < 1) | (value > n)).any(1), name, f"a value is not in 1..{n}")
    puzzles, solutions = np.zeros((2, len(rows), n * n), np.uint8)
    np.put_along_axis(solutions, line * n + col, value.astype(np.uint8), 1)
    _refuse((solutions == 0).any(1), name, "a cell occurs twice")
    clue = np.arange(n * n) < count[:, None]
    np.put_along_axis(puzzles, line * n + col, (value * clue).astype(np.uint8), 1)
    return puzzles, solutions


def read_steps(path, box):
    """Batches (puzzles, solutions) of an .npy of solving steps, (N, 1 + 4 L) whole numbers.

    Each row: the number of clues, then (row, column, value, strategy) of the clues and of the other
    cells in solving order, rows and columns from 0 (or from 1: the first row tells); this is the
    set of Shah et al. 2024 (1.8 million for training). Raises ValueError with the row.
    """
    table = np.load(path, mmap_mode="r", allow_pickle=False)
    width = 1 + 4 * side(box) ** 2
    if table.ndim != 2 or table.shape[1] != width:
        raise ValueError(f"{path}: shape {table.shape}, must be (N, {width})")
    base = 0
    for at in range(0, len(table), SLAB):

        def name(row, at=at):
            return f"{path}, row {at + row}"

        rows = table[at : at + SLAB].astype(np.int64)
        _refuse((rows != table[at : at + SLAB]).any(1), name, "not whole numbers")
        if at == 0:
            base = int(rows[0, 1:].reshape(-1, 4)[:, :2].min() > 0)
        puzzles, solutions = _place(rows, box, base, name)
        validate(puzzles, box, solutions, name)
        yield puzzles, solutions


def read(path, box, max_rating=None):
    """Batches (puzzles, solutions) of a .csv (`read_csv`) or an .npy (`read_steps`)."""
    suffix = Path(path).suffix
    if suffix == ".csv":
        return read_csv(path, box, max_rating)
    if suffix != ".npy":
        raise ValueError(f"{path}: must end in .csv or .npy")
    if max_rating is not None:
        raise ValueError(f"{path}: max_rating={max_rating}, but an .npy of steps has no ratings")
    return read_steps(path, box)


def _write_npy(path, batches):
    """Stream uint8 batches (B, 2, L) into one .npy (N, 2, L); the header is written last.

    numpy's header leaves room for the first axis to grow.
    """
    total = 0
    with open(path, "wb") as file:
        for batch in batches:
            if total == 0:
                _write_header(file, batch.shape)
                start = file.tell()
            file.write(np.ascontiguousarray(batch).data)
            total += len(batch)
        if total == 0:
            raise ValueError("no puzzle to write")
        file.seek(0)
        _write_header(file, (total, *batch.shape[1:]))
        assert file.tell() == start


def _write_header(file, shape):
    header = {"descr": "|u1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)


def _stored(path, batches):
    """The .npy at path, memory-mapped; made from `batches()` first if it's not there."""
    path = Path(path)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
        try:
            _write_npy(partial, batches())
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
    return np.asarray(np.load(path, mmap_mode="r"))


def _stamp(path, *settings):
    """Name of the prepared copy of a file: changes with the file and the settings."""
    stat = Path(path).stat()
    text = repr((Path(path).name, stat.st_size, stat.st_mtime_ns, settings))
    return f"{Path(path).stem}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.npy"


def _prepared(path, box, max_rating, cache_dir):
    """The file's puzzles and solutions, memory-mapped (N, 2, L)."""
    target = Path(cache_dir) / _stamp(path, tuple(box), max_rating)
    return _stored(target, lambda: (np.stack(b, 1) for b in read(path, box, max_rating)))


def _generated(count, box, clues, seed, workers, cache_dir):
    """Generated puzzles and solutions, memory-mapped (N, 2, L)."""
    kind = "minimal" if clues is None else f"clues{clues}"
    path = Path(cache_dir) / f"{box[0]}x{box[1]}-{kind}-seed{seed}-{count}.npy"

    def made():
        print(f"making {count:,} puzzles, to keep those that differ: {path}", flush=True)
        return [np.stack(generate(count, box, clues, seed, workers, True), 1)]

    return _stored(path, made)


class Examples:
    """Rows of a memory-mapped set of puzzles and solutions (N, 2, L), as tokens.

    `examples[indices]` -> x0 uint8 (B, L), prompt bool (B, L).
    """

    def __init__(self, pairs, rows, box):
        self.pairs, self.rows, self.box = pairs, rows, box

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, indices):
        pairs = self.pairs[self.rows[indices]]
        return pairs[..., 1, :] - 1, pairs[..., 0, :] > 0

    def puzzles(self, indices):
        """Digits, 0 = blank, uint8 (B, L)."""
        return self.pairs[self.rows[indices], 0]


class Puzzles(Problems):
    """Puzzles (N, L), digits with 0 = blank, to be solved; their solutions are not needed."""

    def __init__(self, puzzles, box):
        validate(puzzles, box)
        self.puzzles, self.box = np.asarray(puzzles), tuple(box)

    def __len__(self):
        return len(self.puzzles)

    def __getitem__(self, indices):
        puzzles = self.puzzles[indices].astype(np.int64)
        return np.where(puzzles > 0, puzzles - 1, side(self.box)), puzzles == 0

    def judge(self, tokens, indices):
        puzzles, grids = self.puzzles[indices], np.asarray(tokens).astype(np.int64) + 1
        correct = check(grids, puzzles, self.box)
        return [
            {"kind": "correct" if ok else "wrong", "puzzle": to_text(puzzle), "grid": to_text(grid)}
            for ok, puzzle, grid in zip(correct, puzzles, grids, strict=True)
        ]

    def show(self, tokens, seen=None):
        grid = np.asarray(tokens) + 1
        return render(grid if seen is None else np.where(seen, grid, 0), self.box)

    def verdict(self, record):
        return f"{record['grid']} {'solved' if record['kind'] == 'correct' else 'wrong'}"


class Sudoku:
    """Training and test puzzles: `train` and `test` are `Examples`, disjoint up to renaming.

    `validation`, whose loss is measured, is the test set: its grids are known.
    """

    def __init__(self, box, train, test):
        self.box, self.train, self.validation = tuple(box), train, test
        self.test = Puzzles(test.puzzles(np.arange(len(test))), box)
        self.length = side(box) ** 2
        self.mask = side(box)
        self.vocab_size = side(box) + 1

    def padding(self, x0):
        """Cells without content, bool (n, L): there are none."""
        return np.zeros(x0.shape, bool)

    def prompts(self, texts):
        """Puzzles that a user writes, row by row."""
        return Puzzles(np.stack([parse(text, self.box) for text in texts]), self.box)

    def problems(self, name, file):
        """The puzzles in a file: one per line, or a CSV file with a column `puzzle`."""
        if name or not file:
            raise ValueError(f"problems {name!r}: Sudoku has none; give --file")
        return Puzzles(read_puzzles(file, self.box), self.box)

    @classmethod
    def generated(cls, box, clues, train, test, seed, cache_dir="data/sudoku", workers=1):
        """`train` and `test` puzzles of `sudoku_generator.generate`, kept in cache_dir.

        Small boxes repeat themselves: if need be more are made, up to 16 for each one asked for.
        Raises ValueError if even these are not different enough.
        """
        for spare in (1, 2, 4, 8, 16):
            pairs = _generated(spare * (train + test), box, clues, seed, workers, cache_dir)
            rest, held_out = split(pairs[:, 0], pairs[:, 1], test, seed)
            if len(rest) >= train:
                return cls(box, Examples(pairs, rest[:train], box), Examples(pairs, held_out, box))
        raise ValueError(
            f"{train} + {test} puzzles: of {len(pairs)} only {len(rest) + test} are different"
        )

    @classmethod
    def from_file(cls, path, box, test, seed, max_rating=None, cache_dir="data/sudoku"):
        """A .csv or .npy (see `read`), of which `test` random puzzles are held out."""
        pairs = _prepared(path, box, max_rating, cache_dir)
        rows = split(pairs[:, 0], pairs[:, 1], test, seed)
        return cls(box, *(Examples(pairs, part, box) for part in rows))

    @classmethod
    def from_files(
        cls, train_path, test_path, box, test, seed, max_rating=None, cache_dir="data/sudoku"
    ):
        """A file to train on and one of which `test` random puzzles are held out.

        What occurs in both counts as test only.
        """
        held_out = test
        train, test = (_prepared(p, box, max_rating, cache_dir) for p in (train_path, test_path))
        keys, first = np.unique(_keys(train[:, 0], train[:, 1]), return_index=True)
        test_keys, test_rows = np.unique(_keys(test[:, 0], test[:, 1]), return_index=True)
        train_rows = first[~np.isin(keys, test_keys)]
        test_rows = np.random.default_rng(seed).permutation(test_rows)[:held_out]
        return cls(box, Examples(train, np.sort(train_rows), box), Examples(test, test_rows, box))


def read_puzzles(path, box):
    """The puzzles of a file, uint8 (N, L): one per line, or a CSV file with a column `puzzle`.

    Raises ValueError that names the line.
    """
    with open(path, newline="", encoding="utf-8-sig") as lines:
        rows = [(reader.line_num, row) for reader in [csv.reader(lines)] for row in reader if row]
    column = rows[0][1].index("puzzle") if rows and "puzzle" in rows[0][1] else None
    rows = rows if column is None else rows[1:]
    if not rows:
        raise ValueError(f"{path} has no puzzle: expected one per line")
    puzzles = []
    for line, row in rows:
        try:
            puzzles.append(parse(row[column or 0], box))
            validate(puzzles[-1][None], box, name="puzzle".format)
        except (ValueError, IndexError) as error:
            raise ValueError(f"{path}, line {line}: {error}") from None
    return np.stack(puzzles)


def load(config):
    """The data set that the configuration of a run asks for (keys as in train.py)."""
    box, test, path = tuple(config["box"]), config["test_examples"], config["data_file"]
    if config["test_file"] and not path:
        raise ValueError("test_file is given without data_file, the file to train on")
    if config["test_file"]:
        files = path, config["test_file"]
        return Sudoku.from_files(*files, box, test, DATA_SEED, config["max_rating"])
    if path:
        return Sudoku.from_file(path, box, test, DATA_SEED, config["max_rating"])
    train = config["train_examples"]
    workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Sudoku.generated(box, config["clues"], train, test, DATA_SEED, workers=workers)


def write_csv(path, batches):
    """Write batches (puzzles, solutions) under the header `puzzle,solution`; number of clues (N,).

    `path` appears once it's complete.
    """
    partial, clues = Path(f"{path}.{os.getpid()}.partial"), []
    try:
        with open(partial, "w", newline="") as file:
            file.write("puzzle,solution\n")
            for puzzles, solutions in batches:
                pairs = zip(puzzles, solutions, strict=True)
                file.writelines(f"{to_text(p)},{to_text(s)}\n" for p, s in pairs)
                clues.append((puzzles > 0).sum(1))
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return np.concatenate(clues) if clues else np.zeros(0, np.int64)


def _arguments():
    parser = argparse.ArgumentParser(description="Make, check and convert files of Sudoku puzzles.")
    commands = parser.add_subparsers(dest="command", required=True)
    new = commands.add_parser("generate", help="new puzzles that singles solve, to a CSV file")
    new.add_argument("out")
    new.add_argument("--count", type=int, default=1000)
    new.add_argument("--clues", type=int, help="default: minimal puzzles")
    new.add_argument("--seed", type=int, default=0)
    new.add_argument("--workers", type=int, default=1)
    old = commands.add_parser("convert", help="check a .csv or .npy and write it to a CSV file")
    old.add_argument("source")
    old.add_argument("out")
    old.add_argument("--max-rating", type=float, help="leave out harder ones")
    for command in (new, old):
        command.add_argument("--box", type=int, nargs=2, default=(3, 3), metavar=("ROWS", "COLS"))
    return parser.parse_args()


def main():
    args, start = _arguments(), time.perf_counter()
    try:
        if args.command == "generate":
            batches = [generate(args.count, args.box, args.clues, args.seed, args.workers, True)]
        else:
            batches = read(args.source, args.box, args.max_rating)
        clues = write_csv(args.out, batches)
    except (ValueError, OSError) as error:
        raise SystemExit(f"sudoku.py: {error}") from None
    rate = len(clues) / (time.perf_counter() - start)
    print(f"{args.out}: {len(clues):,} puzzles, {rate:,.0f} a second")
    if len(clues):
        print(f"mean clues {clues.mean():.2f}")
    for number, count in zip(*np.unique(clues, return_counts=True), strict=True):
        print(f"{number:4d} {count:9,d} {count / len(clues):8.3%}")


if __name__ == "__main__":
    main()
