"""The process of a prepare.py, and the workers it shares its work with."""

import contextlib
import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor


def start(main):
    """Run a prepare.py: mistakes of the user and interruptions end it with one line."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit("prepare.py: interrupted; run the same command again") from None
    except (ValueError, OSError) as error:
        raise SystemExit(f"prepare.py: {error}") from None


def cores():
    """The processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


@contextlib.contextmanager
def pool(workers):
    """An executor. Its processes start afresh: a fork would break the threads of hub clients.

    What has not begun when the body ends, in whatever way, is not done.
    """
    context = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(workers, context, initializer=follow_parent)
    try:
        yield executor
    finally:
        executor.shutdown(cancel_futures=True)


def follow_parent():
    """In a worker: leave Ctrl-C to the parent, and end with it, however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch():
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
