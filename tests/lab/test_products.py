"""lab/products.py against tuples composed by hand."""

import itertools

import numpy as np
import pytest

from lab import products


def test_products_are_composed_by_hand():
    task = products.load("3", 50)
    x0, prompt = task.train[:]
    assert (prompt == (np.arange(18) < 3)).all() and len(task.train) + len(task.test) == 8**3
    moves = [tuple(row) for row in products.MOVES.tolist()]
    for row in x0:
        places = range(5)
        for i in range(3):
            places = tuple(moves[row[i] - 5][place] for place in places)
            assert tuple(row[3 + 5 * i : 8 + 5 * i]) == places
    reached = {tuple(range(5))}
    for _ in range(20):
        reached |= {tuple(a[j] for j in b) for a, b in itertools.product(reached, moves)}
    assert len(reached) == 120  # the letters generate S5
    words = {tuple(row[:3]) for row in x0} | {tuple(row[:3]) for row in task.test[:][0]}
    assert len(words) == 8**3  # all different: none is on both sides


def test_judge_render_parse():
    task = products.load("9", 64)
    assert len(task.train) == products.MOST and len(task.test) == 64
    x0, prompt = task.test[:2]
    wrong = x0.copy()
    wrong[1, -1] = (wrong[1, -1] + 1) % 5
    assert task.judge(wrong, x0, prompt).tolist() == [True, False]
    text = task.render(x0[0], prompt[0])
    again, _ = task.parse(text.split(" | ")[0].replace(" ", ""))
    assert (again == x0[0]).all() and text.split()[-1] == "".join(map(str, x0[0, -5:]))
    for bad in "abc", "abcdefgxy":
        with pytest.raises(SystemExit, match="expected 9 letters"):
            task.parse(bad)
    for bad in "data/x", "\u00b2", "21":
        with pytest.raises(SystemExit, match="number of moves"):
            products.load(bad, 9)
