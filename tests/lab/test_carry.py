"""lab/carry.py against windows and rows written out, and a run that is killed."""

import signal

import pytest
import torch
from conftest import PLUS, same, state, stop_at

import lab.carry
import policies
import puma
import sudoku
from model import Transformer

SHAPE = dict(vocab_size=5, mask_token=4, length=16, dim=12, layers=2, heads=2, mlp=32, theta=20.0)


def make_model(**options):
    torch.manual_seed(0)
    model = lab.carry.make_model(**SHAPE, **options)
    for p in model.parameters():
        torch.nn.init.normal_(p)
    return model


def make_chains(module, model, method, folder):
    torch.manual_seed(1)
    queue = puma.Queue(sudoku.load(folder, 8).train, 8, "cpu", 1)
    settings = dict(k_schedule=[(0, 3), (5, 2)], tau=0.9, buffer=2, batch_size=8, grad_accum=1)
    return module.make_streams(model, queue, method=method, chains_from=0, **settings)[1]


@pytest.mark.parametrize(("base", "window"), [("puma", 1), ("puma", 3), ("puma_plus", 3)])
def test_an_update_is_its_window_written_out(puzzles, base, window):
    """Contexts, loss, gradient, carries: from plain chains, and the carry of each row by hand."""
    model = make_model(window=window)
    ours = make_chains(lab.carry, model, base, puzzles)
    twin = make_chains(puma, model, base, puzzles)
    carry = torch.zeros(len(twin.x0), 8, 16, 12)
    for update in range(12):
        torch.manual_seed(update)
        loss, *seen = lab.carry.objective(model, policies.top_k, *ours.batch(update))
        ours.advance(*seen)
        torch.manual_seed(update)
        turn = twin.turn
        h = carry[turn].clone()  # without a graph: the gradient ends with the window
        expected = 0
        for _ in range(window):
            twin.turn = turn
            prompt = twin.prompt[turn].clone()
            x, x0, hidden = twin.batch(update)
            h = model(x, h)
            p = model.logits(h).log_softmax(-1).exp()
            for row, where in enumerate(hidden):
                expected -= p[row, where, x0[row, where]].log().mean() / (8 * window)
            twin.advance(p.detach().amax(-1), p.detach().amax(-1))
            h = h * (twin.prompt[turn] == prompt).all(1)[:, None, None]  # or a new puzzle begins
        carry[turn] = h.detach()
        torch.testing.assert_close(loss, expected)
        found = torch.autograd.grad(loss, [*model.parameters()])
        torch.testing.assert_close(found, torch.autograd.grad(expected, [*model.parameters()]))
        torch.testing.assert_close(ours.carry, carry)
        assert ours.turn == twin.turn and torch.equal(ours.hidden, twin.hidden)


def test_the_model():
    """Layers of embedding + LayerNorm(carry), also in loops; at first as without a carry."""
    model = make_model(loops=3)
    plain = Transformer(**SHAPE)
    plain.load_state_dict(model.state_dict(), strict=False)
    x = torch.randint(5, (3, 16))
    h = torch.randn(3, 16, 12)
    found = model(x, h)
    new = lab.carry.make_model(**SHAPE)
    new.load_state_dict(plain.state_dict(), strict=False)
    assert torch.equal(new(x, h), plain(x)) and torch.equal(new(x), plain(x))
    how = (12,), *model.model.carry_norm.parameters(), 1e-6
    added = lambda module, args, out: out + torch.layer_norm(h, *how)  # noqa: E731
    plain.model.embed_tokens.register_forward_hook(added)
    for _ in range(3):
        h = plain(x)
    torch.testing.assert_close(found, h)


@pytest.mark.parametrize(("reveal", "tau"), [(1, 1.0), (2, 0.9)])
def test_sampling_is_a_loop_over_rows(reveal, tau):
    model = make_model()
    x0 = torch.randint(4, (9, 16))
    hidden = torch.rand(9, 16) < torch.linspace(0, 1, 9)[:, None]
    found, steps = lab.carry.generate(model, x0, hidden, policies.top_k, reveal, tau)
    for row, x in enumerate(x0.masked_fill(hidden, 4)):
        h = torch.zeros(1, 16, 12)
        count = 0
        while left := (x == 4).nonzero()[:, 0].tolist():
            h = model(x[None], h)
            best, token = model.logits(h)[0].softmax(-1).max(-1)
            left.sort(key=lambda i: -best[i].item())
            chosen = [i for i in left if best[i] > tau] or left[:reveal]
            x[chosen] = token[chosen]
            count += 1
        assert torch.equal(x, found[row]) and count == steps[row]


def test_a_killed_run_ends_as_another(puzzles, tmp_path, train):
    flags = ["--variant=lab.carry", *PLUS, "--options={'window': 2}", "--chains_from=8"]
    flags += ["--grad_accum=2"]
    train(puzzles, tmp_path / "a", *flags)
    stop_at(13, signal.SIGKILL, puzzles, tmp_path / "b", *flags, "--resume")  # saved at 10
    train(puzzles, tmp_path / "b", *flags, "--resume")
    assert same(state(tmp_path / "a"), state(tmp_path / "b"))
    assert state(tmp_path / "a")["ranks"][0]["chains"]["carry"].any()
