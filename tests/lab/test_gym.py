"""data/gym/prepare.py. The oracle is the library's own rows."""

import runpy

import pytest
from conftest import ROOT, prepare

from lab import text

reasoning_gym = pytest.importorskip("reasoning_gym")
pytestmark = pytest.mark.slow


def test_rows_are_the_librarys_without_their_wording(tmp_path):
    wording = runpy.run_path(f"{ROOT}/data/gym/prepare.py")["wording"]
    assert wording(["Add 12. Go!", "Add 17. Go!"]) == ("Add ", ". Go!")  # not the 1 of both
    made = [*reasoning_gym.create_dataset("mini_sudoku", min_empty=12, seed=1, size=400)]
    begin, end = made[0]["question"].split("puzzle:\n")[0] + "puzzle:\n", "\nFormat your"
    end += made[0]["question"].split(end)[1]
    flags = {"rows": 400, "val": 0.1, "options": {"min_empty": 12}}
    task = text.load(prepare("gym", **flags, out=tmp_path / "a"), 9)
    found = set()
    for rows in task.train, task.test:
        for x0, prompt in zip(*rows[:], strict=True):
            question = task.tokenizer.text(x0[prompt]).removesuffix("\n")
            found.add((begin + question + end, task.tokenizer.text(x0[~prompt])))
    assert found == {(row["question"], row["answer"]) for row in made}
    assert len(task.train) + len(task.test) == 400 and 10 < len(task.test) < 80
    assert task.length == 2 + max(len(q + a) - len(begin + end) for q, a in found)  # newline, end
