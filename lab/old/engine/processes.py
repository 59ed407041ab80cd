"""The processes of a run, one device each: how they start, wait for each other, and stop."""

import contextlib
import datetime
import inspect
import os
import signal
import threading
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from engine.machine import open_device

PATIENCE = datetime.timedelta(minutes=10)  # without a word from a process, it counts as lost
PREPARATION = datetime.timedelta(hours=3)  # the first process may have much data to generate
PATIENT = []  # the process group with the long timeout, once it exists


class Place(NamedTuple):
    world: int  # processes
    rank: int  # of this one
    device: torch.device
    shards: bool  # whether models are split over the processes (sharding.py)


def start(device="", shard=False):
    """The Place of this process; joins the process group under torchrun. Raises ValueError."""
    world, rank = (int(os.environ.get(*pair)) for pair in (("WORLD_SIZE", "1"), ("RANK", "0")))
    device = open_device(device, local_rank())
    if world > 1:
        transport = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(transport, timeout=PATIENCE)
        PATIENT[:] = [dist.new_group(backend="gloo", timeout=PREPARATION)]
    return Place(world, rank, device, shard and world > 1)


def local_rank():
    return int(os.environ.get("LOCAL_RANK", "0"))


def leave():
    if dist.is_initialized():
        dist.destroy_process_group()


@contextlib.contextmanager
def main_process_first():
    """One process of each machine runs the body (it writes files), then the others (they read)."""
    if local_rank() > 0:
        try:
            dist.barrier(*PATIENT)
        except RuntimeError:  # many lines about connections
            raise OSError("the first process has ended: see what it says") from None
    yield
    if local_rank() == 0 and PATIENT:
        dist.barrier(*PATIENT)


def distributed(module, place):
    """The module; under DDP, which averages gradients, if several processes hold all of it."""
    if place.world == 1 or place.shards:
        return module
    known = inspect.signature(DistributedDataParallel).parameters  # rotary tables never change:
    name = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    return DistributedDataParallel(module, gradient_as_bucket_view=True, **{name: False})


def synchronised(module, last):
    """For a forward and backward pass: average gradients only at the last one of an update."""
    wrapped = isinstance(module, DistributedDataParallel)
    return module.no_sync() if wrapped and not last else contextlib.nullcontext()


def any_process(flag):
    """Whether the flag is set on any process, told to all."""
    return all_reduce_sum([bool(flag)])[0] > 0


def all_reduce_sum(values):
    """The sum over all processes of a list of numbers."""
    if not dist.is_initialized():
        return values
    summed = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(summed)
    return summed.tolist()


def mean(value):
    """The mean of a number over all processes."""
    total, processes = all_reduce_sum([float(value), 1])
    return total / processes


def gather(state):
    """[the state of each process], on every process; tensors go to the CPU."""
    state = on_cpu(state)
    if not dist.is_initialized():
        return [state]
    states = [None] * dist.get_world_size()
    dist.all_gather_object(states, state)
    return states


def agree(facts):
    """Raise ValueError, on every process, unless these {name: value} are the same on all."""
    first, *others = gather(facts)
    for rank, other in enumerate(others, start=1):
        for name in first | other:
            ours, theirs = first.get(name), other.get(name)
            if ours != theirs:
                raise ValueError(f"process {rank} has {name} {theirs}, process 0 has {ours}")


def on_cpu(state):
    if isinstance(state, dict):
        return {key: on_cpu(value) for key, value in state.items()}
    return state.cpu() if isinstance(state, torch.Tensor) else state


class StopSign:
    """stop = StopSign(): stop() is True once any process was told to stop, as by Ctrl-C.

    Call it after every update, on every process. A second Ctrl-C stops at once.
    """

    def __init__(self):
        self.asked = threading.Event()
        ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN  # as nohup has it
        for number in (signal.SIGTERM, signal.SIGINT, *[signal.SIGHUP] * (not ignored)):
            signal.signal(number, self.on_signal)

    def __call__(self):
        return any_process(self.asked.is_set())

    def on_signal(self, number, frame):
        self.asked.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with contextlib.suppress(OSError):  # not print: the signal may interrupt one
            os.write(2, b"\nstopping with a checkpoint; Ctrl-C again stops at once\n")
