"""data/sudoku: generated puzzles by the book and always the same; other people's are checked."""

import itertools
import re
import zlib

import numpy as np
import pytest
from conftest import prepare as run

from data.sudoku import generate, held_out, prepare, read


def units_of(box):
    """Rows, columns and boxes by the book, as lists of cells."""
    n = box[0] * box[1]
    units = {}
    for r, c in itertools.product(range(n), repeat=2):
        for name in ("row", r), ("column", c), ("box", r // box[0], c // box[1]):
            units.setdefault(name, []).append(r * n + c)
    return list(units.values())


def candidates(grid, units):
    """{blank cell: the digits that no cell of its units has}"""
    left = {c: {*range(1, len(units[0]) + 1)} for c, digit in enumerate(grid) if not digit}
    for unit in units:
        for c in left.keys() & unit:
            left[c] -= {grid[p] for p in unit}
    return left


def solutions(grid, units):
    """All solutions (L,), by search with fewest candidates first."""
    options = candidates(grid, units)
    if not options:
        yield grid
        return
    cell = min(options, key=lambda c: len(options[c]))
    for digit in options[cell]:
        yield from solutions([*grid[:cell], digit, *grid[cell + 1 :]], units)


def slow_singles(puzzle, units):
    """What naked and hidden singles find, round by round."""
    grid = puzzle.tolist()
    while True:
        options = candidates(grid, units)
        found = [(c, *left) for c, left in options.items() if len(left) == 1]
        for unit, digit in itertools.product(units, range(1, len(units[0]) + 1)):
            places = [c for c in unit if digit in options.get(c, ())]
            if len(places) == 1:
                found.append((places[0], digit))
        if not found:
            return grid
        for cell, digit in found:
            grid[cell] = digit


@pytest.mark.parametrize(
    ("box", "clues", "count"),
    [((2, 2), None, 9), ((2, 3), None, 9), ((2, 3), 20, 9), ((3, 3), None, 1), ((3, 3), 33, 9)],
)
def test_singles_solve_every_puzzle(box, clues, count):
    """It has one solution; a minimal one has two without any of its clues."""
    units = units_of(box)
    chunk = [part for _, part in zip(range(2), generate.chunks(box, clues, 3, 1), strict=False)]
    for puzzle, solution in zip(*np.concatenate(chunk, 1)[:, :count], strict=True):
        assert all({*solution[unit]} == {*range(1, len(unit) + 1)} for unit in units)
        assert ((puzzle == 0) | (puzzle == solution)).all()
        assert slow_singles(puzzle, units) == solution.tolist()
        assert len([*solutions(puzzle.tolist(), units)]) == 1
        assert not clues or (puzzle > 0).sum() == clues
        for cell in np.flatnonzero(puzzle) if not clues else ():
            other = np.where(np.arange(len(puzzle)) == cell, 0, puzzle).tolist()
            assert len([*itertools.islice(solutions(other, units), 2)]) == 2


def text_of(pairs):
    return [",".join("".join(map(str, grid)) for grid in pair) for pair in pairs]


@pytest.fixture(scope="module")
def pairs():
    """600 different puzzles; 20 of them have keys that are held out."""
    train, test = prepare.generated((2, 3), None, 580, 20)
    return np.random.default_rng(0).permutation(np.concatenate([train, test]))


def made(out, **flags):
    """Run the script; train and test."""
    folder = run("sudoku", out=out, **flags)
    return [np.load(folder / f"{name}.npy") for name in ("train", "test")]


SETS = [
    ((2, 2), None, 300, 5, 1159892059, 2401936838),
    ((2, 2), 8, 60, 9, 3309402126, 327176871),
    ((2, 3), None, 900, 3, 2402508453, 1017307792),
    ((3, 3), 33, 100, 5, 1364476465, 2887156214),
    ((3, 3), None, 60, 2, 3705964725, 2776075254),
]


@pytest.mark.parametrize(("box", "clues", "train", "test", "first", "second"), SETS)
def test_the_same_puzzles_forever(box, clues, train, test, first, second, tmp_path):
    """What the project has trained on and held out so far."""
    parts = made(tmp_path / "out", box=box, clues=clues, train=train, test=test)
    assert [(len(part), zlib.crc32(part)) for part in parts] == [(train, first), (test, second)]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"box": (2, 3), "clues": 4, "train": 50, "test": 1}, "clues=4: singles solve none of so"),
        ({"clues": 15, "train": 300}, "ask for fewer"),
        ({"source": "/dev/zero"}, "/dev/zero: no such file"),
        ({"source": "no.npy", "max_rating": 1.0}, "max_rating=1.0: expected a --source=FILE.csv"),
    ],
)
def test_mistakes_are_named(flags, message, tmp_path):
    with pytest.raises(SystemExit, match=re.escape(message)):
        made(tmp_path / "out", **{"box": (2, 2), "test": 4} | flags)
    assert not [*tmp_path.iterdir()]


def test_puzzles_of_files_are_held_out_by_keys_or_by_a_test_file(tmp_path, pairs, monkeypatch):
    """Nothing is in a set twice, whatever the names of the digits."""
    monkeypatch.setattr(held_out, "SLAB", 64)
    renamed = np.array([0, 3, 1, 2, 6, 5, 4], np.uint8)[pairs]
    for name, some in ("a.csv", [*pairs, *renamed[:50]]), ("b.csv", renamed[:30]):
        (tmp_path / name).write_text("\n".join(["puzzle,solution", *text_of(some)]))
    how = {"box": (2, 3), "source": tmp_path / "a.csv"}
    train, test = made(tmp_path / "x", **how, test=10)
    apart = held_out.is_held_out(held_out.puzzle_keys(pairs))
    assert apart.sum() == 20 and (train == pairs[~apart]).all()
    assert len(test) == 10 and {*text_of(test)} < {*text_of(pairs[apart])}
    with pytest.raises(SystemExit, match="a folder that is not there yet"):
        made(tmp_path / "x", **how)
    train, test = made(tmp_path / "y", **how, test_source=tmp_path / "b.csv")
    assert (train == pairs[30:]).all() and len(test) == 30


def test_no_clues_are_both_trained_on_and_held_out():
    """Not those of a puzzle with several solutions, nor under other names of the digits."""
    grids = np.array([*solutions([0] * 16, units_of((2, 2)))], np.uint8)

    def every(clues):
        fits = (grids[:, :clues] == grids[0, :clues]).all(1)
        return np.array([[grids[0] * (np.arange(16) < clues), grid] for grid in grids[fits]])

    theirs = np.array([0, 2, 1, 4, 3], np.uint8)[every(4)[:1]]
    train, _ = prepare.divided(np.concatenate([every(4)[1:], every(6)]), theirs, 9)
    assert len(every(4)) == 12 and (train == every(6)).all()


PUZZLE, GRID = "1.3.34..2...4.2.", "1234341221434321"
HEAD = "id,puzzle,solution,difficulty\n"
TABLES = [
    (f"puzzle,solution,rating\n{PUZZLE.replace('.', '0')},{GRID},1", None),
    (f"\ufeff{HEAD}\r\n7,{PUZZLE},{GRID},0.9\r\n8,{PUZZLE},{GRID},1.1\r\n", None),
    (f"puzzle,solution\n{PUZZLE},{GRID}", "expected a header with puzzle, solution, rating"),
    (f"{HEAD}1,{PUZZLE},{GRID},0\n\n1,{PUZZLE}4,{GRID},0", "line 4: expected two grids of 16"),
    (f"{HEAD}1,{GRID},{GRID},0", f"{GRID} has no blank cell, or its solution is wrong"),
    (f"{HEAD}1,{PUZZLE}", "line 2: could not convert string to float: ''"),
    ("p" * 200_000, "line 0: field larger than field limit"),
]


@pytest.mark.parametrize(("text", "message"), TABLES)
def test_tables(text, message, tmp_path):
    (tmp_path / "a.csv").write_bytes(text.encode())
    try:
        found = text_of(read.read(tmp_path / "a.csv", (2, 2), 1))
        assert found == [f"{PUZZLE.replace('.', '0')},{GRID}"] and not message
    except SystemExit as error:
        assert message and f"{tmp_path}/a.csv" in str(error) and message in str(error)


def test_steps(tmp_path, pairs):
    file = tmp_path / "a.npy"
    order = (pairs[:, 0] == 0).argsort(1, kind="stable")
    value = np.take_along_axis(pairs[:, 1], order, 1)
    for base, kind in (0, np.int16), (1, np.uint64):
        cells = np.stack([order // 6 + base, order % 6 + base, value, 0 * value], 2)
        rows = np.concatenate([(pairs[:, :1] > 0).sum(2), cells.reshape(len(pairs), -1)], 1)
        np.save(file, rows.astype(kind))
        assert (read.read(file, (2, 3)) == pairs).all()
    bad = np.tile(rows, (3, 1, 1))
    bad[range(3), 7, range(1, 4)] = rows[7, 5], rows[7, 6], 257  # line, column, digit
    for damaged, message in [
        *((each, "a row that has not each cell once") for each in bad),
        *((each, "no whole .npy of whole numbers") for each in (rows * 1.0, rows[:, 1:])),
    ]:
        np.save(file, damaged)
        with pytest.raises(SystemExit, match=f"a.npy: {message}"):
            read.read(file, (2, 3))
