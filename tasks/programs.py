"""Score generated programs by running them: does the function return the right number?

    judge(programs, answers) -> [Verdict], each with a kind:

"correct", "wrong_number" (also: a text that spells none, a bool, None), or why there is no result:
"no_function", "syntax_error", "timeout", "exception" (also: a result of another type), "killed".
Programs run in worker processes (sandbox.py), never in this one.
"""

import math
import re
from fractions import Fraction
from typing import NamedTuple

import sandbox

FUNCTION = "simple_math_problem"  # as TinyGSM names it
TOLERANCE = Fraction(1, 1000)
NUMBER = re.compile(  # what a string may say: $1,234.50, 50 %, -3/4, 1.5e3; short, so always cheap
    r"(?:\$\s*)?([-+]?)\s*(?:\$\s*)?(\d{1,3}(?:,\d{3}){1,30}|\d{0,100})(\.\d{0,100})?(e[-+]?\d{1,3})?"
    r"(?:\s*/\s*(\d{1,100}))?\s*%?",
    re.IGNORECASE,
)


class Verdict(NamedTuple):
    kind: str
    value: object  # what the function returned
    detail: str  # of an exception


def judge(programs, answers, seconds=2.0):
    """The verdict on each program text, given the right numbers (anything that `number` reads)."""
    verdicts = []
    for outcome, answer in zip(sandbox.run(programs, FUNCTION, seconds), answers, strict=True):
        kind = outcome.kind
        if kind == "ok":
            kind = "correct" if equal(outcome.value, answer) else "wrong_number"
        verdicts.append(Verdict(kind, outcome.value, outcome.detail))
    return verdicts


def report_sandbox():
    """Start a worker, and say which of the protections that sandbox.py knows are missing here."""
    known = {"namespaces", "capabilities", "landlock", "seccomp"}
    if missing := known - set(sandbox.protections()):
        print(f"generated programs run without {', '.join(sorted(missing))}: see sandbox.py")


def equal(value, answer):
    """Whether both are numbers that differ by TOLERANCE at most."""
    value, answer = number(value), number(answer)
    return None not in (value, answer) and abs(value - answer) <= TOLERANCE


def number(value):
    """The exact number that a result stands for, None where it stands for none.

    Strings may have separators of thousands, a dollar sign, a percent sign (50 % is 50, as the
    answers of GSM8K have it) or be a fraction, but no words. A bool is no number, nor are infinity
    and nan.
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
    match = NUMBER.fullmatch(text.strip())
    if not match:
        return None
    sign, whole, decimals, exponent, denominator = (part or "" for part in match.groups())
    digits = whole.replace(",", "") + decimals
    if digits in ("", ".") or (denominator and not int(denominator)):
        return None
    return Fraction(sign + digits + exponent) / int(denominator or 1)


def interval(correct, n):
    """95 % interval of a share, by Wilson's score; (0, 1) if n is 0."""
    if n == 0:
        return 0.0, 1.0
    z, share = 1.959964, correct / n
    centre = share + z * z / (2 * n)
    spread = z * math.sqrt(share * (1 - share) / n + (z / n / 2) ** 2)
    low, high = ((centre + sign * spread) / (1 + z * z / n) for sign in (-1, 1))
    return max(low, 0.0), min(high, 1.0)  # but for rounding, they are in there
