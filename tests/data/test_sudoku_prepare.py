"""data/sudoku/prepare.py: generated puzzles are always the same; other people's are checked."""

import re
import subprocess
import sys
import zlib

import numpy as np
import pytest
from small import ROOT, renamed_clues, solutions

from data.sudoku import prepare, read

PUZZLE = "1.3.34..2...4.2."
GRID = "1234341221434321"


def load(folder):
    assert sorted(path.name for path in folder.iterdir()) == ["test.npy", "train.npy"]
    return [np.load(folder / f"{name}.npy") for name in ("train", "test")]


def text_of(pairs):
    return [",".join("".join(map(str, grid)) for grid in pair) for pair in pairs]


def renamed(pairs):
    return np.array([0, 3, 1, 2, 6, 5, 4], np.uint8)[pairs]


@pytest.fixture(scope="module")
def pairs():
    """600 different puzzles; 20 of them have keys that are held out."""
    train, test = prepare.generated((2, 3), None, 580, 20, workers=1)
    return np.random.default_rng(0).permutation(np.concatenate([train, test]))


@pytest.fixture
def call(monkeypatch, tmp_path):
    """main() with these settings, in the folder `out`."""

    def run(**settings):
        for name, value in ({"out": str(tmp_path / "out"), "workers": 1} | settings).items():
            monkeypatch.setattr(prepare, name, value)
        prepare.main()
        return load(tmp_path / "out")

    return run


@pytest.mark.parametrize(
    ("box", "clues", "train", "test", "checksums"),
    [
        ((2, 2), None, 300, 5, [1159892059, 2401936838]),
        ((2, 2), 8, 60, 9, [3309402126, 327176871]),
        ((2, 3), 20, 40, 20, [135504051, 878749844]),
        ((3, 3), None, 60, 1, [3705964725, 1936632147]),
        ((3, 3), 33, 100, 5, [1364476465, 2887156214]),
    ],
)
def test_the_same_puzzles_forever(box, clues, train, test, checksums, call):
    """All different, with their clues; what the project has trained on and held out so far."""
    parts = call(box=box, clues=clues, train=train, test=test)
    assert [zlib.crc32(part) for part in parts] == checksums
    assert [len(part) for part in parts] == [train, test]


def test_the_script_makes_the_same_with_two_workers(tmp_path):
    script = [sys.executable, ROOT / "data/sudoku/prepare.py", "--workers=2", "--out=out"]
    flags = "--box=(2,3)", "--train=900", "--test=3"
    for status in 0, 1:
        done = subprocess.run([*script, *flags], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == status
        assert [zlib.crc32(part) for part in load(tmp_path / "out")] == [2402508453, 1017307792]
    assert done.stderr == "out/train.npy exists: remove it, or choose another --out\n"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"box": (2, 3), "clues": 4, "train": 50, "test": 1},
            "clues=4: singles solve no puzzle of so few",
        ),
        ({"out": ""}, "expected --out=FOLDER"),
        ({"box": (3, 2)}, "box=(3, 2): expected one of ((2, 2), (2, 3), (3, 3))"),
        ({"clues": 16}, "clues=16 leave no cell of box=(2, 2) blank"),
        ({"clues": 15, "train": 300}, "ask for fewer"),
        ({"source": "no.csv"}, "No such file or directory: 'no.csv'"),
        ({"source": "no.csv", "clues": 8}, "clues is for generated puzzles"),
        ({"test_source": "no.csv"}, "test_source for those of a --source"),
        ({"source": "no.npy", "max_rating": 1.0}, "max_rating=1.0: expected a --source=FILE.csv"),
    ],
)
def test_mistakes_are_named(settings, message, call, tmp_path):
    with pytest.raises((ValueError, OSError), match=re.escape(message)):
        call(**{"box": (2, 2), "test": 4} | settings)
    assert not [*tmp_path.iterdir()]


def test_a_source_is_held_out_by_its_keys_and_nothing_is_in_it_twice(pairs, capsys):
    source = np.concatenate([pairs, renamed(pairs[:50])])
    train, test = prepare.divided(source, pairs[:0], 10)
    held_out = prepare.is_held_out(prepare.puzzle_keys(pairs))
    assert held_out.sum() == 20 and (train == pairs[~held_out]).all()
    assert len(test) == 10 and {*text_of(test)} < {*text_of(pairs[held_out])}
    said = capsys.readouterr().out
    assert "50 puzzles are earlier ones" in said and "20 are held out, of which --test=10" in said


def test_the_puzzles_of_a_test_file_are_held_out_and_no_others(tmp_path, pairs, call):
    for name, some in ("a.csv", pairs), ("b.csv", renamed(pairs[:30])):
        (tmp_path / name).write_text("\n".join(["puzzle,solution", *text_of(some)]))
    files = {"source": str(tmp_path / "a.csv"), "test_source": str(tmp_path / "b.csv")}
    train, test = call(box=(2, 3), **files)
    assert (train == pairs[30:]).all() and len(test) == 30


@pytest.mark.parametrize("with_test_file", [False, True])
def test_no_clues_are_both_trained_on_and_held_out(with_test_file, capsys):
    """Puzzles of several solutions, a row for each of them, in any order and by any names."""
    grids = np.array([*solutions([0] * 16, (2, 2))], np.uint8)
    assert len(grids) == 288
    rng = np.random.default_rng(0)
    rows = []
    while len(rows) < 2000:
        puzzle = rng.choice(grids) * (rng.random(16) < 0.4)
        found = grids[((puzzle == 0) | (puzzle == grids)).all(1)]
        if 2 <= len(found) <= 6:
            names = np.insert(rng.permutation(4) + 1, 0, 0).astype(np.uint8)
            rows += [names[np.stack([puzzle, solution])] for solution in found]
    rows = np.array(rows)
    theirs = rows[: 400 * with_test_file : 7]
    found = []
    for test in 1000, 10:  # in another order, too
        train, held_out = prepare.divided(rng.permutation(rows), theirs, test)
        found.append([{*map(renamed_clues, part[:, 0].tolist())} for part in (train, held_out)])
        assert found[-1][0].isdisjoint(found[-1][1]) and len(held_out) >= 10
        assert "\n0 more have the clues of a held-out one" not in capsys.readouterr().out
    assert found[0][0] == found[1][0] and found[0][1] > found[1][1]


HEAD = "id,puzzle,solution,difficulty\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"puzzle,solution,rating\n{PUZZLE.replace('.', '0')},{GRID},1", None),
        (f"\ufeff{HEAD}\r\n7,{PUZZLE},{GRID},0.9\r\n8,{PUZZLE},{GRID},1.1\r\n", None),
        ("", "expected a header with puzzle, solution, rating"),
        (f"puzzle,solution\n{PUZZLE},{GRID}", "expected a header with puzzle, solution, rating"),
        (f"{HEAD}1,{PUZZLE},{GRID},0\n\n1,{PUZZLE}4,{GRID},0", "line 4: expected two grids of 16"),
        (f"{HEAD}1,5{PUZZLE[1:]},{GRID},0", "line 2: expected two grids of 16 digits to 4"),
        (f"{HEAD}1,{GRID},{GRID},0", f"{GRID} has no blank cell, or its solution is wrong"),
        (f"{HEAD}1,{PUZZLE},{GRID[:-1]}2,0", "has no blank cell, or its solution is wrong"),
        (f"{HEAD}1,2{'.' * 15},{GRID},0", f"2{'0' * 15} has no blank cell, or its solution"),
        (f"{HEAD}1,{PUZZLE}", "line 2: could not convert string to float: ''"),
        (f"{HEAD}1,{PUZZLE},{GRID},5", "no puzzle, or none of a rating up to 1"),
    ],
)
def test_tables(text, message, tmp_path):
    (tmp_path / "a.csv").write_bytes(text.encode())
    if message:
        with pytest.raises(ValueError, match="a.csv.*" + re.escape(message)):
            read.read(tmp_path / "a.csv", (2, 2), 1)
    else:
        found = text_of(read.read(tmp_path / "a.csv", (2, 2), 1))
        assert found == [f"{PUZZLE.replace('.', '0')},{GRID}"]


def test_steps(tmp_path, pairs):
    order = (pairs[:, 0] == 0).argsort(1, kind="stable")
    value = np.take_along_axis(pairs[:, 1], order, 1)
    for base in 0, 1:
        cells = np.stack([order // 6 + base, order % 6 + base, value, 0 * value], 2)
        rows = np.concatenate([(pairs[:, :1] > 0).sum(2), cells.reshape(len(pairs), -1)], 1)
        np.save(tmp_path / "a.npy", rows)
        assert (read.read(tmp_path / "a.npy", (2, 3)) == pairs).all()
    for column, wrong in (1, rows[7, 5]), (2, rows[7, 6]), (3, 257):
        bad = rows.copy()
        bad[7, column] = wrong
        np.save(tmp_path / "a.npy", bad)
        with pytest.raises(ValueError, match=r"a\.npy: a row that has not each cell once"):
            read.read(tmp_path / "a.npy", (2, 3))
    (tmp_path / "a.npy").write_bytes(b"")
    with pytest.raises(ValueError, match=r"a\.npy: no whole \.npy file"):
        read.read(tmp_path / "a.npy", (2, 3))
