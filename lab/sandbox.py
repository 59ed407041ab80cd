"""Runs programs that a model wrote, of TinyGSM's kind: arithmetic. Each is read before it runs.

    run(["def f(): return 6 * 7"], "f") -> [Outcome(kind="ok", value=42, detail="")]

A program is refused unless its syntax is in SYNTAX, the attributes it reads are in ATTRIBUTES and
what it takes from Python is in BUILTINS and MODULES. So nothing in it names a file, a process, a
frame or the code that reports its value. It then runs in a process of its own, which can open no
file, with limits of time and memory; the value comes back as JSON. Refused, too, are harmless
classes, `with`, `yield`, `type` and other modules.

Not covered: a fault of Python's own that arithmetic can reach. Then only the limits are left; they
forbid no signal to other processes, root can lift them, and macOS has none of memory. A program may
keep a processor busy until its time is up; the clock does not stop while others use the processor.
The order of a set of strings is not the same in each run.
"""

import ast
import builtins
import contextlib
import datetime
import decimal
import fractions
import importlib
import json
import math
import os
import resource
import signal
import string
import subprocess
import sys
import types
import unicodedata  # noqa: F401  for names and \N{...}: Python opens its file when first needed
from typing import NamedTuple

MEMORY = 256 << 20  # bytes
MAX_TEXT = 10_000  # characters of a value
PATIENCE = 30.0  # seconds that a worker may take beyond its programs' time

SYNTAX = """
    Module Expr FunctionDef Lambda arguments arg Return Assign AugAssign AnnAssign Delete Global
    Nonlocal For While If Break Continue Pass Assert Raise Try ExceptHandler Import ImportFrom alias
    BinOp UnaryOp BoolOp Compare IfExp NamedExpr Call keyword Starred Subscript Slice Attribute Name
    Constant JoinedStr FormattedValue Tuple List Dict Set ListComp SetComp DictComp GeneratorExp
    comprehension operator unaryop boolop cmpop expr_context
"""
BUILTINS = """
    abs all any bin bool callable chr dict divmod enumerate filter float format frozenset hex int
    isinstance iter len list map max min next oct ord pow range repr reversed round set slice sorted
    str sum tuple zip Exception ArithmeticError AssertionError IndexError KeyError NameError
    OverflowError RuntimeError StopIteration TypeError ValueError ZeroDivisionError
"""
MODULES = {
    "datetime": "date datetime time timedelta",
    "decimal": "Decimal ROUND_CEILING ROUND_DOWN ROUND_FLOOR ROUND_HALF_UP ROUND_UP",
    "fractions": "Fraction",
    "functools": "reduce",
    "itertools": "accumulate chain combinations count cycle islice permutations product repeat",
    "math": " ".join(name for name in dir(math) if name[0] != "_"),
    "statistics": "fmean mean median mode pstdev stdev variance",
    "typing": "Any Dict List Optional Set Tuple Union",
}
DATA = str, int, float, list, dict, set, fractions.Fraction, decimal.Decimal, datetime.timedelta


def stand_in(module, names):
    """For a module: these names of it and no others."""
    module = importlib.import_module(module)
    return types.SimpleNamespace(**{name: getattr(module, name) for name in names.split()})


NODES = tuple(getattr(ast, name) for name in SYNTAX.split())
ATTRIBUTES = {name for kind in DATA for name in dir(kind) if name[0] != "_"}
ATTRIBUTES |= {*" ".join(MODULES.values()).split()}
ATTRIBUTES -= {"format", "format_map"}  # "{0.__class__}" would read more: see `readable`
STAND_INS = {module: stand_in(module, names) for module, names in MODULES.items()}
GIVEN = {name: getattr(builtins, name) for name in BUILTINS.split()}
GIVEN |= {"print": lambda *_, **__: None, "__import__": lambda name, *_: STAND_INS[name]}
WITHHELD = {*dir(builtins)} - {*GIVEN, "__name__"}


class Outcome(NamedTuple):
    kind: str  # ok, no_function, syntax_error, refused, exception, timeout or killed
    value: object  # if ok: an int, float, str, bool or None; a Fraction or Decimal as str
    detail: str


def run(programs, function, seconds=2.0):
    """[Outcome of each program, in order]: of calling function()."""
    outcomes = []
    while len(outcomes) < len(programs):
        outcomes += ask_worker(programs[len(outcomes) :], function, seconds)
        if len(outcomes) < len(programs):
            outcomes.append(Outcome("killed", None, "and the worker with it"))
    return outcomes


def ask_worker(programs, function, seconds):
    """The outcomes of all programs, or of the first ones if the worker is killed."""
    command = [sys.executable, "-IS", "-W", "ignore", __file__, function, str(seconds)]
    asked = json.dumps(programs).encode()
    most = PATIENCE + 2 * seconds * len(programs)
    how = dict(capture_output=True, env={}, start_new_session=True)  # Ctrl-C is not for it
    try:
        done = subprocess.run(command, input=asked, timeout=most, **how)
    except subprocess.TimeoutExpired as late:
        done = subprocess.CompletedProcess(command, -1, late.stdout or b"")
    if done.returncode > 0:
        raise RuntimeError(f"the sandbox does not run: {done.stderr.decode(errors='replace')}")
    return [Outcome(*json.loads(line)) for line in done.stdout.split(b"\n")[:-1]]


# -- the worker: a process for each program --------------------------------------------------------
def serve(function, seconds):
    """Standard input is a list of programs; a line of standard output is the outcome of one."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # who starts this may ignore or block it
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    for text in json.load(sys.stdin):
        read_end, write_end = os.pipe()
        if os.fork() == 0:
            be_the_program(text, function, seconds, write_end)
        os.close(write_end)
        with open(read_end, "rb") as file:
            outcome = file.read()
        if status := os.waitstatus_to_exitcode(os.wait()[1]):
            kind = "timeout" if status == -signal.SIGALRM else "killed"
            outcome = json.dumps((kind, None, f"ended with {status}")).encode()
        sys.stdout.buffer.write(outcome + b"\n")
        sys.stdout.buffer.flush()


def be_the_program(text, function, seconds, write_end):
    """In the forked process, which ends here."""
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)  # ends it, even within a function in C
        limits = dict(AS=MEMORY, CPU=int(seconds) + 2, CORE=0, FSIZE=0, NOFILE=0, NPROC=0)
        for name, most in limits.items():
            with contextlib.suppress(OSError, ValueError):  # macOS
                resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))
        outcome = json.dumps(outcome_of(text, function)).encode()
        signal.setitimer(signal.ITIMER_REAL, 0)
        os.write(write_end, outcome)
        os._exit(0)
    finally:
        os._exit(1)


def outcome_of(text, function):
    try:
        tree = ast.parse(text)
        if refused := complaint(tree):
            return Outcome("refused", None, refused[:40])
        code = compile(tree, "<program>", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return Outcome("syntax_error", None, said(error))
    names = {"__builtins__": GIVEN, "__name__": "__main__"}
    try:
        exec(code, names)
        if not callable(names.get(function)):
            return Outcome("no_function", None, f"no function named {function}")
        value = names[function]()
        if type(value) in (fractions.Fraction, decimal.Decimal):
            value = str(value)
        if type(value) not in (int, float, str, bool, type(None)):
            raise TypeError(f"the value is neither a number nor text: {type(value).__name__}")
        if len(str(value)) > MAX_TEXT:  # raises ValueError for an int of over 4,300 digits
            raise ValueError("the value is too long")
        return Outcome("ok", value, "")
    except Exception as error:
        return Outcome("exception", None, said(error))


def said(error):
    return f"{type(error).__name__}: {error}"[:1000]


# -- reading: names are as Python takes them, normalised -------------------------------------------
def complaint(tree):
    """What is refused of a program, or None."""
    nodes = [*ast.walk(tree)]
    own = {node.arg for node in nodes if isinstance(node, ast.arg)}
    own |= {node.id for node in nodes if isinstance(node, ast.Name) and stores(node)}
    return next((bad for node in nodes if (bad := complaint_of(node, own))), None)


def complaint_of(node, own):
    if not isinstance(node, NODES):
        return type(node).__name__
    if isinstance(node, ast.Attribute) and not readable(node):
        return f".{node.attr}"
    if isinstance(node, ast.Name) and node.id in WITHHELD and node.id not in own:
        return node.id
    if isinstance(node, ast.Import):
        return next((f"import {a.name}" for a in node.names if a.name not in MODULES), None)
    if isinstance(node, ast.ImportFrom):
        module = "." * node.level + (node.module or "")
        given = f"* {MODULES[module]}".split() if module in MODULES else []
        missing = (alias.name for alias in node.names if alias.name not in given)
        return next((f"from {module} import {name}" for name in missing), None)
    names = [getattr(node, field, None) for field in ("id", "name", "arg", "asname")]
    hidden = [name for name in names if isinstance(name, str) and name.startswith("__")]
    return next((name for name in hidden if name != "__name__"), None)


def readable(node):
    """Whether an attribute may be read; format() only of a text that names no attribute itself."""
    if node.attr == "format" and isinstance(node.value, ast.Constant):
        fields = string.Formatter().parse(str(node.value.value))
        return all(is_plain(field or "0", spec or "") for _, field, spec, _ in fields)
    return node.attr in ATTRIBUTES and not stores(node)


def is_plain(field, spec):
    return (field.isdigit() or field.isidentifier()) and "{" not in spec


def stores(node):
    return not isinstance(node.ctx, ast.Load)


if __name__ == "__main__":
    serve(sys.argv[1], float(sys.argv[2]))
