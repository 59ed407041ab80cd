"""What the device does in a training step, shown without one: no value is waited for, no shape
depends on data, and a switch of K compiles nothing anew."""

import contextlib
import copy
import functools
import itertools

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from toys import MASK, make_chains

import block
import losses
import policies
import puma
import studies.ablations as ablations
import train
from model import Transformer

SCHEDULE = [(0, 12), (15, 6), (30, 4), (45, 3)]  # 2, 4, 6, 8 stages


@pytest.fixture
def settings(monkeypatch):
    for name, value in dict(muon=True, lr=3e-3, warmup=10, max_iters=60, dtype="float32").items():
        monkeypatch.setattr(train, name, value)


def make_run(stream, passes=1):
    stream.queue.takes = passes
    torch.manual_seed(0)
    model = Transformer(10, MASK, 24, 32, 1, 2, 48)
    if hasattr(stream, "model"):
        stream.model = model
    made = dict.fromkeys(train.Run._fields) | {
        "model": model, "stream": stream, "optimizer": train.make_optimizer(model),
        "averaged": copy.deepcopy(model).requires_grad_(False), "share": torch.zeros(()),
        "objective": losses.Objective(model, policies.top_k),
        "autocast": contextlib.nullcontext(),
    }  # fmt: skip
    return train.Run(**made)


class Watch(TorchDispatchMode):
    """Fails at an operation that gives the host a value, or whose result's size depends on one.

    As torch itself marks them, for its tracers; indexing is such a one with booleans only.
    """

    BAD = torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape
    INDEXING = torch.ops.aten.index, torch.ops.aten.index_put_, torch.ops.aten.index_put

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        if op.overloadpacket in self.INDEXING:
            bad = any(i.dtype is torch.bool for i in tree_leaves(args[1]) if i is not None)
        else:
            bad = any(tag in op.tags for tag in self.BAD)
        assert not bad, f"{op} waits for a value"
        return op(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "wait",
    [
        lambda t: t.sum().item(),
        lambda t: bool((t > 0).all()),
        lambda t: t[t > 0],
        lambda t: t.nonzero(),
        lambda t: t.masked_select(t > 0),
        lambda t: t.unique(),
        lambda t: t.masked_fill_(t > 0, 1).equal(t),
    ],
)
def test_the_watch_sees_what_waits(wait):
    with Watch(), pytest.raises(AssertionError, match="waits for a value"):
        wait(torch.randn(5))


def make_blocks(**options):
    made = make_chains(**options)
    return block.BlockUnmasking(made.queue, MASK, made.generator, [(0, 6)], SCHEDULE, 0.9, 2)


def make_masks(kind, **options):
    made = make_chains(**options)
    return kind(made.queue, MASK, made.generator)


STREAMS = {
    "puma": make_chains,
    "random_share": functools.partial(
        make_chains, kind=functools.partial(puma.ProgressiveUnmasking, random_share=0.3)
    ),
    "blocks": make_blocks,
    "mdm": functools.partial(make_masks, puma.RandomMasking),
    "ar": functools.partial(make_masks, puma.NextToken),
    "sat": functools.partial(make_masks, ablations.SelfAligned),
    **{name: functools.partial(make_chains, kind=kind) for name, kind in ablations.CHAINS.items()},
}


def test_an_update_has_its_rows_however_they_are_shared_out(monkeypatch):
    for most, world in itertools.product([None, *range(1, 200)], (1, 2, 3, 64)):
        monkeypatch.setattr(train, "micro_batch", most)
        rows, passes = train.split(192, world)
        assert world * rows * passes == 192 and rows <= (most or 192)
        fewer = [n for n in range(1, passes) if 192 // world % n == 0]
        assert all(192 // world // n > (most or 192) for n in fewer)
    for world in (5, 384):
        with pytest.raises(ValueError, match="batch_size 192: expected a multiple of the"):
            train.split(192, world)


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("passes", [1, 3])
def test_a_step_waits_for_no_value(name, passes, settings):
    """All of it: forward and backward pass, clipping, Muon and AdamW, average, chains."""
    run = make_run(STREAMS[name](tau=0.9, buffer=2, k=SCHEDULE), passes)
    train.update(run, 0)  # the optimizer makes its state
    before = [p.clone() for p in run.model.parameters()]
    with Watch():
        train.step(run)
    assert not any(p.equal(q) for p, q in zip(run.model.parameters(), before, strict=True))


def test_the_parts_of_a_step_trace_whole(settings, monkeypatch):
    """Without a break: forward, backward, clipping, chains and average in one graph; Muon's part.

    Dynamo refuses, whatever the code: drawing from a generator, zero_grad and AdamW's fused kernel.
    """
    monkeypatch.setattr(torch._dynamo.config, "trace_autograd_ops", True)
    run = make_run(make_chains(tau=0.9, buffer=2, k=SCHEDULE))
    train.update(run, 0)
    twin = copy.deepcopy(run.model)

    def part(r):
        batch = run.stream.visit()
        loss, score, confidence = run.objective(*batch)
        loss.backward()
        run.stream.move(score, confidence, r)
        norm = torch.nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
        train.update_average(run.averaged, run.model, run.share)
        return loss.detach(), norm, batch

    torch.compiler.reset()
    loss, norm, batch = torch.compile(part, fullgraph=True, backend="aot_eager")(torch.rand(16))
    expected, *_ = losses.Objective(twin, policies.top_k)(*batch)
    expected.backward()
    torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(norm, torch.nn.utils.clip_grad_norm_(twin.parameters(), 1.0))
    for p, q in zip(run.model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)

    group = run.optimizer.param_groups[0]
    square = [p for p in group["params"] if p.shape == (32, 32)]

    def orthogonal():
        with torch.no_grad():
            run.optimizer.orthogonal_step(square, group)

    before = [p.clone() for p in square]
    torch.compile(orthogonal, fullgraph=True, backend="aot_eager")()
    assert not any(p.equal(q) for p, q in zip(square, before, strict=True))


def test_switches_of_k_compile_nothing(settings, monkeypatch):
    """60 steps, 3 switches: nothing after the first step; contexts are those without a compiler."""
    torch.compiler.reset()
    compile = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda f, **options: compile(f, backend="aot_eager", **options)
    )
    run, plain = (make_run(make_chains(tau=0.9, buffer=2, k=SCHEDULE)) for _ in range(2))
    run.objective.compile()
    run.stream.compile()
    run.optimizer.compile()
    stages = set()
    for iteration in range(60):
        loss, _, hidden = train.update(run, iteration)
        expected = train.update(plain, iteration)
        torch.testing.assert_close(loss, expected[0], rtol=1e-3, atol=0)
        assert hidden.equal(expected[2]) and run.stream.stage.equal(plain.stream.stage)
        stages.add(int(run.stream.stages))
        monkeypatch.setattr(torch._dynamo.config, "error_on_recompile", True)
    assert stages == {2, 4, 6, 8}
