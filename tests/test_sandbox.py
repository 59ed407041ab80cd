"""Attacks on the sandbox, property by property.

Each is limited and aimed so that it does little harm if it succeeds: a few processes, a gigabyte,
signal 0 where it goes to everybody. Keep it that way: these tests fail on the day the sandbox does.
"""

import contextlib
import json
import math
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

import sandbox
from sandbox import child as sandbox_child

ROOT = Path(__file__).parent.parent
TINYGSM = ROOT.parent / "shared/data/tinygsm/recoded.jsonl"
HONEST = "def f(): return 'honest'"
REFUSALS = 1, 13, 38, 95  # EPERM, EACCES, ENOSYS, ENOTSUP


@pytest.fixture(scope="module")
def pool():
    with sandbox.Pool(2) as pool:
        yield pool


@pytest.fixture
def attack(pool):
    """Run a program between honest ones; afterwards nothing may be left of it, nor harm be done."""

    def attack(program, function="f", seconds=1.0, **settings):
        pool.run([HONEST] * 2, "f")
        workers = [worker.process and worker.process.pid for worker in pool.workers]
        (outcome,) = pool.run([program], function, seconds, **settings)
        assert {result[:2] for result in pool.run([HONEST] * 2, "f")} == {("ok", "honest")}
        for worker, pid in zip(pool.workers, workers, strict=True):
            assert pid in (None, worker.process.pid)
        assert children(workers) == []
        return outcome

    return attack


def needs(layer):
    return pytest.mark.skipif(layer not in sandbox.protections(), reason=f"no {layer} here")


def processes():
    """{id: (parent, command)} of every process that is not a zombie (Linux)."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                found[int(folder.name)] = int(parent), (folder / "cmdline").read_bytes()
    return found


def children(parents):
    return [pid for pid, (parent, _) in processes().items() if parent in parents]


def wait_until(condition, seconds=10):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


# -------------------------------------------------------------------------------- honest programs


@pytest.mark.parametrize(
    "program, kind, detail",
    [
        ("def f(): return 1", "ok", ""),
        ("f = 1", "no_function", "no function named f"),
        ("def g(): return 1", "no_function", "no function named f"),
        ("def f(:", "syntax_error", "SyntaxError: invalid syntax (<program>, line 1)"),
        ("x = '\0'", "syntax_error", None),
        ("x = '\ud800'", "syntax_error", None),
        ("def f(): return 1 / 0", "exception", "ZeroDivisionError: division by zero"),
        ("def f(): assert False", "exception", "AssertionError"),
        ("def f(): eval('1 +')", "exception", "SyntaxError: invalid syntax (<string>, line 1)"),
        ("def f(x): return x", "exception", None),
        ("raise KeyError('k')", "exception", "KeyError: 'k'"),
        ("import sys; sys.exit(3)", "exception", "SystemExit: 3"),
        ("exit(0)", "exception", "SystemExit: 0"),
        ("import sympy_is_not_here", "exception", None),
        ("def f(): return input()", "exception", "EOFError: EOF when reading a line"),
        ("while True: pass", "timeout", "out of time"),
        ("raise MemoryError", "killed", "out of memory"),
        ("import os; os._exit(0)", "killed", "ended without a result, exit status 0"),
        ("(" * 100_000, "syntax_error", None),
        ("raise Exception('\\ud800')", "exception", "Exception: \\ud800"),
        ("raise Exception('x' * 10**6)", "exception", "Exception: " + "x" * 989),
    ],
)
def test_kinds(pool, program, kind, detail):
    outcome = pool.run([program], "f", seconds=1.0)[0]
    assert outcome[:2] == (kind, 1 if kind == "ok" else None)
    assert detail in (None, outcome.detail)


def test_the_text_alone():
    texts = [
        "assert 1 + 1 == 2",
        "assert 1 + 1 == 3",
        "print('x')\nf = 1",
        "__name__ == '__main__' or 0 / 0",
    ]
    outcomes = sandbox.run(texts, function=None, workers=1)
    assert [outcome.kind for outcome in outcomes] == ["ok", "exception", "ok", "ok"]
    assert outcomes[2] == ("ok", None, "", "x\n")
    assert sandbox.run([], function=None) == []


VALUES = [
    *(0, 1, -1, 2**63, -(2**64), 10**3999, -(10**4000) + 1, True, False, None),
    *(0.0, -0.0, 0.1, 1e308, 5e-324, math.inf, -math.inf, math.nan),
    *(1 + 2j, complex(-0.0, math.nan), "", "text\n\0\r", "\u00e9\u4e2d\U0001f600", "\ud800"),
    "x" * 30_000,
]


def test_values_come_back_exactly(pool):
    programs = [f"from math import inf, nan, copysign\ndef f(): return {source(v)}" for v in VALUES]
    for value, outcome in zip(VALUES, pool.run(programs, "f"), strict=True):
        assert outcome[0::2] == ("ok", "")
        assert type(outcome.value) is type(value)
        assert repr(outcome.value) == repr(value)


def source(value):
    return f"complex({value.real}, {value.imag})" if type(value) is complex else ascii(value)


def test_results_come_in_the_order_of_the_programs(pool):
    naps = [random.Random(0).random() / 20 for _ in range(40)]
    programs = [f"import time\ntime.sleep({n})\ndef f(): return {i}" for i, n in enumerate(naps)]
    assert [outcome.value for outcome in pool.run(programs, "f")] == list(range(40))


def test_runs_from_several_threads_share_the_pool(pool):
    results = {}

    def work(name):
        programs = [f"def f(): return {name * 100 + i}" for i in range(20)]
        results[name] = [outcome.value for outcome in pool.run(programs, "f")]

    threads = [threading.Thread(target=work, args=(name,)) for name in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {n: list(range(n * 100, n * 100 + 20)) for n in range(3)}


LIBRARY = {
    "sorted(map(int, '3 1 2'.split())) == [1, 2, 3] and list(zip('ab', range(2)))": "",
    "isqrt(17) == 4 and comb(5, 2) == 10": "from math import *",
    "re.findall(r'\\d+', 'a1b22') == ['1', '22']": "import re",
    "list(accumulate([1, 2, 3])) == [1, 3, 6]": "from itertools import accumulate",
    "Counter('aab').most_common(1) == [('a', 2)]": "from collections import Counter",
    "statistics.median([1, 3, 2]) == 2": "import statistics",
    "Fraction(1, 3) + Fraction(1, 6) == Fraction(1, 2)": "from fractions import Fraction",
    "str(Decimal('0.1') + Decimal('0.2')) == '0.3'": "from decimal import Decimal",
    "(date(2024, 3, 1) - date(2024, 2, 1)).days == 29": "from datetime import date",
    "datetime(2024, 1, 1).isoformat() == '2024-01-01T00:00:00'": "from datetime import datetime",
    "zoneinfo.ZoneInfo and calendar.isleap(2024)": "import zoneinfo, calendar",
    "0 <= random.random() < 1": "import random",
    "List[int] and Optional[str]": "from typing import *",
    "reduce(lambda a, b: a * b, [1, 2, 3]) == 6": "from functools import reduce, lru_cache",
    "heapq.nsmallest(1, [3, 1]) == [1] and bisect.bisect([1, 2], 1) == 1": "import heapq, bisect",
    "string.ascii_lowercase[0] == 'a'": "import string",
    "P(1).x == 1": "from dataclasses import *\n@dataclass\nclass P:\n x: 'int'",
    "hashlib.md5(b'0').hexdigest()[:2] == 'cf' and zlib.crc32(b'') == 0": "import hashlib, zlib",
    "json.loads('[1]') == [1] and csv and ast.literal_eval('1')": "import json, csv, ast",
    "sqlite3.connect(':memory:').execute('select 1').fetchone() == (1,)": "import sqlite3",
    "unittest and doctest and logging": "import unittest, doctest, logging",
    "argparse and secrets and inspect": "import argparse, secrets, inspect",
    "struct.pack('B', 1) == b'\\1' and array.array('i', [1])[0] == 1": "import struct, array",
    "copy.deepcopy([1]) == pickle.loads(pickle.dumps([1]))": "import copy, pickle",
    "asyncio.run(asyncio.sleep(0, 1)) == 1": "import asyncio",
    "ThreadPoolExecutor(2).submit(pow, 2, 3).result() == 8": "from concurrent.futures import *",
    "type(np)": "try:\n import numpy as np\nexcept ImportError:\n np = None",
    "os.getcwd() and time.time() and platform.system()": "import os, time, platform",
    "ctypes.c_int(1).value == 1": "import ctypes",
    "a.send(b'x') == 1 and b.recv(1) == b'x'": "import socket\na, b = socket.socketpair()",
    "c.execute('pragma user_version=1')": "import sqlite3\nc = sqlite3.connect('x')",
    "fcntl.lockf(x, 2) is fcntl.flock(x, 2) is None": "import fcntl\nx = open('x', 'w')",
    "shutil.copyfile('x', 'y') and filecmp.cmp('x', 'y')": "import shutil, filecmp\nopen('x', 'w')",
    "mmap.mmap(x.fileno(), 9)[8] == 0": "import mmap\nx = open('x', 'w+')\nx.truncate(9)",
    "select.epoll().poll(0) == [] and os.mkfifo('x') is None": "import os, select",
    "not x.isatty() and x.fileno()": "import os\nx = open('x', 'w')\n"
    "os.set_inheritable(x.fileno(), True)",
    "tempfile.TemporaryFile().write(b'x') == 1": "import tempfile",
    "textwrap.dedent(' x') == 'x' and difflib and uuid.uuid4()": "import textwrap, difflib, uuid",
    "[c for c in Color][0].value == 1": "from enum import Enum\nclass Color(Enum):\n red = 1",
}  # fmt: skip


def test_the_standard_library_works(pool):
    programs = [f"{imports}\ndef f(): return bool({test})" for test, imports in LIBRARY.items()]
    for test, outcome in zip(LIBRARY, pool.run(programs, "f", seconds=10.0), strict=True):
        assert outcome == ("ok", True, "", ""), test


def test_the_same_outcome_each_time(pool):
    program = "import random\ndef f(): return str((random.random(), set('abcdef'), hash('x')))"
    assert len(set(pool.run([program] * 8, "f") + sandbox.run([program], "f"))) == 1


def test_files_in_the_working_directory_last_as_long_as_the_program(pool):
    program = """
import os, shutil
def f():
    assert os.listdir() == []
    os.makedirs("a/b")
    with open("a/b/c", "w") as file: file.write("text")
    os.rename("a/b/c", "d")
    os.symlink("d", "e")
    shutil.rmtree("a")
    return open("e").read()
"""
    assert {outcome[:2] for outcome in pool.run([program] * 4, "f")} == {("ok", "text")}


@pytest.mark.skipif(not TINYGSM.exists(), reason=f"no {TINYGSM}")
def test_tinygsm(pool):
    examples = [json.loads(line) for line in TINYGSM.read_text().splitlines()]
    outcomes = pool.run([example["code"] for example in examples], seconds=10.0)
    assert [outcome.value for outcome in outcomes] == [example["answer"] for example in examples]


# --------------------------------------------------------------------------- values made to deceive

HOSTILE = """
def shout(*args, **kwargs):
    print("called")
    raise SystemExit
methods = ("eq ne lt le gt ge hash bool int float index complex repr str format bytes len iter "
           "neg abs trunc round add mod getattribute reduce_ex reduce getstate sizeof class "
           "instancecheck subclasscheck getnewargs getnewargs_ex").split()
body = {f"__{name}__": shout for name in methods}
body |= {name: property(shout) for name in ("real", "imag", "__class__", "__dict__")}
meta = type("meta", (type,), {"__name__": property(shout), "__hash__": shout, "__eq__": shout,
    "__getattribute__": shout, "__instancecheck__": shout, "__repr__": shout, "__bool__": shout})
"""


@pytest.mark.parametrize("base", ["int", "float", "str", "complex", "bytes", "list", "object"])
def test_no_method_of_a_value_is_called(attack, base):
    program = HOSTILE + f"value = meta('Evil', ({base},), body)()\ndef f(): return value"
    outcome = attack(program)
    assert outcome[:2] == ("exception", None) and "Evil" in outcome.detail and not outcome.output


@pytest.mark.parametrize(
    "value, name",
    [
        *(("[1]", "list"), ("{}", "dict"), ("(1,)", "tuple"), ("b'x'", "bytes"), ("f", "function")),
        *(("iter([])", "list_iterator"), ("(i for i in '')", "generator"), ("int", "type")),
        *(("__import__('datetime').date(1, 1, 1)", "date"), ("__import__('sys')", "module")),
        *(("10**4000", "int"), ("-10**4000", "int"), ("1 << 10**7", "int"), ("'x' * 10**6", "str")),
        *(("type('int', (int,), {})(3)", "int"), ("type('bool', (), {})()", "bool")),
    ],
)
def test_other_values_are_named_by_type(attack, value, name):
    outcome = attack(f"def f(): return {value}")
    assert outcome[:2] == ("exception", None) and outcome.detail.endswith(": " + name)


GARBAGE = [
    *(b"", b"ok", b"ok ", b"ok int", b"ok int ", b"ok int 0x", b"ok int 1 2", b"ok list [1]"),
    *(b"ok float 1.0", b"ok float ", b"ok complex " + bytes(8), b"ok bool True", b"ok bool 2"),
    *(
        b"ok NoneType 1",
        b"ok str \xff",
        b"okay",
        b"timeout out of time",
        b"\0" * 100,
        b"\xff" * 100,
    ),
    *(b"ok int " + b"f" * 60_000, b"ok int \xff", b"ok  3", b"OK int 3", b" ok int 3"),
]


@pytest.mark.parametrize("report", GARBAGE)
def test_reports_are_read_strictly(report):
    assert sandbox.judge(0, report, b"")[:2] == ("killed", None)


def test_any_bytes_can_be_judged():
    rng = random.Random(0)
    for start in (b"", b"ok ", b"ok int ", b"ok str ", b"ok float ", b"exception ", b"killed "):
        for _ in range(300):
            report = start + rng.randbytes(rng.randrange(20))
            outcome = sandbox.judge(rng.randrange(-64, 256), report, rng.randbytes(20))
            assert type(outcome.value) in (int, float, complex, bool, str, type(None))
            outcome.detail.encode(), outcome.output.encode()  # can be printed and stored


def test_what_a_program_says_of_itself_is_believed_and_nothing_else(attack, pool):
    forge = "import os\nos.write(3, b'ok int 2a')\nos._exit(0)"
    assert attack(forge)[:2] == ("ok", 42)  # cannot be told from an honest one
    assert attack("import os\nos.write(3, b'ok list [1]')\nos._exit(0)").kind == "killed"
    assert attack("import os\nos.write(3, b'x')\ndef f(): return 1").kind == "killed"
    everywhere = (
        "for fd in range(64):\n try: os.write(fd, b'\\0\\0\\0\\1' * 9)\n except OSError: pass"
    )
    assert attack(f"import os\n{everywhere}\ndef f(): return 1").kind == "killed"
    endless = "import os\nwhile True: os.write(3, b'ok int 1' * 1000)"
    assert attack(endless, seconds=0.5).kind == "timeout"


# ------------------------------------------------------------------------------------------ attacks

DESCRIPTORS = "import os\ndef f(): return str([fd for fd in range(256) if is_open(fd)])\n"
DESCRIPTORS += "def is_open(fd):\n try: return bool(os.fstat(fd))\n except OSError: return False"


def test_nothing_is_inherited(attack):
    with open(__file__), socket.socket():
        assert attack(DESCRIPTORS).value == "[0, 1, 2, 3]"
    assert attack("import os\ndef f(): return len(os.environ)").value == 0
    assert attack("import os\ndef f(): return len(os.listdir())").value == 0
    assert attack("import os\ndef f(): return os.getsid(0) == os.getpgid(0) == os.getpid()").value
    assert attack("import sys\ndef f(): return sys.stdin.read()").value == ""
    assert attack("import sys\ndef f(): return 'torch' in sys.modules").value is False
    assert attack("import sys\ndef f(): return " + repr(str(ROOT)) + " in sys.path").value is False


@needs("seccomp")
def test_a_program_starts_no_process_that_outlives_it(attack):
    program = """
import os, time
def f():
    for _ in range(20):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(20)
            os._exit(0)
"""
    attack(program)
    running, me = processes(), os.getpid()
    commands = {command for parent, command in running.values() if parent == me}
    workers = {command for command in commands if b"sandbox" in command}  # they name a folder
    left = [
        pid for pid, (parent, command) in running.items() if command in workers and parent != me
    ]
    assert workers and left == []


@needs("seccomp")
@pytest.mark.parametrize(
    "attempt",
    [
        "[os.fork() for _ in range(6)]",
        "subprocess.run(['/bin/true'])",
        "os.execv('/bin/true', ['true'])",
        "os.posix_spawn('/bin/true', ['true'], {})",
        "multiprocessing.Process(target=print).start()",
        "checked(libc.vfork())",
        "checked(libc.syscall(56 if x86 else 220, 17, 0, 0, 0, 0))",
        "checked(libc.syscall(435, bytes(88), 88))",
        "os.kill(os.getppid(), 9)",
        "os.kill(-1, 0)",
        "os.killpg(0, 9)",
        "os.kill(1, 0)",
        "signal.raise_signal(signal.SIGSTOP)",
        "signal.pthread_kill(threading.get_ident(), 9)",
        "fcntl.fcntl(3, fcntl.F_SETOWN, os.getppid())",
        "fcntl.ioctl(3, 0x8901, struct.pack('i', os.getppid()))",
        "signal.pidfd_send_signal(os.pidfd_open(os.getppid()), 9)",
        "resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (0, 0))",
        "os.sched_setaffinity(os.getppid(), [0])",
        "os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)",
        "checked(libc.ptrace(16, os.getppid(), 0, 0))",
        "checked(libc.process_vm_readv(os.getppid(), 0, 0, 0, 0, 0))",
        "socket.socket()",
        "socket.socket(socket.AF_UNIX)",
        "socket.create_connection(('127.0.0.1', 80))",
        "urllib.request.urlopen('http://127.0.0.1')",
        "checked(libc.syscall(425, 8, bytes(120)))",
        "checked(libc.unshare(0x10000000))",
        "checked(libc.shmget(0, 4096, 0o1600))",
        "os.memfd_create('x')",
        "multiprocessing.Lock()",
    ],
)
def test_system_calls_are_refused(attack, attempt):
    program = f"""
import ctypes, fcntl, multiprocessing, os, resource, signal, socket, struct, subprocess, threading
import urllib.request
libc = ctypes.CDLL(None, use_errno=True)
x86 = os.uname().machine == "x86_64"
def checked(result):
    if result == -1: raise OSError(ctypes.get_errno(), "refused")
def f():
    {attempt}
"""
    outcome = attack(program, seconds=5.0)
    assert outcome.kind == "exception" and "Error" in outcome.detail
    assert "refused" in outcome.detail or any(f"Errno {n}]" in outcome.detail for n in REFUSALS)


@pytest.mark.parametrize(
    "machine, header",
    [
        ("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
        ("aarch64", "/usr/include/asm-generic/unistd.h"),
    ],
)
def test_system_call_numbers(machine, header):
    """Against the C library's headers, where they are installed."""
    if not Path(header).exists():
        pytest.skip(f"no {header}")
    lines = [line.split() for line in Path(header).read_text().splitlines()]
    defined = {words[1]: words[2] for words in lines if words[:1] == ["#define"] and words[2:]}
    column = 1 + list(sandbox_child.MACHINES).index(machine)
    tables = sandbox_child.ALLOWED, sandbox_child.NOT_SUPPORTED, sandbox_child.BY_ARGUMENT
    for row in ",".join(tables).split(","):
        name, number = row.split()[0], row.split()[column]
        expected = defined.get(f"__NR3264_{name}", defined.get(f"__NR_{name}", "-"))
        expected = defined.get(expected, expected)  # by another name
        assert number == (expected if expected.isdigit() else "-"), name


@needs("landlock")
@pytest.mark.parametrize(
    "attempt",
    [
        "open(path).read()",
        "open(path, 'a')",
        "open(path, 'w')",
        "os.listdir(folder)",
        "open(folder + '/new', 'w')",
        "os.mkdir(folder + '/new')",
        "os.remove(path)",
        "os.rename(path, 'mine')",
        "os.rename(path, path + '2')",
        "os.link(path, 'mine')",
        "os.symlink('x', folder + '/new')",
        "os.truncate(path, 0)",
        "os.chmod(path, 0o777)",
        "os.utime(path)",
        "os.chown(path, os.getuid(), os.getgid())",
        "os.setxattr(path, 'user.x', b'x')",
        "(os.symlink(path, 'link'), open('link').read())",
        "(os.symlink(folder, 'link'), os.listdir('link'))",
        "(os.chdir(folder), open(os.path.basename(path)).read())",
        "ctypes.CDLL(path)",
        "mmap.mmap(os.open(path, os.O_RDONLY), 1)",
        "open(f'/proc/{parent}/environ').read()",
        "open(f'/proc/{os.getppid()}/environ').read()",
        "open(f'/proc/{os.getppid()}/mem', 'r+b')",
        "open('/proc/self/environ').read()",
        "open('/etc/passwd').read()",
        "open('/dev/shm/x', 'w')",
        "open('/tmp/x', 'w')",
        "open('../x', 'w')",
        "open(os.__file__, 'a')",
        "open(os.path.dirname(os.__file__) + '/x', 'w')",
        "os.listdir('/')",
        "os.rmdir(os.getcwd())",
    ],
)
def test_files_outside_are_out_of_reach(attack, tmp_path, attempt):
    secret = tmp_path / "secret"
    secret.write_text("the secret")
    secret.chmod(0o666)
    tmp_path.chmod(0o777)
    before = secret.stat()
    setting = f"parent, folder, path = {os.getpid()}, {str(tmp_path)!r}, {str(secret)!r}"
    outcome = attack(f"import ctypes, mmap, os\n{setting}\ndef f():\n return str({attempt})")
    assert outcome.kind == "exception" and "Error" in outcome.detail
    assert secret.read_text() == "the secret" and list(tmp_path.iterdir()) == [secret]
    assert before[:3] + before[4:7] == secret.stat()[:3] + secret.stat()[4:7]
    assert secret.stat().st_mtime_ns == before.st_mtime_ns


@needs("namespaces")
def test_no_network_in_the_namespace(pool):
    """Only the namespaces are looked at: a worker has no interface that is up."""
    pool.run([HONEST], "f")
    used = next(worker for worker in pool.workers if worker.process)
    route = Path(f"/proc/{used.process.pid}/net/route").read_text().splitlines()
    assert len(route) <= 1
    spaces = [os.readlink(f"/proc/{pid}/ns/net") for pid in (used.process.pid, os.getpid())]
    assert spaces[0] != spaces[1]


@needs("capabilities")
def test_root_is_a_user_like_others(attack):
    raise_limit = "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))"
    assert attack(raise_limit).detail == "ValueError: not allowed to raise maximum limit"
    assert attack("import os\nos.chroot('.')").detail.startswith("PermissionError")


@pytest.mark.parametrize(
    "bomb",
    [
        "bytearray(10**9)",
        "[0] * 10**8",
        "'x' * 10**9",
        "1 << 10**10",
        "[[] for _ in range(10**7)]",
        "__import__('mmap').mmap(-1, 10**9)[0]",
    ],
)
def test_memory_bombs(attack, bomb):
    outcome = attack(f"def f(): return {bomb}", seconds=10.0, memory=256 << 20)
    assert outcome.kind in ("killed", "exception")
    assert outcome.detail.startswith(("out of memory", "OSError"))


LOOPS = """
while True: pass
---
while True:
    try:
        while True: pass
    except: pass
---
while True:
    try: raise BaseException
    except BaseException: continue
---
import signal
for number in range(1, 65):
    try: signal.signal(number, lambda *_: None)
    except (OSError, ValueError): pass
while True: pass
---
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
while True: pass
---
__import__("time").sleep(1000)
---
__import__("threading").Event().wait()
---
import threading
def work():
    while True: pass
threading.Thread(target=work).start()
work()
---
sum(iter(int, 1))
---
import re; re.match("(a*)*b", "a" * 50)
---
9 ** 9 ** 9
---
x = []
while True: x.append(x) or x.clear()
---
class Endless(Exception):
    def __str__(self):
        while True: pass
raise Endless
---
import os; os.closerange(0, 64)
while True: pass
---
import os; os.closerange(0, 64)
__import__("time").sleep(1000)
---
import os, signal
try: os.kill(os.getpid(), signal.SIGSTOP)
except OSError: pass
while True: pass
---
class Endless:
    def __del__(self):
        while True: pass
Endless()
---
import sys
def trace(*_):
    while True: pass
sys.settrace(trace)
(lambda: 0)()
"""


@pytest.mark.parametrize("loop", LOOPS.split("---\n"))
def test_endless_programs(attack, loop):
    start = time.monotonic()
    assert attack(loop, seconds=0.2)[:3] == ("timeout", None, "out of time")
    assert time.monotonic() - start < 5


def test_numbers_too_large_to_print(attack):
    assert "ValueError" in attack("def f(): return str(10**5000)").detail
    unlimited = "import sys\nsys.set_int_max_str_digits(0)\ndef f(): return len(str(10**5000))"
    assert attack(unlimited).value == 5001
    assert attack("def f(): return 10**10**6").kind == "exception"


@pytest.mark.parametrize(
    "body",
    [
        "return f()",
        "import sys\n sys.setrecursionlimit(10**9)\n return f()",
        "import sys\n sys.setrecursionlimit(10**9)\n x = []\n while True: x = [x]; repr(x)",
        "import pickle\n x = []\n for _ in range(10**5): x = [x]\n pickle.dumps(x)",
        "eval('-' * 10**6 + '1')",
        "import ctypes\n ctypes.string_at(1)",
        "import os\n os.abort()",
        "import sys\n sys.setrecursionlimit(30)\n 1 / 0",
    ],
)  # fmt: skip
def test_crashes_and_recursion(attack, body):
    assert attack(f"def f():\n {body}").kind in ("exception", "killed", "timeout")


def test_a_crash_names_its_signal(attack):
    outcome = attack("print('before')\nimport ctypes\nctypes.string_at(1)")
    assert outcome[0::2] == ("killed", "signal 11: Segmentation fault")
    assert outcome.output.startswith("before\n")


def test_output_is_kept_and_capped(attack):
    program = "print('out')\nimport os, sys\nprint('err', file=sys.stderr)\nos.write(1, b'\\xff')"
    assert attack(program, None).output == "out\nerr\n\ufffd"
    outcome = attack("print('x' * 10**7)\nimport sys\nsys.stderr.write('y' * 10**6)", None, 10.0)
    assert outcome[:2] == ("ok", None) and outcome.output == "x" * sandbox.MAX_OUTPUT
    flood = attack("while True: print('flood')", seconds=0.5)
    assert flood.kind == "timeout" and flood.output.startswith("flood\nflood\n")
    assert len(flood.output) <= sandbox.MAX_OUTPUT
    assert attack("print('kept')\nwhile True: pass", seconds=0.5).output == "kept\n"


@pytest.mark.parametrize(
    "patch",
    [
        "import builtins\nbuiltins.type = lambda *_: int",
        "import os\nos._exit = os.write = os.close = lambda *_: None",
        "import json\njson.dumps = json.loads = None",
        "import sys\nsys.stdout = sys.stderr = None",
        "import sys\nsys.stdout.close()",
        "import sys\nsys.modules.clear()",
        "import sys\nsys.path.clear()\nsys.meta_path.clear()",
        "import signal\nsignal.signal = signal.set_wakeup_fd = None",
        "import threading\nthreading.Thread(target=__import__('time').sleep, args=(100,)).start()",
        "import atexit\natexit.register(lambda: print('late'))",
        "class D:\n def __del__(self):\n  while True: pass\nd = D()",
        "import gc\ngc.disable()\ngc.set_threshold(1)",
        "import sys\nsys.setswitchinterval(1e9)",
        "import signal\nsignal.signal(14, lambda *_: None)\nsignal.setitimer(0, 0.001, 0.001)",
        "import os\nos.umask(0o777)",
    ],
)  # fmt: skip
def test_patches_stay_in_the_program(attack, patch):
    assert attack(patch + "\ndef f(): return 5") == ("ok", 5, "", "")


@pytest.mark.parametrize(
    "patch",
    [
        "import builtins as b\nfor name in dir(b):\n if name[0] != '_': b.__dict__[name] = None",
        "import gc\nfor o in gc.get_objects():\n if type(o) is dict: o.pop('encode', 0)",
    ],
)
def test_a_program_that_wrecks_its_process_fails(attack, patch):
    assert attack(patch + "\ndef f(): return 5").kind == "killed"


@pytest.mark.parametrize(
    "litter",
    [
        "for _ in range(3000): os.mkdir('d'); os.chdir('d')",
        "for i in range(3000): open(str(i), 'w').close()",
        "os.umask(0o777); os.makedirs('a'); os.mkdir('b'); open('c', 'w')",
        "os.mkdir('a'); open('a/b', 'w'); os.chmod('a', 0)",
        "os.symlink(outside, 'link'); os.symlink('link', 'link2'); os.symlink('x', 'x')",
        "os.mkdir('d'); os.symlink(outside, 'd/link'); os.mkfifo('pipe')",
        "open('\\n', 'w'); open('-rf', 'w'); open(b'\\xff', 'w'); open('x' * 255, 'w')",
        "for i in range(200): open(str(i), 'wb').write(bytes(1 << 20))",
        "os.chmod('.', 0)",
    ],
)
def test_litter_is_cleared(attack, pool, tmp_path, litter):
    (tmp_path / "kept").write_text("kept")
    program = f"import os\noutside = {str(tmp_path)!r}\ndef f():\n {litter}"
    assert attack(program, seconds=1.0).kind in ("ok", "exception", "timeout")
    listing = pool.run(["import os\ndef f(): return len(os.listdir())"] * 4, "f")
    assert {outcome.value for outcome in listing} == {0}
    assert (tmp_path / "kept").read_text() == "kept"


def test_clear_takes_everything(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/kept").touch()
    litter = tmp_path / "litter"
    litter.mkdir()
    (litter / "link").symlink_to(tmp_path / "outside")
    (litter / "locked").mkdir()
    (litter / "locked/file").touch()
    (litter / "locked").chmod(0)
    here = os.open(".", os.O_RDONLY)
    os.chdir(litter)
    for _ in range(100):  # the path is longer than any system call takes
        os.mkdir("deep" * 25)
        os.chdir("deep" * 25)
    os.fchdir(here)
    os.close(here)
    sandbox.clear(litter)
    assert list(litter.iterdir()) == [] and (tmp_path / "outside/kept").exists()


@needs("namespaces")
def test_the_temporary_directory_has_a_limit(attack):
    program = "for i in range(200): open(str(i), 'wb').write(bytes(1 << 20))"
    assert attack(program, seconds=10.0).detail == "OSError: [Errno 28] No space left on device"


def test_a_file_has_a_limit(attack):
    program = "file = open('x', 'wb')\nfor _ in range(40): file.write(bytes(1 << 20))"
    assert attack(program, seconds=10.0).detail == "OSError: [Errno 27] File too large"


# -------------------------------------------------------------- attacks with and without the layers

ATTACK = """
import array, ctypes, fcntl, mmap, os, socket, struct, time
libc, x86 = ctypes.CDLL(None, use_errno=True), os.uname().machine == "x86_64"
HIGH = 1 << 32  # a bit of a register that the kernel does not look at in an int
outside, secret, listener = {outside!r}, {secret!r}, {listener!r}
def checked(result):
    if result == -1: raise OSError(ctypes.get_errno(), "refused")
    return result
def call(number, on_arm, *args):
    args = [ctypes.c_long(a) if type(a) is int else a for a in args]
    return checked(libc.syscall(ctypes.c_long(number if x86 else on_arm), *args))
def pair(kind=socket.SOCK_DGRAM): return socket.socketpair(socket.AF_UNIX, kind)
streams = []
def stream(): return streams.append(pair(socket.SOCK_STREAM)) or streams[-1][0]
page = mmap.mmap(-1, 1 << 16, prot=7)
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
def pointer(data, at):
    page[at : at + len(data)] = data
    return address + at
def vector(text, at): return pointer(struct.pack("PN", pointer(text, at + 99), len(text)), at)
def message(name):
    name = struct.pack("H", 1) + name.encode() + bytes(1)
    header = struct.pack("PI4xPNPNi4x", pointer(name, 512), len(name), vector(b"x", 0), 1, 0, 0, 0)
    return header + bytes(8)
def thread(flags):
    pause, stack = ctypes.cast(libc.pause, ctypes.c_void_p), ctypes.c_void_p(address + (1 << 15))
    return checked(libc.clone(pause, stack, flags, None))
number = ctypes.byref(ctypes.c_int(0x7fc00000))
with open("own", "w") as file: file.write("own")
own = os.open("own", os.O_RDWR)
r, w = os.pipe()
files = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [own]))]
def f():
    {attempt}
    return "done"
"""
SENDING = [
    "pair()[0].sendto(b'x', listener)",
    "a, b = pair(); a.connect(listener); a.send(b'x')",
    "pair(socket.SOCK_RAW)[0].sendto(b'x', listener)",
    "pair()[0].sendmsg([b'x'], [], 0, listener)",
    "pair()[0].sendmsg([b'x'], files, 0, listener)",
    "a, b = pair(); call(307, 269, a.fileno(), message(listener), 1, 0)",  # sendmmsg
    "pair(socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)[0].sendto(b'x', listener)",
    "ends = (ctypes.c_int * 2)(); call(53, 199, 1, HIGH | 2, 0, ends);"
    "socket.socket(fileno=ends[0]).sendto(b'x', listener)",
]
WORKING = [
    # other sockets
    "pair(socket.SOCK_SEQPACKET)",
    "stream().bind('here')",
    "stream().bind('\\0abstract')",
    "stream().sendmsg([b'x'])",
    "call(307, 269, stream().fileno(), address, 1, 0)",  # sendmmsg
    "a = stream(); [a.sendmsg([b'x'], files) for _ in range(99)]",
    "a, b = pair(1); a.send(b'x'); b.recvmsg(1)",
    "stream().setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)",
    "stream().setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)",
    "fcntl.ioctl(stream(), 0x8912, struct.pack('iP', 0, 0))",  # SIOCGIFCONF: interfaces
    # attributes of files
    "os.getxattr(secret, 'user.note')",
    "os.listxattr(secret)",
    "os.getxattr(secret, 'user.note', follow_symlinks=False)",
    "os.listxattr(own)",
    "os.setxattr('own', 'user.x', b'x')",
    "call(465, 465, -100, secret.encode(), 0, 0, 0)",  # listxattrat
    "call(468, 468, -100, secret.encode(), address, 24, 0)",  # file_getattr
    "fcntl.ioctl(own, 0x80086601, bytes(8))",  # FS_IOC_GETFLAGS
    "fcntl.ioctl(own, 0x40086602, struct.pack('q', 0x80))",  # FS_IOC_SETFLAGS: no atime
    "call(16, 29, own, HIGH | 0x80086601, address)",
    "fcntl.fcntl(own, 1036, struct.pack('Q', 2))",  # F_SET_RW_HINT
    "os.chmod('own', 0o600)",
    "os.fchmod(own, 0o600)",
    "os.utime(own)",
    "call(452, 452, -100, b'own', 0o600, 0)",  # fchmodat2
    # a program that stays
    "checked(libc.prctl(1, 0, 0, 0, 0))",
    "call(157, 167, 1, 0, 0, 0, 0)",
    "call(157, 167, HIGH | 1, 0, 0, 0, 0)",
    "checked(libc.prctl(36, 1, 0, 0, 0))",  # PR_SET_CHILD_SUBREAPER
    "checked(libc.prctl(4, 1, 0, 0, 0))",  # PR_SET_DUMPABLE
    "checked(libc.prctl(29, 1, 0, 0, 0))",  # PR_SET_TIMERSLACK
    "call(317, 277, 2, 0, number)",  # SECCOMP_GET_ACTION_AVAIL
    "thread(0x10900)",  # CLONE_VM, SIGHAND, THREAD, but descriptors of its own: 64 more
    "thread(0x810f00)",  # CLONE_UNTRACED beside those of a thread
    "os.setresuid(-1, -1, -1)",
    "os.setpriority(os.PRIO_PROCESS, 0, 0)",
    "os.sched_setaffinity(0, os.sched_getaffinity(0))",
    "os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))",
    "call(251, 30, 1, 0, 0)",  # ioprio_set
    "call(438, 438, os.pidfd_open(os.getppid()), 0, 0)",  # pidfd_getfd
    "call(312, 272, os.getpid(), os.getpid(), 0, 0, 0)",  # kcmp
    # files that are emptied or opened beside landlock
    "os.open('own', os.O_RDONLY | os.O_TRUNC)",
    "os.open('own', os.O_RDONLY | os.O_TRUNC | os.O_CREAT | os.O_CLOEXEC)",
    "os.open('own', 3 | os.O_TRUNC)",
    "os.open(secret, 3)",
    "os.open('/dev/ptmx', 3 | os.O_NOCTTY)",
    "call(2, -1, b'own', os.O_TRUNC, 0)",  # open, on x86_64 alone
    "call(257, 56, -100, b'own', HIGH | os.O_TRUNC, 0)",
    "call(437, 437, -100, b'own', struct.pack('QQQ', os.O_TRUNC, 0, 0), 24)",  # openat2
    "os.truncate('own', 0)",
    "fcntl.fcntl(own, 1024, 1)",  # F_SETLEASE
    "call(303, 264, -100, b'own', struct.pack('Ii', 128, 0) + bytes(128), number, 0)",
    # the kernel's memory, beyond what is counted
    "fcntl.fcntl(w, 1031, 1 << 19)",  # F_SETPIPE_SZ
    "call(72, 25, w, HIGH | 1031, 1 << 19)",
    "call(278, 75, w, vector(b'x', 0), 1, 0)",  # vmsplice keeps huge pages
    "os.splice(own, w, 3, offset_src=0)",
    "os.write(w, b'x'); call(276, 77, r, os.pipe()[1], 1, 0)",  # tee
    "call(222, 107, 1, struct.pack('PiiP', 0, 0, 1, 0) + bytes(40), number)",  # a timer
    "call(206, 0, 1, address)",  # io_setup: the system has 65,536 in all
    "call(425, 425, 1, address)",  # io_uring_setup
    "fcntl.fcntl(os.open('.', 0), 1026, 2)",  # F_NOTIFY
    "fcntl.fcntl(own, 37, struct.pack('hhqqi4x', 1, 0, 0, 1, 0))",  # F_OFD_SETLK
    "call(294, 26, 0)",  # inotify_init1
    "call(300, 262, 0x200, 0)",  # fanotify_init
    "call(149, 228, address, 1)",  # mlock
    "mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x2000)",  # MAP_LOCKED
    "call(248, 217, b'user', b'x', b'x', 1, -2)",  # add_key, to the process's own keyring
    "call(250, 219, 0, -2, 1)",  # keyctl
    "call(321, 280, 0, struct.pack('IIII', 2, 4, 4, 1) + bytes(112), 128)",  # bpf: a map
    "call(323, 282, 1)",  # userfaultfd
    # what else a process does not need; at the end getpid by the entry of 32 bits
    "call(238, 237, 0, 0, 0)",  # set_mempolicy
    "call(324, 283, 0, 0, 0)",  # membarrier
    "call(159, 171, address)",  # adjtimex, to read
    "call(27, 232, address, 4096, bytes(1))",  # mincore
    "call(451, 451, own, bytes(16), address, 0)",  # cachestat
    "call(444, 444, 0, 0, 1)",  # landlock_create_ruleset
    "call(430, 430, b'tmpfs', 0)",  # fsopen
    "call(154, -1, 0, address, 64)",  # modify_ldt
    "call(135, 92, 0xffffffff)",  # personality
    "ctypes.CFUNCTYPE(ctypes.c_int)(pointer(bytes.fromhex('b814000000cd80c3'), 0))()",
]
PROBES = [  # what fails without the layers, too, here or elsewhere, or would do harm
    "a, b = pair(1); a.sendto(b'x', listener)",
    "a, b = pair(1); b.close(); a.connect(listener)",
    "a, b = pair(1); a.shutdown(2); a.connect(listener)",
    "pair(1)[0].listen()",
    "socket.socketpair(socket.AF_INET, 1)",
    "socket.socketpair(30, 1)",  # AF_TIPC: the kernel would load its module
    "call(0x40000000 | 53, -1, 1, 2, 0, address)",  # the numbers of x32
    "call(0x40000000 | 57, -1)",
    "checked(libc.prctl(62, 1, 0, 0, 0))",  # PR_SCHED_CORE
    "call(162, 81)",
    "call(306, 267, own)",  # syncfs; before it sync
    "call(64, 190, 0, 1, 0o1600)",  # semget
    "call(68, 186, 0, 0o1600)",  # msgget
    "os.mknod('device', 0o20600, os.makedev(1, 1))",
    "time.clock_settime(0, time.time())",
    "call(165, 40, b'none', outside.encode(), b'tmpfs', 0, 0)",  # mount
    "socket.sethostname('x')",
    "call(169, 142, 0, 0, 0)",  # reboot, without its magic
    "fcntl.ioctl(own, 0x40049409, own)",  # FICLONE
    "call(500, 500)",
]


@pytest.fixture(scope="module")
def naked(tmp_path_factory):
    """Workers as the sandbox's, without the layers: what an attack does there."""
    with altered(tmp_path_factory.mktemp("naked"), "LAYERS = (", "LAYERS = () and (") as pool:
        yield pool


@contextlib.contextmanager
def altered(folder, *changes):
    """A pool of workers whose program is changed: old text, new text, ..."""
    text = Path(sandbox_child.__file__).read_text()
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        assert text.count(old) == 1
        text = text.replace(old, new)
    (folder / "child.py").write_text(text)
    with sandbox.Pool(1) as pool:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sandbox, "CHILD", folder / "child.py")
            pool.run([HONEST], "f")
        yield pool


@pytest.fixture
def outside(tmp_path):
    """A folder with a secret, that has an attribute, and a socket that listens."""
    secret = tmp_path / "secret"
    secret.write_text("the secret")
    with contextlib.suppress(OSError):
        os.setxattr(secret, "user.note", b"a note")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"{tmp_path}/listener")
        listener.setblocking(False)
        yield tmp_path, listener


def attack_on(folder, attempt):
    paths = {name: f"{folder}/{name}" for name in ("secret", "listener")}
    return ATTACK.format(attempt=attempt, outside=str(folder), **paths)


def arrived(listener):
    with contextlib.suppress(BlockingIOError):
        return listener.recv(1 << 10)


def refused(outcome):
    answers = [f"[Errno {number}]" for number in REFUSALS]
    by_error = outcome.kind == "exception" and any(each in outcome.detail for each in answers)
    return by_error or outcome.detail.startswith(f"signal {signal.SIGSYS:d}")


@needs("seccomp")
def test_attacks_of_the_kinds_that_once_got_through(pool, outside):
    folder, listener = outside
    attempts = SENDING + WORKING + PROBES
    outcomes = pool.run([attack_on(folder, attempt) for attempt in attempts], "f")
    pairs = zip(attempts, outcomes, strict=True)
    assert [(attempt, outcome) for attempt, outcome in pairs if not refused(outcome)] == []
    assert arrived(listener) is None


@pytest.mark.skipif(sys.platform != "linux", reason="attacks of Linux")
def test_the_same_attacks_work_without_the_layers(naked, outside):
    """So that refusing them proves something."""
    folder, listener = outside
    attempts = SENDING + WORKING
    outcomes = naked.run([attack_on(folder, attempt) for attempt in attempts], "f")
    assert [arrived(listener) for _ in SENDING] == [b"x"] * len(SENDING)
    pairs = zip(attempts, outcomes, strict=True)
    weak = [(attempt, outcome.detail) for attempt, outcome in pairs if outcome.value != "done"]
    if weak:  # an older kernel, another file system, a container
        pytest.skip(f"{len(weak)} of {len(attempts)} prove nothing here: {weak}")


def alive(pid):
    """Whether a thread of it is, be it not the first."""
    states = [
        path.read_text().rpartition(")")[2] for path in Path(f"/proc/{pid}/task").glob("*/stat")
    ]
    return any(state.split()[0] not in "ZX" for state in states)


LEFT = """
import ctypes, os, threading, time
libc = ctypes.CDLL(None)
def f():
    {attempt}
    time.sleep(20)
"""


@needs("seccomp")
@pytest.mark.parametrize(
    "attempt",
    [
        "libc.prctl(1, 0, 0, 0, 0)",
        "libc.syscall(157 if os.uname().machine == 'x86_64' else 167, 1, 0, 0, 0, 0)",
        "threading.Thread(target=libc.prctl, args=(1, 0, 0, 0, 0)).start()",
        "threading.Thread(target=time.sleep, args=(20,)).start();"
        "time.sleep(0.2); libc.syscall(60 if os.uname().machine == 'x86_64' else 93, 0)",
    ],
)
def test_no_program_outlives_its_worker(attempt):
    worker = sandbox.Worker()
    worker.start()
    worker.send(
        dict(program=LEFT.format(attempt=attempt), function="f", seconds=20, memory=1 << 29)
    )
    assert wait_until(lambda: children([worker.process.pid]))
    (program,) = children([worker.process.pid])
    time.sleep(0.5)  # for the attempt; in the last one the first thread has ended
    assert alive(program)
    worker.process.kill()
    assert wait_until(lambda: not alive(program), 1)
    worker.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="a call of Linux")
def test_a_program_whose_worker_died_early_ends():
    for worker, status in ("os.getppid()", 0), ("os.getpid()", 1):
        script = f"import os\nfrom sandbox import child\nchild.die_with({worker})"
        assert subprocess.run([sys.executable, "-c", script], cwd=ROOT).returncode == status


@pytest.mark.skipif(sys.platform != "linux", reason="a call of Linux")
def test_crashes_leave_no_core(naked):
    """What keeps even a handler from being started (man 5 core); to ask for it takes prctl."""
    program = "import ctypes\ndef f(): return ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)"
    assert naked.run([program], "f")[0].value == 0


@needs("landlock")
@pytest.mark.parametrize("flags", ["os.O_TRUNC", "os.O_TRUNC | 3", "os.O_TRUNC | os.O_CREAT"])
@pytest.mark.parametrize("layers, text", [("", "a library"), ("LAYERS = LAYERS[:3]\n\n\n", "")])
def test_landlock_of_old_kernels_leaves_emptying_to_seccomp(tmp_path, flags, layers, text):
    """As landlock was up to Linux 6.1; the second time without seccomp."""
    (library := tmp_path / "library").mkdir()
    (library / "x.py").write_text("a library")
    old = 'version = call("syscall", create_ruleset, None, 0, 1)', "return {*system, "
    new = "version = 2", f"return {{{str(library)!r}, *system, "
    start = "if __name__ =="
    program = f"import os\ndef f(): os.open({str(library / 'x.py')!r}, {flags})"
    with altered(tmp_path, old[0], new[0], old[1], new[1], start, layers + start) as pool:
        outcome = pool.run([program], "f")[0]
    assert (library / "x.py").read_text() == text
    assert refused(outcome) == bool(text)


def verdict(rules, machine, number, args=()):
    """What the kernel makes of the filter: a slow reading of man 2 seccomp."""
    words = [
        number,
        machine,
        0,
        0,
        *(part for arg in args for part in (arg & 0xFFFFFFFF, arg >> 32)),
    ]
    at = value = 0
    while True:
        operation, if_true, if_false, operand = rules[at]
        at += 1
        if operation == 0x20:
            value = words[operand // 4] if operand // 4 < len(words) else 0
        elif operation == 0x54:
            value &= operand
        elif operation == 6:
            return operand
        else:
            holds = {0x15: value == operand, 0x35: value >= operand}[operation]
            at += if_true if holds else if_false


ALLOW, KILL, EPERM, ENOSYS, ENOTSUP = 0x7FFF0000, 0x80000000, 0x50001, 0x50026, 0x5005F
FLAGS = os.O_TRUNC | os.O_CREAT | os.O_CLOEXEC
ARGUMENTS = [  # a call, its arguments, the answer
    ("openat", (0, 0, os.O_RDONLY), ALLOW),
    ("openat", (0, 0, FLAGS | os.O_WRONLY), ALLOW),
    ("openat", (0, 0, FLAGS | os.O_RDWR), ALLOW),
    ("openat", (0, 0, FLAGS), EPERM),
    ("openat", (0, 0, FLAGS | 3), EPERM),
    ("openat", (0, 0, 3), EPERM),
    ("clone", (0x3D0F00,), ALLOW),
    ("clone", (0x7D0F00,), ALLOW),
    ("clone", (0x3D0B00,), EPERM),
    ("clone", (17,), EPERM),
    ("fcntl", (0, 6), ALLOW),
    ("fcntl", (0, 1030), ALLOW),
    ("fcntl", (0, 8), EPERM),
    ("fcntl", (0, 1031), EPERM),
    ("ioctl", (0, 0x5401), ALLOW),
    ("ioctl", (0, 0x5421), ALLOW),
    ("ioctl", (0, 0x8901), ENOTSUP),
    ("prctl", (15,), ALLOW),
    ("prctl", (1,), EPERM),
    ("prctl", (1 << 32 | 1,), EPERM),
    ("prlimit64", (0,), ALLOW),
    ("prlimit64", (1,), EPERM),
    ("socketpair", (1, 1 | 0o4000), ALLOW),
    ("socketpair", (1, 2 | 0o4000), EPERM),
    ("socketpair", (1, 5), EPERM),
    ("socketpair", (30, 1), EPERM),
    ("sendto", (0, 0, 0, 0, 0, 0), ALLOW),
    ("sendto", (0, 0, 0, 0, 0, 110), EPERM),
]


@pytest.mark.skipif(sys.platform != "linux", reason="a table of Linux")
@pytest.mark.parametrize("machine", sandbox_child.MACHINES)
def test_the_filter_of_each_machine(monkeypatch, machine):
    monkeypatch.setattr(os, "uname", lambda: type("Name", (), {"machine": machine}))
    rules, audit = list(sandbox_child.system_call_filter()), sandbox_child.MACHINES[machine]
    allowed, by_argument, unsupported = (
        sandbox_child.numbers(getattr(sandbox_child, table))
        for table in ("ALLOWED", "BY_ARGUMENT", "NOT_SUPPORTED")
    )
    expected = dict.fromkeys(range(424), EPERM) | dict.fromkeys(unsupported.values(), ENOTSUP)
    expected |= dict.fromkeys(allowed.values(), ALLOW)
    others = *range(424, 600), *(1 << 30 | number for number in range(600)), (1 << 32) - 1
    expected |= dict.fromkeys(others, ENOSYS)
    for number in expected.keys() - by_argument.values():
        assert verdict(rules, audit, number) == expected[number], number
        assert verdict(rules, 0x40000003, number) == KILL  # the 32 bits of x86
    for name, args, answer in ARGUMENTS:
        assert verdict(rules, audit, by_argument[name], args) == answer, (name, args)
    tested = {(name, answer == ALLOW) for name, _, answer in ARGUMENTS}
    assert tested >= {
        (name, each) for name in by_argument.keys() - {"open"} for each in (True, False)
    }


# ---------------------------------------------------------------------------------------- the pool


def test_a_dead_worker_is_replaced():
    with sandbox.Pool(1) as pool:
        assert pool.run([HONEST], "f")[0].kind == "ok"
        (worker,) = pool.workers
        first = worker.process.pid, worker.directory
        os.kill(first[0], signal.SIGKILL)
        assert [outcome.kind for outcome in pool.run([HONEST] * 3, "f")] == ["ok"] * 3
        assert worker.process.pid != first[0] and not Path(first[1]).exists()


def test_a_worker_killed_at_work_takes_the_program_along():
    with sandbox.Pool(1) as pool:
        pool.run([HONEST], "f")
        worker = pool.workers[0].process.pid
        slow = "import time\ntime.sleep(1)\ndef f(): return 1"
        results = []
        thread = threading.Thread(target=lambda: results.extend(pool.run([slow, HONEST], "f", 9.0)))
        thread.start()
        if sys.platform == "linux":
            assert wait_until(lambda: children([worker]))
            (program,) = children([worker])
        time.sleep(0.2)
        os.kill(worker, signal.SIGKILL)
        if sys.platform == "linux":
            assert wait_until(lambda: program not in processes(), 1)
        thread.join()
        assert [outcome.value for outcome in results] == [1, "honest"]  # run again by a second one


def test_a_program_that_takes_its_worker_down_costs_only_itself(monkeypatch):
    """Where the layers are missing a program could: here the test does it on its behalf."""
    send = sandbox.Worker.send

    def send_and_kill(worker, request):
        send(worker, request)
        if "sleep" in request["program"]:
            worker.process.kill()

    monkeypatch.setattr(sandbox.Worker, "send", send_and_kill)
    outcomes = sandbox.run([HONEST, "__import__('time').sleep(9)", HONEST], "f", workers=1)
    assert [outcome.kind for outcome in outcomes] == ["ok", "killed", "ok"]


def test_a_worker_that_is_late_or_says_too_much_is_replaced(monkeypatch):
    monkeypatch.setattr(sandbox, "PATIENCE", 1.0)
    with sandbox.Pool(1) as pool:
        pool.run([HONEST], "f")
        os.kill(pool.workers[0].process.pid, signal.SIGSTOP)
        assert pool.run([HONEST], "f", seconds=0.5)[0].kind == "ok"
        monkeypatch.setattr(sandbox, "MAX_OUTPUT", 10)
        outcomes = pool.run(["print('x' * 99)", HONEST], "f")
        assert [outcome.kind for outcome in outcomes] == ["killed", "ok"]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("program", [HONEST, "while True: pass"])
def test_workers_die_with_the_caller(tmp_path, program):
    caller = f"""
import sandbox, time
pool = sandbox.Pool(2)
pool.run([{HONEST!r}] * 4, "f")
print("ready", flush=True)
pool.run([{program!r}] * 2, "f", seconds=100.0)
time.sleep(100)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", caller],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
    )
    assert process.stdout.readline() == b"ready\n"
    time.sleep(0.3)
    workers = children([process.pid])
    assert workers
    family = {*workers, *children(workers)}
    process.kill()
    process.wait()
    process.stdout.close()
    assert wait_until(lambda: not family & set(processes()))
    assert wait_until(lambda: list(tmp_path.iterdir()) == [])


def test_a_worker_that_cannot_start_is_an_error(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RuntimeError, match="does not start"):
        sandbox.run([HONEST], "f", workers=1)


def test_a_thousand_programs_leave_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = resources()
    mixture = [HONEST, "1 / 0", "import os; os._exit(1)", "open('x', 'w').write('x')", "print('x')"]
    with sandbox.Pool(2) as pool:
        pool.run(mixture, "f")
        during = resources(), [opened(worker.process.pid) for worker in pool.workers]
        outcomes = pool.run(mixture * 200, "f", seconds=10.0)
        assert (resources(), [opened(worker.process.pid) for worker in pool.workers]) == during
        assert len(list(tmp_path.iterdir())) == 2
    assert outcomes == outcomes[:5] * 200
    assert resources() == before and list(tmp_path.iterdir()) == []


def resources():
    return children([os.getpid()]), opened(os.getpid()), threading.active_count()


def opened(pid):
    folder = Path(f"/proc/{pid}/fd")
    return len(list(folder.iterdir())) if folder.exists() else len(os.listdir("/dev/fd"))
