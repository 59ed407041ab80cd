"""lab/likelihood.py against all masks, a slow loop and a worked example."""

import itertools
import shutil
from unittest.mock import Mock, patch

import numpy as np
import pytest
import torch
from conftest import run

import policies
from lab import likelihood
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
    with patch.object(policies, "reveal", Mock(wraps=policies.reveal)) as spy:
        likelihood.nelbo(MODEL, torch.zeros(6, 12).long(), torch.zeros(6, 12).bool(), 2)
    numbers = [sorted(call.args[2].tolist()) for call in spy.call_args_list]
    assert numbers == [[*range(1, 7)], [*range(7, 13)]]  # each number of hidden tokens once


def test_units_and_standard_errors():
    x0 = torch.tensor([[1, 2, 9, 9], [9, 3, 9, 9]])
    nats = torch.tensor([[0.1, 0.2, 0.3, 0.4], [1.0, 2, 3, 4]])
    found = likelihood.estimates(Mock(end=9), x0, x0 < 0, nats)
    assert found["nats per example"] == pytest.approx((5.5, 4.5))
    assert found["nats per token without padding"] == pytest.approx((6.6 / 6, 2 * 2.7 / 6))


@pytest.fixture(scope="module")
def kept(puzzles, tmp_path_factory):
    """A run's folder with weights kept after 2 and 4 updates."""
    folder = tmp_path_factory.mktemp("runs") / "mdm_1"
    flags = "--method=mdm", "--keep", "--save_interval=2", "--max_iters=4", "--lr=0.1", "--ema=0.0"
    code, said = run(puzzles, folder, *flags)
    assert code == 0, said
    with patch.multiple(likelihood, out_dir=f"{folder.parent}/*_?", examples=8, device="cpu"):
        yield folder


@torch.no_grad()
def steps(folder):
    """The step that reveals each cell, two at a time, by a slow loop."""
    model, _, problem, _ = likelihood.open_run(folder, 8, "cpu")
    x0, prompt = problem.test[:8]
    found = np.zeros(x0.shape)
    for row in range(8):
        x = np.where(prompt[row], x0[row], problem.mask_token)
        while len(hidden := np.flatnonzero(x == problem.mask_token)):
            p = model.logits(model(torch.as_tensor(x)[None].long()))[0].softmax(-1).amax(-1)
            best = sorted(hidden, key=lambda i: -p[i].item())[:4]  # K of the first updates
            x[best] = x0[row][best]
            found[row, best] = found[row].max() + 1
    return found


def test_the_distance_is_that_of_a_slow_loop(kept, capsys):
    distance = np.abs(steps(kept / "at/2") - steps(kept / "at/4")).mean()
    with patch.object(likelihood, "what", "distance"):
        likelihood.main()
    said = f"       2 {distance:8.3f}\n       4    0.000\n"
    assert distance > 0.1 and capsys.readouterr().out.endswith(said)


def test_the_command(kept, capsys):
    likelihood.main()
    said = capsys.readouterr().out
    assert "nats per example" in said and "mdm, nelbo, nats per token, mean of 1\n       2" in said
    alone = shutil.copytree(kept / "at/4", kept / "[4]")  # has kept nothing; is named as a pattern
    with patch.object(likelihood, "out_dir", str(alone)):
        likelihood.main()
    assert capsys.readouterr().out.endswith(f"  last   {said.split()[-1]:>8}\n")
    with patch.object(likelihood, "out_dir", "none"), pytest.raises(SystemExit, match="no such"):
        likelihood.main()
