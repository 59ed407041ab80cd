"""The main process of a prepare.py, and its worker processes."""

import itertools
import multiprocessing
import os
import signal
import threading
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool


def start(main):
    """Run a prepare.py: what a user can mend ends it with one line on stderr, exit status 1."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit("interrupted; run the same command again") from None
    except ModuleNotFoundError as error:
        raise SystemExit(f"no package {error.name}: pip install {error.name}") from None
    except (ValueError, OSError, MemoryError, AssertionError) as error:  # the last: reasoning-gym's
        message = " ".join(str(error).split()) or type(error).__name__
        raise SystemExit(message[:600]) from None


def cores():
    """The processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def in_order(task, items, workers):
    """Results of task(item), in order; at most two items per worker are taken ahead of the reader.

    The items may have no end, which Executor.map and the map of `datasets` would wait for. Raises
    ChildProcessError if a worker dies: the system kills processes that take too much memory.
    """
    if workers == 1:
        yield from map(task, items)
        return
    items = iter(items)
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, context, initializer=follow_parent)
    try:
        waiting = deque(submit(pool, task, item) for item in itertools.islice(items, 2 * workers))
        while waiting:
            yield waiting.popleft().result()
            waiting.extend(submit(pool, task, item) for item in itertools.islice(items, 1))
    except BrokenProcessPool:
        raise ChildProcessError(
            "a worker process was killed, perhaps for lack of memory; run the same command again"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def submit(pool, task, item):
    """The task's future. Workers that this starts leave Ctrl-C to the parent from the beginning."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited
    future = pool.submit(task, item)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return future


def follow_parent():
    """In a worker: end when the parent does, even if killed."""
    threading.Thread(target=end_with, args=[multiprocessing.parent_process()], daemon=True).start()


def end_with(parent):
    parent.join()
    os._exit(1)
