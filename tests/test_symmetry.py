"""studies/symmetry.py on grids whose symmetries are known, and on copies that are made by hand."""

import numpy as np
import pytest
from conftest import run_script

import sudoku
from data.sudoku.generate import make_puzzles
from studies import symmetry
from tasks.sudoku import Sudoku

BOX = (2, 3)
COUNTS = {(2, 2): 2 * 8 * 8, (2, 3): 48 * 72, (3, 2): 72 * 48}


@pytest.mark.parametrize("box", COUNTS)
def test_symmetries_take_units_to_units(box):
    """As many as the book has, all different; each keeps rows, columns and boxes what they are."""
    places = symmetry.symmetries(box)
    assert len(places) == len(np.unique(places, axis=0)) == COUNTS[box]
    units = {frozenset(unit) for unit in sudoku.unit_cells(box).tolist()}
    for cells in places[:: len(places) // 60]:
        assert {frozenset(unit) for unit in cells[sudoku.unit_cells(box)].tolist()} == units


def moved(pair):
    """Rows 0 and 1 change places, the first two bands, columns 3 and 5, and digits 2 and 6."""
    grids = pair.reshape(2, 6, 6)[:, [2, 3, 1, 0, 4, 5]][:, :, [0, 1, 2, 5, 4, 3]]
    return np.array([0, 1, 6, 3, 4, 5, 2])[grids].reshape(2, 36)


def test_copies_made_by_hand_are_found():
    pairs = np.stack(make_puzzles(300, BOX, seed=3), 1)
    train, others = pairs[:200], pairs[200:]
    ours = np.stack([moved(pair) for pair in train[:5]])
    assert symmetry.copies(train, ours, BOX).all() and symmetry.solutions(ours, ours).all()
    assert not symmetry.copies(train, others, BOX).any()
    fewer = ours.copy()
    fewer[:, 0, np.flatnonzero(ours[0, 0])[0]] = 0  # other clues, the same solution
    assert not symmetry.copies(train, fewer[:1], BOX).any()
    renamed = train[:5] * 5 % 7 * (train[:5] > 0)  # all digits
    assert symmetry.copies(train, renamed, BOX).all() and symmetry.solutions(train, renamed).all()
    swapped = train[:5].reshape(-1, 2, 6, 6)[..., [1, 2, 0, 3, 4, 5]].reshape(-1, 2, 36)
    assert symmetry.copies(train, swapped, BOX).all()
    across = train[:5].reshape(-1, 2, 6, 6)[:, :, [0, 2, 1, 3, 4, 5]].reshape(-1, 2, 36)
    assert not symmetry.copies(train, across, BOX).any(), "rows of different bands"


@pytest.mark.slow
def test_the_study(monkeypatch, tmp_path):
    monkeypatch.setattr(Sudoku.generated.__func__, "__defaults__", (tmp_path, 1))
    flags = "--box=(2,2)", "--train_examples=2000", "--test_examples=40"
    printed = run_script("studies/symmetry.py", *flags)
    assert printed.splitlines()[-3] == "40 held-out puzzles, 2,000 to train on, 128 symmetries"
    assert printed.splitlines()[-1].split() == ["solutions", "40", "100.00%"]  # of 12 grids
