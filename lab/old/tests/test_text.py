import json

import numpy as np
import pytest
from conftest import evaluate, run_script, train
from toys import write_lines

from data import corpus
from data.wordproblems import prepare
from engine.files import read_lines
from tasks import gsm8k, text

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
    problems = [gsm8k.Problem(question, 0) for question in questions]
    prompts = text.Questions(problems, task.encoding, task.length)
    given, hidden = prompts[np.arange(50)]
    assert (hidden == ~prompt).all() and (given[prompt] == x0[prompt]).all()
    assert (given[hidden] == task.mask).all()
    assert task.vocab_size == task.mask + 1 == task.encoding.end + 2


def test_reference_programs_solve_their_questions_and_others_do_not(task):
    every = np.arange(len(task.test))
    x0, hidden = task.test[every]
    x0, prompt = np.where(hidden, task.encoding.end, x0), ~hidden
    for row, problem in enumerate(task.test.problems):
        ids = task.encoding.encode(problem.code)
        start = prompt[row].sum()
        x0[row, start : start + len(ids)] = ids[: task.length - start]
        x0[row, start + len(ids) + 1 :] = 17  # what follows the end does not count
    records = task.test.judge(x0, every)
    assert {each["kind"] for each in records} == {"correct"}
    assert records[0]["program"] == task.test.problems[0].code
    kinds = [each["kind"] for each in task.test.judge(x0[3:5], np.array([3, 5]))]
    assert kinds[0] == "correct" != kinds[1]


def test_ids_beyond_the_tokenizer_show_as_the_mask(task):
    word = task.encoding.encode("pass")
    assert text.answer_text(task.encoding, [*word, 10**6, task.encoding.end, 5]) == "pass<|mask|>"


def test_problems_of_gsm8k_and_others_are_read(tmp_path):
    rows = [
        {"question": "Q", "answer": "Because 3 + 4 = 7.\n#### 1,007"},
        {"question": "Q", "answer": 5.5, "code": "x"},
    ]
    file = write_lines(tmp_path / "questions.jsonl", rows)
    assert gsm8k.read_problems(file) == [("Q", "1,007", None), ("Q", 5.5, "x")]


def test_lines_that_are_no_problem(tmp_path):
    file = tmp_path / "questions.jsonl"
    for line, message in (
        (b'{"question": 5, "answer": 1}', "question must be text"),
        (b'{"question": "Q", "answer": NaN}', "answer a number"),
        (b'{"question": "\xff", "answer": 1}', "not UTF-8 text"),
        (b"[" * 100_000, "nested too deeply"),
    ):
        file.write_bytes(b'{"question": "Q", "answer": 1}\n' + line + b"\n")
        with pytest.raises(ValueError, match=f"questions.jsonl, line 2: .*{message}") as error:
            gsm8k.read_problems(file)
        assert len(str(error.value)) < 400 + len(str(file)) and "\n" not in str(error.value)
    file.write_text("")
    with pytest.raises(ValueError, match=f"{file} is empty"):
        gsm8k.read_problems(file)


def test_a_question_without_room_counts_as_a_failure(task):
    problems = [gsm8k.Problem("Who is " * 20, 1), gsm8k.Problem("Who is?", 1)]
    prompts = text.Questions(problems, task.encoding, 20)
    x, hidden = prompts[np.arange(2)]
    assert not hidden[0].any() and hidden[1].any()
    x[hidden] = task.encoding.end
    records = prompts.judge(x, np.arange(2))
    assert [each["program"] for each in records] == ["", ""]
    assert [each["kind"] for each in records] == ["too_long", "no_function"]


def test_padding_costs_little_once_it_is_learned(run):
    evaluate(run, "--nelbo", "--examples=4", "--masks=2")
    bound = json.loads((run / "nelbo.json").read_text())
    assert bound["per_token"] < bound["per_token_without_padding"]
    assert bound["per_example"] > 100 * bound["per_token"]


def test_evaluation_writes_a_record_per_question(run):
    printed = evaluate(run, "--examples=5", "--reveal=40", "--problems=transfer")
    (result,) = json.loads((run / "eval.json").read_text())
    records = [each for each in read_lines(run / "eval.jsonl") if each["id"] == result["id"]]
    assert len(records) == 5 and "solved, of 5" in printed and "top_k, 40 per step" in printed
    assert {"question", "answer", "program", "kind", "value", "detail"} <= records[0].keys()
    assert result["set"] == "transfer" and sum(result["kinds"].values()) == 5
    assert records[0]["kind"] in ("no_function", "syntax_error", "exception", "wrong_number")
    (run / "eval.json").unlink()


def test_padding_is_what_follows_the_end(task):
    rows = np.arange(100)
    x0, prompt = task.validation[rows]
    content = (~prompt & ~task.padding(x0)).sum(1)
    lengths = task.validation.starts[1:101] - task.validation.starts[:100]  # without an end
    assert content.tolist() == (lengths - task.validation.prompts[:100] + 1).tolist()


def test_control_characters_do_not_reach_the_terminal(folder, run, tmp_path):
    evil = "raise ValueError('\x1b[2J\\x9b')"
    row = {"question": "Q", "answer": 1, "code": evil}
    (tmp_path / "evil.jsonl").write_text(json.dumps(row))
    printed = evaluate(run, f"--file={tmp_path}/evil.jsonl", "--reference")
    assert r"# ValueError: \x1b[2J\x9b" in printed
    printed = run_script("sample.py", f"--out_dir={run}", "--prompt=\x1b[2J", "--reveal=99")
    assert printed.startswith(r"\x1b[2J") and "\x1b" not in printed and "# no function" in printed


def test_mistakes_are_named(run):
    with pytest.raises(SystemExit, match="expected transfer, humaneval, mbpp, or --file"):
        evaluate(run, "--problems=train")


def test_two_runs_may_make_the_same_data_at_once(monkeypatch, tmp_path):
    monkeypatch.setattr(prepare, "FOLDER", tmp_path)
    monkeypatch.setattr(prepare, "HELD_OUT", 5)
    finish, others = corpus.Writer.finish, []

    def late(writer):
        monkeypatch.setattr(corpus.Writer, "finish", finish)
        others.append(prepare.make_once(20, [], 176))  # begins and ends while this one is at work
        return finish(writer)

    monkeypatch.setattr(corpus.Writer, "finish", late)
    assert prepare.make_once(20, [], 176) == others[0] and [*tmp_path.iterdir()] == others
