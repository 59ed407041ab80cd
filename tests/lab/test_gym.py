"""data/gym/prepare.py, and how answers are judged. The oracle is the library's own rows."""

import json
import runpy
import sys

import numpy as np
import pytest

pytest.importorskip("reasoning_gym")
import reasoning_gym

from data.gym import prepare
from lab import evaluate, own_text


def prepared(folder, name, *flags):
    """Run the script in this process, as a user does."""
    flags = ["--rows=400", "--workers=1", "--val=0.1", f"--out={folder}", *flags]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["prepare.py", *name.split(), *flags])
        runpy.run_path(prepare.__file__, run_name="__main__")
    return own_text.load(folder, 10)


@pytest.fixture(scope="module")
def puzzles(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("gym") / "puzzles", "mini_sudoku", "--min_empty=12")


def texts(task, rows):
    """(question, answer) of rows, from their tokens."""
    for x0, prompt in zip(*rows[: len(rows)], strict=True):
        yield task.tokenizer.text(x0[prompt]), task.tokenizer.text(x0[~prompt])


def test_rows_are_the_librarys_without_their_wording(puzzles):
    said = reasoning_gym.create_dataset("mini_sudoku", min_empty=12, seed=1, size=400)
    about = json.loads((puzzles.folder / "header.json").read_text())["source"]
    begin, end = about["begin"], about["end"]
    rows = {(begin + q.strip() + end, a) for q, a in texts(puzzles, puzzles.train)}
    held_out = {(begin + q.strip() + end, a) for q, a in texts(puzzles, puzzles.test)}
    assert rows | held_out == {(entry["question"], entry["answer"]) for entry in said}
    assert not {q for q, _ in rows} & {q for q, _ in held_out} and 10 < len(held_out) < 80
    assert begin.endswith("puzzle:\n") and end.startswith("\nFormat your")


def test_an_answer_is_right_if_it_is_the_listed_one(puzzles):
    x0, prompt = (np.repeat(part, 5, 0) for part in puzzles.test[:1])
    end = x0.shape[1] - 3
    x0[:, end:] = puzzles.end
    tokens = x0.copy()
    tokens[1, end + 1] = 65  # after the end anything may stand
    tokens[2, end] = 65
    tokens[3, end - 1] = puzzles.end  # cut short
    tokens[4, 0] = 65  # of the prompt, which is given
    assert puzzles.judge(tokens, x0, prompt).tolist() == [True, True, False, False, True]


@pytest.mark.parametrize(
    "name, word",
    [
        ("--rows=9", "expected a generator's name"),
        ("mini_sudoko", "generator .mini_sudoko.: expected"),
        ("mini_sudoku --min_emty=1", "no setting .min_emty."),
        ("mini_sudoku --min_empty=99", "must be between"),
    ],
)
def test_a_mistake_is_one_line(name, word, tmp_path):
    with pytest.raises(SystemExit, match=word) as end:
        prepared(tmp_path / "x", name)
    assert "\n" not in str(end.value)


def test_help_lists_the_flags_of_the_generator(tmp_path, capsys):
    with pytest.raises(SystemExit):
        prepared(tmp_path / "x", "mini_sudoku", "--help")
    said = capsys.readouterr().out
    assert said.startswith("mini_sudoku: --min_empty=8 --max_empty=12") and "\nworkers = " in said


def test_common_wording():
    assert prepare.wording(["Add 12 and 3. Go!", "Add 17 and 3. Go!"]) == {
        "begin": "Add ",  # not the 1 of both
        "end": " and 3. Go!",
    }


def test_a_run_is_judged(puzzles, tmp_path, train):
    flags = ["--task=lab.own_text", "--max_iters=3", "--eval_interval=3", "--test_examples=10"]
    train(puzzles.folder, tmp_path / "run", *flags)
    found = evaluate.judged(*evaluate.open_run(tmp_path / "run", None, "cpu"), 4, 1.0)
    hidden = ~puzzles.test[:10][1]
    assert found["steps"].mean() == pytest.approx(np.ceil(hidden.sum(1) / 4).mean())
    assert found["solved"].mean() == 0
