"""The machine: device, number format and compiler, chosen automatically."""

import contextlib
import importlib.util
import shutil
import signal
import sysconfig
import threading
from pathlib import Path

import torch

LONG = 3000  # iterations from which the whole is worth compiling, not only a part that repeats


def open_device(name="", index=0):
    """The device of that name, "" = the best there is, ready for use; index: of a CUDA device.

    On a CPU repeated computations give identical bits (otherwise a compiled step on several threads
    sums the embedding's gradient in arrival order). Raises ValueError for one that is not there.
    """
    try:
        device = torch.device(name or best_device())
        if device.type == "cuda":  # first, or each process would also open the first device
            device = torch.device("cuda", index if device.index is None else device.index)
            torch.cuda.set_device(device)
        torch.zeros(1, device=device).item()  # also fails on meta, which holds no values
    except (RuntimeError, AssertionError, AttributeError) as error:  # the last without CUDA
        best = best_device()
        wanted = name or best
        fails = wanted.split(":")[0] == best
        why = f"{error}"[:80] if fails else "not on this machine"
        raise ValueError(f"device {wanted}: {why}; use device={'cpu' if fails else best}") from None
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    if device.type == "cpu":
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # only helps debugging
    return device


def best_device():
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def precision(device, dtype=""):
    """The dtype of matrix products: the named one, or "" = bfloat16 if the hardware supports it."""
    if dtype not in ("", "bfloat16", "float32"):
        raise ValueError(f'dtype {dtype!r}: expected bfloat16, float32 or ""')
    chosen = dtype == "bfloat16" or (not dtype and has_bfloat16(device))
    return torch.bfloat16 if chosen else torch.float32


def autocast(device, dtype="", keep=True):
    """Autocast of matrix products to `precision`.

    keep: casts of weights that require a gradient are kept until the block ends, so weights must
    not change inside it. Otherwise, and for other weights, each use casts again.
    """
    enabled = precision(device, dtype) is torch.bfloat16
    return torch.autocast(device.type, torch.bfloat16, enabled=enabled, cache_enabled=keep)


def has_bfloat16(device):
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and torch.cpu._is_avx512_bf16_supported()


def compiles(device, wish, iterations):
    """Whether to compile; wish None: if there is a compiler and the run is long enough for it."""
    if wish is not None or iterations < 500:
        return bool(wish)
    if device.type == "cuda":
        return importlib.util.find_spec("triton") is not None
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    return device.type == "cpu" and header.is_file() and any(map(shutil.which, ("g++", "clang++")))


@contextlib.contextmanager
def compiling(first, anew):
    """Around an update, in which torch may compile: the first, and where it is to do so anew.

    Ctrl-C does not reach the compiler then: it would leave a broken file in its cache, which torch
    trusts. Raises SystemExit, with the remedy, if it fails all the same.
    """
    if anew:
        torch.compiler.reset()  # it gives up after a few versions of a function
    signals = {signal.SIGINT, signal.SIGHUP} if first or anew else {}
    if signals:  # a thread that receives them, so that Python's handlers run
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith(("torch._inductor", "torch._dynamo")):
            raise
        from torch._inductor.runtime.cache_dir_utils import cache_dir

        raise SystemExit(
            f"torch.compile failed ({str(error).splitlines()[0]:.200}): delete its cache, "
            f"{cache_dir()}, which may have a broken file, or turn compiling off (see --help)"
        ) from None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def random_states():
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
    return {"cpu": torch.get_rng_state(), "cuda": cuda}


def set_random_states(states):
    torch.set_rng_state(states["cpu"])
    if states["cuda"] is not None:
        torch.cuda.set_rng_state(states["cuda"])
