"""The process of a prepare.py, and the workers that it shares its work with."""

import multiprocessing
import os
import signal
from collections import deque


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


def in_order(task, items, workers):
    """Results of task(item), in order; at most two items a worker are taken ahead of the reader.

    The workers start afresh, since a fork would break the threads of the hub's client. Ctrl-C is
    the parent's to handle. They end with it, however it ends: their pipes are closed then.
    """
    if workers == 1:
        yield from map(task, items)
        return
    ignore = signal.signal, (signal.SIGINT, signal.SIG_IGN)
    with multiprocessing.get_context("spawn").Pool(workers, *ignore) as pool:
        waiting = deque()
        for item in items:
            waiting.append(pool.apply_async(task, (item,)))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().get()
        yield from (each.get() for each in waiting)
