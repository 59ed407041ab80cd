"""Attacks on the sandbox, property by property.

Each is limited and aimed so that it does little harm if it succeeds: a few processes, a gigabyte,
signal 0 where it goes to everybody. Keep it that way: these tests fail on the day the sandbox does.
"""

import contextlib
import math
import os
import pickle
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import ROOT

import sandbox
from sandbox import child as sandbox_child

HONEST = "def f(): return 'honest'"
# Runs after each attack.
WITNESS = "import os\ndef f(): return str(os.listdir())\nassert f() == '[]'"
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, or calls Linux")


@pytest.fixture(scope="module")
def pool():
    with sandbox.Pool(1) as pool:
        yield pool


@pytest.fixture
def attack(pool):
    """Run programs one by one, an honest one after each; nothing may be left, nor harm be done."""

    def attack(programs, function="f", seconds=1.0, **settings):
        pool.run([HONEST], "f")
        worker = pool.workers[0].process.pid
        mixed = [text for program in programs for text in (program, WITNESS)]
        outcomes = pool.run(mixed, function, seconds, **settings)
        assert set(outcomes[1::2]) == {("ok", "[]" if function else None, "")}
        assert worker == pool.workers[0].process.pid
        running = processes()
        _, name = running.pop(worker, (None, None))  # a child has its worker's name, or parent
        assert [pid for pid, others in running.items() if worker in others or name in others] == []
        return outcomes[::2]

    return attack


def needs(layer):
    return pytest.mark.skipif(layer not in sandbox.protections(), reason=f"no {layer} here")


def unlike(programs, outcomes, expected):
    """The programs, with their outcomes, for which expected(outcome) does not hold."""
    pairs = zip(programs, outcomes, strict=True)
    return [(program, outcome) for program, outcome in pairs if not expected(outcome)]


def processes():
    """{id: (parent, command)} of every process of which a thread runs (Linux)."""
    running = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            texts = [path.read_text() for path in folder.glob("task/*/stat")]
            threads = [text.rpartition(")")[2].split()[:2] for text in texts]  # state, parent
            if any(state not in "ZX" for state, _ in threads):
                running[int(folder.name)] = int(threads[0][1]), (folder / "cmdline").read_bytes()
    return running


def children(parents):
    return [pid for pid, (parent, _) in processes().items() if parent in parents]


def wait_until(condition, seconds=10):
    deadline = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return met  # not asked again: the answer may have changed


# -------------------------------------------------------------------------------- honest programs

KINDS = [  # a program, its kind, the beginning of its detail
    ("f = 1", "no_function", "no function named f"),
    ("def f(:", "syntax_error", "SyntaxError: invalid syntax (<program>, line 1)"),
    ("x = '\ud800'", "syntax_error", ""),
    ("def f(): return 1 / 0", "exception", "ZeroDivisionError: division by zero"),
    ("def f(): assert False", "exception", "AssertionError"),
    ("def f(): eval('1 +')", "exception", "SyntaxError: invalid syntax (<string>, line 1)"),
    ("exit(0)", "exception", "SystemExit: 0"),
    ("raise MemoryError", "killed", "out of memory"),
    ("import os; os._exit(0)", "killed", "ended without a result, exit status 0"),
    ("import ctypes\nctypes.string_at(1)", "killed", "signal 11: Segmentation fault"),
    ("(" * 100_000, "syntax_error", ""),
    ("raise Exception('\\ud800')", "exception", "Exception: \\ud800"),
    ("raise Exception('x' * 10**6)", "exception", "Exception: " + "x" * 989),
]


def test_kinds(attack):
    outcomes = attack([program for program, _, _ in KINDS])
    for (program, kind, detail), outcome in zip(KINDS, outcomes, strict=True):
        assert outcome[:2] == (kind, None), program[:99]
        assert outcome.detail.startswith(detail) and len(outcome.detail) <= 1000


VALUES = [
    *(0, 1, -1, 2**63, -(2**64), 10**3999, -(10**4000) + 1, True, False, None),
    *(0.0, -0.0, 0.1, 1e308, 5e-324, math.inf, -math.inf, math.nan),
    *(1 + 2j, complex(-0.0, math.nan), "", "text\n\0\r", "\u00e9\u4e2d\U0001f600", "\ud800"),
    "x" * 30_000,
]


def test_values_come_back_exactly(pool):
    form = "import pickle\ndef f(): return pickle.loads({})".format
    outcomes = pool.run([form(pickle.dumps(value)) for value in VALUES], "f")
    for value, outcome in zip(VALUES, outcomes, strict=True):
        assert outcome[0::2] == ("ok", "")
        assert type(outcome.value) is type(value)
        assert repr(outcome.value) == repr(value)


def test_results_come_in_the_order_of_the_programs_of_each_thread():
    chance = random.Random(0)
    nap = "import time\ntime.sleep({})\ndef f(): return {}".format
    values = [range(name * 100, name * 100 + 20) for name in range(3)]
    programs = [[nap(chance.random() / 40, value) for value in part] for part in values]
    with sandbox.Pool(2) as pool, ThreadPoolExecutor(3) as threads:
        results = list(threads.map(lambda part: pool.run(part, "f"), programs))
    assert [[outcome.value for outcome in part] for part in results] == [*map(list, values)]


LIBRARY = {  # an expression that is true, and the imports that it needs
    "isqrt(17) == 4 and List[int] and Fraction(1, 3)": "from math import *\nfrom typing import *\n"
    "from fractions import Fraction\nfrom decimal import Decimal",
    "hashlib.md5(b'0') and zoneinfo.ZoneInfo('UTC') and logging.getLogger()":
    "import unittest, doctest, logging, argparse, secrets, inspect, difflib, ast, string\n"
    "import json, re, csv, zlib, hashlib, zoneinfo, calendar, heapq, bisect, statistics",
    "__name__ == '__main__'": "",
    "P(1).x == 1": "from dataclasses import *\n@dataclass\nclass P:\n x: 'int'",
    "c.execute('pragma user_version=1')": "import sqlite3\nc = sqlite3.connect('x')",
    "asyncio.run(asyncio.sleep(0, 1)) == 1": "import asyncio",
    "ThreadPoolExecutor(2).submit(pow, 2, 3).result() == 8": "from concurrent.futures import *",
    "type(np)": "try:\n import numpy as np\nexcept ImportError:\n np = None",
    "os.getcwd() and time.time() and platform.system()": "import os, time, platform, ctypes",
    "a.send(b'x') == 1 and b.recv(1) == b'x'": "import socket\na, b = socket.socketpair()",
    "fcntl.lockf(x, 2) is fcntl.flock(x, 2) is None": "import fcntl\nx = open('x', 'w')",
    "shutil.copyfile('x', 'y') and filecmp.cmp('x', 'y')": "import shutil, filecmp\nopen('x', 'w')",
    "mmap.mmap(x.fileno(), 9)[8] == 0": "import mmap\nx = open('x', 'w+')\nx.truncate(9)",
    "select.epoll().poll(0) == [] and os.mkfifo('x') is None": "import os, select",
    "os.set_inheritable(0, True) is None and not os.isatty(0)": "import os",
    "tempfile.TemporaryFile().write(b'x') == 1 and uuid.uuid4()": "import tempfile, uuid",
    "open('e').read() == 'text'": "import os, shutil\nos.makedirs('a/b')\nx = open('a/b/c', 'w')\n"
    "x.write('text')\nx.close()\nos.rename('a/b/c', 'd')\nos.symlink('d', 'e')\nshutil.rmtree('a')",
}  # fmt: skip


def test_the_standard_library_works(pool):
    programs = [f"{imports}\ndef f(): return bool({test})" for test, imports in LIBRARY.items()]
    for test, outcome in zip(LIBRARY, pool.run(programs, "f", seconds=10.0), strict=True):
        assert outcome == ("ok", True, ""), test


def test_the_same_outcome_each_time(pool):
    program = "import random\ndef f(): return str((random.random(), set('abcdef'), hash('x')))"
    assert len(set(pool.run([program] * 8, "f") + sandbox.run([program], "f"))) == 1


# --------------------------------------------------------------------------- values made to deceive

HOSTILE = """
import os
def shout(*args, **kwargs):
    os._exit(3)
methods = ("eq ne lt le gt ge hash bool int float index complex repr str format bytes len iter "
           "neg abs trunc round add mod getattribute reduce_ex reduce getstate sizeof class "
           "instancecheck subclasscheck getnewargs getnewargs_ex").split()
body = {f"__{name}__": shout for name in methods}
body |= {name: property(shout) for name in ("real", "imag", "__class__", "__dict__")}
meta = type("meta", (type,), {"__name__": property(shout), "__hash__": shout, "__eq__": shout,
    "__getattribute__": shout, "__instancecheck__": shout, "__repr__": shout, "__bool__": shout})
"""


BASES = "int", "float", "str", "complex", "bytes", "list", "object"
OTHERS = {  # values that are not reported, and the type that the message names
    "[1]": "list", "b'x'": "bytes", "f": "function", "int": "type", "__import__('sys')": "module",
    "10**4000": "int", "-10**4000": "int", "1 << 10**7": "int", "'x' * 10**6": "str",
    "type('int', (int,), {})(3)": "int", "type('bool', (), {})()": "bool",
}  # fmt: skip


def test_other_values_are_named_by_type_and_none_of_their_methods_is_called(attack):
    evil = "value = meta('Evil', ({},), body)()\ndef f(): return value".format
    programs = {f"def f(): return {value}": name for value, name in OTHERS.items()}
    programs |= {HOSTILE + evil(base): "Evil" for base in BASES}
    for outcome, name in zip(attack(programs), programs.values(), strict=True):
        assert outcome[:2] == ("exception", None) and outcome.detail.endswith(": " + name)


GARBAGE = [
    b"", b"ok", b"ok int", b"ok int ", b"ok int 1 2", b"ok list [1]", b"ok float 1.0", b"ok float ",
    b"ok complex " + bytes(8), b"ok bool True", b"ok bool 2", b"ok NoneType 1", b"ok str \xff",
    b"okay", b"timeout out of time", b"\0" * 100, b"ok int \xff", b"ok int " + b"f" * 60_000,
    b"ok  3", b"OK int 3", b" ok int 3",
]  # fmt: skip


def test_reports_are_read_strictly():
    assert {sandbox.judge(0, report)[:2] for report in GARBAGE} == {("killed", None)}
    assert sandbox.judge(0, b"exception \xff").detail == "\N{REPLACEMENT CHARACTER}"


CLAIMS = {  # what a program writes to its report, and what becomes of it
    "os.write(3, b'ok int 2a')\nos._exit(0)": ("ok", 42),  # cannot be told from an honest one
    "os.write(3, b'x')\ndef f(): return 1": ("killed", None),
    "for fd in range(64):\n try: os.write(fd, b'\\0\\0\\0\\1' * 9)\n except OSError: pass\n"
    "def f(): return 1": ("killed", None),
    "while True: os.write(3, b'ok int 1' * 1000)": ("timeout", None),
}


def test_what_a_program_says_of_itself_is_believed_and_nothing_else(attack):
    outcomes = attack(["import os\n" + claim for claim in CLAIMS], seconds=0.5)
    assert [outcome[:2] for outcome in outcomes] == [*CLAIMS.values()]


# ------------------------------------------------------------ attacks on the worker and the machine

IS_OPEN = "def is_open(fd):\n try: return bool(os.fstat(fd))\n except OSError: return False\n"
INHERITED = {  # an expression, and its value
    "str([fd for fd in range(256) if is_open(fd)])": "[0, 1, 2, 3]",
    "len(os.environ)": 0,
    "os.getsid(0) == os.getpgid(0) == os.getpid()": True,
    "sys.stdin.read()": "",
    f"{str(ROOT)!r} in sys.path": False,
}


def test_nothing_is_inherited(attack):
    programs = [f"import os, sys\n{IS_OPEN}def f(): return {test}" for test in INHERITED]
    with open(__file__), socket.socket():
        outcomes = attack(programs)
    assert [outcome.value for outcome in outcomes] == [*INHERITED.values()]


LOOPS = [
    "while True:\n try:\n  while True: pass\n except: pass",
    "import signal\nfor number in range(1, 65):\n try: signal.signal(number, lambda *_: None)\n"
    " except (OSError, ValueError): pass\nwhile True: pass",
    "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass",
    "__import__('time').sleep(1000)",
    "import threading\ndef work():\n while True: pass\n"
    "threading.Thread(target=work).start()\nwork()",
    "import re; re.match('(a*)*b', 'a' * 50)",
    "class Endless(Exception):\n def __str__(self):\n  while True: pass\nraise Endless",
    "import os; os.closerange(0, 64)\n__import__('time').sleep(1000)",
    "import os, signal\ntry: os.kill(os.getpid(), signal.SIGSTOP)\nexcept OSError: pass\n"
    "while True: pass",
    "class Endless:\n def __del__(self):\n  while True: pass\nEndless()",
]
BOMBS = [
    "bytearray(10**9)", "'x' * 10**9", "1 << 10**10", "[[] for _ in range(10**7)]",
    "__import__('mmap').mmap(-1, 10**9)[0]",
]  # fmt: skip
LARGE = {"seconds": 10.0, "memory": 256 << 20}
TOO_LARGE = "out of memory", "OSError"
CRASHES = [
    "import sys\n sys.setrecursionlimit(10**9)\n return f()",
    "import sys\n sys.setrecursionlimit(10**9)\n x = []\n while True: x = [x]; repr(x)",
    "import sys\n sys.setrecursionlimit(30)\n 1 / 0",
]
PATCHES = [
    "import builtins\nbuiltins.type = lambda *_: int",
    "import os\nos._exit = os.write = os.close = lambda *_: None",
    "import sys\nsys.stdout = sys.stderr = None",
    "import sys\nsys.modules.clear()",
    "import threading\nthreading.Thread(target=__import__('time').sleep, args=(100,)).start()",
    "import atexit\natexit.register(lambda: print('late'))",
    "class D:\n def __del__(self):\n  while True: pass\nd = D()",
    "import signal\nsignal.signal(14, lambda *_: None)\nsignal.setitimer(0, 0.001, 0.001)",
    "import os\nos.umask(0o777)",
    "import sys\nsys.set_int_max_str_digits(0)\nassert len(str(10**5000)) == 5001",
]
WRECKS = [  # of the program's own process
    "import builtins as b\nfor name in dir(b):\n if name[0] != '_': b.__dict__[name] = None",
    "import gc\nfor o in gc.get_objects():\n if type(o) is dict: o.pop('encode', 0)",
]


@pytest.mark.parametrize(
    "form, parts, settings, expected",
    [
        ("{}", LOOPS, {"seconds": 0.2}, lambda o: o == ("timeout", None, "out of time")),
        ("def f(): return {}", BOMBS, LARGE, lambda o: o.detail.startswith(TOO_LARGE)),
        ("def f():\n {}", CRASHES, {}, lambda o: o.kind in ("exception", "killed", "timeout")),
        ("{}\ndef f(): return 5", PATCHES, {}, lambda o: o == ("ok", 5, "")),
        ("{}\ndef f(): return 5", WRECKS, {}, lambda o: o.kind == "killed"),
    ],
    ids=["loops", "memory bombs", "crashes", "patches", "wrecks"],
)
def test_hostile_programs_harm_themselves_alone(attack, form, parts, settings, expected):
    outcomes = attack([form.format(part) for part in parts], **settings)
    assert unlike(parts, outcomes, expected) == []


def test_what_is_printed_is_lost(attack):
    programs = {
        "print('x' * 10**7)\nimport os\nos.write(2, b'\\xff')": "ok",
        "while True: print('flood')": "timeout",
        "print('before')\nimport os\nos.abort()": "killed",
    }
    assert [outcome.kind for outcome in attack(programs, None)] == [*programs.values()]


LITTER = [
    "for _ in range(3000): os.mkdir('d'); os.chdir('d')",
    "for i in range(3000): open(str(i), 'w').close()",
    "os.mkdir('a'); open('a/b', 'w'); os.chmod('a', 0)",
    "os.mkdir('d'); os.symlink(outside, 'd/link'); os.symlink(outside, 'link')",
    "open('\\n', 'w'); open('-rf', 'w'); open(b'\\xff', 'w'); open('x' * 255, 'w')",
    "os.chmod('.', 0)",
]


def test_litter_is_cleared(attack, tmp_path):
    """The program after each finds an empty folder."""
    (tmp_path / "kept").write_text("kept")
    setting = f"import os\noutside = {str(tmp_path)!r}\ndef f():\n "
    outcomes = attack([setting + litter for litter in LITTER])
    assert {outcome.kind for outcome in outcomes} <= {"ok", "exception", "timeout"}
    assert (tmp_path / "kept").read_text() == "kept"


def test_files_have_a_limit(attack):
    one = "file = open('x', 'wb')\nfor _ in range(40): file.write(bytes(1 << 20))"
    many = "for i in range(200): open(str(i), 'wb').write(bytes(1 << 20))"
    programs, errors = [one], ["OSError: [Errno 27] File too large"]
    if "namespaces" in sandbox.protections():
        programs.append(many)
        errors.append("OSError: [Errno 28] No space left on device")
    assert [outcome.detail for outcome in attack(programs, seconds=10.0)] == errors


# ----------------------------------------------------------- system calls and files out of reach

ATTACK = """
import array, ctypes, fcntl, mmap, os, signal, socket, struct, threading, time
libc, x86 = ctypes.CDLL(None, use_errno=True), os.uname().machine == "x86_64"
HIGH = 1 << 32  # a bit of a register that the kernel does not look at in an int
outside, caller = {outside!r}, {caller}
secret, listener = outside + "/secret", outside + "/listener"
def checked(result):
    if result == -1: raise OSError(ctypes.get_errno(), "refused")
    return result
def call(number, on_arm, *args):
    args = [ctypes.c_long(a) if type(a) is int else a for a in args]
    return checked(libc.syscall(ctypes.c_long(number if x86 else on_arm), *args))
def pair(kind=socket.SOCK_DGRAM): return socket.socketpair(socket.AF_UNIX, kind)
with open("own", "w") as file: file.write("own")
own = os.open("own", os.O_RDWR)
files = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [own]))]
def f():
    {attempt}
    return "done"
"""
SENDING = [
    "pair()[0].sendto(b'x', listener)",
    "pair(socket.SOCK_RAW)[0].sendto(b'x', listener)",
    "ends = (ctypes.c_int * 2)(); call(53, 199, 1, HIGH | 2, 0, ends);"
    "socket.socket(fileno=ends[0]).sendto(b'x', listener)",
]
WORKING = [
    # other sockets
    "pair(socket.SOCK_SEQPACKET)", "pair(1)[0].bind('\\0abstract')",
    "a, b = pair(1); [a.sendmsg([b'x'], files) for _ in range(99)]",
    # attributes of files
    "os.getxattr(secret, 'user.note')", "os.listxattr(own)", "os.setxattr('own', 'user.x', b'x')",
    "fcntl.ioctl(own, 0x40086602, struct.pack('q', 0x80))",  # FS_IOC_SETFLAGS: no atime
    "os.chmod('own', 0o600)", "os.utime(own)",
    # a program that stays, or changes what it may do
    "checked(libc.prctl(1, 0, 0, 0, 0))", "os.sched_setaffinity(0, os.sched_getaffinity(0))",
    # files that are emptied or opened beside landlock
    "os.open('own', os.O_RDONLY | os.O_TRUNC)", "os.open('own', 3 | os.O_TRUNC)",
    "os.open(secret, 3)", "os.open('/dev/ptmx', 3 | os.O_NOCTTY)", "os.truncate('own', 0)",
    "call(2, -1, b'own', os.O_TRUNC, 0)",  # open, on x86_64 alone
    # the kernel's memory, beyond what is counted
    "fcntl.fcntl(os.pipe()[1], 1031, 1 << 19)", "os.splice(own, os.pipe()[1], 3, offset_src=0)",
    "call(425, 425, 1, bytes(120))", "call(248, 217, b'user', b'x', b'x', 1, -2)",  # io_uring, key
    "mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x2000)",  # MAP_LOCKED
    # getpid by the entry of 32 bits
    "page = mmap.mmap(-1, 4096, prot=7); page.write(bytes.fromhex('b814000000cd80c3'));"
    "ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()",
]  # fmt: skip
PROBES = [  # what fails without the layers, too, here or elsewhere, or would do harm
    "a, b = pair(1); a.sendto(b'x', listener)", "a, b = pair(1); b.close(); a.connect(listener)",
    "socket.socket()", "os.mknod('device', 0o20600, os.makedev(1, 1))", "call(500, 500)",  # no call
    "[os.fork() for _ in range(6)]", "os.execv('/bin/true', ['true'])",
    "[os.fork() or (os.setsid(), os.fork() or time.sleep(20)) for _ in range(5)]",
    "import subprocess; subprocess.run(['/bin/true'])", "call(435, 435, bytes(88), 88)",  # clone3
    "os.kill(os.getppid(), 9)", "os.kill(-1, 0)", "os.killpg(0, 9)", "os.kill(1, 0)",
    "import resource; resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (0, 0))",
]  # fmt: skip
FILES = [  # outside of the folder
    "open(secret).read()", "open(secret, 'a')", "os.remove(secret)", "os.rename(secret, 'mine')",
    "os.link(secret, 'mine')", "os.truncate(secret, 0)", "os.rmdir(os.getcwd())",
    "os.symlink(secret, 'link'); open('link').read()", "os.chdir(outside); open('secret').read()",
    "os.listdir(outside)", "open(outside + '/new', 'w')", "os.mkdir(outside + '/new')",
    "os.symlink('x', outside + '/new')", "open('../new', 'w')", "os.listdir('/')",
    "open(f'/proc/{caller}/environ').read()", "open(f'/proc/{os.getppid()}/mem', 'r+b')",
    "open('/proc/self/environ').read()", "open('/etc/passwd').read()", "open('/dev/shm/x', 'w')",
    "open(os.__file__, 'a')", "open(os.path.dirname(os.__file__) + '/x', 'w')",
]  # fmt: skip


@pytest.fixture
def naked(tmp_path, monkeypatch):
    """Workers as the sandbox's, without the layers: what an attack does there."""
    text = Path(sandbox_child.__file__).read_text()
    (tmp_path / "child.py").write_text(text.replace("LAYERS = (", "LAYERS = () and ("))
    monkeypatch.setattr(sandbox, "CHILD", tmp_path / "child.py")
    with sandbox.Pool(1) as pool:
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
    return ATTACK.format(attempt=attempt, outside=str(folder), caller=os.getpid())


def state_of(folder):
    """What no attack may change: the files, and all of the secret but when it was read."""
    status = (folder / "secret").stat()
    content = (folder / "secret").read_text(), os.listxattr(folder / "secret")
    return sorted(os.listdir(folder)), content, status[:3], status[4:7], status.st_mtime_ns


def refused(outcome):
    answers = [f"[Errno {number}]" for number in (1, 13, 38, 95)]  # EPERM, EACCES, ENOSYS, ENOTSUP
    by_error = outcome.kind == "exception" and any(each in outcome.detail for each in answers)
    return by_error or outcome.detail.startswith(f"signal {signal.SIGSYS:d}")


def failed(outcome):
    return outcome.detail.startswith(("OSError", "PermissionError"))


@pytest.mark.parametrize(
    "attempts, expected",
    [
        pytest.param(SENDING + WORKING + PROBES, refused, marks=needs("seccomp"), id="calls"),
        pytest.param(FILES, failed, marks=needs("landlock"), id="files"),
    ],
)
def test_attacks_are_refused(attack, outside, attempts, expected):
    folder, listener = outside
    before = state_of(folder)
    outcomes = attack([attack_on(folder, attempt) for attempt in attempts], seconds=5.0)
    assert unlike(attempts, outcomes, expected) == []
    assert state_of(folder) == before
    with pytest.raises(BlockingIOError):
        listener.recv(9)


@LINUX
def test_the_same_attacks_work_without_the_layers(naked, outside):
    """So that refusing them proves something."""
    folder, listener = outside
    attempts = SENDING + WORKING
    outcomes = naked.run([attack_on(folder, attempt) for attempt in attempts], "f")
    assert [listener.recv(9) for _ in SENDING] == [b"x"] * len(SENDING)
    if weak := unlike(attempts, outcomes, lambda outcome: outcome.value == "done"):
        pytest.skip(f"{len(weak)} of {len(attempts)} prove nothing here: {weak}")  # an older kernel


@needs("namespaces")
def test_no_network_in_the_namespace(pool):
    """Only the namespaces are looked at: a worker has no interface that is up."""
    pool.run([HONEST], "f")
    worker = pool.workers[0].process.pid
    assert len(Path(f"/proc/{worker}/net/route").read_text().splitlines()) <= 1
    assert os.readlink(f"/proc/{worker}/ns/net") != os.readlink("/proc/self/ns/net")


@needs("capabilities")
def test_root_is_a_user_like_others(attack):
    (outcome,) = attack(["import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))"])
    assert outcome.detail == "ValueError: not allowed to raise maximum limit"


STAYING = [
    "libc.prctl(1, 0, 0, 0, 0)",
    "threading.Thread(target=time.sleep, args=(20,)).start();"
    "time.sleep(0.2); libc.syscall(60 if os.uname().machine == 'x86_64' else 93, 0)",
]  # in the second one the first thread ends


@needs("seccomp")
@pytest.mark.parametrize("attempt", STAYING)
def test_no_program_outlives_its_worker(attempt):
    imports = "import ctypes, os, threading, time\nlibc = ctypes.CDLL(None)\n"
    worker, program = sandbox.Worker(), f"{imports}{attempt}\ntime.sleep(20)"
    worker.start()
    worker.send(dict(program=program, function=None, seconds=20, memory=1 << 29))
    assert wait_until(lambda: children([worker.process.pid]))
    (child,) = children([worker.process.pid])
    time.sleep(0.5)  # for the attempt
    assert child in processes()
    worker.process.kill()
    assert wait_until(lambda: child not in processes(), 1)
    worker.stop()


@LINUX
def test_a_program_whose_worker_died_early_ends():
    for worker, status in ("os.getppid()", 0), ("os.getpid()", 1):
        script = f"import os\nfrom sandbox import child\nchild.die_with({worker})"
        assert subprocess.run([sys.executable, "-c", script], cwd=ROOT).returncode == status


@LINUX
def test_crashes_leave_no_core(naked):
    """What keeps even a handler from being started (man 5 core); to ask for it takes prctl."""
    program = "import ctypes\ndef f(): return ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)"
    assert naked.run([program], "f")[0].value == 0


@pytest.mark.parametrize(
    "column, header", [(1, "x86_64-linux-gnu/asm/unistd_64.h"), (2, "asm-generic/unistd.h")]
)
def test_system_call_numbers(column, header):
    """Against the C library's headers, where they are installed."""
    header = Path("/usr/include", header)
    if not header.exists():
        pytest.skip(f"no {header}")
    lines = [line.split() for line in header.read_text().splitlines()]
    defined = {words[1]: words[2] for words in lines if words[:1] == ["#define"] and words[2:]}
    tables = sandbox_child.ALLOWED, sandbox_child.NOT_SUPPORTED, sandbox_child.BY_ARGUMENT, REFUSED
    for row in ",".join(tables).split(","):
        name, number = row.split()[0], row.split()[column]
        expected = defined.get(f"__NR3264_{name}", defined.get(f"__NR_{name}", "-"))
        expected = defined.get(expected, expected)  # by another name
        assert number == (expected if expected.isdigit() else "-"), name


def verdict(rules, machine, number, args=()):
    """What the kernel makes of the filter: a slow reading of man 2 seccomp."""
    halves = [part for arg in args for part in (arg & 0xFFFFFFFF, arg >> 32)]
    words = [number, machine, 0, 0, *halves, *[0] * 12]
    at = value = 0
    while True:
        operation, if_true, if_false, operand = rules[at]
        at += 1
        if operation == 6:
            return operand
        if operation == 0x20:
            value = words[operand // 4]
        elif operation == 0x54:
            value &= operand
        else:
            holds = {0x15: value == operand, 0x35: value >= operand}[operation]
            at += if_true if holds else if_false


ALLOW, KILL, EPERM, ENOSYS, ENOTSUP = 0x7FFF0000, 0x80000000, 0x50001, 0x50026, 0x5005F
FLAGS = os.O_TRUNC | os.O_CREAT | os.O_CLOEXEC
HIGH = 1 << 32  # a bit of a register that the kernel does not look at in an int
ARGUMENTS = {  # of a call: those that are allowed, those that are not, and the answer to these
    "openat": ([(0, 0, os.O_RDONLY), (0, 0, FLAGS | os.O_WRONLY), (0, 0, FLAGS | os.O_RDWR)],
               [(0, 0, FLAGS), (0, 0, FLAGS | 3), (0, 0, 3), (0, 0, HIGH | FLAGS)], EPERM),
    "clone": ([(0x3D0F00,), (0x7D0F00,)], [(0x3D0B00,), (17,), (0x10900,), (0x810F00,)], EPERM),
    "fcntl": ([(0, 6), (0, 1030)],
              [(0, n) for n in (8, 37, 1024, 1026, 1031, HIGH | 1031, 1036)], EPERM),
    "ioctl": ([(0, 0x5401), (0, 0x5421)],
              [(0, n) for n in (0x8901, 0x8912, HIGH | 0x80086601, 0x40086602)], ENOTSUP),
    "prctl": ([(15,)], [(1,), (4,), (29,), (36,), (62,), (HIGH | 1,)], EPERM),
    "prlimit64": ([(0,)], [(1,)], EPERM),
    "socketpair": ([(1, 1 | 0o4000)], [(1, 2 | 0o4000), (1, HIGH | 2), (1, 5), (2, 1)], EPERM),
    "sendto": ([(0,) * 6], [(0, 0, 0, 0, 0, 110)], EPERM),
}  # fmt: skip
REFUSED = """
    ptrace 101 117, process_vm_readv 310 270, kcmp 312 272, bpf 321 280, userfaultfd 323 282,
    mount 165 40, unshare 272 97, chroot 161 51, keyctl 250 219, modify_ldt 154 -, connect 42 203,
    execve 59 221, personality 135 92, memfd_create 319 279, shmget 29 194, timer_create 222 107
"""  # a few of those that nobody should allow; from UNKNOWN on all calls are refused


@LINUX
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
    assert {verdict(rules, audit, n) for n in sandbox_child.numbers(REFUSED).values()} == {EPERM}
    assert ARGUMENTS.keys() == by_argument.keys() - {"open"}
    for name, (good, bad, answer) in ARGUMENTS.items():
        assert {verdict(rules, audit, by_argument[name], args) for args in good} == {ALLOW}, name
        assert {verdict(rules, audit, by_argument[name], args) for args in bad} == {answer}, name


# ---------------------------------------------------------------------------------------- the pool


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_dies_or_is_late_is_replaced(monkeypatch, number):
    monkeypatch.setattr(sandbox, "PATIENCE", 1.0)
    with sandbox.Pool(1) as pool, ThreadPoolExecutor(1) as thread:
        pool.run([HONEST], "f")
        worker, folder = pool.workers[0].process.pid, Path(pool.workers[0].directory)
        slow = "import time\ntime.sleep(0.5)\ndef f(): return 1"
        results = thread.submit(pool.run, [slow, HONEST], "f", 1.0)
        time.sleep(0.2)
        os.kill(worker, number)
        assert [outcome.value for outcome in results.result()] == [1, "honest"]
        assert pool.workers[0].process.pid != worker and not folder.exists()


def test_a_program_that_takes_its_worker_down_costs_only_itself(naked):
    outcomes = naked.run([HONEST, "import os\nos.kill(os.getppid(), 9)", HONEST], "f")
    assert [outcome.kind for outcome in outcomes] == ["ok", "killed", "ok"]


def test_a_worker_that_says_too_much_is_replaced(monkeypatch):
    monkeypatch.setattr(sandbox, "MAX_REPORT", 90)
    outcomes = sandbox.run(["def f(): return 'x' * 99", HONEST], "f", workers=1)
    assert [outcome.kind for outcome in outcomes] == ["killed", "ok"]


@LINUX
def test_workers_die_with_the_caller(tmp_path):
    """One at work, and one that waits."""
    caller = f"import sandbox\nsandbox.run([{HONEST!r}, 'while True: pass'], 'f', 99.0, workers=2)"
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    process = subprocess.Popen([sys.executable, "-c", caller], cwd=ROOT, env=environment)
    assert wait_until(lambda: len(children([process.pid])) == 2)
    workers = children([process.pid])
    assert wait_until(lambda: children(workers))
    family = {*workers, *children(workers)}
    process.kill()
    process.wait()
    assert wait_until(lambda: not processes().keys() & family)
    assert wait_until(lambda: list(tmp_path.iterdir()) == [])


def test_a_worker_that_cannot_start_is_an_error(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RuntimeError, match="does not start"):
        sandbox.run([HONEST], "f", workers=1)


def test_hundreds_of_programs_leave_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = resources()
    mixture = [HONEST, "1 / 0", "import os; os._exit(1)", "open('x', 'w').write('x')", "print('x')"]
    with sandbox.Pool(2) as pool:
        pool.run(mixture, "f")
        during = resources(), [opened(worker.process.pid) for worker in pool.workers]
        outcomes = pool.run(mixture * 60, "f", seconds=10.0)
        assert (resources(), [opened(worker.process.pid) for worker in pool.workers]) == during
        assert len(list(tmp_path.iterdir())) == 2
    assert outcomes == outcomes[:5] * 60
    assert resources() == before and list(tmp_path.iterdir()) == []


def resources():
    return children([os.getpid()]), opened(os.getpid()), threading.active_count()


def opened(pid):
    folder = Path(f"/proc/{pid}/fd")
    return len(list(folder.iterdir())) if folder.exists() else len(os.listdir("/dev/fd"))
