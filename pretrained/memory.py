"""How much memory a training step takes, found without weights or a GPU: a step on shapes alone.

    python -m pretrained.memory                           config/dream_coder.py, Dream's 7B shape
    python -m pretrained.memory --checkpoint=FOLDER       another; it reads only config.json

A step is run on fake tensors, which have shapes but no contents, and the live bytes are counted.
All positions are hidden, as when all chains start. The CPU's kernels stand in for a GPU's. Not
counted: the float32 copies that CUDA's autocast makes inside a norm, the libraries' own workspace,
fragmentation, evaluation, and the logits that CUDA holds at once beyond a CPU's (losses.CHUNK), 6
bytes each: up to 3 GiB. On a CPU the profiler's peak is within 3 %.
"""

import weakref

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import backend
import policies
from configurator import configure, errors_as_messages
from losses import HeadLoss, finish, states
from model import Transformer
from pretrained import hf, lora

# -- what ----------------------------------------------------------------------------------------
checkpoint = ""  # a Hugging Face folder; "" = Dream's 7B shape
rank = 128  # of the LoRA adapters; 0 = all weights are trained
batch_size = 8  # rows per process and forward pass
length = 640  # tokens of a row
gradient_checkpointing = True
dtype = "bfloat16"  # of the frozen weights and of matrix products: bfloat16 or float32
world = 8  # processes

LIMITS = """
    0 <= rank <= 10**4    # 0 = all weights are trained
    1 <= batch_size <= 10**6
    1 <= length <= 10**6
    1 <= world <= 10**6
"""
DREAM = dict(
    vocab_size=152064, mask_token=151666, dim=3584, layers=28, heads=28, kv_heads=4, mlp=18944,
    theta=1e6, tied=False, causal=False, shifted=True,
)  # fmt: skip


class Live(TorchDispatchMode):
    """Counts the bytes of the tensors made while it is on: `now`, and `peak` so far.

    known: tensors that existed before, of which operations return views.
    """

    def __init__(self, known):
        super().__init__()
        self.now = self.peak = 0
        self.seen = {tensor.untyped_storage()._cdata for tensor in known}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self.add(tensor.untyped_storage())
        return out

    def add(self, storage):
        if storage._cdata not in self.seen and storage.nbytes():
            self.seen.add(storage._cdata)
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self.remove, storage._cdata, storage.nbytes())

    def remove(self, key, nbytes):
        self.seen.remove(key)
        self.now -= nbytes


def estimate(model_args, batch_size, rank, gradient_checkpointing, dtype, world=1):
    """{what: bytes} of a step of one process, and the numbers of frozen and of trained weights."""
    model = on_meta(model_args, rank, dtype)
    frozen = [p for p in model.parameters() if not p.requires_grad]
    trained = [p for p in model.parameters() if p.requires_grad]
    nbytes = sum(p.nbytes for p in trained)
    sizes = {
        "frozen weights": sum(p.nbytes for p in frozen),
        "trained weights": nbytes,
        "their gradients": nbytes * (2 if world > 1 else 1),  # and what DDP sends
        "optimizer": 2 * nbytes,
    }
    two, three = (
        step(model_args | {"layers": n}, batch_size, rank, gradient_checkpointing, dtype)
        for n in (2, 3)
    )
    more = model_args["layers"] - 2  # each adds what the third does
    sizes |= {what: two[what] + more * (three[what] - two[what]) for what in two}
    return sizes, [sum(p.numel() for p in part) for part in (frozen, trained)]


def on_meta(model_args, rank, dtype):
    with torch.device("meta"):
        model = Transformer(**model_args)
        if rank:
            for p in model.parameters():  # the rotary table stays in float32
                p.data = p.data.to(dtype)
            lora.Adapters(model, rank, 1)
    return model


def step(model_args, batch_size, rank, gradient_checkpointing, dtype):
    """Bytes that a step allocates and frees again, by phase, found with fake tensors."""
    model = on_meta(model_args, rank, dtype)
    bfloat16 = torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16)
    with FakeTensorMode(allow_non_fake_inputs=True), bfloat16:
        model.to_empty(device="cpu")
        if model_args["tied"]:
            model.lm_head.weight = model.model.embed_tokens.weight
        model.model.gradient_checkpointing = gradient_checkpointing
        x = torch.zeros(batch_size, model_args["length"], dtype=torch.long)
        share = torch.zeros(x.numel())
        known = [*model.parameters(), *model.buffers(), x, share]
        for p in model.parameters():
            if p.requires_grad:
                p.grad = torch.zeros_like(p)  # as when they accumulate
                known.append(p.grad)
        with Live(known) as live:
            h = states(model, x, x)
            kept, forward, live.peak = live.now, live.peak, live.now
            loss, *_ = HeadLoss.apply(
                h.flatten(0, 1), model.lm_head.weight, x.flatten(), share, x.flatten(),
                policies.top_k, model.mask_token, finish,
            )  # fmt: skip
            head = live.peak
            loss.backward()
    return {
        "activations kept for backward": kept,
        "logits at hidden positions": head - kept,
        "more inside a block": max(forward, live.peak) - head,
    }


def table(sizes, numbers):
    rows = [*sizes.items(), ("together", sum(sizes.values()))]
    text = "".join(f"{nbytes / 2**20:10,.1f} MiB  {what}\n" for what, nbytes in rows)
    return f"{sum(numbers) / 1e6:,.1f}M weights, {numbers[1] / 1e6:,.1f}M of them trained\n{text}"


def main():
    with errors_as_messages():
        shape = hf.read_shape(checkpoint) if checkpoint else DREAM
        args = shape | {"length": length}
        precision = backend.precision(torch.device("cpu"), dtype)
        found = estimate(args, batch_size, rank, gradient_checkpointing, precision, world)
        print(table(*found), end="")


if __name__ == "__main__":
    configure(globals())
    main()
