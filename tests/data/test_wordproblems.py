import hashlib
import itertools
import re

import pytest
from small import VOCABULARY, prepare

from data.wordproblems import generate
from data.wordproblems.generate import HELD_OUT, SEEN, make_problems
from lab import text

FORM = re.compile(
    r'def simple_math_problem\(\) -> int:\n    """\n(?:    \S.*[.?]\n)+    """\n'
    r"(?P<body>(    [a-z_]+ = .+\n){3,7})    return result"
)
GOLDEN = "252210158016d5870ad58689d300c0aca85af2e24f974c2b2c4a84efb713f60d"
TRANSFER = "167e42cea09846eac7cf73e3a565c4578c78c914aee27a9bad02d9f6b17628ce"  # of 1,000


@pytest.fixture(scope="module")
def splits():
    sizes = {"train": 1500, "validation": 150, "test": 150, "transfer": 300}
    return {split: make_problems(count, split, seed=3) for split, count in sizes.items()}


def test_programs_return_clean_numbers(splits):
    for problem in itertools.chain.from_iterable(splits.values()):
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
    for a, b in itertools.combinations(keys, 2):
        assert not keys[a] & keys[b]
    assert not {*map(key, make_problems(2000, "train", seed=4))} & keys["test"]
    for split, problems in splits.items():
        assert {p.template for p in problems} <= set(HELD_OUT if split == "transfer" else SEEN)


def test_the_same_arguments_give_the_same_problems(monkeypatch):
    for split, golden in ("train", GOLDEN), ("transfer", TRANSFER):
        text = "".join(map(str, map(tuple, make_problems(1000, split))))
        assert hashlib.sha256(text.encode()).hexdigest() == golden
    assert make_problems(30, "test", seed=5)[:10] == make_problems(10, "test", seed=5)
    monkeypatch.setattr(generate, "SEEN", {"tip": SEEN["tip"]})
    monkeypatch.setattr(generate, "PATIENCE", 300)
    with pytest.raises(SystemExit, match=r"100000 test problems: found \d+ different ones"):
        make_problems(100_000, "test")


def test_the_folder_has_the_problems_as_rows(tmp_path):
    task = text.load(prepare("wordproblems", out=tmp_path / "a", train=1200, test=9), 9)
    for rows, split, count in (task.train, "train", 1200), (task.test, "test", 9):
        for problem, x0, prompt in zip(make_problems(count, split), *rows[:], strict=True):
            assert VOCABULARY.decode(x0[prompt]) == problem.question + "\n"
            assert VOCABULARY.text(x0[~prompt]) == problem.code
