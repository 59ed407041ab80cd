"""CUDA tensors without values, on a torch built without CUDA: import this before torch.

torch's FakeTensorMode has tensors of any device, with a shape and a dtype alone. For CUDA autograd
also asks for a device guard, hooks and a generator, which a CPU build lacks: fake_cuda.cpp has ones
that do nothing, compiled by g++ into a private folder. `pretend` replaces what torch cannot do with
fake tensors: attention is the flash operator; collectives, streams and events do nothing.
"""

import ctypes
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest.mock import MagicMock

if "torch" in sys.modules:
    raise SystemExit("studies.fake_cuda must be imported before torch, which looks for CUDA once")
TORCH = Path(importlib.util.find_spec("torch").origin).parent
if (TORCH / "lib" / "libtorch_cuda.so").exists():  # it has hooks of its own
    raise SystemExit("a dry run needs a torch built for CPUs alone (docs/gpu.md)")
PLACES = f"-I{TORCH}/include", f"-L{TORCH}/lib", f"-Wl,-rpath,{TORCH}/lib", "-lc10", "-ltorch_cpu"
with tempfile.TemporaryDirectory() as folder:
    files = str(Path(__file__).with_suffix(".cpp")), "-o", (library := f"{folder}/fake_cuda.so")
    try:
        subprocess.run(["g++", "-std=c++20", "-shared", "-fPIC", *files, *PLACES], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"a dry run needs g++: {error}") from None
    ctypes.CDLL(library)

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch._dynamo  # noqa: E402 (before streams are replaced)
from torch._subclasses.fake_tensor import FakeTensor  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.nn.parallel import distributed  # noqa: E402

PINNED = set()  # the storages of copies in pinned memory


def pretend(plain=functional.scaled_dot_product_attention):
    def flash(q, k, v, mask=None, is_causal=False):
        if mask is not None or q.device.type != "cuda":
            return plain(q, k, v, mask, is_causal=is_causal)
        return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, is_causal)[0]

    functional.scaled_dot_product_attention = flash
    torch.nn.Module._apply = move
    torch.Tensor.numpy = lambda t: np.zeros(t.shape)
    torch.Tensor.pin_memory = pinned
    FakeTensor.tolist = lambda t: [0.0] * t.cpu().numel()
    torch.nn.utils.clip_grad._has_foreach_support = lambda *_: True
    torch.cuda.amp.common.amp_definitely_not_available = lambda: False
    torch.cuda.is_bf16_supported = lambda *_, **settings: True
    torch.cuda.current_device = lambda: 0
    for name in "Stream", "Event", "current_stream", "stream":
        setattr(torch.cuda, name, MagicMock())
    distributed._verify_param_shape_across_processes = lambda *_: None
    torch.distributed.all_gather_object = gather


def move(module, function, recurse=True):
    """Module._apply for fake parameters, which torch cannot swap; tied ones stay tied."""
    new = {None: None}
    for part in module.modules():
        for name, p in part._parameters.items():
            if p not in new:
                new[p] = torch.nn.Parameter(function(p.detach()), p.requires_grad)
            part._parameters[name] = new[p]
        part._buffers.update({k: b if b is None else function(b) for k, b in part._buffers.items()})
    return module


def pinned(tensor):
    copy = tensor.clone()
    PINNED.add(copy.untyped_storage()._cdata)
    return copy


def gather(states, state):
    states[:] = [state] * len(states)


def unreduced(state, bucket):
    """A hook of DDP: the gradients of this process, as if averaged."""
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future
