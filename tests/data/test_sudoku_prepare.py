"""data/sudoku/prepare.py: generated puzzles are always the same; other people's are checked."""

import re
import zlib

import numpy as np
import pytest
import small
from small import renamed_clues, solutions, units_of

from data.sudoku import held_out, prepare, read


def text_of(pairs):
    return [",".join("".join(map(str, grid)) for grid in pair) for pair in pairs]


@pytest.fixture(scope="module")
def pairs():
    """600 different puzzles; 20 of them have keys that are held out."""
    train, test = prepare.generated((2, 3), None, 580, 20)
    return np.random.default_rng(0).permutation(np.concatenate([train, test]))


@pytest.fixture
def call(tmp_path):
    """Run the script; train and test."""

    def run(**flags):
        folder = small.prepare("sudoku", **{"out": tmp_path / "out"} | flags)
        assert sorted(path.name for path in folder.iterdir()) == ["test.npy", "train.npy"]
        return [np.load(folder / f"{name}.npy") for name in ("train", "test")]

    return run


SETS = [
    ((2, 2), None, 300, 5, 1159892059, 2401936838),
    ((2, 2), 8, 60, 9, 3309402126, 327176871),
    ((2, 3), None, 900, 3, 2402508453, 1017307792),
    ((3, 3), 33, 100, 5, 1364476465, 2887156214),
]


@pytest.mark.parametrize(("box", "clues", "train", "test", "first", "second"), SETS)
def test_the_same_puzzles_forever(box, clues, train, test, first, second, call):
    """What the project has trained on and held out so far."""
    parts = call(box=box, clues=clues, train=train, test=test)
    assert [(len(part), zlib.crc32(part)) for part in parts] == [(train, first), (test, second)]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"box": (2, 3), "clues": 4, "train": 50, "test": 1}, "clues=4: singles solve none of so"),
        ({"out": "."}, "expected --out=FOLDER, of a folder that is not there yet"),
        ({"box": (2,)}, "box=(2,): expected one of ((2, 2), (2, 3), (3, 3))"),
        ({"clues": 16}, "clues=16 leave no cell of box=(2, 2) blank"),
        ({"clues": 15, "train": 300}, "ask for fewer"),
        ({"source": "/dev/zero"}, "/dev/zero: no such file"),
        ({"source": "no.csv", "clues": 8}, "clues is for generated puzzles"),
        ({"source": "no.npy", "max_rating": 1.0}, "max_rating=1.0: expected a --source=FILE.csv"),
    ],
)
def test_mistakes_are_named(flags, message, call, tmp_path):
    with pytest.raises(SystemExit, match=re.escape(message)):
        call(**{"box": (2, 2), "test": 4} | flags)
    assert not [*tmp_path.iterdir()]


def test_puzzles_of_files_are_held_out_by_keys_or_by_a_test_file(
    tmp_path, pairs, call, monkeypatch
):
    """Nothing is in a set twice, whatever the names of the digits."""
    monkeypatch.setattr(held_out, "SLAB", 64)
    renamed = np.array([0, 3, 1, 2, 6, 5, 4], np.uint8)[pairs]
    for name, some in ("a.csv", [*pairs, *renamed[:50]]), ("b.csv", renamed[:30]):
        (tmp_path / name).write_text("\n".join(["puzzle,solution", *text_of(some)]))
    train, test = call(box=(2, 3), source=tmp_path / "a.csv", test=10)
    apart = held_out.is_held_out(held_out.puzzle_keys(pairs))
    assert apart.sum() == 20 and (train == pairs[~apart]).all()
    assert len(test) == 10 and {*text_of(test)} < {*text_of(pairs[apart])}
    files = {"source": tmp_path / "a.csv", "test_source": tmp_path / "b.csv"}
    train, test = call(box=(2, 3), **files, out=tmp_path / "other")
    assert (train == pairs[30:]).all() and len(test) == 30


@pytest.mark.parametrize("with_test_file", [False, True])
def test_no_clues_are_both_trained_on_and_held_out(with_test_file):
    """Puzzles of several solutions, a row for each of them, in any order and by any names."""
    grids = np.array([*solutions([0] * 16, units_of((2, 2)))], np.uint8)
    assert len(grids) == 288
    rng = np.random.default_rng(0)
    rows = []
    while len(rows) < 2000:
        puzzle = rng.choice(grids) * (rng.random(16) < 0.4)
        found = grids[((puzzle == 0) | (puzzle == grids)).all(1)]
        if 2 <= len(found) <= 6:
            names = np.insert(rng.permutation(4) + 1, 0, 0).astype(np.uint8)
            rows += [names[np.stack([puzzle, solution])] for solution in found]
    theirs = np.array(rows)[: 400 * with_test_file : 7]
    for test in 1000, 10:  # in another order, too
        parts = prepare.divided(rng.permutation(rows), theirs, test)
        trained, tested = ({*map(renamed_clues, part[:, 0].tolist())} for part in parts)
        assert trained.isdisjoint(tested) and len(parts[1]) >= 10


PUZZLE, GRID = "1.3.34..2...4.2.", "1234341221434321"
HEAD = "id,puzzle,solution,difficulty\n"
TABLES = [
    (f"puzzle,solution,rating\n{PUZZLE.replace('.', '0')},{GRID},1", None),
    (f"\ufeff{HEAD}\r\n7,{PUZZLE},{GRID},0.9\r\n8,{PUZZLE},{GRID},1.1\r\n", None),
    (f"puzzle,solution\n{PUZZLE},{GRID}", "expected a header with puzzle, solution, rating"),
    (f"{HEAD}1,{PUZZLE},{GRID},0\n\n1,{PUZZLE}4,{GRID},0", "line 4: expected two grids of 16"),
    (f"{HEAD}1,5{PUZZLE[1:]},{GRID},0", "line 2: expected two grids of 16 digits to 4"),
    (f"{HEAD}1,{GRID},{GRID},0", f"{GRID} has no blank cell, or its solution is wrong"),
    (f"{HEAD}1,2{'.' * 15},{GRID},0", f"2{'0' * 15} has no blank cell, or its solution"),
    (f"{HEAD}1,{PUZZLE}", "line 2: could not convert string to float: ''"),
    (f"{HEAD}1,{PUZZLE},{GRID},5", "no puzzle, or none of a rating up to 1"),
    (f"{HEAD}1,{PUZZLE},{'1' * 200_000},0", "field larger than field limit"),
    ("p" * 200_000, "line 0: field larger than field limit"),
]


@pytest.mark.parametrize(("text", "message"), TABLES)
def test_tables(text, message, tmp_path):
    (tmp_path / "a.csv").write_bytes(text.encode())
    if message:
        with pytest.raises(SystemExit, match="a.csv.*" + re.escape(message)):
            read.read(tmp_path / "a.csv", (2, 2), 1)
    else:
        found = text_of(read.read(tmp_path / "a.csv", (2, 2), 1))
        assert found == [f"{PUZZLE.replace('.', '0')},{GRID}"]


def test_steps(tmp_path, pairs):
    file = tmp_path / "a.npy"
    order = (pairs[:, 0] == 0).argsort(1, kind="stable")
    value = np.take_along_axis(pairs[:, 1], order, 1)
    for base, kind in (0, np.int16), (1, np.uint64):
        cells = np.stack([order // 6 + base, order % 6 + base, value, 0 * value], 2)
        rows = np.concatenate([(pairs[:, :1] > 0).sum(2), cells.reshape(len(pairs), -1)], 1)
        np.save(file, rows.astype(kind))
        assert (read.read(file, (2, 3)) == pairs).all()
    for column, wrong in (1, rows[7, 5]), (2, rows[7, 6]), (3, 257):
        bad = rows.copy()
        bad[7, column] = wrong
        np.save(file, bad)
        with pytest.raises(SystemExit, match=r"a\.npy: a row that has not each cell once"):
            read.read(file, (2, 3))
    for save in np.savez, lambda opened, rows: opened.write(b"\x93NUMPY"), np.save:
        with file.open("wb") as opened:
            save(opened, rows * 1.0)
        with pytest.raises(SystemExit, match=r"a\.npy: no whole \.npy"):
            read.read(file, (2, 3))
