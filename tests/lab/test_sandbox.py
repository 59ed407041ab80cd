"""Attacks on the sandbox, property by property.

Each is limited and aimed so that it does little harm if it succeeds: a few processes, a gigabyte,
signal 0 where it goes to everybody. Keep it that way: these tests fail on the day the sandbox does.
"""

import contextlib
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import ROOT

from lab import sandbox
from lab.sandbox import child as inside

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, or calls Linux")
HONEST = "def f(): return 'honest'"
WITNESS = "import os\ndef f(): return str(os.listdir())\nassert f() == '[]'"  # after each attack


@pytest.fixture(scope="module")
def pool():
    with sandbox.Pool(1) as pool:
        pool.run([HONEST], "f")
        yield pool


def attack(pool, expected, seconds):
    """Run {program: pattern of `kind value detail`}; nothing may be left, nor harm be done."""
    worker = pool.workers[0].process.pid
    outcomes = pool.run([text for each in expected for text in (each, WITNESS)], "f", seconds)
    assert set(outcomes[1::2]) == {("ok", "[]", "")}
    assert worker == pool.workers[0].process.pid
    running = processes()
    _, name = running.pop(worker)  # a child has its worker's name, or parent
    assert [pid for pid, others in running.items() if worker in others or name in others] == []
    for (program, pattern), outcome in zip(expected.items(), outcomes[::2], strict=True):
        said = f"{outcome.kind} {outcome.value!r} {outcome.detail}"
        assert re.fullmatch(pattern, said, re.DOTALL) and len(said) < 1100, (program, said)


def table(text, pattern="", form="{}"):
    """{program: pattern} of the programs between semicolons, put into a form."""
    return dict.fromkeys((form.format(part.strip()) for part in text.split(";;")), pattern)


def processes():
    """{id: (parent, command)} of every process of which a thread runs."""
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


# -- programs that reach no further than themselves ------------------------------------------------
KINDS = {
    "f = 1": "no_function None no function named f",
    "def f(:": r"syntax_error None SyntaxError: invalid syntax \(<program>, line 1\)",
    "x = '\ud800'": "syntax_error None .*",
    "(" * 100_000: "syntax_error None .*",
    "def f(): return 1 / 0": "exception None ZeroDivisionError: division by zero",
    "def f(): assert False": "exception None AssertionError",
    "def f(): eval('1 +')": r"exception None SyntaxError: invalid syntax \(<string>, line 1\)",
    "exit(0)": "exception None SystemExit: 0",
    "raise Exception('\\ud800')": r"exception None Exception: \\ud800",
    "raise Exception('x' * 10**6)": "exception None Exception: x{989}",
    "raise MemoryError": "killed None out of memory",
    "import os; os._exit(0)": "killed None ended without a result, exit status 0",
    "import ctypes\nctypes.string_at(1)": "killed None signal 11: Segmentation fault",
    "import os\nos.write(3, b'ok int 2a')\nos._exit(0)": "ok 42 ",  # a report of its own
}
LOOPS = """
while True:\n try:\n  while True: pass\n except: pass ;; __import__('time').sleep(1000) ;;
import signal\nfor number in range(1, 65):\n try: signal.signal(number, lambda *_: None)
 except (OSError, ValueError): pass\nwhile True: pass ;; import re; re.match('(a*)*b', 'a' * 50) ;;
import os\nwhile True: os.write(3, b'ok int 1' * 1000) ;; while True: print('flood') ;;
import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass ;;
import threading\ndef work():\n while True: pass\nthreading.Thread(target=work).start()\nwork() ;;
class Endless(Exception):\n def __str__(self):\n  while True: pass\nraise Endless ;;
import os; os.closerange(0, 64)\n__import__('time').sleep(1000) ;;
import os\ntry: os.kill(os.getpid(), 19)\nexcept OSError: pass\nwhile True: pass ;;
class Endless:\n def __del__(self):\n  while True: pass\nEndless()"""
BOMBS = """bytearray(10**9) ;; 'x' * 10**9 ;; 1 << 10**10 ;; [bytes(10**4) for _ in range(10**5)] ;;
__import__('mmap').mmap(-1, 10**9)[0]"""
CRASHES = """
import sys\n sys.setrecursionlimit(10**9)\n x = []\n while True: x = [x]; repr(x) ;;
import sys\n sys.setrecursionlimit(10**9)\n f() ;; import sys\n sys.setrecursionlimit(30)\n 1 / 0"""
PATCHES = """
import builtins\nbuiltins.type = lambda *_: int ;; import sys\nsys.stdout = sys.stderr = None ;;
import os\nos._exit = os.write = os.close = lambda *_: None ;; import sys\nsys.modules.clear() ;;
import threading\nthreading.Thread(target=__import__('time').sleep, args=(100,)).start() ;;
import atexit\natexit.register(lambda: print('late')) ;; import os\nos.umask(0o777) ;;
class D:\n def __del__(self):\n  while True: pass\nd = D() ;;
import signal\nsignal.signal(14, lambda *_: None)\nsignal.setitimer(0, 0.001, 0.001) ;;
print('x' * 10**7)\nimport os\nos.write(2, b'\\xff') ;;
import sys\nsys.set_int_max_str_digits(0)\nassert len(str(10**5000)) == 5001"""
WRECKS = """
import builtins as b\nfor name in dir(b):\n if name[0] != '_': b.__dict__[name] = None ;;
import gc\nfor o in gc.get_objects():\n if type(o) is dict: o.pop('encode', 0) ;;
import os; os.write(3, b'x') ;; import os; print('before'); os.abort() ;;
import os\nfor fd in range(64):\n try: os.write(fd, b'\\0\\0\\0\\1' * 9)\n except OSError: pass"""
OTHERS = """[1] ;; b'x' ;; f ;; int ;; __import__('sys') ;; 10**4000 ;; -10**4000 ;; 1 << 10**7 ;;
'x' * 10**6 ;; type('int', (int,), {})(3) ;; type('bool', (), {})()"""  # values not reported
HOSTILE = """
import os\ndef shout(*args, **kwargs): os._exit(3)
methods = ("eq ne lt le gt ge hash bool int float index complex repr str format bytes len iter "
           "neg abs trunc round add mod getattribute reduce_ex reduce getstate sizeof class "
           "instancecheck subclasscheck getnewargs getnewargs_ex").split()
body = {{f"__{{name}}__": shout for name in methods}}
body |= {{name: property(shout) for name in ("real", "imag", "__class__", "__dict__")}}
meta = type("meta", (type,), {{"__name__": property(shout), "__hash__": shout, "__eq__": shout,
    "__getattribute__": shout, "__instancecheck__": shout, "__repr__": shout, "__bool__": shout}})
def f(): return meta('Evil', ({},), body)()"""
LIBRARY = """
import asyncio, fcntl, hashlib, mmap, os, shutil, socket, sqlite3, tempfile, unittest
from math import *; from fractions import *; from concurrent.futures import *; assert isqrt(17) == 4
hashlib.md5(b'0'); sqlite3.connect('x').execute('pragma user_version=1'); tempfile.TemporaryFile()
asyncio.run(asyncio.sleep(0)); assert ThreadPoolExecutor(2).submit(pow, 2, 3).result() == 8
a, b = socket.socketpair(); a.send(b'x'); b.recv(1); fcntl.flock(a, 2); os.set_inheritable(0, True)
x = open('z', 'w+'); x.truncate(9); assert mmap.mmap(x.fileno(), 9)[8] == 0; os.makedirs('a/b')
os.rename('a/b', 'c'); os.symlink('c', 'e'); shutil.rmtree('a'); shutil.copyfile('x', 'y')"""
INHERITED = f"""
import os, sys\ndef is_open(fd):\n try: return bool(os.fstat(fd))\n except OSError: return False
assert [fd for fd in range(256) if is_open(fd)] == [0, 1, 2, 3]; assert not os.environ
assert os.getsid(0) == os.getpgid(0) == os.getpid(); assert not sys.stdin.read()
assert {str(ROOT)!r} not in sys.path"""
RETURN, FIVE = "def f(): return {}", "{}\ndef f(): return 5"
GROUPS = {  # programs with what becomes of them, seconds
    "kinds": (KINDS, 0.5),
    "loops": (table(LOOPS, "timeout None out of time"), 0.2),
    "memory": (table(BOMBS, "[a-z]+ None (out of memory|OSError.*)", RETURN), 10.0),
    "crashes": (table(CRASHES, "(exception|killed|timeout) .*", "def f():\n {}"), 1.0),
    "patches": (table(PATCHES, "ok 5 ", FIVE), 1.0),
    "wrecks": (table(WRECKS, "killed .*", FIVE), 1.0),
    "others": (table(OTHERS, r"exception None the value is .*: \w+", RETURN), 1.0),
    "deceit": (table("int;;float;;str;;complex;;bytes;;list;;object", ".*: Evil", HOSTILE), 1.0),
    "honest": (table(f"{LIBRARY};;{INHERITED}", "ok 5 ", FIVE), 10.0),
}


@pytest.mark.parametrize("group", GROUPS)
def test_programs_harm_themselves_alone(pool, group):
    with open(__file__), socket.socket():  # which are not inherited
        attack(pool, *GROUPS[group])


VALUES = [
    0, 1, -1, 2**63, -(2**64), 10**3999, -(10**4000) + 1, True, False, None, 0.0, -0.0, 0.1, 1e308,
    5e-324, 1e999, -1e999, float("nan"), 1 + 2j, complex(-0.0, float("nan")), "", "text\n\0\r",
    "\u00e9\u4e2d\U0001f600", "\ud800", "x" * 30_000,
]  # fmt: skip
GARBAGE = [
    *b"|ok|ok int|ok int |ok int 1 2|ok list [1]|ok float 1.0|ok float |ok bool True".split(b"|"),
    *b"ok bool 2|ok NoneType 1|ok str \xff|okay|timeout out of time|ok int \xff".split(b"|"),
    *b"ok  3|OK int 3| ok int 3".split(b"|"), b"ok complex " + bytes(8), b"\0" * 100,
    b"ok int " + b"f" * 60_000,
]  # fmt: skip


def test_values_come_back_exactly_in_order_to_each_thread_and_nothing_else_is_read():
    nap = "import pickle, time\ntime.sleep({})\ndef f(): return pickle.loads({})".format
    programs = [nap(i * 7 % 10 / 400, pickle.dumps(value)) for i, value in enumerate(VALUES)]
    with sandbox.Pool(2) as pool, ThreadPoolExecutor(3) as threads:
        results = list(threads.map(lambda _: pool.run(programs, "f"), range(3)))
    for outcomes in results:
        assert [repr(value) for _, value, _ in outcomes] == [*map(repr, VALUES)]
        assert [type(value) for _, value, _ in outcomes] == [*map(type, VALUES)]
        assert {outcome[0::2] for outcome in outcomes} == {("ok", "")}
    assert {sandbox.judge(0, report)[:2] for report in GARBAGE} == {("killed", None)}
    assert sandbox.judge(0, b"exception \xff").detail == "\N{REPLACEMENT CHARACTER}"


def test_the_same_each_time_and_missing_modules_are_counted(pool, monkeypatch, capsys):
    program = "import random\ndef f(): return str((random.random(), set('abcdef'), hash('x')))"
    assert len(set(pool.run([program] * 8, "f") + sandbox.run([program], "f"))) == 1
    monkeypatch.setattr(sandbox, "missing_modules", sandbox.Counter())
    lie = "raise ModuleNotFoundError(\"No module named '\\x1b[2J'\")"
    sandbox.count_missing_modules(pool.run(["import numpy.linalg"] * 3 + [lie, "import os.x"], "f"))
    sandbox.report_missing_modules()
    assert "of a module: numpy 3, os.x 1; lab" in capsys.readouterr().out


# -- system calls and files out of reach -----------------------------------------------------------
ATTACK = """
import array, ctypes, fcntl, mmap, os, resource, signal, socket, struct, subprocess, threading, time
libc, x86 = ctypes.CDLL(None, use_errno=True), os.uname().machine == "x86_64"
HIGH = 1 << 32  # a bit of a register that the kernel does not look at in an int
outside, caller = {outside!r}, {caller}
secret, listener = outside + "/secret", outside + "/listener"
def call(number, on_arm, *args):
    args = [ctypes.c_long(a) if type(a) is int else a for a in args]
    if libc.syscall(ctypes.c_long(number if x86 else on_arm), *args) == -1:
        raise OSError(ctypes.get_errno(), "refused")
def pair(kind=socket.SOCK_DGRAM): return socket.socketpair(socket.AF_UNIX, kind)
with open("own", "w") as file: file.write("own")
own = os.open("own", os.O_RDWR)
files = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [own]))]
def f():
    {attempt}
    return 5"""
# They work without the layers: three send to a listener, others leave something open, change files
# beside landlock, stay, or take memory of the kernel; the last is getpid by the entry of 32 bits.
WORKING = r"""
pair()[0].sendto(b'x', listener) ;; pair(socket.SOCK_RAW)[0].sendto(b'x', listener) ;;
ends = (ctypes.c_int * 2)(); call(53, 199, 1, HIGH | 2, 0, ends); \
socket.socket(fileno=ends[0]).sendto(b'x', listener) ;;
pair(socket.SOCK_SEQPACKET) ;; pair(1)[0].bind('\0abstract') ;;
a, b = pair(1); [a.sendmsg([b'x'], files) for _ in range(99)] ;; os.getxattr(secret, 'user.note') ;;
os.listxattr(own) ;; os.setxattr('own', 'user.x', b'') ;; os.chmod('own', 0o600) ;; os.utime(own) ;;
fcntl.ioctl(own, 0x40086602, struct.pack('q', 0x80)) ;; call(157, 167, 1, 0, 0, 0, 0) ;;
os.sched_setaffinity(0, os.sched_getaffinity(0)) ;; os.open('own', os.O_RDONLY | os.O_TRUNC) ;;
os.open('own', 3 | os.O_TRUNC) ;; os.open(secret, 3) ;; os.open('/dev/ptmx', 3 | os.O_NOCTTY) ;;
os.truncate('own', 0) ;; call(2, -1, b'own', os.O_TRUNC, 0) ;;
fcntl.fcntl(os.pipe()[1], 1031, 1 << 19) ;; os.splice(own, os.pipe()[1], 3, offset_src=0) ;;
call(425, 425, 1, bytes(120)) ;; call(248, 217, b'user', b'x', b'x', 1, -2) ;;
mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x2000) ;;
page = mmap.mmap(-1, 4096, prot=7); page.write(bytes.fromhex('b814000000cd80c3')); \
ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()"""
# These fail without the layers, too, here or elsewhere, or would do harm; call 500 is none.
PROBES = """
a, b = pair(1); a.sendto(b'x', listener) ;; a, b = pair(1); b.close(); a.connect(listener) ;;
socket.socket() ;; os.mknod('device', 0o20600, os.makedev(1, 1)) ;; call(500, 500) ;;
[os.fork() for _ in range(6)] ;; os.execv('/bin/true', ['true']) ;; subprocess.run(['/bin/true']) ;;
[os.fork() or (os.setsid(), os.fork() or time.sleep(20)) for _ in range(5)] ;;
os.kill(os.getppid(), 9) ;; os.kill(-1, 0) ;; os.killpg(0, 9) ;; os.kill(1, 0) ;;
resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (0, 0)) ;; call(435, 435, bytes(88), 88) ;;
call(101, 117, 0) ;; call(165, 40) ;; call(272, 97, 1 << 28) ;; call(319, 279, b'x', 0)"""
FILES = """
open(secret).read() ;; open(secret, 'a') ;; os.remove(secret) ;; os.rename(secret, 'mine') ;;
os.link(secret, 'mine') ;; os.truncate(secret, 0) ;; os.rmdir(os.getcwd()) ;;
os.symlink(secret, 'link'); open('link').read() ;; os.chdir(outside); open('secret').read() ;;
os.listdir(outside) ;; open(outside + '/new', 'w') ;; os.mkdir(outside + '/new') ;;
os.symlink('x', outside + '/new') ;; open('../new', 'w') ;; os.listdir('/') ;;
open(f'/proc/{caller}/environ').read() ;; open(f'/proc/{os.getppid()}/mem', 'r+b') ;;
open('/proc/self/environ').read() ;; open('/etc/passwd').read() ;; open('/dev/shm/x', 'w') ;;
open(os.__file__, 'a') ;; open(os.path.dirname(os.__file__) + '/x', 'w')"""
LITTER = r"""
for _ in range(3000): os.mkdir('d'); os.chdir('d') ;;
for i in range(3000): open(str(i), 'w').close() ;; os.chmod('.', 0) ;;
os.mkdir('a'); open('a/b', 'w'); os.chmod('a', 0) ;;
os.mkdir('d'); os.symlink(outside, 'd/link'); os.symlink(outside, 'link') ;;
open('\n', 'w'); open('-rf', 'w'); open(b'\xff', 'w'); open('x' * 255, 'w')"""
FILL = """x = open('x', 'wb'); [x.write(bytes(1 << 20)) for _ in range(40)] ;;
for i in range(200): open(str(i), 'wb').write(bytes(1 << 20))"""
REFUSED = rf"exception None .*\[Errno (1|13|38|95)\].*|killed None signal {signal.SIGSYS:d}.*"
BEYOND = {  # attempts with what becomes of them, by the layer that stops them
    "seccomp": table(f"{WORKING};;{PROBES}", REFUSED),
    "landlock": table(FILES, "exception None (OSError|PermissionError).*"),
    "namespaces": table(FILL, r".*\[Errno (27|28)\].*") | table(LITTER, "(ok|exc|timeout).*"),
    "capabilities": table("resource.setrlimit(resource.RLIMIT_AS, (-1, -1))", ".*not allowed .*"),
}


@pytest.fixture
def outside(tmp_path):
    """A folder with a secret, that has an attribute, and a socket that listens."""
    (tmp_path / "secret").write_text("the secret")
    with contextlib.suppress(OSError):
        os.setxattr(tmp_path / "secret", "user.note", b"a note")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"{tmp_path}/listener")
        listener.setblocking(False)
        place = {"outside": str(tmp_path), "caller": os.getpid()}
        yield tmp_path, listener, lambda attempt: ATTACK.format(attempt=attempt, **place)


def state_of(folder):
    status = (folder / "secret").stat()
    content = (folder / "secret").read_text(), os.listxattr(folder / "secret")
    return sorted(os.listdir(folder)), content, status[:3], status[4:7], status.st_mtime_ns


@pytest.mark.parametrize("layer", BEYOND)
def test_nothing_outside_is_reached(pool, outside, layer):
    folder, listener, attack_on = outside
    if layer not in sandbox.protections():
        pytest.skip(f"no {layer} here")
    before = state_of(folder)
    attack(pool, {attack_on(each): pattern for each, pattern in BEYOND[layer].items()}, 5.0)
    assert state_of(folder) == before
    with pytest.raises(BlockingIOError):
        listener.recv(9)
    if layer == "namespaces":  # and no network interface is up
        worker = f"/proc/{pool.workers[0].process.pid}"
        assert len(Path(f"{worker}/net/route").read_text().splitlines()) <= 1
        assert os.readlink(f"{worker}/ns/net") != os.readlink("/proc/self/ns/net")


def test_without_the_layers_the_same_attacks_work(outside, monkeypatch):
    """So that refusing them proves something; still no core, and a program costs only itself."""
    folder, listener, attack_on = outside
    text = Path(inside.__file__).read_text()
    (folder / "child.py").write_text(text.replace("LAYERS = (", "LAYERS = () and ("))
    monkeypatch.setattr(sandbox, "CHILD", folder / "child.py")
    attempts = [*map(attack_on, table(WORKING))]
    is_dumpable = "import ctypes\ndef f(): return ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)"
    killer = "import os\nos.kill(os.getppid(), 9)"
    outcomes = sandbox.run([*attempts, is_dumpable, killer, HONEST], "f", workers=1)
    assert [listener.recv(9) for _ in range(3)] == [b"x"] * 3
    assert [outcome.value for outcome in outcomes[-3:]] == [0, None, "honest"]
    pairs = zip(table(WORKING), outcomes, strict=False)
    if weak := [attempt for attempt, outcome in pairs if outcome.value != 5]:
        pytest.skip(f"{len(weak)} of {len(attempts)} prove nothing here: {weak}")  # an older kernel


def test_system_call_numbers():
    """Against the C library's headers, where they are installed."""
    tables = f"{inside.ALLOWED}, {inside.NOT_SUPPORTED}, {inside.BY_ARGUMENT}".split(",")
    for column, header in (1, "x86_64-linux-gnu/asm/unistd_64.h"), (2, "asm-generic/unistd.h"):
        if Path("/usr/include", header).exists():
            text = Path("/usr/include", header).read_text()
            defined = dict(re.findall(r"#define __NR(?:3264)?_(\w+) +(\d+)", text))
            for name, *numbers in map(str.split, tables):
                expected = defined.get(name, defined.get(name.removeprefix("new"), "-"))
                assert numbers[column - 1] == expected, name


# -- the pool --------------------------------------------------------------------------------------
@pytest.mark.parametrize("attempt", ["prctl(1, 0, 0, 0, 0)", "syscall(60 if x86 else 93, 0)"])
def test_no_program_outlives_its_worker(attempt):
    """It refuses the signal of its worker's death; its first thread ends, and another goes on."""
    if "seccomp" not in sandbox.protections():
        pytest.skip("no seccomp here")
    program = f"""import ctypes, os, threading, time\nx86 = os.uname().machine == 'x86_64'
threading.Thread(target=time.sleep, args=(20,)).start()
time.sleep(0.2)\nctypes.CDLL(None).{attempt}\ntime.sleep(20)"""
    worker = sandbox.Worker()
    worker.start()
    worker.send(dict(program=program, function=None, seconds=20, memory=1 << 29))
    assert wait_until(lambda: children([worker.process.pid]))
    (child,) = children([worker.process.pid])
    time.sleep(0.5)  # for the attempt
    assert "CapEff:\t0000000000000000" in Path(f"/proc/{child}/status").read_text()  # it runs
    worker.process.kill()
    assert wait_until(lambda: child not in processes(), 1)
    worker.stop()


@pytest.mark.parametrize("number", [9, pytest.param(19, marks=pytest.mark.slow)])  # KILL, STOP
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


def test_a_worker_that_says_too_much_or_cannot_start(monkeypatch):
    monkeypatch.setattr(sandbox, "MAX_REPORT", 90)
    outcomes = sandbox.run(["def f(): return 'x' * 99", HONEST], "f", workers=1)
    assert [outcome.kind for outcome in outcomes] == ["killed", "ok"]
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RuntimeError, match="does not start"):
        sandbox.run([HONEST], "f", workers=1)


def test_workers_die_with_the_caller(tmp_path):
    """One at work, one that waits; and a program whose worker died before it began."""
    for worker, status in ("os.getppid()", 0), ("os.getpid()", 1):
        script = f"import os\nfrom lab.sandbox import child\nchild.die_with({worker})"
        assert subprocess.run([sys.executable, "-c", script], cwd=ROOT).returncode == status
    script = "from lab import sandbox\nsandbox.run({!r}, 'f', 99.0, workers=2)"
    caller = [sys.executable, "-c", script.format([HONEST, "while True: pass"])]
    process = subprocess.Popen(caller, cwd=ROOT, env=os.environ | {"TMPDIR": str(tmp_path)})
    assert wait_until(lambda: len(children([process.pid])) == 2)
    workers = children([process.pid])
    assert wait_until(lambda: children(workers))
    family = {*workers, *children(workers)}
    process.kill()
    process.wait()
    assert wait_until(lambda: not processes().keys() & family)
    assert wait_until(lambda: list(tmp_path.iterdir()) == [])


@pytest.mark.slow
def test_hundreds_of_programs_leave_nothing(monkeypatch, tmp_path):
    def left():
        pids = [os.getpid(), *children([os.getpid()])]
        return [(pid, len(os.listdir(f"/proc/{pid}/fd"))) for pid in pids], threading.active_count()

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = left()
    mixture = [HONEST, "1 / 0", "import os; os._exit(1)", "open('x', 'w').write('x')", "print('x')"]
    with sandbox.Pool(2) as pool:
        pool.run(mixture, "f")
        during = left()
        outcomes = pool.run(mixture * 60, "f", seconds=10.0)
        assert left() == during and len(list(tmp_path.iterdir())) == 2
    assert outcomes == outcomes[:5] * 60
    assert left() == before and list(tmp_path.iterdir()) == []
