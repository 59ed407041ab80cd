"""What the tests share: small files, a small run of train.py in processes of its own."""

import contextlib
import json
import multiprocessing
import os
import runpy
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_flatten

ROOT = Path(__file__).parents[1]
ENV = os.environ | {"OMP_NUM_THREADS": "1"}
RANKS = ROOT / "data/wordproblems/vocabulary.tiktoken"
SMALL = [
    "--test_examples=8", "--dim=16", "--layers=2", "--heads=2", "--mlp=32", "--batch_size=8",
    "--k_schedule=[(0,4),(9,2)]", "--max_iters=24", "--save_interval=5",
    "--eval_interval=12", "--log_interval=1", "--warmup=3", "--device=cpu",
    "--dtype=float32",
]  # fmt: skip
torch.set_num_threads(1)


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: a compiler, a browser, or minutes; with -m slow")
    config.option.markexpr = config.option.markexpr or "not slow"


@pytest.fixture(scope="session")
def puzzles(tmp_path_factory):
    """A folder of 4x4 grids with random clues."""
    draw = np.random.default_rng(0)
    grid = np.array([1, 2, 3, 4, 3, 4, 1, 2, 2, 1, 4, 3, 4, 3, 2, 1])
    solutions = np.stack([1 + draw.permutation(4)[grid - 1] for _ in range(400)])
    pairs = np.stack([solutions * (draw.random((400, 16)) < 0.4), solutions], 1)
    folder = tmp_path_factory.mktemp("data")
    np.save(folder / "test.npy", pairs[:8].astype(np.uint8))
    np.save(folder / "train.npy", pairs[8:].astype(np.uint8))
    return folder


def write_lines(path, rows):
    """Write JSON lines; returns the path."""
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text(lines, encoding="utf-8")
    return path


def prepare(name, **flags):
    """data/NAME/prepare.py as a user runs it, but in this process alone; the folder it wrote."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "cpu_count", lambda: None)
        script = str(ROOT / "data" / name / "prepare.py")
        patch.setattr(sys, "argv", [script, *(f"--{k}={v}" for k, v in flags.items())])
        runpy.run_path(script, run_name="__main__")
    return Path(flags["out"])


def command(data, out, *flags):
    return ["train.py", f"--data={data}", f"--out_dir={out}", *SMALL, *flags]


# Processes of their own that start at once: forks of one that has loaded torch
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["torch._dynamo", "numpy", "tqdm"])


def run(*args, world=1):
    """Exit status and output of a run of train.py on that many processes."""
    with tempfile.NamedTemporaryFile() as log:
        processes = start(log.name, args, world)
        for process in processes:
            process.join()
        return max(abs(process.exitcode) for process in processes), log.read().decode()


def stop_at(iteration, how, *args, world=1):
    """Start a run, send its processes a signal once it has logged the iteration."""
    processes = start(os.devnull, args, world)
    since = time.time()
    while not any(line["iter"] >= iteration for line in lines(args[1])):
        assert all(process.is_alive() for process in processes) and time.time() < since + 200
        time.sleep(0.02)
    for process in 2 * processes:  # twice, as torchrun and a supervisor may both do
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, how)
    for process in processes:
        process.join()


def start(log, args, world):
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
    shared = {"WORLD_SIZE": str(world), "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    each = [shared | {"RANK": str(r), "LOCAL_RANK": str(r)} for r in range(world)]
    argv = command(*args)
    processes = [FORKS.Process(target=forked, args=(argv, log, env)) for env in each]
    for process in processes:
        process.start()
    return processes


def forked(argv, log, env):
    for output in 1, 2:
        os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND), output)
    torch.set_num_threads(1)
    os.environ.update(env)
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    sys.argv = argv
    runpy.run_path("train.py", run_name="__main__")


@pytest.fixture
def train(monkeypatch):
    """train(data, out, *flags) runs train.py in this process, which has torch already."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    monkeypatch.chdir(ROOT)

    def here(*args):
        monkeypatch.setattr(sys, "argv", command(*args))
        runpy.run_path("train.py", run_name="__main__")

    yield here
    for number, handler in handlers.items():
        signal.signal(number, handler)


def lines(out):
    path = out / "metrics.jsonl"
    text = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in text if '"iter"' in line]


def state(out):
    saved = torch.load(out / "ckpt.pt", weights_only=True)
    return {k: v for k, v in saved.items() if k not in ("config", "logged")}


def same(a, b):
    """Whether two states are equal, bit for bit."""
    a, b = tree_flatten(a), tree_flatten(b)
    pairs = zip(a[0], b[0], strict=True)
    equal = (torch.equal(x, y) if torch.is_tensor(x) else x == y for x, y in pairs)
    return a[1] == b[1] and all(equal)
