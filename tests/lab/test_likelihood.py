"""lab/likelihood.py against all masks, all sequences, slow loops and a worked example."""

import itertools
from unittest.mock import Mock, patch

import numpy as np
import pytest
import torch
from conftest import ROOT

import checkpoint
import policies
from lab import likelihood, mismatch
from model import Transformer

X0 = torch.tensor([[0, 1, 2, 2], [1, 1, 0, 2], [0, 0, 1, 2]])
PROMPT = torch.tensor([[1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 0, 1]]).bool()
torch.manual_seed(0)
MODEL = Transformer(5, 4, 4, dim=16, layers=1, heads=2, mlp=16, theta=100.0).requires_grad_(False)
MODEL.load_state_dict({name: 4 * p for name, p in MODEL.state_dict().items()})  # far from uniform


def test_the_bound_against_all_masks():
    nodes, weights = np.polynomial.legendre.leggauss(8)  # exact for these powers
    t = (nodes + 1) / 2
    exact = torch.zeros(3, 4)
    for row, hidden in itertools.product(range(3), itertools.product((False, True), repeat=4)):
        hidden = torch.tensor(hidden)
        h, L = (each.sum().item() for each in (hidden, ~PROMPT[row]))
        if h and not (hidden & PROMPT[row]).any():
            x = X0[row].masked_fill(hidden, 4)
            log_probs = MODEL.logits(MODEL(x[None]))[0].log_softmax(-1)
            weight = weights / 2 @ (t ** (h - 1) * (1 - t) ** (L - h))  # E[1/t; these are hidden]
            exact[row] -= weight * hidden * log_probs[range(4), X0[row]]
    torch.manual_seed(0)
    draws = likelihood.nelbo(MODEL, X0.repeat(2000, 1), PROMPT.repeat(2000, 1), 3).view(2000, 3, 4)
    error = draws.std(0) / 2000**0.5
    assert (error[2] < 1e-6).all() and (error <= 0.1 * exact).all()  # row 2 hides one token
    assert ((draws.mean(0) - exact).abs() < 4 * error + 1e-5).all()


def test_each_number_of_hidden_tokens_comes_once(monkeypatch):
    monkeypatch.setattr(policies, "reveal", spy := Mock(wraps=policies.reveal))
    likelihood.nelbo(MODEL, torch.zeros(6, 12).long(), torch.zeros(6, 12).bool(), 2)
    numbers = [sorted(call.args[2].tolist()) for call in spy.call_args_list]
    assert numbers == [[*range(1, 7)], [*range(7, 13)]]


@pytest.mark.parametrize("name", ["top_k", "margin", "entropy"])
def test_chains_against_all_sequences(name):
    x0 = torch.cartesian_prod(torch.tensor([1]), *[torch.arange(4)] * 4)  # (256, 5)
    prompt = (torch.arange(5) < 1).expand(256, 5)
    nats, _ = likelihood.chain(MODEL, x0, prompt, policies.POLICIES[name], 1)
    assert nats.sum(1).neg().exp().sum().item() == pytest.approx(1, abs=1e-5)
    for row in range(0, 256, 15):
        x = torch.tensor([1, 4, 4, 4, 4])
        while 4 in x:
            p = MODEL.logits(MODEL(x[None]))[0, :, :4].softmax(-1)
            *_, second, first = p.sort().values.T
            scores = {"top_k": first, "margin": first - second, "entropy": (p * p.log()).sum(1)}
            i = scores[name].masked_fill(x != 4, -9).argmax()
            x[i] = x0[row, i]
            assert nats[row, i].item() == pytest.approx(-p[i, x[i]].log().item(), abs=1e-5)


@pytest.mark.parametrize("kind", ["order", "own"])
def test_states_of_a_sampler_by_a_slow_loop(kind):
    expected = []
    for x0, prompt in zip(X0, PROMPT, strict=True):
        x = torch.where(prompt, x0, 4)
        seen = []
        while 4 in x:
            p = MODEL.logits(MODEL(x[None]))[0].softmax(-1)
            hidden = (x == 4).nonzero()[:, 0].tolist()
            nats = [-p[i, x0[i]].log().item() for i in hidden]
            right = [float(p[i].argmax() == x0[i]) for i in hidden]
            seen.append((np.mean(nats), np.mean(right)))
            first = max(hidden, key=lambda i: p[i].max().item())
            x[first] = p[first].argmax() if kind == "own" else x0[first]
        expected.append(np.mean(seen, 0))
    found = mismatch.states(MODEL, X0, PROMPT, policies.top_k, kind)
    assert found == pytest.approx(np.mean(expected, 0), abs=1e-5)


def test_random_states_give_the_bound_and_a_run_is_measured(kept, capsys):
    many = X0[:1].repeat(4000, 1), PROMPT[:1].repeat(4000, 1)
    nats, _ = mismatch.states(MODEL, *many, policies.top_k, "random")
    bound = likelihood.nelbo(MODEL, *many, 3).sum(1).mean().item() / 3  # its tokens
    assert nats == pytest.approx(bound, rel=0.02)
    with patch.multiple(mismatch, out_dir=str(kept), examples=8):
        mismatch.main()
    mismatch.differences({"mdm": {1: {5: 0.5}, 2: {5: 0.3}}, "puma": {2: {5: 0.1}, 1: {5: 0.1}}})
    said = capsys.readouterr().out  # Student's t of -0.4 and -0.2: half a width of 12.706 * 0.1
    assert "random masks, 1 seeds: nats" in said
    assert "PUMA less random masks, 2 pairs: -0.300 [-1.571, +0.971] after 5\n" in said


def test_units_and_standard_errors():
    x0 = torch.tensor([[1, 2, 9, 9], [9, 3, 9, 9]])
    nats = torch.tensor([[0.1, 0.2, 0.3, 0.4], [1.0, 2, 3, 4]])
    found = likelihood.estimates(Mock(end=9), x0, x0 < 0, nats)
    assert found["nats per example"] == pytest.approx((5.5, 4.5))
    assert found["nats per token without padding"] == pytest.approx((6.6 / 6, 2 * 2.7 / 6))


# -- the command, and weights that were kept on the way --------------------------------------------
@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A run's folder with weights after 1 and 2 updates, others, then those of sudoku_mini."""
    monkeypatch.chdir(ROOT)
    saved = torch.load("results/weights/sudoku_mini/ckpt.pt", weights_only=True)
    for update, scale in (2, 1.0), (1, 0.7):
        weights = {name: scale * p for name, p in saved["averaged"].items()}
        whole = saved | {"averaged": weights, "iteration": update}
        checkpoint.save(whole, tmp_path / f"mdm_1/at/{update}")
    with patch.multiple(likelihood, out_dir=f"{tmp_path}/*_?", examples=20, device="cpu"):
        yield tmp_path / "mdm_1"


@torch.no_grad()
def steps(folder):
    """The step that reveals each cell, K at a time, by a slow loop."""
    model, run, problem, _ = likelihood.open_run(folder, 20, "cpu")
    x0, prompt = problem.test[:20]
    found = np.zeros(x0.shape)
    for row in range(20):
        x = np.where(prompt[row], x0[row], problem.mask_token)
        while len(hidden := np.flatnonzero(x == problem.mask_token)):
            p = model.logits(model(torch.as_tensor(x)[None].long()))[0].softmax(-1).amax(-1)
            best = sorted(hidden, key=lambda i: -p[i].item())[: run["k_schedule"][-1][1]]
            x[best] = x0[row][best]
            found[row, best] = found[row].max() + 1
    return found


@patch("matplotlib.figure.Figure.savefig", autospec=True)
def test_the_distance_is_that_of_a_slow_loop(savefig, kept, capsys):
    distance = np.abs(steps(kept / "at/1") - steps(kept / "at/2")).mean()
    with patch.multiple(likelihood, what="distance", figure="a.png"):
        likelihood.main()
    line = savefig.call_args.args[0].axes[0].lines[0]
    assert distance > 0.1 and line.get_xydata() == pytest.approx(np.array([[1, distance], [2, 0]]))
    assert f"       1 {distance:8.3f}\n" in capsys.readouterr().out


def test_the_command(kept, capsys):
    likelihood.main()
    said = capsys.readouterr().out
    assert "nats per example" in said and "mdm, nelbo, nats per token, mean of 1\n       1" in said
    saved = torch.load(kept / "at/1/ckpt.pt", weights_only=True)
    refused = {"expected top_k, margin": {"policy": "random"}, "of its own": {"variant": "lab.ar"}}
    for message, config in refused.items():
        torch.save(saved | {"config": saved["config"] | config}, kept / "at/1/ckpt.pt")
        with patch.object(likelihood, "what", "chain"), pytest.raises(SystemExit, match=message):
            likelihood.main()
    with patch.object(likelihood, "out_dir", "none"), pytest.raises(SystemExit, match="no such"):
        likelihood.main()
