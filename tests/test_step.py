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
    where = stream.queue.x0.device
    share = torch.zeros((), device=where)
    model = Transformer(10, MASK, 24, 32, 1, 2, 48).to(where)
    if hasattr(stream, "model"):
        stream.model = model
    made = dict.fromkeys(train.Run._fields) | {
        "model": model, "stream": stream, "optimizer": train.make_optimizer(model),
        "averaged": copy.deepcopy(model).requires_grad_(False), "share": share,
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


# -- a large vocabulary: how many positions are hidden ---------------------------------------------
@pytest.mark.parametrize("name", ["puma", "random_share", "blocks", "puma_own_tokens"])
def test_chains_say_how_many_positions_are_hidden(name, settings):
    """Also after a resume in the middle, a switch of K, and a change of the chains' owner."""
    stream = STREAMS[name](tau=0.9, buffer=3, k=SCHEDULE)
    stream.count_hidden()
    if hasattr(stream, "model"):
        stream.model = make_run(stream).model
    generator = torch.Generator().manual_seed(0)
    for iteration in range(40):
        if iteration in (10, 20):
            state = stream.state_dict()
            stream.batch(iteration)
            stream.size()  # what is on its way is of no use after
            stream.load_state_dict(state) if iteration == 10 else stream.share_out([state])
        batch = stream.batch(iteration)
        assert stream.size() == batch.hidden.sum()
        chance = torch.rand(batch.x.shape, generator=generator)
        stream.advance(chance, chance)


def test_with_a_large_vocabulary_chains_wait_for_no_value(settings):
    made = [make_run(make_chains(tau=0.9, buffer=3, k=SCHEDULE)) for _ in range(2)]
    runs = [
        run._replace(objective=losses.ChunkedObjective(run.model, policies.top_k)) for run in made
    ]
    runs[0].stream.count_hidden()
    for iteration in range(12):
        expected = train.update(runs[1], iteration)
        if iteration == 0:  # the optimizer makes its state, the first count is waited for
            found = train.update(runs[0], iteration)
        else:
            runs[0].stream.prepare(iteration)
            runs[0].optimizer.param_groups[0]["lr"].fill_(train.lr_at(iteration))
            runs[0].share.fill_(1 - train.decay_at(iteration))
            with Watch():
                found = train.step(runs[0])
        assert all(a.equal(b) for a, b in zip(found, expected, strict=True))
    with Watch(), pytest.raises(AssertionError, match="waits for a value"):
        train.step(runs[1])


# -- recorded --------------------------------------------------------------------------------------
def test_a_recorded_step_is_made_once_a_call(monkeypatch):
    """With a stand-in for CUDA's graphs, that calls the function where a graph would replay it."""

    made = []

    class Graph:
        def register_generator_state(self, generator):
            assert generator == "chance"

        def replay(self):
            for part, value in zip(recorded.found, body(), strict=True):
                part.copy_(value)

    @contextlib.contextmanager
    def recording(graph):
        made.append(graph)
        before = list(calls)
        yield
        calls[:] = before  # a recording runs nothing

    class Side:
        def wait_stream(self, other):
            pass

    for name, fake in {
        "CUDAGraph": Graph, "graph": recording, "Stream": Side, "current_stream": Side,
        "stream": lambda stream: contextlib.nullcontext(),
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, fake)
    calls = []

    def body():
        calls.append(1)
        return torch.tensor(float(len(calls))), torch.zeros(2)

    recorded = backend.Recorded("chance")
    found = [recorded(body)[0] for _ in range(10)]
    assert [value.item() for value in found] == [*range(1, 11)]  # copies: none was overwritten
    assert len(made) == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_recorded_step_is_the_eager_one(settings):
    eager, run = (
        make_run(make_chains(tau=0.9, buffer=2, k=SCHEDULE, device="cuda")) for _ in range(2)
    )
    run = run._replace(recorded=backend.Recorded(run.stream.generator))
    for iteration in range(60):  # over the switches of K
        expected, found = train.update(eager, iteration), train.update(run, iteration)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    "settings, what",
    [
        (dict(device="cpu"), "a device that is not cuda"),
        (dict(device="cuda", block_schedule=[(0, 4)]), "blocks"),
        (dict(device="cuda", chains_from=3), "random masks first or last"),
    ],
)
def test_what_a_graph_cannot_hold_is_refused(settings, what, monkeypatch):
    for name, value in (settings | {"cuda_graph": True}).items():
        monkeypatch.setattr(train, name, value)
    with pytest.raises(ValueError, match=f"cuda_graph cannot be used with {what}"):
        train.check()
