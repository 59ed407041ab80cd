"""What scripts of data/ share: workers, of which none outlives its parent, and whole files."""

import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest
from small import ROOT

from data.files import atomic_path
from data.processes import in_order

PARENT = """
import os, time
from data.processes import in_order

def work(item):
    os.write(1, b"x")
    time.sleep(0.5)

if __name__ == "__main__":
    for _ in in_order(work, range(2), 2):
        time.sleep(60)
"""


def slow_square(item):
    blocked = signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert blocked or multiprocessing.parent_process() is None  # Ctrl-C is the parent's
    time.sleep(0.2 * (item == 0))
    if item == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return item**2, os.getpid()


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_order_and_few_items_wait(workers):
    taken = []
    items = (taken.append(i) or i for i in itertools.count())
    results = in_order(slow_square, items, workers)
    squares, processes = zip(*itertools.islice(results, 4), strict=True)
    assert squares == (0, 1, 4, 9) and len(taken) <= 4 + 2 * workers
    assert (os.getpid() in processes) == (workers == 1)
    if workers == 2:
        with pytest.raises(ChildProcessError, match="a worker process was killed"):
            list(results)


@pytest.mark.slow
def test_workers_end_with_a_parent_that_is_killed(tmp_path):
    """They hold its output open: it ends when the last of them does."""
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    command, env = [sys.executable, script], os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env) as p:
        assert p.stdout.read(2) == b"xx"
        p.kill()
        assert p.communicate(timeout=20) == (b"", None)


def test_a_file_is_whole_or_is_not_there(tmp_path):
    with pytest.raises(KeyboardInterrupt), atomic_path(tmp_path / "a") as partial:
        partial.write_text("half")
        raise KeyboardInterrupt
    assert not [*tmp_path.iterdir()]
