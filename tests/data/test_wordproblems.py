import hashlib
import re

import pytest
from conftest import RANKS, prepare

from data import tokenizer
from data.wordproblems import generate
from data.wordproblems.generate import TEMPLATES, make_problems
from lab import text

FORM = re.compile(
    r'def simple_math_problem\(\) -> int:\n    """\n(?:    \S.*[.?]\n)+    """\n'
    r"(?P<body>(    [a-z_]+ = .+\n){3,7})    return result"
)
GOLDEN = "57e64cb2d2db6cb3b94918a7c9bc687e527a26ec5f90b6f03bce865a88702d78"


@pytest.fixture(scope="module")
def splits():
    sizes = {"train": 1500, "validation": 150, "test": 150}
    return {split: make_problems(count, split, seed=3) for split, count in sizes.items()}


def test_programs_return_clean_numbers(splits):
    for problem in [*splits["train"], *splits["test"]]:
        namespace, variables = {}, {}
        exec(problem.code, namespace)
        exec(f"if True:\n{FORM.fullmatch(problem.code)['body']}", {}, variables)
        value = namespace["simple_math_problem"]()
        assert 0 < value < 1e6 and value * 4 == int(value * 4), problem  # clean cents
        assert min(variables.values()) >= 0, problem
        if not re.search(r"\$|How many hours", problem.question):  # nothing but things to count
            assert all(v == int(v) for v in variables.values()), problem


def test_splits_share_no_template_with_its_numbers(splits):
    def key(problem):
        numbers = re.findall(r"\d+\.\d+|\d+", FORM.fullmatch(problem.code)["body"])
        return problem.template, tuple(sorted(numbers))

    keys = {split: set(map(key, problems)) for split, problems in splits.items()}
    assert sum(map(len, keys.values())) == len(set().union(*keys.values()))
    assert not {*map(key, make_problems(2000, "train", seed=4))} & keys["test"]


def test_the_same_arguments_give_the_same_problems(monkeypatch):
    problems = make_problems(1000, "train") + make_problems(100, "test")
    said = "".join(map(str, map(tuple, problems)))
    assert hashlib.sha256(said.encode()).hexdigest() == GOLDEN
    monkeypatch.setattr(generate, "TEMPLATES", {"tip": TEMPLATES["tip"]})
    monkeypatch.setattr(generate, "PATIENCE", 300)
    with pytest.raises(SystemExit, match=r"100000 test problems: found \d+ different ones"):
        make_problems(100_000, "test")


def test_the_folder_has_the_problems_as_rows(tmp_path):
    vocabulary = tokenizer.named(RANKS)
    task = text.load(prepare("wordproblems", out=tmp_path / "a", train=1200, test=9), 9)
    for rows, split, count in (task.train, "train", 1200), (task.test, "test", 9):
        for problem, x0, prompt in zip(make_problems(count, split), *rows[:], strict=True):
            assert vocabulary.decode(x0[prompt]) == problem.question + "\n"
            assert vocabulary.text(x0[~prompt]) == problem.code
