from fractions import Fraction

import pytest

from tasks import wilson_interval
from tasks.gsm8k import Problem, equal, judge, number


@pytest.mark.parametrize(
    "value, expected",
    [
        (7, 7), (-2.5, Fraction(-5, 2)), ("1,234.50", Fraction(2469, 2)), ("$1,000,000", 10**6),
        ("50%", 50), ("50 %", 50), ("3/4", Fraction(3, 4)), ("-3/4", Fraction(-3, 4)), (" 12 ", 12),
        ("1.5e3", 1500), (".5", Fraction(1, 2)), ("5.", 5), (4 + 0j, 4),
        ("- $ 3", -3), ("$-5", -5),
        (True, None), (None, None), (float("nan"), None), (float("inf"), None), (1j, None),
        (complex("nan"), None), ([7], None), (b"7", None), ("", None), (".", None), ("seven", None),
        ("1,23", None), ("1/0", None), ("7 apples", None), ("1e9999", None), ("9" * 1000, None),
        ("1_000", None), ("²", None), ("1 2", None), ("$" + " " * 30_000 + "x", None),
        (" \t-\n$  3 ", -3), ("1" + "\t" * 30_000 + "%", 1), ("- " * 15_000, None),
    ],
)  # fmt: skip
def test_what_stands_for_a_number(value, expected):
    assert number(value) == expected


def test_equal_within_a_thousandth_and_without_overflow():
    assert equal(0.3, 0.1 + 0.2) and equal(33.3333, "33.333") and equal("72", 72.0)
    assert not equal(1, 1.0011) and equal(1, 1.001 - 1e-9)
    assert not equal(10**400, 5) and not equal(10**400, 1e308) and equal(10**400, 10**400)
    assert not equal(None, None) and not equal(float("nan"), float("nan"))


def test_verdicts_by_kind():
    def function(body):
        return f"def simple_math_problem() -> int:\n    {body}"

    programs = {
        function("return 5"): "correct", function("return '5.0'"): "correct",
        function("from fractions import Fraction; return Fraction(15, 3)"): "correct",
        function("from decimal import Decimal; return Decimal('5.00')"): "correct",
        function("return 6"): "wrong_number", function("return None"): "wrong_number",
        function("return [5]"): "exception", function("return 5 / 0"): "exception",
        "x = 5": "no_function",  # all other kinds are the sandbox's own, too
    }  # fmt: skip
    verdicts = judge(list(programs), [Problem("Q", "5")] * len(programs), seconds=1.0)
    assert [verdict["kind"] for verdict in verdicts] == list(programs.values())


def test_interval_is_wilsons():
    """Newcombe (1998), table I: 81/263 and 1/29, to four places."""
    assert wilson_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson_interval(1, 29) == pytest.approx((0.0061, 0.1718), abs=5e-5)
    assert wilson_interval(0, 0) == (0, 1)
