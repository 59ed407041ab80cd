import contextlib
import io
import json
import multiprocessing
import os
import runpy
import signal
import socket
import sys
import tempfile
import time
from multiprocessing import connection
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
HOUSE = ROOT.parents[1]  # with data/ and results/
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # several only wait for each other at this size
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["torch._inductor.config"])  # what the first step of a run imports
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it, and so would runs started here
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in the background of a script
    signal.signal(signal.SIGINT, signal.default_int_handler)

TINY = [  # 4x4 Sudoku on a model of a few thousand parameters: seconds per run
    "--box=(2,2)", "--k_schedule=[(0,4)]", "--dim=32", "--layers=2", "--heads=2", "--mlp=64",
    "--train_examples=200", "--test_examples=40", "--batch_size=16", "--buffer=2", "--warmup=5",
    "--max_iters=20", "--eval_interval=10", "--log_interval=1", "--device=cpu", "--dtype=float32",
    "--chains_from=0",
]  # fmt: skip


class Script:
    """A script in processes of its own, with ranks as torchrun gives them; none outlives the block.

        with Script("train.py", *flags, processes=2) as script:
            script.wait()

    Forked from a server that has imported torch and done no more: quickly, and without the threads
    of a process that has trained, which a fork loses (and with a GPU torch refuses to go on).
    """

    def __init__(self, name, *flags, processes=1, last=()):  # last: flags of the last one alone
        self.folder = tempfile.TemporaryDirectory()
        for rank in range(processes):  # to be read even where a process fails before it prints
            for stream in ("stdout", "stderr"):
                Path(self.folder.name, f"{stream}.{rank}").touch()
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": processes}
        self.processes = [
            FORKS.Process(target=become, args=(name, own, self.folder.name, address, rank))
            for rank, own in enumerate([flags] * (processes - 1) + [(*flags, *last)])
        ]

    def __enter__(self):
        for process in self.processes:
            process.start()
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.terminate()  # torchrun then ends its own
        for process in self.processes:
            process.join(10)
            process.kill()
            process.join()
        self.folder.cleanup()

    def wait(self, seconds=120):
        """Until all have ended; AssertionError with their tracebacks if one fails or is late."""
        waiting = {process.sentinel: process for process in self.processes}
        deadline = time.monotonic() + seconds
        while waiting:
            ended = connection.wait(waiting, max(0, deadline - time.monotonic()))
            codes = [waiting.pop(sentinel).exitcode for sentinel in ended]
            if any(codes) or not ended:
                said = "".join(map(self.errors, range(len(self.processes))))
                raise AssertionError(f"exit status {codes or 'none: out of time'}\n{said}")

    def output(self, rank=0):
        return Path(self.folder.name, f"stdout.{rank}").read_text()

    def errors(self, rank=0):
        return Path(self.folder.name, f"stderr.{rank}").read_text()


def become(name, flags, folder, address, rank):
    """In a forked process: be the script. What it prints goes to files of the folder."""
    for number, stream in (1, "stdout"), (2, "stderr"):
        os.dup2(os.open(f"{folder}/{stream}.{rank}", os.O_WRONLY | os.O_CREAT), number)
    own = address | {"RANK": rank, "LOCAL_RANK": rank} | ONE_THREAD
    os.environ.update({key: str(value) for key, value in own.items()})
    torch.set_num_threads(1)
    os.chdir(ROOT)
    sys.argv = [*map(str, (name, *flags))]
    runpy.run_path(str(ROOT / name), run_name="__main__")


def free_port():
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        return own.getsockname()[1]


def train(out, *flags, processes=1):
    """Run train.py to its end; what it printed. One process is this one, which saves its start."""
    if processes == 1:
        return run_script(*training(out, *flags))
    with Script(*training(out, *flags), processes=processes) as script:
        script.wait()
        return script.output()


def training(out, *flags):
    """The command of a tiny run into that folder; --box is a setting of Sudoku alone."""
    other = any(str(flag).startswith(("--dataset=", "config/")) for flag in flags)
    tiny = [flag for flag in TINY if not (other and flag.startswith("--box"))]
    return "train.py", f"--out_dir={out}", *tiny, *flags


def run_script(name, *flags):
    """Execute a script of the repository as python would, here; raises what it raises."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(io.StringIO()) as printed,
    ):
        patch.setattr(sys, "argv", [str(name), *flags])
        patch.setattr(sys, "path", [*sys.path])  # a script of data/ adds the root
        patch.chdir(ROOT)
        try:
            runpy.run_path(str(ROOT / name), run_name="__main__")
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
    return printed.getvalue()


def run_main(module, **settings):
    """Execute main() of a script that is imported, with these settings; the folder it wrote."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setattr(module, name, value)
        module.main()
        return Path(module.out)


def metrics(out):
    """The lines of a run's record."""
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def losses(out):
    """That a run recorded while it trained."""
    return [line["loss"] for line in metrics(out) if line["type"] == "train"]


def same(a, b):
    """Whether two checkpoints are equal to the bit, but for the folder in their configuration."""
    if isinstance(a, dict):
        keys = a.keys() - {"out_dir", "init_from"}
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in keys)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a.equal(b) if isinstance(a, torch.Tensor) else a == b


def evaluate(out, *flags):
    """Run eval.py on a run; what it printed."""
    return run_script("eval.py", f"--out_dir={out}", "--device=cpu", "--dtype=float32", *flags)


@pytest.fixture
def refused(capsys):
    """Calls what a mistake must end; the message, which is one line of reason and no traceback."""

    def message(call, *args):
        with pytest.raises(SystemExit) as stop:
            call(*args)
        code, errors = stop.value.code, capsys.readouterr().err
        said = errors.removesuffix(" --help` lists all keys\n") if isinstance(code, int) else code
        assert code and "Traceback" not in errors and len(said.splitlines()) <= 2, said
        return said

    return message


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """The folder of a finished tiny run."""
    out = tmp_path_factory.mktemp("trained")
    train(out)
    return out
