"""The carried state: chains against a loop over rows, gradients inside a window, whole runs."""

import contextlib
from types import SimpleNamespace

import pytest
import torch
from conftest import train
from toys import BLOCKS, MASK, L, make_model, make_problems, make_queue

import train as trainer
from carry import CarryingBlocks, CarryingChains
from engine.checkpoint import load
from losses import ChunkedObjective, Objective
from model import Transformer

WIDTH = 3


def make_stream(window, blocks=False, tau=0.9, buffer=2):
    kind, schedule = (CarryingBlocks, (BLOCKS,)) if blocks else (CarryingChains, ())
    args = make_queue(), MASK, torch.Generator().manual_seed(0), *schedule, 3, tau, buffer
    return kind(*args, width=WIDTH, window=window)


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("window", [1, 3])
def test_every_row_gets_the_carry_of_its_chain_s_previous_step(window, blocks):
    """And zeros in its first step; a window visits the same rows, gradients end with it."""
    torch.manual_seed(0)
    stream, expected, resets, block = make_stream(window, blocks), {}, 0, None
    for n in range(45 * window):  # 45 updates
        turn = stream.turn
        assert turn == n // window % 2
        number = stream.number[turn].clone()
        batch = stream.batch(n // window)
        expected = {} if batch.block != block else expected  # its chains have started over
        block = batch.block
        assert batch.carry.requires_grad == (n % window > 0)
        for row in range(16):
            was = expected.get((turn, row))
            kept = was is not None and was[0] == number[row]
            assert batch.carry[row].detach().equal(was[1] if kept else torch.zeros(24, WIDTH))
            resets += was is not None and not kept
        following = torch.randn(16, 24, WIDTH, requires_grad=True)
        before = stream.hidden[turn].clone()
        stream.advance(torch.rand(16, 24), torch.rand(16, 24) ** 0.2, following)
        size = stream.block if blocks else 24
        same = (before == stream.hidden[turn]).view(16, -1, size).all(2)  # an ended block
        kept = torch.where(same.repeat_interleave(size, 1)[..., None], batch.carry, following)
        expected |= {(turn, row): (number[row], kept[row].detach()) for row in range(16)}
    assert resets > 100


def test_a_stream_resumes_with_its_carries():
    whole, other = make_stream(2), make_stream(2)

    def go(stream, steps):
        seen = []
        for n in steps:
            seen.append(stream.batch(n)[4].clone())
            draw = torch.Generator().manual_seed(n)
            noise = torch.rand(2, 16, 24, generator=draw)
            stream.advance(*noise, torch.randn(16, 24, WIDTH, generator=draw))
        return torch.stack(seen)

    go(whole, range(20))
    state, queue = whole.state_dict(), whole.queue.state_dict()
    other.generator.set_state(whole.generator.get_state())
    other.load_state_dict(state)
    other.queue.load_state_dict(queue)
    assert go(whole, range(20, 40)).equal(go(other, range(20, 40)))


@pytest.mark.parametrize("kind", [Objective, ChunkedObjective])
def test_the_gradient_of_a_window_is_that_of_its_steps_in_one_graph(kind):
    """Two visits of a stream, against the two passes written out; without the carry it differs."""
    model, gradients = make_model(carry=True), []
    x0, hidden = make_problems()
    hidden[:, -2:] = True
    later = hidden & (torch.rand(hidden.shape, generator=torch.Generator().manual_seed(0)) < 0.7)
    later[:, -1] = True
    for through in (True, False):
        model.zero_grad()
        h = model(x0.masked_fill(hidden, MASK))
        after = model(x0.masked_fill(later, MASK), carry=h if through else h.detach())
        total = 0
        for states, mask in (h, hidden), (after, later):
            log_probs = model.logits(states).log_softmax(-1)
            nll = -log_probs.gather(-1, x0[..., None])[..., 0]
            total = total + ((nll * mask).sum(1) / mask.sum(1)).mean()
        total.backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    model.zero_grad()
    objective, zeros = kind(model), torch.zeros(*x0.shape, 32, dtype=torch.float64)
    first, _, _, carry = objective(x0.masked_fill(hidden, MASK), x0, hidden, 0, zeros)
    second, _, _, _ = objective(x0.masked_fill(later, MASK), x0, later, 0, carry)
    (first + second).backward()
    ours = [p.grad for p in model.parameters()]
    assert all(torch.allclose(a, b) for a, b in zip(ours, gradients[0], strict=True))
    assert not all(torch.allclose(a, b) for a, b in zip(ours, gradients[1], strict=True))


def test_an_update_trains_on_the_mean_of_the_window(monkeypatch):
    """train.update with a window of 3, against the three visits of a twin stream in one graph."""
    monkeypatch.setattr(trainer, "carry", True)
    for name, value in {"window": 3, "dim": 32, "ema": 0.0, "grad_clip": 0.0, "buffer": 2}.items():
        monkeypatch.setattr(trainer, name, value)
    model, generators = make_model(carry=True).float(), [torch.Generator() for _ in "12"]
    chains, twin = (
        trainer.make_stream(make_queue(length=L), MASK, generator, passes=1).chains
        for generator in generators
    )
    objective, losses = Objective(model), []
    for _ in range(3):
        loss, *seen = objective(*twin.batch(0))
        twin.advance(*seen)
        losses.append(loss)
    (sum(losses) / 3).backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    found, rate = [], [{"lr": torch.zeros(())}]
    optimizer = SimpleNamespace(param_groups=rate, zero_grad=model.zero_grad)
    optimizer.step = lambda: found.extend(p.grad.clone() for p in model.parameters())
    run = SimpleNamespace(stream=chains, passes=1, objective=objective, model=model)
    run.casts, run.optimizer = contextlib.nullcontext(), optimizer
    mean, _, hidden = trainer.update(run, 0)
    assert mean.item() == pytest.approx(sum(losses).item() / 3) and len(hidden) == 48
    assert all(torch.allclose(a, b) for a, b in zip(found, expected, strict=True))
    assert (
        chains.window == 3
        and chains.turn == 1
        and chains.carry[0].equal(twin.carry[0])
        and chains.carry[0].any()
    )


def test_training_begins_as_without_a_carry():
    plain = make_model()
    carrying = Transformer(10, MASK, L, dim=32, layers=3, heads=4, mlp=48, carry=True).double()
    carrying.load_state_dict(plain.state_dict(), strict=False)
    x, carry = make_problems()[0], torch.randn(7, L, 32, dtype=torch.float64)
    assert carrying(x, carry=carry).equal(plain(x))
    torch.nn.init.ones_(carrying.model.carry_norm.weight)
    assert carrying(x).equal(plain(x)) and not carrying(x, carry=carry).equal(plain(x))


def test_a_model_without_a_carry_is_refused_in_such_chains():
    x0, hidden = make_problems()
    with pytest.raises(ValueError, match="the model takes none"):
        Objective(make_model())(x0, x0, hidden, 0, torch.zeros(7, L, 32))


@pytest.mark.parametrize(
    "flags, processes",
    [
        (["--micro_batch=8", "--policy=random"], 1),  # torch's own generator goes on, too
        (["--micro_batch=4"], 2),
        (["--block_schedule=[(0,4),(9,16)]", "--k_schedule=[(0,1)]"], 1),
    ],
)
def test_a_resumed_run_ends_as_an_uninterrupted_one(flags, processes, tmp_path):
    flags = ["--carry=True", "--window=2", "--tau=None", "--min_lr=1e-3", *flags]
    train(tmp_path / "whole", *flags, processes=processes)
    train(tmp_path / "parts", *flags, "--max_iters=7", processes=processes)
    train(tmp_path / "parts", *flags, "--init_from=resume", processes=processes)
    whole, parts = (load(tmp_path / run / "checkpoint.pt") for run in ("whole", "parts"))
    for rank, other in zip(whole["ranks"], parts["ranks"], strict=True):
        assert rank["stream"]["carry"].any()
        assert rank["stream"]["carry"].equal(other["stream"]["carry"])
    assert all(whole["model"][name].equal(value) for name, value in parts["model"].items())
    norm = whole["model"]["model.carry_norm.weight"]
    assert norm.any() and norm.isfinite().all()
