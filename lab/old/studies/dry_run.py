"""What an update costs on a GPU, found without one: the shipped code on fake CUDA tensors.

    python -m studies.dry_run config/tinygsm.py --processes=8 --micro_batch=16

Other keys are those of train.py. Its Run is set up and updated once at full shape, on tensors that
have a device, a shape and a dtype but no values (fake_cuda.py): mixed devices are an error. Counted
are operators (a launch each, as without torch.compile), their FLOP, memory and bytes (once for a
tensor changed in place), the lines where the host waits for the device, and copies from pageable
memory. A forecast of the seconds:

    max(operators * LAUNCH, sum over operators of max(FLOP / rate of products, bytes / bandwidth))

Invented: the examples; how many tokens are hidden (as in chains spread evenly over their stages);
the model of a hub (Dream's 7B shape). Not seen: rounding, the choice of kernels and their work
space, what torch.compile fuses, the network, fragmentation, the CUDA context.
"""

from studies import fake_cuda  # isort: skip (first: torch looks for CUDA once)
import math
import re
import sys
import traceback
import weakref
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

import tasks
import train
from configurator import configure, errors_as_messages
from engine import log, sharding
from engine.files import say
from engine.processes import Place
from pretrained import hf
from runs.validation import validation_loss

processes = 1  # 1..: of the run, a GPU each; this is the first
vocab_size = 0  # 0..: with the mask token; 0 = the paper's, as is the next
length = 0  # 0..: tokens of an example

SHAPES = {"text": (151_645, 512), "instructions": (152_064, 640)}  # of Sudoku: by its box
DREAM = dict(vocab_size=152_064, mask_token=151_666, dim=3584, layers=28, heads=28, kv_heads=4,
             mlp=18_944, theta=1e6, eps=1e-6, shifted=True, tied=False, causal=False)  # fmt: skip
GIVEN = 0.2  # share of an example that is its prompt
CARDS = {  # TFLOP/s in dense bfloat16, TB/s, GB: the makers' data sheets
    "H100 SXM": (989, 3.35, 80), "A100 SXM": (312, 2.04, 80),
    "RTX 4090": (165, 1.01, 24), "RTX 3090": (71, 0.94, 24),
}  # fmt: skip
LAUNCH = 5e-6  # seconds of the host for an operator: an assumption
FITS = 0.9  # of a card's memory: the rest is for the CUDA context and fragmentation
ROOT = Path(__file__).parents[1]
aten = torch.ops.aten
READS = aten._local_scalar_dense.default, aten.nonzero.default  # the host needs a value
PARTIAL = aten.embedding, aten.gather, aten.index, aten.index_select  # read a part of their input


def main(argv):
    own = [arg for arg in argv if re.match("--(processes|vocab_size|length|help)", arg)]
    configure(globals(), own)
    rest = [*(arg for arg in argv if arg not in own), "--compile=False"]
    config = configure(vars(train), rest, fields=tasks.settings_of)
    with errors_as_messages():
        train.check()
    say(f"a forecast, not a measurement; setting up process 1 of {processes} on fake tensors")
    found = measure(config)
    print(text_of(found))
    say("again, with twice the rows")
    train.micro_batch = 2 * found["rows"]
    train.batch_size = train.micro_batch * processes * min(found["passes"], 2)
    print(forecast(found, measure(config)))


# -- counting --------------------------------------------------------------------------------------
def place():
    """The innermost line of the project on the stack; backward has none, in its own threads."""
    for frame in reversed(traceback.extract_stack()):
        path = Path(frame.filename)
        own = path.relative_to(ROOT) if ROOT in path.parents else Path("site-packages")
        if not {"site-packages", "studies"} & {*own.parts}:
            return f"{own}:{frame.lineno}"
    return "backward"


class Watch(TorchDispatchMode):
    """Counts what operators cost on a device, in phases, and answers those that need values."""

    def __init__(self, device):
        super().__init__()
        self.device, self.share, self.live = device, 0.5, {}  # {storage: bytes}

    def phase(self):
        """A new one; its counts are complete once the next begins."""
        self.seen, self.seconds = Counter(peak=sum(self.live.values())), Counter()
        self.waits, self.pageable = Counter(), Counter()
        return SimpleNamespace(**vars(self))

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if DTensor in types:
            return NotImplemented  # its own operators come here
        kwargs = kwargs or {}
        inputs = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        if func in READS and isinstance(inputs[0], FakeTensor):
            return self.answer(func, inputs[0])
        fused = func.__name__.startswith("_fused_adamw_")  # in place; it has no fake form
        out = None if fused else func(*args, **kwargs)
        outputs = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        here = {t for t in (*inputs, *outputs) if t.device.type == self.device}
        for t in here:
            self.hold(t.untyped_storage())
        if "copy" in func.__name__ and outputs:
            self.copy(inputs[-1], outputs[0], kwargs.get("non_blocking") or args[-1] is True)
        free = func.is_view or func.__name__.startswith(("empty", "detach"))
        if here and not free and func.namespace != "prim":
            rule = flop_registry.get(func._overloadpacket)
            flop = rule(*args, **kwargs, out_val=out) if rule else 0
            moved = sum(t.nbytes for t in (outputs if func._overloadpacket in PARTIAL else here))
            self.seen.update(flop=flop, moved=moved, launches=1)
            for card, (rate, bandwidth, _) in CARDS.items():
                self.seconds[card] += max(flop / rate, moved / bandwidth) / 1e12
        return out

    def answer(self, func, tensor):
        """0, and True for a bool, unless the code looks for a fault."""
        self.waits[where := place()] += tensor.is_cuda
        if func is aten.nonzero.default:
            found = round(tensor.numel() * self.share)
            return tensor.new_empty(found, tensor.dim(), dtype=torch.long)
        return not where.startswith("puma.py") if tensor.dtype == torch.bool else 0

    def copy(self, source, target, asynchronous):
        """Between host and device: from pageable memory the host waits."""
        if source.is_cuda and target.is_cpu:
            self.seen["copied"] += target.nbytes
            self.waits[place()] += not asynchronous
        if source.is_cpu and target.is_cuda:
            pinned = source.untyped_storage()._cdata in fake_cuda.PINNED
            self.pageable[place()] += not pinned
            self.waits[place()] += not (pinned and asynchronous)

    def hold(self, storage):
        if (key := storage._cdata) not in self.live:
            self.live[key] = -(-storage.nbytes() // 512) * 512
            weakref.finalize(storage, self.live.pop, key)
            self.seen["peak"] = max(self.seen["peak"], sum(self.live.values()))


# -- the run ---------------------------------------------------------------------------------------
def measure(config, device="cuda"):
    """What a dry run finds: {phase: counts}, and the run's sizes."""
    fake_cuda.pretend()
    if processes > 1 and not dist.is_initialized():
        dist.init_process_group("fake", rank=0, world_size=processes, store=FakeStore())
        mesh = dist.init_device_mesh(device, (processes,))
        sharding.init_device_mesh = lambda *_: mesh
    with FakeTensorMode(allow_non_fake_inputs=True), (watch := Watch(device)):
        set_up = watch.phase()
        run = DryRun(config, torch.device(device))
        return {"set-up": set_up} | phases(run, watch)


def phases(run, watch):
    first, rows = train.chains_from or 0, train.eval_batch_size
    watch.share = (1 - GIVEN) * (1 if train.method == "ar" else 0.5)
    if chains := getattr(run.stream, "chains", None):
        run.stream.begin = first
        watch.share = (1 - GIVEN) * (1 + chains.stages_at(first) ** -2) / 2
    update = watch.phase()
    run.log.add(*train.update(run, first))
    kinds, line = kinds_of(run), watch.phase()
    kinds["activations, gradients, buffers"] = update.seen["peak"] - sum(kinds.values())
    train.keep_record(run, train.log_interval, False)
    evaluation, block = watch.phase(), train.block_at(first)
    with run.casts, sharding.unsharded(run.averaged):
        validation_loss(run.task.train, run.averaged, block, rows * processes, rows, 0, processes)
    save = watch.phase()
    state = tree_leaves(run.saver.collect(0, 0))
    save.seen["copied"] += sum(t.nbytes for t in state if getattr(t, "is_cuda", False))
    found = {"an update": update, "a line of the log": line, "a batch of evaluation": evaluation}
    found |= {"a checkpoint": save, "kinds": kinds}
    return found | {"rows": run.queue.rows, "passes": run.passes}


class Noise:
    """Examples of a length."""

    checksum = 0

    def __init__(self, length):
        self.given = np.arange(length) < GIVEN * length

    def __len__(self):
        return 1 << 20

    def __getitem__(self, indices):
        given = np.tile(self.given, (len(indices), 1))
        return np.zeros(given.shape, int), given


class DryRun(train.Run):
    """Without files; the optimizer already has its moments."""

    def __init__(self, config, device):
        n = math.prod(config.get("box", (3, 3)))
        ids, L = SHAPES.get(config["dataset"], (n + 1, n * n))
        ids, L = vocab_size or ids, length or L
        task = SimpleNamespace(vocab_size=ids, mask=ids - 1, length=L, train=Noise(L), files=(),
                               validation=Noise(L), encoding=SimpleNamespace(end=0))  # fmt: skip
        module = SimpleNamespace(load=lambda config: task)
        train.tasks = SimpleNamespace(get=lambda name: module, check=lambda task: None)
        hf.resolve = lambda name: Path("0" * 40)
        hf.for_diffusion = lambda folder, length, *_: DREAM | {"length": length}
        hf.shard_paths = hf.weights = lambda *_: {}
        make = train.start.make_model
        train.start.make_model = lambda *args: make(*args[:-1], device)  # FSDP2 moves no fake ones
        place = Place(processes, 0, device, config["shard"] and processes > 1)
        super().__init__(config, Path("out/dry_run"), place, None)
        if hasattr(self.objective, "register_comm_hook"):
            self.objective.register_comm_hook(None, fake_cuda.unreduced)
        for p in self.model.parameters():
            p.grad = torch.zeros_like(p) if p.requires_grad else None
        self.optimizer.step()
        self.optimizer.zero_grad()

    def begin(self, *_):
        self.log = log.Log(None, {}, None, 0, 1, {})
        self.saver.save = lambda *_: None
        del self.saver.own["generator"]  # which has no state


def kinds_of(run):
    """{kind: bytes} of what stays in memory."""
    things, parts, seen = {
        "weights": [*run.model.parameters(), *run.model.buffers()],
        "averages": [*run.averaged.parameters(), *run.averaged.buffers()],
        "moments": [*run.optimizer.state.values()],
        "queue": [*vars(run.queue).values()],
        "chains": [*vars(getattr(run.stream, "chains", run.stream)).values()],
    }, {}, set()  # fmt: skip
    for kind, values in things.items():
        tensors = [getattr(t, "_local_tensor", t) for t in tree_leaves(values)]
        new = {t.untyped_storage() for t in tensors if isinstance(t, torch.Tensor)} - seen
        parts[kind] = sum(storage.nbytes() for storage in new)
        seen |= new
    return parts


# -- the report ------------------------------------------------------------------------------------
def text_of(found):
    seen = found["an update"].seen
    kinds = ", ".join(f"{kind} {size / 2**30:.2f}" for kind, size in found["kinds"].items())
    lines = [
        f"{train.name}, one of {processes} GPUs, {found['rows']} rows a pass; an update:",
        f"{seen['flop'] / 1e12:.3f} TFLOP, {seen['launches']} launches, "
        f"{seen['moved'] / 1e9:.1f} GB moved, peak {seen['peak'] / 2**30:.2f} GiB ({kinds})",
        f"evaluation: peak {found['a batch of evaluation'].seen['peak'] / 2**30:.2f} GiB; "
        f"a checkpoint: {found['a checkpoint'].seen['copied'] / 2**30:.2f} GiB to the host",
    ]
    for phase, counts in found.items():
        for words in ("waits", "pageable") if isinstance(counts, SimpleNamespace) else ():
            places = [f"{n} x {where}" for where, n in getattr(counts, words).items() if n]
            lines += [f"{words}, {phase}: {', '.join(places)}"] if places else []
    return "\n".join(lines)


def forecast(found, doubled):
    """A table: the seconds of an update at best; the rows that fit if memory grows linearly."""
    update, rows = found["an update"], found["rows"]
    peak, flop = update.seen["peak"], update.seen["flop"]
    slope = (doubled["an update"].seen["peak"] - peak) / rows
    launches = update.seen["launches"] * LAUNCH
    lines = ["| | operators, ms | launches, ms | MFU | most rows a pass |", "| --- " * 5 + "|"]
    for card, (rate, _, memory) in CARDS.items():
        seconds = update.seconds[card]
        share = flop / rate / 1e12 / max(seconds, launches)
        most = max(0, math.floor(rows + (FITS * memory * 1e9 - peak) / slope))
        lines += [f"| {card} | {1e3 * seconds:.1f} | {1e3 * launches:.1f} | {share:.0%} | {most} |"]
    return "\n".join(lines)


if __name__ == "__main__":
    main(sys.argv[1:])
