"""Arithmetic against Python's own, carry chains against a slow count."""

import itertools

import numpy as np
import pytest
from conftest import metrics, run_script, train

import tasks
from tasks import arithmetic
from tasks.arithmetic import SIGNS, Arithmetic, Exercises, longest_chain, parse, strata

SUMS = ["--dataset=arithmetic", "--digits=4", "--train_examples=5000", "--test_examples=32"]


def slow_chain(a, b, size):
    """The most columns in a row that carry because of the lowest one of them, and only then."""

    def carries(low, high):
        """Whether the digits low..high by themselves add up to one digit more."""
        whole = 10 ** (high - low + 1)
        return a // 10**low % whole + b // 10**low % whole >= whole

    def length(low):
        columns = range(low, size)
        because = (carries(low, high) and not carries(low + 1, high) for high in columns)
        return sum(1 for _ in itertools.takewhile(bool, because))

    return max(map(length, range(size)))


@pytest.mark.parametrize("digits", [2, 5, 32])
@pytest.mark.parametrize("operation", SIGNS)
def test_rows_spell_true_answers_behind_a_prompt_of_all_else(operation, digits):
    task = Arithmetic(operation, digits, 200, 50)
    sizes = {
        "add": [digits, digits, digits + 1], "subtract": [digits + 1, digits, digits],
        "sort": [digits, digits],
    }[operation]  # fmt: skip
    for examples in (task.train, task.validation):
        x0, prompt = examples[np.arange(50)]
        assert x0.shape == prompt.shape == (50, task.length) and task.length == sum(sizes)
        assert (prompt == (np.arange(task.length) < task.length - sizes[-1])).all()
        for row in x0:
            parts = ["".join(map(str, part)) for part in np.split(row, np.cumsum(sizes)[:-1])]
            if operation == "sort":
                assert parts[1] == "".join(sorted(parts[0]))
            else:
                a, b, answer = map(int, parts)
                assert answer == (a + b if operation == "add" else a - b)
    assert task.mask == 10 == task.vocab_size - 1 and x0.max() <= 9 and x0.min() >= 0


def test_carry_chains_agree_with_a_slow_count():
    for a, b, length in (5555, 4444, 0), (95, 5, 2), (1999, 1001, 3), (909, 191, 2), (9055, 945, 4):
        assert slow_chain(a, b, 4) == length
    random = np.random.default_rng(0)
    numbers = random.integers(0, 10, (3000, 2, 9))
    numbers[::2, 1] = np.where(random.random((1500, 9)) < 0.7, 9 - numbers[::2, 0], 9)
    values = (numbers * 10 ** np.arange(9)).sum(2)
    assert longest_chain(numbers).tolist() == [slow_chain(a, b, 9) for a, b in values.tolist()]
    assert longest_chain(numbers).max() == 9


def test_strata_cover_all_lengths_once():
    assert strata(16) == [(0, 1), (2, 3), (4, 7), (8, 16)]
    assert strata(32)[-2:] == [(8, 15), (16, 32)] and strata(2) == [(0, 2)]
    for digits in range(2, 40):
        lengths = [n for low, high in strata(digits) for n in range(low, high + 1)]
        assert lengths == list(range(digits + 1))


def test_test_sums_fill_the_strata_equally_and_every_length_of_one_alike():
    sums = Arithmetic("subtract", 16, 1, 4000).test
    lengths = longest_chain(sums.numbers)
    records = sums.judge(np.zeros((4000, 49)), range(4000))
    assert [record["chain"] for record in records] == lengths.tolist()
    for low, high in strata(16):
        inside = lengths[(lengths >= low) & (lengths <= high)]
        assert len(inside) == 1000
        expected = 1000 / (high - low + 1)
        assert abs(np.bincount(inside - low) - expected).max() < 5 * expected**0.5
    last = sums.numbers[lengths == 15].sum(1)[:, -1]  # chains of 15 columns begin in 0 or 1
    assert 0.25 < (last == 9).mean() < 0.8


def test_training_sums_are_uniform():
    numbers = arithmetic.draw(np.arange(40_000), np.full(40_000, -1), 8, test=False)
    for column in numbers.reshape(40_000, 16).T:
        assert abs(np.bincount(column, minlength=10) - 4000).max() < 5 * 60  # sd 60
    pairs = np.bincount(numbers[:, 0, 3] * 10 + numbers[:, 1, 3], minlength=100)
    assert abs(pairs - 400).max() < 5 * 20


def test_a_sum_depends_on_its_index_alone():
    task, more = (Arithmetic("add", 8, n, 300) for n in (2000, 10**12))
    everything = np.arange(2000)
    x0, _ = task.train[everything]
    assert (more.train[everything[::-7]][0] == x0[::-7]).all() and len(more.train) == 10**12
    assert len(set(map(tuple, x0.tolist()))) == 2000
    assert (more.test.numbers == task.test.numbers).all()


@pytest.mark.parametrize("operation, digits", [("add", 2), ("sort", 4)])
def test_nothing_tested_is_trained_on_however_little_there_is(operation, digits):
    """Of 10,000 exercises, all that are not held out are drawn."""
    task = Arithmetic(operation, digits, 100_000, 2000)
    seen = set(map(tuple, task.train[np.arange(100_000)][0].tolist()))
    tested = set(map(tuple, task.validation[np.arange(2000)][0].tolist()))
    assert len(seen) > 9000 and len(tested) > 400 and not seen & tested


def test_problems_hide_the_sum_and_judge_every_digit():
    numbers = [[[9, 9, 9, 9], [1, 0, 0, 0]], [[4, 3, 2, 1], [1, 2, 3, 4]]]  # the lowest digit first
    test = Exercises(np.array(numbers), "add")
    x, hidden = test[[0, 1]]
    assert (x[hidden] == 10).all() and hidden.sum(1).tolist() == [5, 5]
    x[hidden] = [int(d) for d in "1000005555"]
    records = test.judge(x, [0, 1])
    assert [r["kind"] for r in records] == ["correct"] * 2
    assert records[0] | {"kind": ""} == {
        "kind": "", "problem": "9999+0001", "answer": "10000", "chain": 4
    }  # fmt: skip
    assert test.show(x[0]) == "9999 + 0001 = 10000"
    assert test.show(x[1], ~hidden[1]) == "1234 + 4321 = _____"
    for place in range(8, 13):
        wrong = x.copy()
        wrong[1, place] = (wrong[1, place] + 1) % 10
        assert [r["kind"] for r in test.judge(wrong, [0, 1])] == ["correct", "wrong"]


def test_prompts_are_read_as_written():
    assert parse("123+45", "add", 4).tolist() == [[3, 2, 1, 0], [5, 4, 0, 0]]
    assert parse(" 9 + 0001 = ", "add", 4).tolist() == [[9, 0, 0, 0], [1, 0, 0, 0]]
    assert parse("10123-9999", "subtract", 4).tolist() == [[4, 2, 1, 0], [9, 9, 9, 9]]
    assert parse("3142", "sort", 4).tolist() == [[2, 4, 1, 3]]
    for text in ("1+2+3", "-1+2", "12345+1", "\u0661+2", "7", ""):
        with pytest.raises(ValueError, match=r"expected text like 12\+34, up to 4 digits"):
            parse(text, "add", 4)
    for text, operation in (("12-34", "subtract"), ("1-2-3", "subtract"), ("12345", "sort")):
        with pytest.raises(ValueError, match="expected text like"):
            parse(text, operation, 4)
    for operation, text, shown in (
        ("subtract", "579-456", "0579 - 456 = ___"), ("sort", "302", "302 = ___")
    ):  # fmt: skip
        task = Arithmetic(operation, 3, 9, 9)
        ((x,), (hidden,)) = (problems := task.prompts([text]))[[0]]
        assert problems.show(x, ~hidden) == shown


def test_training_reports_what_it_saw(tmp_path):
    train(tmp_path, *SUMS, "--k_schedule=4", "--tau=None", "--max_iters=40")
    first, *_, line, last = metrics(tmp_path)
    assert first["config"]["k_schedule"] == [[0, 4]]
    assert last["examples"] == 32
    assert line["type"] == "train" and sum(line["tenths"]) == 16
    lines = [line for line in metrics(tmp_path) if line["type"] == "train"]
    used = [16 / line["visits"] if line["visits"] else 0 for line in lines]
    assert 40 * 16 / sum(used) == pytest.approx(3, rel=0.1)  # 13 tokens, 4 at once: 3 stages
    printed = run_script("sample.py", f"--out_dir={tmp_path}", "--device=cpu", "--prompt=123+456")
    assert printed.startswith("0123 + 0456 = ") and "longest carry chain 0" in printed


def test_load_takes_the_settings():
    config = arithmetic.Settings("sort", 3)._asdict()
    config |= {"train_examples": 7, "test_examples": 5}
    task = tasks.get("arithmetic").load(config)
    assert (task.operation, task.digits) == ("sort", 3)
    assert (len(task.train), len(task.test)) == (7, 5)
    with pytest.raises(ValueError, match="operation 'middle': expected add or subtract or"):
        arithmetic.load(config | {"operation": "middle"})
