"""A GPU imitated where there is none: train.py runs on "cuda", and the CPU computes.

Tensors made on "cuda", and all that operators make of them, have a mark on their storage and say
that they are on cuda:0. As on a GPU, an operator fails that mixes them with tensors of the host;
only a number () of the host may be an operand. Counted is where the host waits for the device: for
a value, for a shape that depends on values, for a copy from one to the other.

Not seen: a GPU's kernels and their rounding, its memory and speed, which operators autocast casts
there (here those of the CPU), torch.compile, several processes.
"""

import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

MODULES = {file.stem for file in Path(__file__).parents[2].glob("*.py")} | {"__main__"}
GPU = torch.device("cuda", 0)
CPU = torch.device("cpu")
INDEXING = torch.ops.aten.index, torch.ops.aten.index_put_
DEPENDS_ON_VALUES = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}
waits = Counter()  # {"module.function": times}


@contextmanager
def imitated(monkeypatch):
    """Inside there is one GPU; gives the counter of waits."""
    waits.clear()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    for name in "autocast", "is_autocast_enabled", "get_autocast_dtype":
        monkeypatch.setattr(torch, name, of_the_cpu(getattr(torch, name)))
    group = torch._C._group_tensors_by_device_and_dtype

    def grouped(lists, *args):  # for clip_grad_norm_ and the optimizer
        device = device_of(lists[0][0])
        return {(device, dtype): found for (_, dtype), found in group(lists, *args).items()}

    monkeypatch.setattr(torch._C, "_group_tensors_by_device_and_dtype", grouped)
    with Operators(), Functions():
        yield waits


def of_the_cpu(function):
    return lambda device, *args, **kwargs: function("cpu", *args, **kwargs)


def device_of(tensor):
    return GPU if hasattr(tensor.untyped_storage(), "on_gpu") else CPU


def mark(tensor):
    tensor.untyped_storage().on_gpu = True
    return tensor


def wait():
    """Count it for the innermost function of the root."""
    frame = sys._getframe(1)
    while frame.f_globals["__name__"] not in MODULES:
        frame = frame.f_back
    waits[f"{frame.f_globals['__name__']}.{frame.f_code.co_name}"] += 1


# -- what is computed, by backward and by the optimizer, too ---------------------------------------
class Operators(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        host = [t for t in tensors if device_of(t) == CPU]
        if len(host) == len(tensors):
            return func(*args, **kwargs)
        copies = func is torch.ops.aten.copy_.default
        operands = args[1:] if func._schema.is_mutable else args  # the first is written to
        numbers = [t for t in operands if isinstance(t, Tensor) and t.dim() == 0]
        if not copies and not all(any(t is number for number in numbers) for t in host):
            raise RuntimeError(f"{func} of tensors on cuda:0 and on cpu")
        if (copies and host) or depends_on_values(func, args):
            wait()
        out = func(*args, **kwargs)
        if copies:  # into what was there before
            return out
        return tree_map_only(Tensor, mark, out)


def depends_on_values(func, args):
    if func._overloadpacket in INDEXING:  # by numbers, or by a mask, whose count must be known
        return any(t is not None and t.dtype == torch.bool for t in args[1])
    return bool(DEPENDS_ON_VALUES & {*func.tags})


# -- what Python asks of torch: where a tensor is, or shall be -------------------------------------
class Functions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func in ANSWERS:
            return ANSWERS[func](*args, **kwargs)
        device = kwargs.pop("device", None)
        if device is None:
            return func(*args, **kwargs)
        made = func(*args, **kwargs)
        if func in (torch.tensor, torch.as_tensor):
            return move(made, device)
        return mark(made) if torch.device(device).type == "cuda" else made


def move(tensor, *args, **kwargs):
    """Tensor.to: (device), (dtype), both, or another tensor that has them."""
    if args and isinstance(args[0], Tensor):
        args = device_of(args[0]), args[0].dtype
    device, dtype, _, _ = torch._C._nn._parse_to(*args, **kwargs)
    tensor = tensor if dtype is None else tensor.to(dtype)
    if device is None or device.type == device_of(tensor).type:
        return tensor
    wait()
    with _disable_current_modes():
        copy = tensor.clone()
    return mark(copy) if device.type == "cuda" else copy


def to_list(tensor):
    return move(tensor, CPU).tolist()


def to_numpy(tensor):
    if device_of(tensor) == GPU:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")
    return tensor.numpy()


ANSWERS = {
    Tensor.device.__get__: device_of,
    Tensor.is_cuda.__get__: lambda tensor: device_of(tensor) == GPU,
    Tensor.to: move,
    Tensor.cpu: lambda tensor: move(tensor, CPU),
    Tensor.tolist: to_list,
    Tensor.numpy: to_numpy,
}
