"""Word problems answered by a number (GSM8K): reading their files, and judging generated programs.

    judge(programs, problems) -> one record each, with a "kind":

"correct", "wrong_number" (also for a string that is not a number, a bool, None), or why there is no
result: "no_function", "syntax_error", "timeout", "exception" (also for a result of another type),
"killed". Programs run in worker processes (sandbox/), never in this one.
"""

import math
import re
from fractions import Fraction
from typing import NamedTuple

import sandbox
from data.files import brief, lines, parse_json
from data.sources import is_text

FUNCTION = "simple_math_problem"  # as TinyGSM names it
TOLERANCE = Fraction(1, 1000)
NUMBER = re.compile(  # numbers as strings: $1,234.50, 50 %, -3/4, 1.5e3
    r"(?:\$ ?)?([-+]?) ?(?:\$ ?)?(\d{1,3}(?:,\d{3}){1,30}|\d{0,100})(\.\d{0,100})?(e[-+]?\d{1,3})?"
    r"(?: ?/ ?(\d{1,100}))? ?%?",
    re.IGNORECASE,
)


class Problem(NamedTuple):
    question: str
    answer: object  # a number, or a string that `number` can read; None: unknown
    code: str | None = None  # a reference program


def read_problems(path):
    """The problems in a file of JSON lines; an answer may be text ending in `#### NUMBER` (GSM8K).

    Raises FileNotFoundError, or ValueError naming the line.
    """
    problems = []
    for place, line in enumerate(lines(path), start=1):
        try:
            problems.append(read_problem(parse_json(line)))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}, line {place}: not a valid problem: {brief(error)}") from None
    if not problems:
        raise ValueError(f"{path} is empty: expected lines with question and answer")
    return problems


def read_problem(row):
    question = row["question"]
    answer = row["answer"]
    code = row.get("code")
    if isinstance(answer, str):
        answer = answer.rpartition("####")[2].strip()
    if number(answer) is None or abs(number(answer)) > 1e300 or not is_text(question):
        raise ValueError("question must be text and answer a number")
    if code is not None and not is_text(code):
        raise ValueError("code must be text")
    return Problem(question, answer, code)


def judge(programs, problems, seconds=2.0):
    """One record per program: the problem, the program, and how running it ended."""
    outcomes = sandbox.run(programs, FUNCTION, seconds)
    return [
        {"question": problem.question, "answer": problem.answer, "program": program}
        | {"kind": kind_of(outcome, problem.answer)}
        | {"value": repr(outcome.value), "detail": outcome.detail}
        for program, problem, outcome in zip(programs, problems, outcomes, strict=True)
    ]


def kind_of(outcome, answer):
    if outcome.kind != "ok":
        return outcome.kind
    return "correct" if equal(outcome.value, answer) else "wrong_number"


def equal(value, answer):
    """Whether both are numbers that differ by at most TOLERANCE."""
    value, answer = number(value), number(answer)
    return None not in (value, answer) and abs(value - answer) <= TOLERANCE


def number(value):
    """The exact number that a result stands for, or None.

    Strings may have thousands separators, a dollar sign, a percent sign (50 % is 50, as in GSM8K's
    answers) or be a fraction, but contain no words. A bool is not a number, nor are infinity and
    nan.
    """
    if isinstance(value, complex) and value.imag == 0:
        value = value.real
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str):
        return spelled(value)
    finite = isinstance(value, int) or math.isfinite(value)
    return Fraction(value) if finite else None


def spelled(text):
    text = " ".join(text.split())  # a program chose it: runs of blanks would take cubic time
    match = NUMBER.fullmatch(text) if len(text) <= 400 else None
    if not match:
        return None
    sign, whole, decimals, exponent, denominator = (part or "" for part in match.groups())
    digits = whole.replace(",", "") + decimals
    if digits in ("", ".") or (denominator and not int(denominator)):
        return None
    return Fraction(sign + digits + exponent) / int(denominator or 1)
