"""Runs untrusted Python programs, each in its own process, and reports the outcome.

    run(["def f(): return 6 * 7"], "f") -> [Outcome(kind="ok", value=42, detail="")]

The caller is never forked: each worker is a small clean interpreter (`child.py`) that forks
one child per program. On every system a child has its own session and process group, an empty
environment, an empty standard input, a temporary directory that is emptied after it, no other
descriptors, and limits on CPU time, memory, file size, descriptors and processes. It is killed with
its group when its time is up. Linux adds the layers that the system permits (`protections()`):

    landlock      no file outside its directory can be opened, except Python's own, to read
    seccomp       only the system calls that Python needs: no new process, program or signal; no
                  socket but connected pairs; no change of a file's owner, mode or times; no
                  extended attributes; no larger kernel buffers
    namespaces    no network; at most 64 MiB of temporary files
    capabilities  root has no more rights than other users

What a program reports is parsed strictly, into exact types. It cannot change the outcome of another
program, but it can lie about its own: a forged value cannot be told from a computed one.

Not covered: names, sizes, dates and link targets of files outside show; programs share the
processors and can slow each other down; kernel bugs; side channels. `memory` limits a program's
address space: full pipes and socket pairs, locks and threads take some tens of megabytes of kernel
memory besides, and more as root, who is exempt from the limit on processes. Without landlock a
program can read and write whatever the user can; without seccomp it can leave its group, outlive
it, and send signals to all processes of the user. macOS has no layers and no memory limit: only run
harmless programs.
"""

import atexit
import concurrent.futures
import contextlib
import functools
import json
import os
import queue
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from lab.sandbox.child import HEADER, MAX_DETAIL, MAX_REPORT, TIMED_OUT, TOO_LARGE, clear

CHILD = Path(__file__).with_name("child.py")
PATIENCE = 30.0  # seconds that a worker may take to answer, beyond the program's own


class Outcome(NamedTuple):
    kind: str  # "ok", "no_function", "syntax_error", "timeout", "exception" or "killed"
    value: object  # if ok: an exact int, float, complex, str or bool, or None; a Fraction as str
    detail: str


def run(programs, function="simple_math_problem", seconds=2.0, memory=512 << 20, workers=None):
    """[Outcome of each program, in order]: of calling function(), or of the text alone if None."""
    with Pool(workers) as pool:
        return pool.run(programs, function, seconds, memory)


class Pool:
    """Workers that are kept from one `run` to the next; they start when they are first needed."""

    def __init__(self, workers=None):
        self.workers = [Worker() for _ in range(workers or min(os.cpu_count(), 8))]
        self.idle = queue.LifoQueue()
        for worker in self.workers:
            self.idle.put(worker)

    def run(self, programs, function="simple_math_problem", seconds=2.0, memory=512 << 20):
        def run_one(program):
            worker = self.idle.get()
            try:
                return worker.run(program, function, seconds, memory)
            finally:
                self.idle.put(worker)

        with concurrent.futures.ThreadPoolExecutor(len(self.workers)) as threads:
            return list(threads.map(run_one, programs))

    def close(self):
        for worker in self.workers:
            worker.stop()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


@functools.cache
def protections():
    """The names of the layers that work on this system, besides limits and the clock."""
    worker = Worker()
    worker.start()
    worker.stop()
    return worker.layers


@functools.cache
def report_missing_layers():
    """Start a worker, and say once which of the layers above are missing on this system."""
    known = {"namespaces", "capabilities", "landlock", "seccomp"}
    if missing := known - set(protections()):
        print(f"generated programs run without {', '.join(sorted(missing))}: see lab/sandbox")


missing_modules = Counter()


def count_missing_modules(outcomes):
    """Count the programs that ended for want of a module; it is said once, at exit."""
    for each in outcomes:
        if found := re.match(r"ModuleNotFoundError: No module named '([\w.]{1,40})", each.detail):
            missing_modules[found[1]] += 1


@atexit.register
def report_missing_modules():
    if missing_modules:
        counts = ", ".join(f"{name} {n:,}" for name, n in missing_modules.most_common(9))
        print(f"programs that ended for want of a module: {counts}; lab/sandbox has Python's own")


class Worker:
    def __init__(self):
        self.process = None

    def run(self, program, function, seconds, memory):
        request = dict(program=program, function=function, seconds=seconds, memory=memory)
        for _ in range(2):  # a worker that died may have been killed by others: ask a second one
            if self.process is None or self.process.poll() is not None:
                self.start()
            try:
                self.send(request)
                return judge(*self.receive(seconds + PATIENCE))
            except OSError:
                self.stop()
        return Outcome("killed", None, "the worker died")

    def start(self):
        self.stop()
        self.directory = tempfile.mkdtemp(prefix="sandbox-")
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-u", "-X", "utf8", CHILD, self.directory],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"PYTHONHASHSEED": "0"},  # the order of a set is the same each time
            start_new_session=True,
        )
        try:
            _, layers = self.receive(PATIENCE)
        except OSError:
            self.stop()
            raise RuntimeError("the sandbox's worker does not start") from None
        self.layers = json.loads(layers)

    def stop(self):
        """At the end of its input the worker cleans up and exits; if it does not, it is killed."""
        if self.process is None:
            return
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.process = None
        with contextlib.suppress(OSError):  # most often it is gone
            clear(self.directory)
            os.rmdir(self.directory)

    def send(self, request):
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()

    def receive(self, seconds):
        deadline = time.monotonic() + seconds
        status, report = HEADER.unpack(self.read(HEADER.size, deadline))
        if report > MAX_REPORT:
            raise OSError("no such answer was asked for")
        return status, self.read(report, deadline)

    def read(self, size, deadline):
        fd, data = self.process.stdout.fileno(), b""
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        while len(data) < size:
            left = deadline - time.monotonic()
            chunk = left > 0 and poll.poll(1000 * left) and os.read(fd, size - len(data))
            if not chunk:
                raise OSError("the worker has died or is late")
            data += chunk
        return data


def judge(status, report):
    if status == TIMED_OUT:
        return Outcome("timeout", None, "out of time")
    if status < 0:
        return Outcome("killed", None, f"signal {-status}: {signal.strsignal(-status)}")
    try:
        return Outcome(*parse(report))
    except (ValueError, KeyError, struct.error):
        return Outcome("killed", None, f"ended without a result, exit status {status}")


def parse(report):
    """kind, value and detail; KeyError, ValueError or struct.error if the report is malformed."""
    kind, _, rest = report.partition(b" ")
    if kind == b"ok":
        type_name, _, data = rest.partition(b" ")
        return "ok", READ[type_name](data), ""
    names = {b"no_function", b"syntax_error", b"exception", b"killed"}
    if kind not in names:
        raise ValueError("no kind of outcome")
    return kind.decode(), None, rest.decode("utf-8", "replace")[:MAX_DETAIL]


def read_int(data):
    value = int(data, 16)
    if abs(value) >= TOO_LARGE:
        raise ValueError("too large")
    return value


READ = {
    b"NoneType": {b"": None}.__getitem__,
    b"bool": {b"0": False, b"1": True}.__getitem__,
    b"int": read_int,
    b"float": lambda data: struct.unpack("!d", data)[0],
    b"complex": lambda data: complex(*struct.unpack("!dd", data)),
    b"str": lambda data: data.decode("utf-8", "surrogatepass"),
}
