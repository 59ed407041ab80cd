"""HumanEval and MBPP. Oracles: enumeration, prompts written out, programs whose fate is known."""

import itertools
import json
from fractions import Fraction

import numpy as np
import pytest
import torch
from conftest import HOUSE, metrics, run_script, train
from toys import first_ranks, write_lines

import sample
from data import corpus
from data.tokenizer import Tokenizer
from engine import checkpoint
from engine.files import read_lines
from model import Transformer
from tasks import codeeval, humaneval, mbpp

SHARED = HOUSE.parent / "shared" / "data"
HUMANEVAL, MBPP = SHARED / "humaneval" / "HumanEval.jsonl", SHARED / "mbpp" / "mbpp.jsonl"
PROBLEMS = [  # in HumanEval's form; prompts of three lengths
    {
        "task_id": f"Own/{i}",
        "prompt": f"import math\n\ndef f{i}(x):\n    '''x + {i}{'!' * (i % 3)}'''\n",
        "canonical_solution": f"    return x + math.ceil({i})\n",
        "test": f"def check(candidate):\n    assert candidate(2) == {i + 2}\n",
        "entry_point": f"f{i}",
    }
    for i in range(5)
]
TASKS = [
    {"task_id": i, "text": f"Add {i}.", "code": f"def add{i}(x):\r\n  return x + {i}"}
    | {"test_list": [f"assert add{i}({x}) == {x + i}" for x in range(3)], "test_setup_code": ""}
    for i in (2, 3, 4, 11, 12, 511)
]


@pytest.fixture
def file(tmp_path):
    """Write rows to a file."""
    return lambda rows: write_lines(tmp_path / "rows.jsonl", rows)


@pytest.mark.parametrize("n, correct, k", [(5, 0, 1), (5, 2, 1), (6, 2, 3), (6, 4, 3), (4, 4, 4)])
def test_pass_at_k_is_the_share_of_subsets_with_a_right_program(n, correct, k):
    subsets = [*itertools.combinations([True] * correct + [False] * (n - correct), k)]
    expected = Fraction(sum(map(any, subsets)), len(subsets))
    assert codeeval.pass_at_k(n, correct, k) == pytest.approx(float(expected), abs=1e-12)


def test_summary():
    kinds = {"a": ["correct"] + ["timeout"] * 9, "b": ["exception"] * 10}
    result = codeeval.summary([{"task_id": a, "kind": kind} for a in kinds for kind in kinds[a]])
    assert result["kinds"] == {"exception": 10, "timeout": 9, "correct": 1}
    assert [result[f"pass@{k}"]["score"] for k in (1, 10)] == pytest.approx([0.05, 0.5])
    assert result["pass@10"]["interval"] == pytest.approx((0.0945, 0.9055), abs=1e-4)  # 1 of 2
    assert "pass@100" not in result


def test_humanevals_program_and_where_an_answer_ends(file):
    problem = humaneval.read(file(PROBLEMS))[0]
    assert problem.prompt == PROBLEMS[0]["prompt"]
    assert problem.before + "#" + problem.after == (
        "import math\n\ndef f0(x):\n    '''x + 0'''\n#\n"
        "def check(candidate):\n    assert candidate(2) == 2\n\ncheck(f0)\n"
    )
    body = "    if x:\n        return x\n    # c\n\n    print(x)"
    for stop in ("def g(): pass", "class A: pass", "# done", "if x: pass", "print(f(1))"):
        assert codeeval.cut(f"{body}\n{stop}\nclass B", problem) == body
    assert codeeval.cut(body, problem) == body


def test_mbpps_prompt_is_that_of_the_harness(file):
    found = mbpp.read(file(TASKS))
    assert [problem.name for problem in found] == ["MBPP/11", "MBPP/12"]
    prompt = ""
    for i in (2, 3, 4, 11):
        prompt += (
            "You are an expert Python programmer, and here is your task: "
            f"Add {i}. Your code should pass these tests:\n\nassert add{i}(0) == {i}\n"
            f"assert add{i}(1) == {i + 1}\nassert add{i}(2) == {i + 2}\n[BEGIN]\n"
        )
        prompt += f"def add{i}(x):\n  return x + {i}\n[DONE]\n\n" if i < 11 else ""
    assert found[0].prompt == prompt
    assert codeeval.cut("x = 1\n[DONE]\n\nYou are", found[0]) == "x = 1\n"


def test_set_up_code_is_run_after_the_program_whose_classes_it_uses(file):
    task = TASKS[3] | {"code": "class A:\r\n  x = 1\r", "test_setup_code": "a = A()\r\n"}
    (problem, _) = mbpp.read(file([*TASKS[:3], task | {"test_list": ["assert a.x"]}, TASKS[4]]))
    found = codeeval.outcomes_of([problem], [problem.reference], 3.0)
    assert found == [("correct", "")] and "\r" not in "".join(problem[:-1])


def test_kinds_and_the_modules_that_programs_use(file):
    problem = humaneval.read(file(PROBLEMS))[0]
    used = "    import base64, cmath, hashlib, numbers, queue, secrets, traceback, unicodedata\n"
    used += "    assert hashlib.md5(b'a').hexdigest()[:4] == '0cc1'\n    return x\n"
    completions = {
        "    return x\n": "correct", used: "correct", "    return 5\n": "assertion_failed",
        "    assert False, 'no'\n": "assertion_failed", "    return y\n": "exception",
        "    exit(0)\n": "exception", "    raise AssertionErrorOfMine\n": "exception",
        "    while True: pass\n": "timeout", "": "assertion_failed",
    }  # fmt: skip
    found = codeeval.outcomes_of([problem] * len(completions), [*completions], 1.0)
    assert [kind for kind, _ in found] == [*completions.values()]


def test_answers_of_a_model(file, tmp_path, monkeypatch):
    """Right but for one problem, and one that does not fit; what follows the function is cut off.

    Two samples each. The answers take the place of those of the model, which is random.
    """
    encoding = Tokenizer(first_ranks(300), "dream")
    corpus.Writer(tmp_path / "data", encoding, 40, "none").finish()
    args = dict(vocab_size=encoding.vocab_size, mask_token=encoding.mask, length=40)
    args |= dict(dim=16, layers=1, heads=2, mlp=16)
    state = {"model_args": args, "ema": Transformer(**args).state_dict(), "iteration": 7}
    config = {"dataset": "text", "data_dir": str(tmp_path / "data"), "train_examples": 0}
    checkpoint.save(state | {"block": 0, "config": config}, tmp_path / "checkpoint.pt")
    path, wrong = file([*PROBLEMS, PROBLEMS[0] | {"task_id": "long", "prompt": "#" * 300}]), "Own/3"
    problems = humaneval.read(path)
    by_ids = {tuple(encoding.start + encoding.encode(p.prompt)): p for p in problems}

    def generate(model, x, hidden, *settings, **others):
        x = x.clone()
        for row, masked in zip(x, hidden, strict=True):
            problem = by_ids[tuple(row[~masked].tolist())]
            ids = encoding.encode(problem.reference * (problem.name != wrong) + "\nclass ")
            if masked.any():
                row[masked] = torch.tensor(ids + [encoding.end] * (masked.sum() - len(ids)))
        return x, hidden.long(), 0

    monkeypatch.setattr(sample, "generate", generate)
    flags = "--device=cpu", "--new_tokens=60", "--length=200", "--samples=2", f"--file={path}"
    printed = run_script("eval.py", "config/humaneval.py", f"--out_dir={tmp_path}", *flags)
    records = read_lines(tmp_path / "eval.jsonl")
    found = {(record["task_id"], record["sample"]): record for record in records}
    assert len(found) == len(records) == 12 and "66.7% [30.0%, 90.3%] pass@1" in printed
    kinds = {"long": "too_long", wrong: "assertion_failed"}
    for problem, number in itertools.product(problems, range(2)):
        each, kind = found[problem.name, number], kinds.get(problem.name, "correct")
        assert each["kind"] == kind
        if kind != "too_long":
            assert each["answer"].endswith("\nclass ")
            assert each["completion"] == problem.reference * (kind == "correct")
    (result,) = json.loads((tmp_path / "eval.json").read_text())
    assert result["kinds"] == {"correct": 8, "assertion_failed": 2, "too_long": 2}
    assert result["set"] == "humaneval" and result["problems"] == 6 and result["iteration"] == 7
    assert "| 66.7% [30.0%, 90.3%] |" in (tmp_path / "eval.md").read_text()


def test_only_prompts_of_equal_length_share_a_batch(file):
    problems = [row | {"prompt": "#" * n} for row, n in zip(PROBLEMS, [3, 1, 3, 3, 2], strict=True)]
    encoding = Tokenizer(first_ranks(256))
    test = codeeval.Sampled(humaneval.read(file(problems)), encoding, 90, 1.0, 2, 12)
    batches = test.batches(10, 4, 0, 1)
    assert batches == [[2, 3], [8, 9], [0, 1, 4, 5], [6, 7]]
    assert [test.batches(10, 4, rank, 2) for rank in (0, 1)] == [batches[::2], batches[1::2]]
    x, hidden = test[batches[2]]
    assert x.shape == (4, 15) and hidden.sum(1).tolist() == [12] * 4 and (x[hidden] == 257).all()


def test_files_of_another_form_are_named(file):
    for read, rows, message in (
        (humaneval.read, [PROBLEMS[0], [1]], "line 2 has no field 'task_id', nor any"),
        (mbpp.read, [TASKS[0], TASKS[1] | {"test_list": [1]}], "line 2: test_list is .*expected"),
        (mbpp.read, [*TASKS[:2], *TASKS[3:]], "no task 4, which the prompt shows"),
        (mbpp.read, TASKS[:3], "none of the tasks 11 to 510, to test on"),
    ):
        with pytest.raises(ValueError, match=f"rows.jsonl.*{message}"):
            read(file(rows))


def test_problems_as_the_test_set_of_a_run(tmp_path):
    """Trained on instructions for a few steps; solutions put in by hand are solved."""
    pairs = [(f"Write f{i}.", f"def f{i}(x): return {i}") for i in range(40)]
    encoding = Tokenizer(first_ranks(400), "dream")
    writer = corpus.Writer(tmp_path / "data", encoding, 160, "none")
    for split in ("train", "val"):
        writer.add(split, corpus.encode(encoding, pairs, 160, corpus.chat)[0])
    write_lines(writer.partial / "humaneval.jsonl", PROBLEMS)
    writer.finish()
    config = ["--dataset=instructions", f"--data_dir={tmp_path / 'data'}", "--eval_reveal=40"]
    train(tmp_path / "run", *config, "--max_iters=3", "--k_schedule=[(0,40)]", "--test_examples=3")
    assert metrics(tmp_path / "run")[-1]["examples"] == 3

    task = codeeval.load({"data_dir": str(tmp_path / "data"), "test_examples": 9})
    x0, hidden = task.test[np.arange(5)]
    prompt = ~hidden
    assert task.encoding.decode(x0[1][prompt[1]]) == "<|beginoftext|>" + PROBLEMS[1]["prompt"]
    for row, given, problem in zip(x0, prompt, PROBLEMS, strict=True):
        ids = task.encoding.encode(problem["canonical_solution"] + "\ndef g")
        ids.append(task.encoding.special["<|im_end|>"])
        row[given.sum() :][: len(ids)] = ids
    kinds = [each["kind"] for each in task.test.judge(x0, np.arange(5))]
    assert kinds == ["correct"] * 5
    kinds = [each["kind"] for each in task.test.judge(x0[:2], np.array([0, 2]))]
    assert kinds[0] == "correct" != kinds[1]


@pytest.mark.skipif(not HUMANEVAL.exists(), reason="HumanEval is not here")
def test_humanevals_solutions_pass():
    printed = run_script("eval.py", "config/humaneval.py", "--reference", f"--file={HUMANEVAL}")
    assert printed.startswith("100.0%") and "164 correct" in printed


@pytest.mark.slow
@pytest.mark.skipif(not MBPP.exists(), reason="MBPP is not here")
def test_mbpps_solutions_pass_but_for_one():
    """Of ids 1 to 974; 123 is right, but tries all divisors, longer than some machines have."""
    printed = run_script("eval.py", "config/mbpp.py", "--reference", f"--file={MBPP}")
    slow = printed.startswith("MBPP/123: timeout")
    assert f"{500 - slow} correct" in printed and printed.count("MBPP/") == slow
