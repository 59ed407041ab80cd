"""lab/sandbox.py: good programs give Python's value; hostile ones are refused, or end alone."""

import json
import signal
import subprocess
import sys
import time

import pytest
from conftest import ROOT

from data.wordproblems.generate import make_problems
from lab import sandbox
from lab.sandbox import Outcome

HONEST = "def f(): return 'honest'"
IN_PYTHON = """
import json, sys
for text in json.load(sys.stdin):
    names = {"__name__": "__main__", "print": lambda *_: None}
    exec(text, names)
    print(json.dumps(repr(names[sys.argv[1]]())))
"""
GOOD = [
    "import math\ndef f(): return math.ceil(7 / 2) + math.pi",
    "from math import *\ndef f(): return sqrt(2)",
    "def f() -> int:\n '''Costs \\$5.'''\n import math as m\n return m.floor(2.5)",
    "def f(a=2, *args, b: float = 3.0, **more): return a + b",
    "x: int = 3\ndef f():\n global x\n x += 1\n return x",
    "def f():\n n = 0\n for i, (a, _) in enumerate(zip([1, 2], 'ab')): n += i * a\n return n",
    "def f():\n n = 27\n while n > 1:\n  if n == 5: break\n  n //= 2\n else: n = -1\n return n",
    "def f():\n x = {'a': 1, **{'b': 2}}\n x['c'] = 3\n del x['a']\n return sum(x.values())",
    "def f(): return f\"{1234.5:,.2f} {'x'!r:>{5}}\"",
    "def f(): return '%d %s' % (5, 'a') + ' a,b '.strip().split(',')[1]",
    "def f(): return '{:.2f} {b} {{}}'.format(2.5, b=3)",
    "def f(): return sorted({3, 1, 2}, key=lambda x: -x)[0] + [*range(9)][::-2][1]",
    "def f(): return max((len(w), w) for w in 'one three'.split())[1]",
    "def f():\n try: return 1 / 0\n except (ZeroDivisionError, ValueError) as e: return str(e)",
    "def f():\n def g(n): return 1 if n < 2 else n * g(n - 1)\n return g(25)",
    "def f():\n n = 0\n def g():\n  nonlocal n\n  n += 1\n g()\n return n",
    "def f(type=3, id=4):\n license, hash = 5, 6\n return type + id + license + hash",
    "def f(): return (y := 5) ** -2 + divmod(-7, 2)[1] + pow(2, 5, 7) + abs(-1) + round(2.675, 2)",
    "def f(): return all([1]) and any([0, 1]) and not isinstance(1, str)",
    "def f():\n assert f, 'no'\n return 0.1 + 0.2",
    "from fractions import Fraction as F\ndef f(): return int(F(3, 4) * 8)",
    "from decimal import Decimal as D\ndef f(): return float(D('2.675').quantize(D('0.01')))",
    "from datetime import date\ndef f(): return (date(2024, 3, 1) - date(2024, 2, 1)).days",
    "from itertools import combinations\ndef f(): return len(list(combinations(range(5), 2)))",
    "from statistics import mean\ndef f(): return mean([1, 2, 6])",
    "from typing import List, Union\ndef f(x: List[int] = [1]) -> Union[int, str]: return x[0]",
    "import functools\ndef f(): return functools.reduce(lambda a, b: a * b, [2, 3, 4])",
    "def f(): return 7\nif __name__ == '__main__':\n print(f())",
    *(
        f"def f(): return {value}"
        for value in (
            "None", "True", "2 ** 200", "10 ** 4299", "-0.0", "1e308", "5e-324", "float('inf')",
            "float('nan')", "''", "'\\ud800\\n\\0'", "'\\N{BULLET}\U0001f600'", "'x' * 10_000",
        )
    ),
]  # fmt: skip
REFUSED = {
    "import os": ["import os", "import math, os", "import os as math"],
    "import os.path": ["import os.path"],
    "from os import *": ["from os import *"],
    "from . import math": ["from . import math"],
    "from .math import pi": ["from .math import pi"],
    "from fractions import sys": ["from fractions import Fraction, sys"],
    "from math import __x": ["from math import __x"],
    "import fractions.re": ["import fractions.re"],
    ".__class__": [
        "().__class__", "g = lambda y=().__class__: y", "(y := ().__class__)", "f'{().__class__}'",
        "f'{1:{().__class__}}'", "().__\uff43lass__", "f(*[1].__class__)",
    ],
    ".__globals__": ["f.__globals__", "@f.__globals__\ndef g(): pass", "f.__globals__ = 1"],
    ".__code__": ["f.__code__ += 1", "[0 for f.__code__ in [1]]", "del f.__code__"],
    ".__traceback__": ["try: 1 / 0\nexcept Exception as e: e.__traceback__"],
    ".gi_frame": ["(x for x in [1]).gi_frame"],
    ".tb_frame": ["x.tb_frame"],
    ".f_back": ["x.f_back"],
    ".obj": ["try: x.real\nexcept Exception as e: e.obj"],
    ".mro": ["int.mro()"],
    ".sys": ["import fractions\nfractions.sys"],
    ".pi": ["import math\nmath.pi = 3", "import math\ndel math.pi"],
    ".format": [
        "'{0.__class__}'.format(1)", "'{0[a]}'.format({})", "'{:{0.a}}'.format(1)", "str.format",
        "x = '{0.a}'\nx.format(1)", "('{0.' + 'a}').format(1)", "f'{1}'.format(1)",
    ],
    ".format_map": ["'{a.real}'.format_map({'a': 1})"],
    "eval": ["eval('1')", "@eval\ndef g(): pass", "\uff45val('1')", "g = [eval]"],
    "open": ["open('x')", "g = lambda y=open: y"],
    "getattr": ["getattr(f, 'x')"],
    "type": ["type('A', (), {})"],
    "breakpoint": ["breakpoint()"],
    "__import__": ["__import__('os')", "x: __import__('os') = 1", "def __import__(x): pass"],
    "__builtins__": ["__builtins__['eval']", "__builtins__ = {}"],
    "__x": ["g = lambda __x: 1", "dict(__x=1)", "import math as __x"],
    "ClassDef": ["class A: pass", "class A(metaclass=print): x = open('x')"],
    "With": ["with f() as x: pass"],
    "Match": ["match 1:\n case int(__class__=x): pass"],
    "Yield": ["def g(): yield"],
    "AsyncFunctionDef": ["async def g(): pass"],
}  # fmt: skip
ENDS = {
    "timeout": [
        "while True: pass",
        "while True:\n try:\n  while True: pass\n except: pass",
        "while True: print('flood')",
        "def f(): return 9**9**9",
        "def f(): return max(range(10**12)) + sum(iter(int, 1))",
        "from fractions import Fraction\ndef f(): return Fraction('1e999999999')",
    ],
    "exception": [
        "def f(): return 'a' * 10**10",
        "def f(): return 1 << 10**10",
        "def f(): return f'{1:>9999999999}' + '{:.999999999f}'.format(1)",
        "def f(): return f()",
        "def f(): return 10**4300",
        "def f(): return 'x' * 10_001",
        "def f(): return [1]",
        "def f(): return (4 + 0j)",
        "def f(): return 1 / 0",
        "def f(x): return x",
        "def f(): return undefined",
        "eval = eval",
        "def f(): raise ValueError('\\ud800' * 10**6)",
    ],
    "killed timeout": [
        "def f():\n x = iter([])\n for _ in range(10**6): x = map(abs, x)\n return next(x)",
    ],
    "syntax_error": [
        "def f(: 1",
        "x = '\ud800'",
        "x = '\0'",
        "# coding: utf-7\n+AGYAPQA1-",
        "(" * 10**5,
        "9" * 10**6,
    ],
    "syntax_error timeout killed": ["x" + ".real" * 10**5],  # Pythons differ
    "no_function": ["f = 5", "g = print", "", "#" * 10**6],
}
LEAKS = [  # if reading let them through
    "def f(): return open('/dev/null').name",
    "import socket\ndef f(): return socket.socket().fileno()",
    "import os\ndef f(): return os.pipe()[0]",
    "def f(): return len(bytearray(300 << 20))",
]
UNREAD = """
import builtins, sys
from lab import sandbox
sandbox.complaint = lambda tree: None
sandbox.GIVEN = vars(builtins)
sandbox.serve("f", 2.0)
"""


def in_python(programs, function):
    """repr of the values that Python gives, in a process without limits."""
    command = [sys.executable, "-IS", "-W", "ignore", "-c", IN_PYTHON, function]
    asked = json.dumps(programs).encode()
    done = subprocess.run(command, input=asked, stdout=subprocess.PIPE, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def equal(programs, function):
    outcomes = sandbox.run(programs, function)
    assert {(kind, detail) for kind, _, detail in outcomes} == {("ok", "")}
    assert [repr(value) for _, value, _ in outcomes] == in_python(programs, function)


def test_good_programs_give_the_value_that_python_gives():
    equal(GOOD, "f")
    equal([problem.code for problem in make_problems(200, "train")], "simple_math_problem")


def test_what_is_refused_and_what_is_said():
    cases = [(text, what) for what, texts in REFUSED.items() for text in texts]
    outcomes = sandbox.run([f"{text}\ndef f(): return 1" for text, _ in cases], "f")
    for (text, what), outcome in zip(cases, outcomes, strict=True):
        assert outcome == ("refused", None, what), text


def test_how_programs_end_and_that_others_do_not_notice():
    cases = [(text, kind) for kind, texts in ENDS.items() for text in texts]
    start = time.monotonic()
    outcomes = sandbox.run([part for text, _ in cases for part in (text, HONEST)], "f", 1.0)
    assert time.monotonic() - start < 30
    assert set(outcomes[1::2]) == {("ok", "honest", "")}
    for (text, kind), outcome in zip(cases, outcomes[::2], strict=True):
        assert outcome.kind in kind.split() and outcome.value is None, (text[:99], outcome)
        assert len(outcome.detail) <= 1000


def test_fractions_come_back_as_text():
    program = "from fractions import *\nfrom decimal import *\ndef f(): return {}".format
    outcomes = sandbox.run([program("Fraction(15, 4)"), program("Decimal('5.00')")], "f")
    assert [outcome.value for outcome in outcomes] == ["15/4", "5.00"]


def test_the_limits_hold_without_the_reading():
    command = [sys.executable, "-c", UNREAD]
    asked = json.dumps([*LEAKS, HONEST]).encode()
    done = subprocess.run(command, input=asked, stdout=subprocess.PIPE, cwd=ROOT, check=True)
    *leaks, honest = [Outcome(*json.loads(line)) for line in done.stdout.splitlines()]
    assert [leak.kind for leak in leaks] == ["exception"] * len(LEAKS), leaks
    assert honest.value == "honest"


def test_an_alarm_that_the_caller_ignores_and_blocks():
    before = signal.signal(signal.SIGALRM, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    try:
        (outcome,) = sandbox.run(["while True: pass"], "f", 0.2)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
        signal.signal(signal.SIGALRM, before)
    assert outcome.kind == "timeout"


def test_a_worker_that_is_killed_or_hangs_or_does_not_start(monkeypatch):
    real, ends, whole = subprocess.run, [], ("ok", "honest", "")
    cut = b'["ok", 1, ""]\n["o'

    def instead(*args, **kwargs):
        end = ends.pop() if ends else real(*args, **kwargs)
        if isinstance(end, Exception):
            raise end
        return end

    monkeypatch.setattr(subprocess, "run", instead)
    killed = subprocess.CompletedProcess([], -signal.SIGKILL, cut, b"")
    for end in killed, subprocess.TimeoutExpired([], 1.0, cut):
        ends.append(end)
        outcomes = sandbox.run([HONEST] * 4, "f")
        assert outcomes == [("ok", 1, ""), outcomes[1], whole, whole]
        assert outcomes[1][:2] == ("killed", None)
    ends.append(subprocess.CompletedProcess([], 1, b"", b"why"))
    with pytest.raises(RuntimeError, match="does not run: why"):
        sandbox.run([HONEST], "f")
