"""data/sudoku/prepare.py: generated puzzles are always the same; other people's are checked."""

import re
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

from data.sudoku import generate, prepare, read
from data.sudoku.generated import first_puzzles

ROOT = Path(prepare.__file__).parents[2]
PUZZLE = "1.3.34..2...4.2."
GRID = "1234341221434321"


def load(folder):
    assert sorted(path.name for path in folder.iterdir()) == ["test.npy", "train.npy"]
    return [np.load(folder / f"{name}.npy") for name in ("train", "test")]


def run(cwd, *flags, script=ROOT / "data" / "sudoku" / "prepare.py"):
    options = {"cwd": cwd, "env": {"PYTHONPATH": str(ROOT)}, "capture_output": True, "text": True}
    return subprocess.run([sys.executable, script, *flags], **options)


def text_of(pairs):
    return [",".join("".join(map(str, grid)) for grid in pair) for pair in pairs]


def renamed(pairs):
    names = np.array([0, 3, 1, 2, 6, 5, 4], np.uint8)
    return names[pairs]


@pytest.fixture(scope="module")
def pairs():
    """600 different puzzles; 20 of them have keys that are held out."""
    return np.stack(generate.make_puzzles(600, (2, 3), seed=9), 1)


def convert(out, train, held_out="", box=(2, 3), test=1000):
    for name, rows in ("a.csv", train), ("b.csv", held_out):
        (out.parent / name).write_text(rows if isinstance(rows, str) else "\n".join(text_of(rows)))
    files = out.parent / "a.csv", out.parent / "b.csv" if len(held_out) else ""
    prepare.convert(out, box, *files, None, test)
    return load(out)


@pytest.mark.parametrize(
    ("box", "clues", "train", "test"),
    [((2, 2), None, 300, 5), ((2, 2), 8, 60, 9), ((2, 3), None, 900, 3), ((2, 3), 20, 40, 20)],
)
def test_the_puzzles_are_those_of_the_file_that_grows(box, clues, train, test, tmp_path):
    prepare.make(tmp_path / "out", box, clues, train, test, workers=1)
    pairs, *rows = first_puzzles(tmp_path, box, clues, 0, train, test, 1)
    for ours, theirs in zip(load(tmp_path / "out"), rows, strict=True):
        assert ours.dtype == np.uint8 and (ours == pairs[theirs]).all()


def test_a_script_without_a_guard_may_use_workers(tmp_path):
    (tmp_path / "script.py").write_text(
        "from data.sudoku import prepare\nprint('once')\n"
        "prepare.make('out', (2, 3), None, 900, 3, workers=2)"
    )
    assert run(tmp_path, script="script.py").stdout.count("once") == 1
    checksums = [zlib.crc32(part) for part in load(tmp_path / "out")]
    assert checksums == [2402508453, 1017307792]  # the same forever


def test_the_script_and_its_messages(tmp_path):
    small = "--box=(2,2)", "--train=50", "--test=4", "--workers=1", "--out=out"
    assert "50 puzzles to train on, 4 to test on: out" in run(tmp_path, *small).stdout
    for flags, message in (
        ([], "train.npy exists; delete it or choose another --out"),
        (["--out=b", "--box=(3,2)"], "box=(3, 2): expected one of ((2, 2), (2, 3), (3, 3))"),
        (["--out=b", "--clues=x"], "clues='x': expected a whole number, from 1"),
        (["--out=b", "--clues=15", "--train=300"], "ask for fewer"),
        (["--out=b", "--source=no.csv"], "no.csv: no such file"),
        (["--out=b", "--test_source=no.csv"], "need a --source"),
    ):
        done = run(tmp_path, *small, *flags)
        assert done.returncode == 1 and message in done.stderr and "Traceback" not in done.stderr
        assert not [*tmp_path.glob("b/*")]


def test_a_source_is_held_out_by_its_keys_and_nothing_is_in_it_twice(tmp_path, pairs, capsys):
    source = np.concatenate([pairs, renamed(pairs[:50])])
    train, test = convert(tmp_path / "out", source, test=10)
    held_out = prepare.is_held_out(prepare.renaming_keys(pairs[:, 0], pairs[:, 1]))
    assert held_out.sum() == 20 and (train == pairs[~held_out]).all()
    assert len(test) == 10 and {*text_of(test)} < {*text_of(pairs[held_out])}
    said = capsys.readouterr().out
    assert "dropped 50: same as an earlier one" in said and "dropped 10: held out, but" in said


def test_the_puzzles_of_a_test_file_are_held_out_and_so_are_their_clues(tmp_path, pairs, capsys):
    train, test = convert(tmp_path / "out", pairs, renamed(pairs[:30]))
    assert (train == pairs[30:]).all() and len(test) == 30
    blanks = "0" * 12
    source = f"1234{blanks},{GRID}\n2134{blanks},2134431212433421\n{PUZZLE},{GRID}"
    train, _ = convert(tmp_path / "more", source, f"1234{blanks},1234341243212143", (2, 2))
    assert text_of(train) == [f"{PUZZLE},{GRID}".replace(".", "0")]
    assert "dropped 2: clues of a held-out puzzle" in capsys.readouterr().out


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
        (f"11{PUZZLE[2:]},{GRID}", "line 1: the same clue twice in a row, column or box"),
        (f"{PUZZLE},{GRID[:-1]}2", "line 1: the solution breaks the rules"),
        (f"2{'.' * 15},{GRID}", "line 1: the solution disagrees with the clues"),
        (f"puzzle,solution\n{PUZZLE}", "line 2: too few columns"),
        (f"puzzle,solution,rating\n{PUZZLE},{GRID},easy", "line 2: the rating 'easy' is not a"),
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
