import itertools
import json
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT, run_script, train

import record
from checkpoint import load
from data import corpus
from data.wordproblems import prepare
from tasks import text

TEXT = [
    "--dataset=text", "--train_examples=300", "--k_schedule=[(0,48)]", "--batch_size=4",
    "--test_examples=6", "--eval_policies=['top_k']", "--eval_reveal=40", "--min_lr=1e-3",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder():
    return prepare.make_once(300, [], 176)


@pytest.fixture(scope="module")
def task(folder):
    return text.load({"data_dir": str(folder), "test_examples": 40})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("text")
    train(out, *TEXT)
    return out


def test_training_and_sampling_see_the_same_prompt(task, folder):
    x0, prompt = task.train[np.arange(50)]
    questions = [
        task.encoding.decode(row[given].tolist()).strip()
        for row, given in zip(x0, prompt, strict=True)
    ]
    problems = [text.Problem(question, 0) for question in questions]
    prompts = text.Prompts(problems, task.encoding, task.length)
    given, where = prompts[np.arange(50)]
    assert (where == prompt).all() and (given[where] == x0[prompt]).all()
    assert task.vocab_size == task.mask + 1 == task.encoding.end + 2


def test_a_set_of_short_templates(tmp_path, monkeypatch):
    monkeypatch.setattr(prepare, "FOLDER", tmp_path)
    short = {"data_dir": "", "train_examples": 200, "test_examples": 1000, "text_length": 112}
    task = text.load(short | {"templates": ["ratio", "average"]})
    assert task.length == 112 and 100 < len(task.train) < 200, "the longest are dropped"
    sizes = [
        len(task.encoding.encode(f"{problem.question}\n{problem.code}"))
        for problem in task.test.problems
    ]
    assert 100 < len(sizes) < 1000 and max(sizes) < 112, "from the test set, too"
    wider = text.load(short | {"templates": ["ratio"], "text_length": 128})
    assert wider.length == 128 and len(list(tmp_path.iterdir())) == 2


def test_reference_programs_solve_their_questions_and_others_do_not(task):
    every = np.arange(len(task.test))
    x0, prompt = task.test[every]
    x0 = x0.copy()
    for row, problem in enumerate(task.test.problems):
        ids = task.encoding.encode(problem.code)
        start = prompt[row].sum()
        x0[row, start : start + len(ids)] = ids[: task.length - start]
        x0[row, start + len(ids) + 1 :] = 17  # what follows the end does not count
    assert task.test.solved(x0, every).all()
    assert task.test.programs(x0[:1], every[:1]) == [task.test.problems[0].code]
    assert task.test.solved(x0[3:5], np.array([3, 5])).tolist() == [True, False]


def test_ids_beyond_the_tokenizer_show_as_the_mask(task):
    word = task.encoding.encode("pass")
    assert text.program(task.encoding, [*word, 10**6, task.encoding.end, 5]) == "pass<|mask|>"


def test_splits_share_no_question(task):
    train_keys = set(task.train.keys.tolist())
    held_out = [*task.validation.keys.tolist()]
    held_out += [corpus.question_key(problem.question) for problem in task.test.problems]
    assert len(train_keys) > 250 and not train_keys & set(held_out)


def test_problems_of_gsm8k_and_others_are_read(tmp_path):
    file = tmp_path / "questions.jsonl"
    rows = [
        {"question": "Q", "answer": "Because 3 + 4 = 7.\n#### 1,007"},
        {"question": "Q", "answer": 5.5, "code": "x"},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert text.read_problems(file) == [("Q", "1,007", None), ("Q", 5.5, "x")]
    for bad in ("{", '{"question": "Q"}', '{"question": "Q", "answer": "none"}', "[1]", "7"):
        file.write_text(json.dumps(rows[0]) + "\n" + bad)
        with pytest.raises(ValueError, match="line 2: no problem"):
            text.read_problems(file)


def test_a_question_without_room_counts_as_a_failure(task):
    problems = [text.Problem("Who is " * 20, 1), text.Problem("Who is?", 1)]
    prompts = text.Prompts(problems, task.encoding, 20)
    assert prompts.too_long.tolist() == [True, False]
    x0, prompt = prompts[np.arange(2)]
    assert prompt[0].all() and not prompt[1].all()
    assert prompts.programs(x0, np.arange(2)) == ["", ""]
    assert not prompts.solved(x0, np.arange(2)).any()


def test_a_folder_that_is_no_data_set(tmp_path):
    with pytest.raises(SystemExit, match=r"header\.json"):
        train(tmp_path / "run", *TEXT, f"--data_dir={tmp_path}")


def test_training_resumes_exactly(run, tmp_path):
    train(tmp_path, *TEXT, "--max_iters=7")
    train(tmp_path, *TEXT, "--init_from=resume")
    whole, parts = load(run / "checkpoint.pt"), load(tmp_path / "checkpoint.pt")
    assert whole["iteration"] == parts["iteration"] == 20
    for name, weight in whole["model"].items():
        assert weight.equal(parts["model"][name])


def test_evaluation_writes_a_record_per_question(run):
    printed = run_script(
        "tasks/gsm8k.py", f"--out_dir={run}", "--examples=5", "--reveal=40", "--split=transfer"
    )
    rows = [json.loads(line) for line in (run / "gsm8k.jsonl").read_text().splitlines()]
    assert len(rows) == 5 and "of 5 questions solved" in printed
    assert {"question", "answer", "program", "kind", "value", "detail"} <= rows[0].keys()
    result = json.loads((run / "gsm8k.json").read_text())[0]
    assert result["questions"] == "transfer" and sum(result["kinds"].values()) == 5
    assert rows[0]["kind"] in ("no_function", "syntax_error", "exception", "wrong_number")


def test_policy_table(run):
    printed = run_script("tasks/gsm8k.py", f"--out_dir={run}", "--examples=2", "--policy_table")
    rows = json.loads((run / "policy_table.json").read_text())
    assert [row["tau"] for row in rows[:3]] == [0.8, 0.9, 0.95]
    assert [row["reveal"] for row in rows[3:7]] == [2, 5, 10, 20]
    assert [row["temperature"] for row in rows[7:]] == [0.2, 0.5, 0.7, 0.8, 1.0]
    assert 18 < rows[6]["tokens_per_step"] <= 20 and rows[6]["forward_passes"] < 9
    assert printed.strip() == (run / "policy_table.md").read_text().strip()


def test_padding_is_what_follows_the_end(task):
    rows = np.arange(100)
    x0, prompt = task.validation[rows]
    content = (~prompt & ~task.padding(x0)).sum(1)
    lengths = task.validation.starts[1:101] - task.validation.starts[:100]  # without an end
    assert content.tolist() == (lengths - task.validation.prompts[:100] + 1).tolist()


def test_grid_and_nelbo_of_a_text_run(run):
    flags = ["--examples=4", "--masks=2", "--reveals=[40]", "--taus=[None]", "--policies=['top_k']"]
    printed = run_script("eval.py", f"--out_dir={run}", "--grid", "--nelbo", *flags)
    (row,) = json.loads((run / "grid.json").read_text())
    assert row["examples"] == 4 and "top_k, 40 per step | 0.0% [0.0%," in printed
    bound = json.loads((run / "nelbo.json").read_text())
    assert bound["per_token"] < bound["per_token_without_padding"]  # padding is learned first
    assert bound["per_example"] > 100 * bound["per_token"]


def test_reference_programs(folder, run):
    printed = run_script("tasks/gsm8k.py", f"--file={folder / 'test.jsonl'}", "--reference")
    assert "100.0% [99.6%, 100.0%] of 1000 questions solved" in printed
    own = run_script("tasks/gsm8k.py", f"--out_dir={run}", "--reference", "--examples=10")
    assert "of 10 questions solved" in own and "10 correct" in own


def test_a_question_of_ones_own(run):
    ask = "--question=Tom has 3 pens. How many pens does he have?"
    assert "# no_function" in run_script("tasks/gsm8k.py", f"--out_dir={run}", ask, "--reveal=99")


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--reveal=0"], "reveal 0: expected at least 1"),
        (["--examples=-1"], "examples -1"),
        (["--question=Q", "--policy_table"], "--question goes with neither"),
        (["--split=train"], "expected test or transfer"),
        (["--out_dir=nowhere"], "no checkpoint"),
        (["--file=nowhere.jsonl", "--reference"], "nowhere.jsonl"),
    ],
)
def test_mistakes_are_named(flags, message):
    with pytest.raises(SystemExit, match=message):
        run_script("tasks/gsm8k.py", *flags)


def test_two_runs_may_make_the_same_data_at_once(monkeypatch, tmp_path):
    monkeypatch.setattr(prepare, "FOLDER", tmp_path)
    monkeypatch.setattr(prepare, "HELD_OUT", 5)
    monkeypatch.setattr(record.os, "getpid", itertools.count().__next__)
    finish, others = corpus.Writer.finish, []

    def late(writer):
        monkeypatch.setattr(corpus.Writer, "finish", finish)
        others.append(prepare.make_once(20, [], 176))  # begins and ends while this one is at work
        return finish(writer)

    monkeypatch.setattr(corpus.Writer, "finish", late)
    assert prepare.make_once(20, [], 176) == others[0] and [*tmp_path.iterdir()] == others


def test_a_failed_run_leaves_nothing_behind(monkeypatch, tmp_path):
    monkeypatch.setattr(prepare, "FOLDER", tmp_path)
    with pytest.raises(ValueError, match="unknown templates"):
        prepare.make_once(20, ["ratios"], 176)
    monkeypatch.setattr(corpus.Writer, "finish", lambda writer: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        prepare.make_once(20, ["ratio"], 176)
    assert not [*tmp_path.iterdir()]


def test_prepared_text_does_without_the_generator(folder):
    """A process of its own loads the data set, and no template."""
    config = {"data_dir": str(folder), "test_examples": 5}
    code = f"import sys; from tasks import text; text.load({config})"
    code += "; sys.exit(any('wordproblems' in name for name in sys.modules))"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_a_resumed_run_must_keep_its_data(run, folder, monkeypatch):
    other = {"data_dir": "", "train_examples": 250, "test_examples": 6}
    changed = text.load(other | {"templates": [], "text_length": 176})
    monkeypatch.setattr(text, "load", lambda config: changed)
    with pytest.raises(SystemExit, match="must keep its data"):
        train(run, *TEXT, "--init_from=resume", "--max_iters=21")
