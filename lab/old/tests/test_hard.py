"""Puzzles that need search, symmetries and other people's lists against slow loops by the book."""

import hashlib
import itertools
import re
import zlib

import numpy as np
import pytest
from conftest import train
from test_sudoku import BOX, DATA, count_solutions, peers_of, slow_singles, units_of

import sudoku
from data import processes
from data.sudoku import generate, generated, hard, symmetries
from studies import lists


def slow_guesses(options):
    """Dead ends of the search that hard.py describes; options: 81 sets of digits."""
    before = None
    while options != before:
        before = options
        single = [o if len(o) == 1 else set() for o in options]
        for unit, d in itertools.product(units_of(BOX), range(1, 10)):
            if len(places := [c for c in unit if d in options[c]]) == 1:
                single[places[0]] = single[places[0]] | {d}
        seen = [set().union(*(single[p] for p in peers)) for peers in peers_of(BOX)]
        options = [s or o - out for o, s, out in zip(options, single, seen, strict=True)]
    left = [set().union(*(options[c] for c in unit)) for unit in units_of(BOX)]
    cell = min(range(81), key=lambda c: (len(options[c]) == 1, len(options[c]), c))
    if not options[cell] or min(map(len, left)) < 9:
        return 1  # a dead end
    first = {min(options[cell])}
    halves = [[*options[:cell], o, *options[cell + 1 :]] for o in (first, options[cell] - first)]
    return sum(map(slow_guesses, halves)) if len(options[cell]) > 1 else 0


def test_hard_puzzles_are_minimal_and_need_the_guesses_of_a_slow_search(monkeypatch):
    monkeypatch.setattr(hard, "STEPS", 6)
    puzzles, solutions = hard.make_chunk((1, 2, 64))
    sudoku.validate(puzzles, BOX, solutions)
    assert zlib.crc32(puzzles) == 0xC6BB7D24, "on purpose? then raise VERSION"
    for puzzle, solution in zip(puzzles[:4], solutions, strict=False):
        assert slow_singles(puzzle, BOX) != solution.tolist()
        assert count_solutions(puzzle, BOX) == 1
        for cell in np.flatnonzero(puzzle):
            assert count_solutions(np.where(np.arange(81) == cell, 0, puzzle), BOX) == 2
    few = np.concatenate([puzzles[:4], generate.make_puzzles(2, BOX)[0], puzzles[:1]])
    few[-1, np.flatnonzero(few[-1])[:2]] = 0  # many solutions: cells of more than two candidates
    slow = [slow_guesses([{*range(1, 10)} if d == 0 else {int(d)} for d in p]) for p in few]
    assert hard.guesses(few).tolist() == slow and min(slow[:4]) > 0 == max(slow[4:6])


def every_symmetry(puzzle, box):
    """The puzzle, (n, n), under each symmetry of the grid."""
    n = box[0] * box[1]
    orders = [
        [
            p
            for p in itertools.permutations(range(n))
            if len({(i // size, p[i] // size) for i in range(n)}) == n // size
        ]
        for size in box
    ]
    for grid in (puzzle.reshape(n, n), puzzle.reshape(n, n).T)[: 1 + (box[0] == box[1])]:
        yield from (grid[np.ix_(*each)] for each in itertools.product(*orders))


@pytest.mark.parametrize("box", [(2, 2), (2, 3), (3, 2)])
def test_the_canonical_form_is_the_least_of_all_symmetric_puzzles(box):
    for puzzle in generate.make_puzzles(2, box, seed=3)[0]:
        forms = []
        for grid in every_symmetry(puzzle, box):
            names = {0: 99}  # in the order in which digits appear
            forms.append([names.setdefault(int(d), len(names)) for d in grid.flat])
        least = [name % 99 for name in min(forms)]
        assert symmetries.canonical(puzzle, box).tolist() == least


def test_a_planted_symmetric_copy_is_found(monkeypatch):
    puzzles = generate.make_puzzles(200, BOX, seed=4)[0]
    rng, others = np.random.default_rng(0), generate.make_puzzles(50, BOX, seed=5)[0]
    for row in (3, 150):
        lines = [3 * b + i for b in rng.permutation(3) for i in rng.permutation(3)]
        copy = puzzles[row].reshape(9, 9)[lines][:, lines[::-1]].T if row == 3 else puzzles[row]
        others[row % 8] = np.append(0, rng.permutation(9) + 1)[copy.ravel()]
    assert symmetries.copies(puzzles, others, BOX) == [3, 150]
    near = others[3].copy()
    near[np.flatnonzero(near)[:2]] = 0
    assert symmetries.copies(near[None], others, BOX) == []
    monkeypatch.setattr(symmetries, "symmetry_keys", lambda grids, box: np.zeros(len(grids)))
    assert symmetries.copies(puzzles[2:5], others[:8], BOX) == [1], "the keys alone do not decide"


def test_a_mixture_in_symmetric_copies(monkeypatch, tmp_path):
    monkeypatch.setattr(hard, "STEPS", 1)
    monkeypatch.setattr(sudoku, "FOLDER", tmp_path)
    monkeypatch.setattr(processes, "cores", lambda: 1)
    config = {"box": BOX, "clues": None, "data_file": "", "train_examples": 20, "test_examples": 4}
    config |= {"hard": 0.5, "symmetries": 3}
    task, again = sudoku.load(config), sudoku.load(config)
    x0, prompt = task.train[np.arange(60)]
    assert len(task.train) == len(np.unique(x0, axis=0)) == 60
    assert (again.train[np.arange(60)[::-1]][0][::-1] == x0).all()
    sudoku.validate((x0 + 1) * prompt, BOX, x0 + 1)
    whole = sudoku.load(config | {"symmetries": 1})
    trained = whole.train.pairs[whole.train.rows, 0]
    assert symmetries.copies((x0 + 1) * prompt, trained, BOX) == [*range(60)]
    assert not symmetries.copies(task.test.puzzles, trained, BOX)
    assert (hard.guesses(trained) > 0).sum() == 10
    assert (hard.guesses(task.test.puzzles) > 0).tolist() == [True, False, False, True]
    with pytest.raises(ValueError, match=r"hard=0.5, box \(2, 3\)"):
        sudoku.load(config | {"box": (2, 3)})


@pytest.mark.slow
def test_the_table_by_list(monkeypatch, tmp_path, capsys):
    puzzles, solutions = generate.make_puzzles(6, BOX, seed=6)
    text = "\n".join(["puzzle", *map(sudoku.to_text, puzzles)])
    (tmp_path / "own.csv").write_text(text)
    generated.write(tmp_path / "a.npy", {}, [np.stack([puzzles, solutions], 1)])
    train(
        tmp_path / "run", "--box=(3,3)", "--train_examples=20", "--test_examples=2", "--max_iters=2"
    )
    monkeypatch.setattr(lists, "LISTS", {"own": hashlib.sha256(text.encode()).hexdigest()})
    values = dict(folder=tmp_path, out_dir=tmp_path / "run", count=5, trained_on=tmp_path / "a.npy")
    for name, value in values.items():
        monkeypatch.setattr(lists, name, value)
    lists.main()
    assert re.search(r"\n\| own \| top_k.* \| 0.0% .* \| 5 \|\n$", capsys.readouterr().out)
    (tmp_path / "own.csv").write_text(text + "\n")
    with pytest.raises(ValueError, match="expected the sha256"):
        lists.chosen("own")


@pytest.mark.parametrize("name", lists.LISTS)
def test_the_lists_are_those_that_are_named(monkeypatch, name):
    if not DATA.exists():
        pytest.skip("no published puzzles here")
    monkeypatch.setattr(lists, "folder", DATA)
    assert lists.chosen(name).shape == (1000, 81)
