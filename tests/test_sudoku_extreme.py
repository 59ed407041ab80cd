"""Files in the form of Sudoku-Extreme, from prepare.py to accuracy by rating.

The stand-in is written here: generated puzzles, 9x9, with ratings made up. Oracle: slow loops over
its rows.
"""

import csv
import json
import re

import numpy as np
import pytest
from conftest import evaluate, run_script, train

import sudoku
from data.sudoku import generate, readers
from tasks.sudoku import Sudoku

BOX = (3, 3)
HEADER = ["source", "question", "answer", "rating"]
RATINGS = [0, 1, 9, 10, 29, 30, 99, 100, 465, 3]
BOUNDS = {"0": (0, 0), "1-9": (1, 9), "10-29": (10, 29), "30-99": (30, 99), "100+": (100, 10**9)}
SMALL = [
    "--box=(3,3)", "--batch_size=8", "--k_schedule=[(0,40)]", "--max_iters=4", "--eval_interval=2",
    "--eval_policies=['top_k','random']", "--test_examples=40", "--lr=1e-2",
]  # fmt: skip


def rows_of(first, end, seed):
    """Rows of a file: puzzles with one blank, which chance solves now and then."""
    puzzles, solutions = generate.make_puzzles(end, BOX, 80, seed)
    texts = [map(sudoku.to_text, part[first:]) for part in (puzzles, solutions)]
    return [
        ["stand-in", puzzle.replace("0", "."), solution, str(RATINGS[(first + i) % len(RATINGS)])]
        for i, (puzzle, solution) in enumerate(zip(*texts, strict=True))
    ]


def write_rows(path, rows, header=HEADER):
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def stratum(rating):
    (name,) = [name for name, (low, high) in BOUNDS.items() if low <= rating <= high]
    return name


def prepare(folder, *flags):
    run_script("data/sudoku/prepare.py", f"--out={folder}/extreme.npy", *flags)
    return folder / "extreme.npy"


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The folder with train.csv, test.csv and the files that were prepared of them."""
    folder = tmp_path_factory.mktemp("published")
    write_rows(folder / "train.csv", rows_of(0, 60, 1))
    write_rows(folder / "test.csv", rows_of(0, 50, 2))
    prepare(folder, f"--source={folder}/train.csv", f"--test_source={folder}/test.csv")
    return folder


@pytest.fixture(scope="module")
def run(published, tmp_path_factory):
    """The folder of a run of a few updates on it."""
    out = tmp_path_factory.mktemp("run")
    train(out, *SMALL, f"--data_file={published}/extreme.npy")
    return out


def table(path):
    """{puzzle: (solution, rating)} by the module csv."""
    with open(path, newline="") as file:
        rows = [*csv.DictReader(file)]
    return {r["question"].replace(".", "0"): (r["answer"], int(r["rating"])) for r in rows}


# ---- reading and preparing


def test_held_out_puzzles_keep_their_ratings(published):
    task = Sudoku.from_file(published / "extreme.npy", BOX, 40)
    assert (len(task.train), len(task.test)) == (60, 40) and task.test.strata == [*BOUNDS]
    for examples, name in (task.validation, "test.csv"), (task.train, "train.csv"):
        expected = table(published / name)
        x0, prompt = examples[np.arange(len(examples))]
        for grid, clues in zip(x0 + 1, prompt, strict=True):
            assert expected[sudoku.to_text(grid * clues)][0] == sudoku.to_text(grid)
    expected = table(published / "test.csv")
    ratings = [expected[sudoku.to_text(puzzle)][1] for puzzle in task.test.puzzles]
    assert task.test.ratings.tolist() == ratings


# ---- mistakes and damage


def test_faults_of_a_file_are_named(tmp_path):
    """Read as puzzles to train on, and as puzzles to solve: the owner is readers.read_csv."""
    rows, path = rows_of(0, 4, 1), tmp_path / "a.csv"
    for column, value, message in (
        (3, "nan", "line 3: not a puzzle, solution and rating"),
        (3, "9" * 5000, "line 3: not a puzzle, solution and rating"),
        (1, "5", r"line 3 \(row 1\): 1 characters, must be 81"),
        (2, "1" * 81, r"line 3 \(row 1\): the solution breaks the rules"),
    ):
        faulty = [value if i == column else text for i, text in enumerate(rows[1])]
        write_rows(path, [rows[0], faulty, *rows[2:]])
        for read in (lambda: [*readers.read(path, BOX)], lambda: readers.read_puzzles(path, BOX)):
            with pytest.raises(ValueError, match=rf"a\.csv, {message}") as error:
                read()
            assert len(str(error.value)) < 500 and "\n" not in str(error.value)
    with pytest.raises(ValueError, match=r"a\.csv: the header must name puzzle and solution, or"):
        [*readers.read(write_rows(path, rows, ["source", "question", "answer", "more"]), BOX)]
    with pytest.raises(ValueError, match=r"a\.csv has no puzzle"):
        readers.read_puzzles(write_rows(path, []), BOX)


# ---- accuracy by rating


def by_loop(records, expected):
    """{stratum: [solved, of]} of records, by the rows of a file; a puzzle has one solution."""
    counts = {}
    for record in records:
        solution, rating = expected[record["puzzle"]]
        assert (record["rating"], record["stratum"]) == (rating, stratum(rating))
        count = counts.setdefault(stratum(rating), [0, 0])
        count[0] += record["grid"] == solution
        count[1] += 1
    return counts


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_judged_by_rating(published):
    task = Sudoku.from_file(published / "extreme.npy", BOX, 40)
    tokens = task.validation[np.arange(40)][0].copy()
    tokens[::3, 5] = tokens[::3, 6]
    records = task.test.judge(tokens[5:], np.arange(5, 40))
    counts = by_loop(records, table(published / "test.csv"))
    assert sum(of for _, of in counts.values()) == 35
    found = task.test.summary(records)["strata"]
    assert {name: part["accuracy"] for name, part in found.items()} == {
        name: solved / of for name, (solved, of) in counts.items()
    }
    assert [*found] == [*BOUNDS] and 0 < found["1-9"]["accuracy"] < 1


@pytest.mark.parametrize("file", [None, "test.csv"])
def test_eval_tells_ratings_apart(run, published, file):
    """Of the held-out puzzles of the run, and of a file of that form, all 50 of it."""
    flags = [f"--file={published / file}"] if file else []
    printed = evaluate(run, "--reveal=[1,2]", *flags)
    rows = json.loads((run / "eval.json").read_text())[-2:]
    assert printed.splitlines()[0] == (
        "| sampler | solved [95 %] | 0 | 1-9 | 10-29 | 30-99 | 100+ "
        "| tokens per step | forward passes | seconds |"
    )
    assert printed.strip() == (run / "eval.md").read_text().strip()
    for row, line in zip(rows, printed.splitlines()[2:], strict=True):
        records = [each for each in lines(run / "eval.jsonl") if each["id"] == row["id"]]
        counts = by_loop(records, table(published / "test.csv"))
        assert sum(of for _, of in counts.values()) == (50 if file else 40)
        for name, (solved, of) in counts.items():
            assert row["strata"][name]["accuracy"] == solved / of
        cells = [f"{counts[name][0] / counts[name][1]:.1%}" for name in BOUNDS]
        assert re.split(r" *\| *", line)[3:8] == cells
    assert sum(solved for solved, _ in counts.values()) > 0
