"""The small tasks: their rules against plain Python, on rows that are right and on broken ones."""

from collections import Counter

import numpy as np
import pytest

from tasks import rules

SETTINGS = {"train_examples": 300, "test_examples": 50}


def is_permutation_of(row):
    p, q, answer = row[:10], row[10:20], row[20:]
    return answer == "".join(p[ord(letter) - ord("a")] for letter in q)


def is_sum(row):
    *numbers, total = (int(row[i : i + 3], 7) for i in (0, 3, 6)), int(row[9:], 7)
    return sum(*numbers) == total


def is_square(row):
    lines = [row[i * 6 : i * 6 + 6] for i in range(6)] + [row[i::6] for i in range(6)]
    return all(sorted(line) == [*"123456"] for line in lines)


def is_balanced(row):
    while row != (row := row.replace("()", "").replace("[]", "")):
        pass
    return not row


CHECKS = {
    "permutations": is_permutation_of, "sums": is_sum, "latin": is_square, "brackets": is_balanced,
}  # fmt: skip


@pytest.mark.parametrize("name, check", CHECKS.items())
def test_rows_keep_their_rule_and_broken_ones_are_noticed(name, check):
    task, indices = rules.load(SETTINGS | {"dataset": name}), np.arange(50)
    x0, prompt = task.validation[indices]
    assert not (x0[:, None] == task.train.x0).all(2).any()  # nothing held out is trained on
    x, hidden = task.test[indices]
    assert ((x == task.mask) == hidden).all() and (hidden == ~prompt).all()
    rng, kinds = np.random.default_rng(0), Counter()
    for tokens in (x0, *[np.where(rng.random(x0.shape) < 0.02, x0[:, ::-1], x0) for _ in range(9)]):
        verdicts = task.test.judge(tokens, indices)
        for row, before, given, verdict in zip(tokens, x0, prompt, verdicts, strict=True):
            right = check(task.test.show(row)) and (row == before)[given].all()
            assert (verdict["kind"] == "correct") == right
            kinds[verdict["kind"]] += 1
    assert min(kinds.values()) > 50


def test_all_strings_of_brackets_are_equally_likely(monkeypatch):
    monkeypatch.setattr(rules, "PAIRS", 2)
    strings, _ = rules.brackets(14_000, np.random.default_rng(0))
    seen = Counter(map(tuple, strings.tolist()))
    assert len(seen) == 8 and max(abs(n - 1750) for n in seen.values()) < 4 * 1750**0.5
