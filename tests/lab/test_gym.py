"""data/gym/prepare.py and lab/gym.py. Oracles: the library's own rows, what a palindrome is."""

import itertools
import json
import runpy
import subprocess
import sys

import numpy as np
import pytest
import torch
from conftest import ENV, ROOT

pytest.importorskip("reasoning_gym")
import reasoning_gym

import checkpoint
import sample
from data.gym import prepare
from lab import gym, thirty
from policies import top_k


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


def test_the_verifier_judges(tmp_path):
    """Each palindrome of the letters is right, listed or not; no other arrangement is."""
    task = prepared(tmp_path / "words", "palindrome_generation", "--max_length=6")
    x0, prompt = task.test[:1]
    letters = task.tokenizer.text(x0[0][prompt[0]]).strip().split(", ")
    words = sorted({"".join(each) for each in itertools.permutations(letters)})
    right = [word == word[::-1] for word in words]
    tokens = np.repeat(x0, len(words), 0)
    for row, word in zip(tokens, words, strict=True):
        row[~prompt[0]] = task.end
        row[prompt.sum() : prompt.sum() + len(word)] = [*word.encode()]
    judged = task.judge(tokens, *(np.repeat(part, len(words), 0) for part in (x0, prompt)))
    assert judged.tolist() == right and 1 < sum(right) < len(words)


def answered(task, text):
    """tokens, x0, prompt (1, L) of a held-out row, its answer replaced by text."""
    x0, prompt = task.test[:1]
    tokens = np.where(prompt, x0, task.end)
    at = prompt.sum()
    tokens[0, at : at + len(text)] = [*text.encode()]
    return tokens, x0, prompt


def test_verifiers_that_fail_or_never_end(tmp_path):
    task = prepared(tmp_path / "p", "countdown", "--rows=100", "--length=150")
    task.verifier = gym.Verifier(task.about, seconds=1)
    truth = task.tokenizer.text(task.test[:1][0][~task.test[:1][1]])
    for text, right in (truth, True), ("9**9**9", False), (truth, True), ("1/0", False):
        assert task.judge(*answered(task, text)).tolist() == [right], text


def test_what_another_process_would_say_otherwise(tmp_path):
    """This generator depends on the order of sets, which each process shuffles anew."""
    task = prepared(tmp_path / "p", "polynomial_multiplication", "--rows=100", "--length=400")
    for shuffle in "1", "2":
        done = subprocess.run(
            [sys.executable, "-c", TRUTHS, str(task.folder)], cwd=ROOT, text=True,
            env=ENV | {"PYTHONHASHSEED": shuffle}, capture_output=True,
        )  # fmt: skip
        assert done.stdout == "True\n", done.stderr


TRUTHS = """
import sys
from lab import gym
task = gym.load(sys.argv[1], 10)
x0, prompt = task.test[:10]
print(task.judge(x0, x0, prompt).all())
"""


def test_an_interrupted_run_goes_on(tmp_path, puzzles):
    said = (puzzles.folder / "rows.jsonl").read_text()
    (tmp_path / "again.jsonl").write_text(said[:30_000])
    again = prepared(tmp_path / "again", "mini_sudoku", "--min_empty=12")
    for path in puzzles.folder.iterdir():
        assert (again.folder / path.name).read_bytes() == path.read_bytes(), path.name
    (tmp_path / "other.jsonl").write_text(said)  # of another seed: begins anew
    other = prepared(tmp_path / "other", "mini_sudoku", "--min_empty=12", "--seed=2")
    assert (other.folder / "rows.jsonl").read_text() != said


def test_rows_that_are_too_long_are_dropped_and_counted(tmp_path):
    task = prepared(tmp_path / "words", "spell_backward", "--length=16")
    said = reasoning_gym.create_dataset("spell_backward", seed=1, size=400)
    begin, end = task.about["begin"], task.about["end"]
    bare = [entry["question"].removeprefix(begin).removesuffix(end) for entry in said]
    long = sum(len(q) + 1 + len(entry["answer"]) >= 16 for q, entry in zip(bare, said, strict=True))
    header = json.loads((tmp_path / "words" / "header.json").read_text())
    dropped = header["dropped"].get("too_long", 0) + header["dropped"].get("prompt_too_long", 0)
    assert dropped == long > 0


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


def test_without_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(SystemExit, match="pip install reasoning"):
        prepared(tmp_path / "x", "mini_sudoku")


def test_common_wording():
    assert prepare.wording(["Add 12 and 3. Go!", "Add 17 and 3. Go!"]) == {
        "begin": "Add ",  # not the 1 of both
        "end": " and 3. Go!",
    }


# -- the study of thirty tasks ---------------------------------------------------------------------
def test_a_run_is_measured_and_counted(puzzles, tmp_path, train, capsys):
    flags = ["--task=lab.gym", "--max_iters=3", "--eval_interval=3", "--test_examples=10"]
    train(puzzles.folder, tmp_path / "run", *flags)
    thirty.measure(tmp_path / "run")
    found = json.loads((tmp_path / "run" / "eval.json").read_text())
    model, _ = checkpoint.load_model(tmp_path / "run", "cpu")
    x0, prompt = puzzles.test[:10]
    tokens, _ = sample.generate(model, torch.as_tensor(x0), torch.as_tensor(~prompt), top_k, 4)
    right = []
    for row, truth, given in zip(tokens.numpy(), x0, prompt, strict=True):
        answer = [i for i in np.flatnonzero(~given) if puzzles.end not in truth[:i]]
        right.append(np.mean([row[i] == truth[i] for i in answer]))
    solved, share, steps = found["4"]
    assert share == pytest.approx(np.mean(right)) and solved == 0
    assert steps == pytest.approx(np.ceil((~prompt).sum(1) / 4).mean())


def test_won_lost_and_even(capsys):
    """Seeds 1 and 2: one task is won by 10 points in both, one lost, one has no clear winner."""
    ours = {"a": (0.6, 0.62), "b": (0.1, 0.12), "c": (0.52, 0.1), "d": (0.0, 0.01)}
    theirs = {"a": (0.5, 0.52), "b": (0.3, 0.32), "c": (0.3, 0.3), "d": (0.0, 0.0)}
    kept = lambda share: {key: [share, 0.5, 9] for key in thirty.SAMPLERS}  # noqa: E731
    found = {
        (task, arm, seed): kept(shares[task][seed - 1])
        for arm, shares in (("puma_plus", ours), ("mdm", theirs))
        for task in ours
        for seed in (1, 2)
    }
    thirty.table([*ours], found)
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in out[2:5]] == ["a", "c", "b"]
    assert out[2].split()[1:4] == ["61.0", "51.0", "10.0"]
    assert out[6].split() == ["d", "50.0", "50.0", "0.0", "[0.0,", "0.0]"]
    assert "ahead in 2 of 3, won 1, lost 1; mean over tasks -3.0 [-41.2, 35.2]" in out[8]
    assert "ahead in 0 of 4, won 0, lost 0; mean over tasks 0.0 [0.0, 0.0]" in out[15]


def test_forward_passes_to_what_random_masks_solve_and_the_picture(tmp_path, monkeypatch):
    costs = 8, 4, 2, 1, 3, 1  # of thirty.SAMPLERS; random masks solve half, one a step
    ours, theirs, worse = (0.5, 0.6, 0.5, 0.4, 0.4, 0), (0.5, 0.4, 0.4, 0, 0, 0), (0.4,) * 6
    found = {
        ("a", arm, 1): dict(
            zip(thirty.SAMPLERS, zip(shares, shares, costs, strict=True), strict=True)
        )
        for arm, shares in {"puma_plus": ours, "mdm": theirs, "puma": worse}.items()
    }
    fewest = [thirty.passes(found, "a", arm) for arm in ("puma_plus", "mdm", "puma")]
    assert fewest == [2, 8, float("inf")]
    assert thirty.point(found, ["a"], "puma_plus", "2", 0) == (4, 60)
    monkeypatch.setattr(thirty, "figure", tmp_path / "a.png")
    thirty.draw(["a"], found)
    assert (tmp_path / "a.png").stat().st_size > 10_000
