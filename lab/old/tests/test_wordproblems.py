import hashlib
import itertools
import json
import math
import re

import numpy as np
import pytest
from conftest import evaluate, run_script, train

from data import corpus
from data.wordproblems import generate as wordproblems
from data.wordproblems import templates, text
from data.wordproblems.generate import HELD_OUT, SEEN, SPLITS, Draws, make, make_problems, numbers

FORM = re.compile(
    r'def simple_math_problem\(\) -> int:\n    """\n(?:    \S.*[.?]\n)+    """\n'
    r"(?P<body>(    [a-z_]+ = .+\n){3,7})    return result"
)
CONSTANTS = {  # what a program knows that the question does not spell in digits
    "%": {100}, "half": {2}, "third": {3}, "quarter": {4}, "fifth": {5}, "twice": {2},
    "and back": {2}, "fence": {2}, "legs": {2, 4}, "square": {4}, "dozen": {12}, "a month": {12},
    "hours": {60}, "three": {3}, "average": {3}, "Together": {1}, "together": {2}, "friends": {1},
}  # fmt: skip

# Of 1,000 problems each. A changed template changes them: a run's data is another then.
GOLDEN = "20377670e8712323d6eb927588bf37dd509ff9d3ca7e5aef47092110e96580d6"
TRANSFER = "bdea4fa69e8cdfee21feb75d26a9b804e3a1bac7832791cd07a7b30a75548c0b"


@pytest.fixture(scope="module")
def splits():
    sizes = {"train": 2500, "validation": 600, "test": 600, "transfer": 600}
    return {split: make_problems(count, split, seed=3) for split, count in sizes.items()}


@pytest.fixture(scope="module")
def problems(splits):
    return list(itertools.chain.from_iterable(splits.values()))


def samples():
    """Problems of every template, each with the numbers of its program and of its question."""
    draws = Draws(0)
    for template in [*SEEN.values(), *HELD_OUT.values()] * 100:
        problem = make(template, draws)
        body = FORM.fullmatch(problem.code)["body"]
        yield problem, {*map(float, numbers(body))}, {*map(float, numbers(problem.question))}


def run(code):
    """The function's return value and its variables, after the assignments are done."""
    namespace, variables = {}, {}
    exec(code, namespace)
    exec(f"if True:\n{FORM.fullmatch(code)['body']}", {}, variables)
    return namespace["simple_math_problem"](), variables


def test_programs_return_the_stated_answers(problems):
    for problem in problems:
        value, variables = run(problem.code)
        assert type(value) in (int, float) and value == problem.answer, problem
        assert type(problem.answer) is (int if value == int(value) else float)
        assert 0 < value < 1e6 and value * 4 == int(value * 4), problem  # clean cents
        assert min(variables.values()) >= 0, problem
        if not re.search(r"\$|How many hours", problem.question):  # nothing but things to count
            assert all(v == int(v) for v in variables.values()), problem


def test_numbers_go_from_the_question_to_the_program(monkeypatch):
    for problem, used, given in samples():
        known = [values for words, values in CONSTANTS.items() if words in problem.question]
        assert used <= given.union(*known), problem
    monkeypatch.setattr(Draws, "aside", lambda self, *sentences: "")
    assert all(given <= used for _, used, given in samples())


def test_splits_share_no_template_with_its_numbers(splits):
    def key(problem):
        return problem.template, tuple(sorted(numbers(FORM.fullmatch(problem.code)["body"])))

    keys = {split: set(map(key, problems)) for split, problems in splits.items()}
    for a, b in itertools.combinations(SPLITS, 2):
        assert not keys[a] & keys[b]
    other = set(map(key, make_problems(3000, "train", seed=4)))
    assert not other & (keys["validation"] | keys["test"])
    assert {p.template for p in splits["transfer"]} == set(HELD_OUT)
    for split in ("train", "validation", "test"):
        assert {p.template for p in splits[split]} == set(SEEN)


def test_the_same_arguments_give_the_same_problems():
    for split, golden in ("train", GOLDEN), ("transfer", TRANSFER):
        text = "".join(map(str, map(tuple, make_problems(1000, split))))
        assert hashlib.sha256(text.encode()).hexdigest() == golden
    for split in SPLITS:
        assert make_problems(30, split, seed=5)[:10] == make_problems(10, split, seed=5)
        assert make_problems(10, split, seed=5) != make_problems(10, split, seed=6)


def test_only_some_templates():
    names = ["laps", "ratio"]
    assert {problem.template for problem in make_problems(200, "test", only=names)} == set(names)
    assert HELD_OUT.keys() >= {p.template for p in make_problems(50, "transfer", only=names)}
    with pytest.raises(ValueError, match=r"unknown templates \['lap'\]: .*laps"):
        make_problems(1, "train", only=["laps", "lap"])


def test_a_wrong_template_is_named(tmp_path):
    file = tmp_path / "templates.txt"
    for old, new in ("a {where}", "a {x}"), ("laps *", "lap *"), ("..800", "..("):
        file.write_text(templates.FILE.read_text().replace(old, new))
        with pytest.raises(ValueError, match=r"^templates.txt, template laps: .+$"):
            templates.read(file)


def test_more_problems_than_there_are(monkeypatch):
    monkeypatch.setattr(wordproblems, "PATIENCE", 300)
    with pytest.raises(ValueError, match=r"100000 test problems: found \d+ different ones"):
        make_problems(100_000, "test", only=["tip"])


# -- as text without prompts -----------------------------------------------------------------------
def slow(question):
    """As the last lines of wikifil.pl say, a character at a time."""
    out = "."
    for c in question.lower():
        word = f" {text.DIGITS[int(c)]} " if c in "0123456789" else c
        for letter in word:
            letter = letter if letter in text.LETTERS else " "
            out += "" if letter == " " == out[-1] else letter
    return out[1:]


@pytest.fixture
def few(monkeypatch, tmp_path):
    monkeypatch.setattr(text, "FOLDER", tmp_path / "generated")
    monkeypatch.setattr(text, "HELD_OUT", 20)


def test_the_text_of_the_questions(few):
    folder = text.make_once(100, 64)
    encoding = corpus.load_tokenizer(folder)
    for split, (kind, count) in {"train": ("train", 100), "test": ("test", 20)}.items():
        examples = corpus.Examples(folder, split)
        x0, prompt = examples[np.arange(len(examples))]
        whole = slow(" ".join(problem.question for problem in make_problems(count, kind)))
        assert encoding.decode(x0.ravel()) == whole[: len(whole) // 64 * 64] and not prompt.any()
    assert text.make_once(100, 64) == folder and len([*folder.parent.iterdir()]) == 1


def test_the_laptop_run_in_bits_per_character(few, tmp_path):
    """The loss of a character is that of a token here: bits are nats over log 2."""
    flags = "--train_examples=50", "--test_examples=8", "--text_length=64", "--max_iters=3"
    train(tmp_path / "run", "config/text_mini.py", "--eval_interval=3", *flags)
    printed = evaluate(tmp_path / "run", "--nelbo", "--masks=2", "--problems=test")
    bound = json.loads((tmp_path / "run" / "nelbo.json").read_text())
    assert bound["set"] == "test" and "bits per character" in printed
    assert bound["bits_per_character"] == pytest.approx(bound["per_token"] / math.log(2))
    assert bound["per_token"] == bound["per_token_without_padding"]
    flags = f"--out_dir={tmp_path}/run", "--reveal=9"
    assert re.match("tom has [a-z ]", run_script("sample.py", *flags, "--prompt=tom has "))
    with pytest.raises(SystemExit, match="the text has 'T': expected characters of"):
        run_script("sample.py", *flags, "--prompt=Tom")
