"""What an update costs on a GPU, found without one: the shipped code on fake CUDA tensors.

    python -m studies.dry_run config/sudoku.py
    python -m studies.dry_run config/tinygsm.py --processes=8 --micro_batch=16

Other keys are those of train.py, whose Run is set up and updated once at full shape, on tensors
that have a device, a shape and a dtype but no values (fake_cuda.py). Mixed devices are an error.
Each operator's FLOP, bytes and memory are counted, each wait of the host for the device, and each
copy from pageable memory. A launch is an operator, as without torch.compile.

Invented: the examples, and how many tokens are hidden (as in chains spread evenly over the stages);
a model of the hub has Dream's 7B shape. Not seen: rounding, the choice of kernels and their work
space, what torch.compile fuses, the network, fragmentation, the CUDA context.
"""

from studies import fake_cuda  # isort: skip (first: torch looks for CUDA once)
import collections
import contextlib
import json
import math
import sys
import traceback
import weakref
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

import engine.processes
import tasks
import train
from configurator import configure, errors_as_messages, read_keys
from engine import log
from engine.files import say
from pretrained import hf
from runs.validation import validation_loss

processes = 1  # 1..: of the run, one GPU each; this is the first
vocab_size = 0  # 0..: of the examples, with the mask token; 0 = the data set's, as is the next
length = 0  # 0..: tokens of an example
forecast = True  # also how fast it could be, and the rows that fit: a second dry run
as_json = False  # one line for a program

SHAPES = {"text": (151_645, 512), "instructions": (152_064, 640), "own_text": (258, 256)}
DREAM = dict(vocab_size=152_064, mask_token=151_666, dim=3584, layers=28, heads=28, kv_heads=4,
             mlp=18_944, theta=1e6, eps=1e-6, shifted=True, tied=False, causal=False)  # fmt: skip
GIVEN = 0.2  # share of an example that is prompt
CARDS = {  # TFLOP/s of dense bfloat16, TB/s, GB: of the makers' data sheets
    "H100 SXM": (989, 3.35, 80), "A100 SXM": (312, 2.04, 80),
    "RTX 4090": (165, 1.01, 24), "RTX 3090": (71, 0.94, 24),
}  # fmt: skip
LAUNCH = 5e-6  # seconds of the host for an operator: assumed
FITS = 0.9  # of a card's memory; the rest is for the CUDA context and fragmentation
ROOT = Path(__file__).parents[1]
aten = torch.ops.aten
PARTS = aten.embedding, aten.gather, aten.index, aten.index_select  # read a part of their input


# -- counting --------------------------------------------------------------------------------------
def place():
    """The innermost line of the project on the stack; backward has none, in its own threads."""
    files = ((Path(f.filename), f.lineno) for f in reversed(traceback.extract_stack()))
    own = ((p.relative_to(ROOT), n) for p, n in files if ROOT in p.parents and ".venv" not in p.parts)
    return next((f"{p}:{n}" for p, n in own if p.parts[0] != "studies"), "backward")


class Watch(TorchDispatchMode):
    """Counts what operators cost on a device, and answers those that need values."""

    def __init__(self, device, share):
        super().__init__()
        self.device, self.share = device.type, share  # share: of positions, where hidden
        self.live, self.now = {}, 0  # bytes
        self.start()

    def start(self):
        self.waits, self.pageable, self.ops, self.seconds = (collections.Counter() for _ in "1234")
        self.flop = self.moved = self.copied = 0
        self.peak, self.at_peak = self.now, lambda: None

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if DTensor in types:
            return NotImplemented  # its own operators come here
        kwargs = kwargs or {}
        inputs = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        if func in (aten._local_scalar_dense.default, aten.nonzero.default):
            if isinstance(inputs[0], FakeTensor):
                return self.answer(func, inputs[0])
        fused = func.__name__.startswith("_fused_adamw_")  # in place; it has no fake form
        out = None if fused else func(*args, **kwargs)
        outputs = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        for t in outputs:
            self.hold(t.untyped_storage()) if t.device.type == self.device else None
        if "copy" in func.__name__ and outputs:
            self.copy(inputs[-1], outputs[0], kwargs.get("non_blocking") or args[-1] is True)
        here = any(t.device.type == self.device for t in (*inputs, *outputs))
        free = func.is_view or func.namespace == "prim" or func.__name__.startswith(("empty", "detach"))
        if here and not free:
            self.count(func, args, kwargs, inputs, outputs, out)
        return out

    def answer(self, func, tensor):
        """A value that the host reads: 0, but True for a bool, unless the code asks for a fault."""
        if tensor.device.type == self.device:
            self.waits[place()] += 1
        if func is aten.nonzero.default:
            found = round(tensor.numel() * self.share)
            return tensor.new_empty(found, tensor.dim(), dtype=torch.long)
        if tensor.dtype == torch.bool:
            return not place().startswith("puma.py")
        return 0.0 if tensor.dtype.is_floating_point else 0

    def copy(self, source, target, asynchronous):
        """Between host and device."""
        kinds = source.device.type, target.device.type
        if kinds == (self.device, "cpu"):
            self.copied += target.nbytes
            self.waits[place()] += not asynchronous
        if kinds == ("cpu", self.device) and self.device != "cpu":
            known = source.untyped_storage()._cdata in fake_cuda.PINNED
            self.pageable[place()] += not known
            self.waits[place()] += not (known and asynchronous)

    def count(self, func, args, kwargs, inputs, outputs, out):
        packet = func._overloadpacket
        read = outputs if packet in PARTS else {id(t): t for t in (*inputs, *outputs)}.values()
        moved = sum(t.nbytes for t in read)
        rule = flop_registry.get(packet)
        flop = rule(*args, **kwargs, out_val=out) if rule else 0
        self.flop += flop
        self.moved += moved
        self.ops[packet.__name__] += 1
        for card, (tera, bandwidth, _) in CARDS.items():
            self.seconds[card] += max(flop / tera, moved / bandwidth) / 1e12

    def hold(self, storage):
        key, size = storage._cdata, -(-storage.nbytes() // 512) * 512
        if key not in self.live:
            self.live[key] = weakref.ref(storage, lambda _: self.free(key, size))
            self.now += size
            if self.now > self.peak:
                self.peak = self.now
                self.at_peak()

    def free(self, key, size):
        del self.live[key]
        self.now -= size


# -- the run ---------------------------------------------------------------------------------------
class Noise:
    """Examples of a shape."""

    checksum = 0

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return 1_000_000

    def __getitem__(self, indices):
        given = np.arange(self.length) < GIVEN * self.length
        return np.zeros((len(indices), self.length), np.int64), np.tile(given, (len(indices), 1))


class DryRun(train.Run):
    """Of a task of Noise; it reads and writes no file."""

    def __init__(self, config, device):
        ids, L = shape_of(config)
        task = SimpleNamespace(
            vocab_size=ids, mask=ids - 1, length=L, train=Noise(L), validation=Noise(L), files=(),
            encoding=SimpleNamespace(end=0),
        )  # fmt: skip
        train.tasks = SimpleNamespace(
            get=lambda name: SimpleNamespace(load=lambda config: task), check=lambda task: None
        )
        shards = config["shard"] and processes > 1
        where = engine.processes.Place(processes, 0, device, shards)
        super().__init__(config, Path("out/dry_run"), where, None)

    def begin(self, *_):
        self.log = log.Log(None, {}, None, 0, 1, {})
        self.saver.save = lambda *_: None


def shape_of(config):
    """Ids, the mask token included, and tokens of an example."""
    known = SHAPES.get(config["dataset"])
    if config["dataset"] == "sudoku":
        n = math.prod(config["box"])
        known = n + 1, n * n
    elif known and not config["data_dir"] and "text_length" in config:
        known = 1502, config["text_length"]
    elif not known:  # made in no time
        few = {"train_examples": 64, "test_examples": 64}
        task = tasks.get(config["dataset"]).load(config | few)
        known = task.vocab_size, task.length
    return vocab_size or known[0], length or known[1]


def replace_files():
    """A model of the hub is a shape; a gathering of processes finds this one alone."""
    hf.resolve = lambda name: Path("0" * 40)
    hf.for_diffusion = lambda folder, length, *_: DREAM | {"length": length}
    hf.shard_paths = lambda folder: []
    hf.weights = lambda model, args: {}
    engine.processes.gather = lambda state: [engine.processes.on_cpu(state)]


def storage_sizes(*things):
    """{storage: bytes} of the tensors in them."""
    tensors = [t for t in tree_leaves(things) if isinstance(t, torch.Tensor)]
    tensors = [getattr(t, "_local_tensor", t) for t in tensors]
    return {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}


def kinds_of(run):
    """{kind: bytes} of what stays in memory."""
    parts, seen = {}, {}
    for kind, things in {
        "weights": [*run.model.parameters(), *run.model.buffers()],
        "averages": [*run.averaged.parameters(), *run.averaged.buffers()],
        "moments": [*run.optimizer.state.values()],
        "queue": [*vars(run.queue).values()],
        "chains": [*vars(getattr(run.stream, "chains", run.stream)).values()],
    }.items():
        new = storage_sizes(things)
        parts[kind] = sum(size for key, size in new.items() if key not in seen)
        seen |= new
    return parts
