"""CUDA tensors without values, on a torch built without CUDA: import this before torch.

torch's FakeTensorMode has tensors of any device, with a shape and a dtype alone. For CUDA autograd
also asks for a device guard, hooks and a generator, which a CPU build lacks: SHIM, compiled by g++
into a private folder, has ones that do nothing. `pretend` replaces what torch cannot do with fake
tensors: attention is the flash operator; collectives, streams and events do nothing.
"""

import ctypes
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest.mock import MagicMock

SHIM = """
#include <ATen/core/Generator.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#define CONST const override
using namespace c10;
static Device gpu() { return Device(DeviceType::CUDA, 0); }
struct Guard final : impl::NoOpDeviceGuardImpl<DeviceType::CUDA> {
  Device getDevice() CONST { return gpu(); }  Device exchangeDevice(Device) CONST { return gpu(); }
  Stream getStream(Device) const noexcept override { return Stream(Stream::DEFAULT, gpu()); }
  Stream getDefaultStream(Device d) CONST { return getStream(d); }
  Stream exchangeStream(Stream s) const noexcept override { return s; }
  DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const Stream&, const DeviceIndex, const EventFlag) CONST {}
  void block(void*, const Stream&) CONST {}  bool queryEvent(void*) CONST { return true; }
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard)
struct Seed final : GeneratorImpl {
  Seed() : GeneratorImpl(gpu(), DispatchKeySet(DispatchKey::CUDA)) {}
  void set_current_seed(uint64_t) override {}  uint64_t current_seed() CONST { return 0; }
  void set_offset(uint64_t) override {}  uint64_t get_offset() CONST { return 0; }
  void set_state(const TensorImpl&) override {}  uint64_t seed() override { return 0; }
  intrusive_ptr<TensorImpl> get_state() CONST { return {}; }
  Seed* clone_impl() CONST { return new Seed(); }
};
struct CUDAHooks final : at::CUDAHooksInterface {
  CUDAHooks(at::CUDAHooksArgs) {}  void init() CONST {}  bool isBuilt() CONST { return true; }
  bool isAvailable() CONST { return true; }  bool hasCUDA() CONST { return true; }
  bool hasPrimaryContext(DeviceIndex) CONST { return true; }
  DeviceIndex deviceCount() CONST { return 1; }  DeviceIndex getCurrentDevice() CONST { return 0; }
  at::Generator getNewGenerator(DeviceIndex = -1) CONST { return at::make_generator<Seed>(); }
};
namespace at { REGISTER_CUDA_HOOKS(CUDAHooks) }
"""
if "torch" in sys.modules:
    raise SystemExit("studies.fake_cuda must be imported before torch, which looks for CUDA once")
TORCH = Path(importlib.util.find_spec("torch").origin).parent
PLACES = f"-I{TORCH}/include", f"-L{TORCH}/lib", f"-Wl,-rpath,{TORCH}/lib", "-lc10", "-ltorch_cpu"
with tempfile.TemporaryDirectory() as folder:
    library = f"{folder}/fake_cuda.so"
    command = ["g++", "-std=c++20", "-shared", "-fPIC", "-xc++", "-", *PLACES, "-o", library]
    try:
        subprocess.run(command, input=SHIM, text=True, check=True)
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
