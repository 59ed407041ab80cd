import contextlib
import io
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "theory"))  # its scripts import each other so
ONE_THREAD = os.environ | {"OMP_NUM_THREADS": "1"}  # several only wait for each other at this size
TINY = [  # 4x4 Sudoku on a model of a few thousand parameters: seconds per run
    "--box=(2,2)", "--k_schedule=[(0,4)]", "--dim=32", "--layers=2", "--heads=2", "--mlp=64",
    "--train_examples=200", "--test_examples=40", "--batch_size=16", "--buffer=2", "--warmup=5",
    "--max_iters=20", "--eval_interval=10", "--log_interval=1", "--device=cpu", "--dtype=float32",
]  # fmt: skip


def start_training(out, *flags, processes=1):
    """train.py in processes of its own."""
    launcher = [sys.executable]
    if processes > 1:
        launcher += ["-m", "torch.distributed.run", f"--nproc_per_node={processes}", "--standalone"]
    command = [*launcher, "train.py", f"--out_dir={out}", *TINY, *flags]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return subprocess.Popen(command, cwd=ROOT, env=ONE_THREAD, **pipes)


def train(out, *flags, processes=1):
    """Run train.py to its end; what it printed. One process is this one, which saves its start."""
    if processes > 1:
        process = start_training(out, *flags, processes=processes)
        try:
            stdout, stderr = process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            process.terminate()  # torchrun ends its own
            raise
        assert process.returncode == 0, stderr
        return stdout
    return run_script("train.py", f"--out_dir={out}", *TINY, *flags)


def run_script(name, *flags):
    """Execute a script of the repository as python would, here; raises what it raises."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(io.StringIO()) as printed,
    ):
        patch.setattr(sys, "argv", [name, *flags])
        patch.chdir(ROOT)
        try:
            runpy.run_path(str(ROOT / name), run_name="__main__")
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
    return printed.getvalue()


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """The folder of a finished tiny run."""
    out = tmp_path_factory.mktemp("trained")
    train(out)
    return out
