"""The machine: device, number format, compiler and processes, chosen automatically.

Under torchrun every process has one device; DDP averages the gradients, or FSDP2 shards a model
that is too large for one device.
"""

import contextlib
import datetime
import importlib.util
import inspect
import math
import os
import resource
import shutil
import sys
import sysconfig
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

PREPARATION = datetime.timedelta(hours=3)  # the first process may have much data to generate

TRANSPORT = "gloo", "nccl", "timed out", "connection", "broken pipe"  # words in its errors
PATIENT = []  # the process group with the long timeout, once it exists


def start(device="", patience=600, deterministic=False):
    """(number of processes, own rank, device); joins the process group under torchrun.

    patience: seconds that processes wait for each other before they consider one lost.
    deterministic: repeated computations give identical bits. (Otherwise a compiled step on several
    threads sums the embedding's gradient in arrival order.) Always so on a CPU, where it costs
    nothing; its cost on CUDA has not been measured.

    Raises ValueError for a device that is not available.
    """
    world, rank = processes(), int(os.environ.get("RANK", "0"))
    try:
        device = torch.device(device or best_device())
        if device.type == "cuda":  # first, or each process would also open the first device
            index = local_rank() if device.index is None else device.index
            device = torch.device("cuda", index)
            torch.cuda.set_device(device)
        torch.zeros(1, device=device).item()  # also fails on meta, which holds no values
    except (RuntimeError, AssertionError, AttributeError) as error:  # the last without CUDA
        raise ValueError(f"device {device}: {error}") from None
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    if device.type == "cpu" or deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # required by PyTorch on CUDA
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # only helps debugging
    if world > 1:
        transport = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(transport, timeout=datetime.timedelta(seconds=patience))
        PATIENT[:] = [dist.new_group(backend="gloo", timeout=PREPARATION)]
    return world, rank, device


def processes():
    """How many processes torchrun started, on all machines; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_rank():
    """The number of this process among those of its machine."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def best_device():
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def memory(device=""):
    """Bytes of main memory, on a CPU; inf on other devices, which report a shortage themselves."""
    on_cpu = (device or best_device()).startswith("cpu")
    if not (on_cpu and "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {})):
        return math.inf
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def peak_memory(device):
    """Peak bytes of this process on the device; on a CPU, of all its memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def precision(device, dtype=""):
    """The dtype of matrix products: the named one, or "" = bfloat16 if the hardware supports it."""
    if dtype not in ("", "bfloat16", "float32"):
        raise ValueError(f'dtype {dtype!r}: expected bfloat16, float32 or ""')
    chosen = dtype == "bfloat16" or (not dtype and has_bfloat16(device))
    return torch.bfloat16 if chosen else torch.float32


def autocast(device, dtype="", keep=True):
    """Autocast of matrix products to `precision`.

    keep: a weight that requires a gradient is cast once and its cast is kept until the block ends,
    even if no gradients are computed, so weights must not change inside the block. Otherwise, and
    for other weights always, each use casts again.
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
    found = any(map(shutil.which, ("g++", "clang++"))) and header.is_file()
    return device.type == "cpu" and found


@contextlib.contextmanager
def first_process_first():
    """One process of each machine runs the body (it writes files), then the others (they read)."""
    if local_rank() > 0:
        dist.barrier(*PATIENT)
    yield
    if local_rank() == 0 and PATIENT:
        dist.barrier(*PATIENT)


def any_process(flag, patient=False):
    """Whether the flag is set on any process, told to all; patient: some may be very late."""
    return total([bool(flag)], *(PATIENT if patient else ()))[0] > 0


class StopSign:
    """Asks whether any process has been asked to stop: called after each update, on all of them.

    Asking makes all processes wait for each other, so several processes ask about ten times a
    second, estimated from the duration of the updates since they last asked.
    """

    def __init__(self, stop):
        self.stop, self.updates, self.left, self.since = stop, 1, 1, time.perf_counter()

    def __call__(self):
        world = processes()
        if world == 1:
            return self.stop.is_set()
        self.left -= 1
        if self.left:
            return False
        seconds = (time.perf_counter() - self.since) / self.updates
        asked, seconds = total([self.stop.is_set(), seconds])  # the same on all processes
        self.updates = self.left = max(1, min(100, round(0.1 * world / max(seconds, 0.001))))
        self.since = time.perf_counter()
        return asked > 0


@contextlib.contextmanager
def stop_as_message(stop, state):
    """An error after the event `stop` was set ends the run in one line, with what state() says.

    Ctrl-C also reaches the processes of a compiler, whose failure torch then reports at length.
    """
    try:
        yield
    except Exception as error:
        if not stop.is_set():
            raise
        raise SystemExit(f"stopped in an update ({type(error).__name__}); {state()}") from None


class Recorded:
    """Calls a function on CUDA; from the fourth call on, replays a recorded CUDA graph of it.

    The function returns tensors and never makes the host wait; what differs between calls is in
    tensors that it reads, and its random numbers come from `generator`. Not run on a GPU yet.
    """

    EAGER = 3  # calls without a graph, in which it allocates, compiles and chooses kernels

    def __init__(self, generator):
        self.generator, self.calls, self.graph = generator, 0, None

    def __call__(self, function):
        """The results of function(), copied if replayed."""
        self.calls += 1
        if self.calls <= self.EAGER:  # on its own stream, as when recording
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                found = function()
            torch.cuda.current_stream().wait_stream(side)
            return found
        if self.graph is None:
            self.graph = torch.cuda.CUDAGraph()
            self.graph.register_generator_state(self.generator)
            with torch.cuda.graph(self.graph):
                self.found = function()
        self.graph.replay()
        return tuple(part.clone() for part in self.found)


@contextlib.contextmanager
def lost_processes_as_messages(state):
    """Turns the errors of the transport, when another process has died or hangs, into one line.

    state() -> what is left, in words.
    """
    try:
        yield
    except RuntimeError as error:  # gloo's errors have no type of their own
        reason = str(error).splitlines()[0]
        known = isinstance(error, dist.DistError) or any(w in reason.lower() for w in TRANSPORT)
        if not dist.is_initialized() or not known:
            raise
        what = f"another process was lost ({reason:.200}); {state()}"
        raise SystemExit(what) from None


def distributed(module):
    """The module under DDP, which averages gradients; its buffers (rotary tables) never change."""
    name = "forward_sync_buffers"  # torch 2.13's name for what 2.11 calls broadcast_buffers
    if name not in inspect.signature(DistributedDataParallel).parameters:
        name = "broadcast_buffers"
    return DistributedDataParallel(module, gradient_as_bucket_view=True, **{name: False})


def split_up(model, device):
    """Shard a model over the processes (FSDP2): weights, gradients and thus moments.

    A layer is whole on the device while it computes; embedding and head stay whole until the end of
    the backward pass. Every backward pass averages the gradients. Buffers are not sharded.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (processes(),))
    for part in (*model.model.layers, model):
        fully_shard(part, mesh=mesh)
        # Sum, then divide: gloo may compute a sum for an average (pytorch/pytorch, issue 162338).
        part.set_force_sum_reduction_for_comms(True)
    with torch.no_grad():  # the first module called becomes the root; a cache would call a layer
        model(torch.zeros(1, 1, dtype=torch.long, device=device))
    model.reshard()


@contextlib.contextmanager
def whole(model):
    """Gathers a sharded model on every process, so a pass inside waits for no other process."""
    parts = [part for part in model.modules() if hasattr(part, "unshard")]
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.set_reshard_after_forward(part is not model, recurse=False)
            part.reshard()


def is_sharded(tensor):
    """Whether this process holds only a part, to_local(); full_tensor() is called on all."""
    return hasattr(tensor, "full_tensor")


def shared_out(tensor, like):
    """A whole tensor, or its shards if `like` is sharded."""
    if not is_sharded(like) or not tensor.dim():
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)


def synchronised(module, last):
    """For a forward and backward pass: average gradients only at the last one of an update."""
    wrapped = isinstance(module, DistributedDataParallel)
    return module.no_sync() if wrapped and not last else contextlib.nullcontext()


def total(values, group=None):
    """The sum over all processes of a list of numbers."""
    summed = torch.tensor(values, dtype=torch.float64)
    if dist.is_initialized():
        dist.all_reduce(summed, group=group)
    return summed.tolist()


def gather(state, first_alone=False):
    """[the state of each process], on every process or only the first; tensors go to the CPU."""
    state = on_cpu(state)
    if not dist.is_initialized():
        return [state]
    states = [None] * dist.get_world_size()
    if not first_alone:
        dist.all_gather_object(states, state)
    elif dist.get_rank() == 0:
        dist.gather_object(state, states)
    else:
        dist.gather_object(state)
    return states


def stop():
    if dist.is_initialized():
        dist.destroy_process_group()


def on_cpu(state):
    if isinstance(state, dict):
        return {key: on_cpu(value) for key, value in state.items()}
    return state.cpu() if isinstance(state, torch.Tensor) else state
