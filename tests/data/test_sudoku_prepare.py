"""data/sudoku/prepare.py: generated puzzles are always the same; other people's are checked."""

import re
import subprocess
import sys
import zlib

import numpy as np
import pytest
from small import ROOT, solutions

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


def convert(out, train, held_out="", box=(2, 3), test=1000):
    for name, rows in ("a.csv", train), ("b.csv", held_out):
        (out.parent / name).write_text(rows if isinstance(rows, str) else "\n".join(text_of(rows)))
    files = out.parent / "a.csv", out.parent / "b.csv" if len(held_out) else ""
    prepare.convert(out, box, *files, None, test)
    return load(out)


@pytest.mark.parametrize(
    ("box", "clues", "train", "test", "checksums"),
    [
        ((2, 2), None, 300, 5, [1159892059, 2401936838]),
        ((2, 2), 8, 60, 9, [3309402126, 327176871]),
        ((2, 3), None, 900, 3, [2402508453, 1017307792]),
        ((2, 3), 20, 40, 20, [135504051, 878749844]),
        ((3, 3), None, 60, 1, [3705964725, 1936632147]),
        ((3, 3), 33, 100, 5, [1364476465, 2887156214]),
    ],
)
def test_the_same_puzzles_forever(box, clues, train, test, checksums, tmp_path):
    """All different, with their clues; what the project has trained on and held out so far."""
    prepare.make(tmp_path / "out", box, clues, train, test, workers=1)
    parts = load(tmp_path / "out")
    assert [zlib.crc32(part) for part in parts] == checksums
    assert [len(part) for part in parts] == [train, test]


def test_the_script_makes_the_same_with_two_workers(tmp_path):
    script = [sys.executable, ROOT / "data/sudoku/prepare.py", "--workers=2", "--out=out"]
    flags = "--box=(2,3)", "--train=900", "--test=3"
    for status in 0, 1:
        done = subprocess.run([*script, *flags], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == status
        assert [zlib.crc32(part) for part in load(tmp_path / "out")] == [2402508453, 1017307792]
    assert done.stderr == "out/train.npy exists; delete it or choose another --out\n"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"out": ""}, "expected --out=FOLDER"),
        ({"box": (3, 2)}, "box=(3, 2): expected one of ((2, 2), (2, 3), (3, 3))"),
        ({"clues": "x"}, "clues='x': expected a whole number, from 1"),
        ({"clues": 16}, "clues=16: must be None (minimal) or 1..15"),
        ({"clues": 15, "train": 300}, "ask for fewer"),
        ({"source": "no.csv"}, "no.csv: no such file"),
        ({"source": "no.csv", "clues": 8}, "clues is for generated puzzles"),
        ({"source": "no.npy", "max_rating": 1}, "an .npy of steps has no ratings"),
        ({"test_source": "no.csv"}, "need a --source"),
    ],
)
def test_mistakes_are_named(settings, message, tmp_path, monkeypatch):
    settings = {"out": str(tmp_path), "box": (2, 2), "test": 4, "workers": 1} | settings
    for name, value in settings.items():
        monkeypatch.setattr(prepare, name, value)
    with pytest.raises((ValueError, OSError), match=re.escape(message)):
        prepare.main()
    assert not [*tmp_path.iterdir()]


def test_an_interruption_leaves_nothing_half_written(tmp_path, monkeypatch):
    def half(file, pairs):
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "save", half)
    with pytest.raises(KeyboardInterrupt):
        prepare.make(tmp_path, (2, 2), None, 9, 1, workers=1)
    assert not [*tmp_path.iterdir()]


def test_a_source_is_held_out_by_its_keys_and_nothing_is_in_it_twice(tmp_path, pairs, capsys):
    source = np.concatenate([pairs, renamed(pairs[:50])])
    train, test = convert(tmp_path / "out", source, test=10)
    held_out = prepare.is_held_out(prepare.renaming_keys(pairs[:, 0], pairs[:, 1]))
    assert held_out.sum() == 20 and (train == pairs[~held_out]).all()
    assert len(test) == 10 and {*text_of(test)} < {*text_of(pairs[held_out])}
    said = capsys.readouterr().out
    assert "dropped 50: same as an earlier one" in said and "dropped 10: held out, but" in said


def test_the_puzzles_of_a_test_file_are_held_out_and_no_others(tmp_path, pairs):
    train, test = convert(tmp_path / "out", pairs, renamed(pairs[:30]))
    assert (train == pairs[30:]).all() and len(test) == 30


def names_of(pairs):
    """The clues with digits named by first appearance, for each puzzle."""
    found = []
    for puzzle in pairs[:, 0].tolist():
        names = {0: 0}
        found.append(tuple(names.setdefault(digit, len(names)) for digit in puzzle))
    return found


@pytest.mark.parametrize("with_test_file", [False, True])
def test_no_clues_are_both_trained_on_and_held_out(with_test_file, tmp_path, capsys):
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
    found = []
    for test in 1000, 1000, 10:
        shuffled = rng.permutation(rows)
        theirs = rows[:400:7] if with_test_file else ""
        train, held_out = convert(tmp_path / f"{len(found)}", shuffled, theirs, (2, 2), test)
        found.append(({*names_of(train)}, {*names_of(held_out)}))
        assert found[-1][0].isdisjoint(found[-1][1]) and len(held_out) >= 10
        assert "clues of a held-out puzzle, with another solution" in capsys.readouterr().out
    assert found[0] == found[1] and found[2][0] == found[0][0] and found[2][1] < found[0][1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"id,Quizzes , solutions\n7,{PUZZLE},{GRID}\n", None),
        (f"question,answer,note\n{PUZZLE.replace('.', '0')},{GRID},x\n", None),
        (f"\ufeffpuzzle,solution\r\n\r\n  {PUZZLE} ,\t{GRID} \r\n   \r\n", None),
        (f"{PUZZLE},{GRID}", None),
        ("", "expected a header with puzzle and solution, got []"),
        (f"{PUZZLE},{GRID}\n\n{PUZZLE}4,{GRID}", "line 3: 17 cells, but --box=(2, 2) has 16"),
        (f"{PUZZLE},{GRID}\n5{PUZZLE[1:]},{GRID}", "line 2: cells must be digits up to 4"),
        (f"{GRID},{GRID}", "line 1: no blank cell"),
        (f"11{'.' * 14},{GRID}", "line 1: the same clue twice in a row, column or box"),
        (f"1...1{'.' * 11},{GRID}", "line 1: the same clue twice in a row, column or box"),
        (f"1....1{'.' * 10},{GRID}", "line 1: the same clue twice in a row, column or box"),
        (f"{PUZZLE},{GRID[:-1]}2", "line 1: the solution breaks the rules"),
        (f"2{'.' * 15},{GRID}", "line 1: the solution disagrees with the clues"),
        (f"puzzle,solution\n{PUZZLE}", "line 2: too few columns"),
        (f"puzzle,solution,difficulty,rating\n{PUZZLE},{GRID},easy,1\n{GRID},x,hard,7", None),
        (f"puzzle,solution,Difficulty,rating\n{PUZZLE},{GRID},1,", "column rating: the rating ''"),
        (f"puzzle,solution,difficulty\n{PUZZLE},{GRID},easy,rating", "line 2, column difficulty"),
        (f"puzzle,solution,rating\n{PUZZLE},{GRID},nan", "the rating 'nan' is not a number"),
        (f"puzzle,solution,rating\n{PUZZLE},{GRID},5", "no puzzle rated at most 1"),
    ],
)
def test_tables(text, message, tmp_path):
    (tmp_path / "a.csv").write_bytes(text.encode())
    arguments = tmp_path / "a.csv", (2, 2), 1 if "rating" in text else None
    if message:
        with pytest.raises(ValueError, match="a.csv.*" + re.escape(message)):
            read.read(*arguments)
    else:
        assert text_of(read.read(*arguments)) == [f"{PUZZLE.replace('.', '0')},{GRID}"]


def test_steps(tmp_path, pairs):
    order = (pairs[:, 0] == 0).argsort(1, kind="stable")
    value = np.take_along_axis(pairs[:, 1], order, 1)
    for base in 0, 1:
        cells = np.stack([order // 6 + base, order % 6 + base, value, 0 * value], 2)
        rows = np.concatenate([(pairs[:, :1] > 0).sum(2), cells.reshape(len(pairs), -1)], 1)
        np.save(tmp_path / "a.npy", rows)
        assert (read.read(tmp_path / "a.npy", (2, 3)) == pairs).all()
    rows[7, 1:3] = rows[7, 5:7]
    np.save(tmp_path / "a.npy", rows)
    with pytest.raises(ValueError, match=r"a\.npy, row 7: a cell occurs twice"):
        read.read(tmp_path / "a.npy", (2, 3))
