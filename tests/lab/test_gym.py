"""data/gym/prepare.py and lab/gym.py. Oracles: the library's own rows, what a palindrome is."""

import itertools
import runpy
import subprocess
import sys

import numpy as np
import pytest
from conftest import ENV, ROOT

pytest.importorskip("reasoning_gym")
import reasoning_gym

from data.gym import prepare
from lab import evaluate, gym


def prepared(folder, name, *flags):
    """Run the script in this process, as a user does."""
    flags = ["--rows=400", "--workers=1", "--val=0.1", f"--out={folder}", *flags]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["prepare.py", *name.split(), *flags])
        runpy.run_path(prepare.__file__, run_name="__main__")
    return gym.load(folder, 10)


@pytest.fixture(scope="module")
def puzzles(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("gym") / "puzzles", "mini_sudoku", "--min_empty=12")


def texts(task, rows):
    """(question, answer) of rows, from their tokens."""
    for x0, prompt in zip(*rows[: len(rows)], strict=True):
        yield task.tokenizer.text(x0[prompt]), task.tokenizer.text(x0[~prompt])


def test_rows_are_the_librarys_without_their_wording(puzzles):
    said = reasoning_gym.create_dataset("mini_sudoku", min_empty=12, seed=1, size=400)
    begin, end = puzzles.about["begin"], puzzles.about["end"]
    rows = {(begin + q.strip() + end, a) for q, a in texts(puzzles, puzzles.train)}
    held_out = {(begin + q.strip() + end, a) for q, a in texts(puzzles, puzzles.test)}
    assert rows | held_out == {(entry["question"], entry["answer"]) for entry in said}
    assert not {q for q, _ in rows} & {q for q, _ in held_out} and 10 < len(held_out) < 80
    assert begin.endswith("puzzle:\n") and end.startswith("\nFormat your")


def answered(task, *texts):
    """tokens, x0, prompt (n, L): a held-out question with each of the texts as its answer."""
    x0, prompt = (np.repeat(part, len(texts), 0) for part in task.test[:1])
    tokens = np.where(prompt, x0, task.end)
    at = prompt[0].sum()
    for row, text in zip(tokens, texts, strict=True):
        row[at : at + len(text)] = [*text.encode()]
    return tokens, x0, prompt


def test_the_verifier_judges(tmp_path):
    """Each palindrome of the letters is right, listed or not; no other arrangement is."""
    task = prepared(tmp_path / "words", "palindrome_generation", "--max_length=6")
    letters = next(texts(task, task.test))[0].strip().split(", ")
    words = sorted({"".join(each) for each in itertools.permutations(letters)})
    right = [word == word[::-1] for word in words]
    assert task.judge(*answered(task, *words)).tolist() == right and 1 < sum(right) < len(words)


def test_verifiers_that_fail_or_never_end(tmp_path):
    task = prepared(tmp_path / "p", "countdown", "--rows=100", "--length=150")
    task.verifier = gym.Verifier(task.about, seconds=1)
    truth = next(texts(task, task.test))[1]
    judged = task.judge(*answered(task, truth, "9**9**9", truth, "1/0"))
    assert judged.tolist() == [True, False, True, False]


def test_what_another_process_would_say_otherwise(tmp_path):
    """This generator depends on the order of sets, which each process shuffles anew."""
    task = prepared(tmp_path / "p", "polynomial_multiplication", "--rows=100", "--length=400")
    truths = f"""
from lab import gym
task = gym.load({str(task.folder)!r}, 10)
x0, prompt = task.test[:10]
print(task.judge(x0, x0, prompt).all())
"""
    for shuffle in "1", "2":
        env = ENV | {"PYTHONHASHSEED": shuffle}
        command = [sys.executable, "-c", truths]
        assert subprocess.check_output(command, cwd=ROOT, text=True, env=env) == "True\n"


def test_an_interrupted_run_goes_on(tmp_path, puzzles):
    said = (puzzles.folder / "rows.jsonl").read_text()
    (tmp_path / "again.jsonl").write_text(said[:30_000])
    again = prepared(tmp_path / "again", "mini_sudoku", "--min_empty=12")
    for path in puzzles.folder.iterdir():
        assert (again.folder / path.name).read_bytes() == path.read_bytes(), path.name
    (tmp_path / "other.jsonl").write_text(said)  # of another seed: begins anew
    other = prepared(tmp_path / "other", "mini_sudoku", "--min_empty=12", "--seed=2")
    assert (other.folder / "rows.jsonl").read_text() != said


@pytest.mark.parametrize(
    "name, word",
    [
        ("--rows=9", "expected a generator's name"),
        ("mini_sudoko", "generator .mini_sudoko.: expected"),
        ("mini_sudoku --min_emty=1", "no setting .min_emty."),
        ("mini_sudoku --min_empty=99", "must be between"),
        ("rubiks_cube", "the verifier accepts none"),
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
    assert said.startswith("mini_sudoku: --min_empty=8 --max_empty=12") and "\nworkers:" in said


def test_common_wording():
    assert prepare.wording(["Add 12 and 3. Go!", "Add 17 and 3. Go!"]) == {
        "begin": "Add ",  # not the 1 of both
        "end": " and 3. Go!",
    }


def test_a_run_is_judged(puzzles, tmp_path, train):
    flags = ["--task=lab.gym", "--max_iters=3", "--eval_interval=3", "--test_examples=10"]
    train(puzzles.folder, tmp_path / "run", *flags)
    found = evaluate.judged(*evaluate.open_run(tmp_path / "run", None, "cpu"), 4, 1.0)
    hidden = ~puzzles.test[:10][1]
    assert found["steps"].mean() == pytest.approx(np.ceil(hidden.sum(1) / 4).mean())
    assert found["solved"].mean() == 0
