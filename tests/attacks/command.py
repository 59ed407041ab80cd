"""Command lines in forks of this process, which has imported what is slow to import.

Python and torch take seconds to start, a tiny run a fraction of one. This process never trains and
starts no thread, so that its forks are as good as new. A fork forgets this repository's own modules
and imports those of the tree it works in.
"""

import atexit
import contextlib
import multiprocessing.util
import os
import resource
import runpy
import select
import signal
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import NamedTuple

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

import torch
import torch._inductor.config
from tqdm import tqdm

torch.set_num_threads(1)
# Its own lock is shared with forks: one that is killed while it holds it would stop all others.
tqdm.set_lock(threading.RLock())
tqdm.monitor_interval = 0  # no thread

ROOT = Path(__file__).parent.parent.parent
MEMORY = 12 << 30  # bytes of address space: what a wrong setting asks for must not take them all


class Ended(NamedTuple):
    status: int | None  # None: it had not ended in time and was killed
    seconds: float
    output: str
    errors: str


class Process:
    """A running command. words: as after `python`; prelude: code that is executed before it.

    env: variables, such as the rank; None of them outlives the process group.
    """

    def __init__(self, tree, words, prelude="", env=None):
        self.files = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115
        self.begin, self.status = time.perf_counter(), None
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            become(tree, [str(word) for word in words], prelude, env or {}, self.files)
        self.handle = os.pidfd_open(self.pid)

    def alive(self):
        return self.status is None and not select.select([self.handle], [], [], 0)[0]

    def elapsed(self):
        """Seconds since the start, without those in which others had the processor."""
        waited = 0.0
        with contextlib.suppress(OSError, ValueError, IndexError):
            waited = int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[1]) / 1e9
        return time.perf_counter() - self.begin - waited

    def kill(self, number=signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait(self, seconds):
        """Ended; what still runs after so many seconds is killed."""
        ended = False
        while not ended and self.elapsed() < seconds:
            ended = select.select([self.handle], [], [], 0.5)[0]
        took = self.elapsed()
        self.end()
        texts = [self.text(number) for number in (0, 1)]
        for file in self.files:
            file.close()
        return Ended(self.status if ended else None, took, *texts)

    def end(self):
        """Kill it and whatever it started."""
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self.kill()
            _, code = os.waitpid(self.pid, 0)
            self.status = os.waitstatus_to_exitcode(code)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            os.close(self.handle)

    def text(self, number):
        file = self.files[number]
        return os.pread(file.fileno(), 1 << 22, 0).decode(errors="replace")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()


def run(tree, words, patience, prelude="", env=None):
    with Process(tree, words, prelude, env) as process:
        return process.wait(patience)


def become(tree, words, prelude, env, files):
    """In the fork: be the command. Does not return."""
    status = 1
    try:
        settle(tree, env, files)
        exec(compile(prelude, "prelude", "exec"), {"__name__": "prelude"})
        execute(tree, words)
        status = 0
    except SystemExit as end:
        status = exit_status(end.code)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            threading._shutdown()
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def settle(tree, env, files):
    os.setsid()
    for number, file in (1, files[0]), (2, files[1]):
        os.dup2(file.fileno(), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    atexit._clear()  # what is to be done at this process's end is not the fork's to do,
    atexit.register(multiprocessing.util._exit_function)  # but for this
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    os.environ.update({key: str(value) for key, value in env.items()})
    os.environ["PYTHONPATH"] = str(tree)
    os.chdir(tree)
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(f"{ROOT}{os.sep}"):
            del sys.modules[name]
    for name in ("tests", "data", "tasks", "studies", "pretrained", "sandbox"):
        sys.modules.pop(name, None)  # a package without a file
    sys.path[:] = [str(tree), *(path for path in sys.path if path not in ("", str(ROOT)))]


def execute(tree, words):
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        exec(compile(words[1], "command", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = words
        runpy.run_path(str(Path(tree, words[0])), run_name="__main__")


def exit_status(code):
    """As the interpreter treats what SystemExit was raised with."""
    if code is None or isinstance(code, int):
        return (code or 0) & 0xFF
    print(code, file=sys.stderr)
    return 1
