"""Formulas against loops by hand: lines that could be changed without another test's notice."""

import math
import shutil
from unittest.mock import patch

import numpy as np
import pytest
import torch
from conftest import lines

import policies
import sample
from lab import muon
from model import Transformer
from policies import top_k


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.model = torch.nn.Module()
        self.model.layers = torch.nn.ModuleList([torch.nn.Linear(6, 4), torch.nn.Linear(4, 6)])
        self.embed = torch.nn.Embedding(5, 4)


def test_muon_is_the_formula_of_its_docstring():
    torch.manual_seed(0)
    net = Net().double()
    lr, decay, beta = 0.1, 0.3, 0.95
    optimizer = muon.Muon(net, lr=lr, betas=(0.9, 0.999), weight_decay=decay)
    expected = {name: p.detach().clone() for name, p in net.named_parameters()}
    momentum = dict.fromkeys(expected, 0)
    rest = {n: torch.nn.Parameter(p) for n, p in expected.items() if "bias" in n or "embed" in n}
    groups = [
        {"params": [p for n, p in rest.items() if "bias" in n], "weight_decay": 0.0},
        {"params": [p for n, p in rest.items() if "embed" in n], "weight_decay": decay},
    ]
    adamw = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.999))
    for _ in range(3):
        for name, p in net.named_parameters():
            p.grad = torch.randn_like(p)
            if name in rest:
                rest[name].grad = p.grad.clone()
                continue
            momentum[name] = beta * momentum[name] + (1 - beta) * p.grad
            nesterov = beta * momentum[name] + (1 - beta) * p.grad
            U, S, V = torch.linalg.svd(nesterov, full_matrices=False)
            singular = S / S.norm()
            for _ in range(5):  # what the iteration does to singular values
                singular = 3.4445 * singular - 4.7750 * singular**3 + 2.0315 * singular**5
            step = lr * 0.2 * math.sqrt(max(p.shape)) * (U * singular) @ V
            expected[name] = (1 - lr * decay) * expected[name] - step
        optimizer.step()
        adamw.step()
    for name, p in net.named_parameters():
        torch.testing.assert_close(p.detach(), (rest if name in rest else expected)[name].detach())


def test_muon_leaves_frozen_and_unused_matrices_alone():
    net = Net()
    net.model.layers[0].weight.requires_grad_(False)
    before = [layer.weight.clone() for layer in net.model.layers]
    optimizer = muon.Muon(net, lr=0.1, betas=(0.9, 0.999), weight_decay=0.1)
    net.embed.weight.grad = torch.ones(5, 4)
    optimizer.step()
    after = [layer.weight for layer in net.model.layers]
    assert all(map(torch.equal, after, before))


def test_val_loss_is_of_held_out_rows(puzzles, tmp_path, train):
    other = shutil.copytree(puzzles, tmp_path / "other")
    np.save(other / "test.npy", np.load(other / "train.npy")[:8])  # seen in training
    found = set()
    for name, data in ("a", puzzles), ("b", other):
        train(data, tmp_path / name, "--max_iters=1", "--eval_interval=1")
        found |= {line["val_loss"] for line in lines(tmp_path / name) if "val_loss" in line}
    assert len(found) == 2


def test_a_drawn_token_has_its_own_confidence():
    torch.manual_seed(0)
    model = Transformer(6, 5, 8, dim=16, layers=1, heads=2, mlp=16, theta=10.0)
    x = torch.full((64, 8), 5)
    with torch.no_grad(), patch("torch.empty_like", wraps=torch.empty_like) as made:
        token, confidence, _ = sample.predict(model, x, x == 5, top_k, 1.0)
        f = model.logits(model(x)).softmax(-1)
    torch.testing.assert_close(confidence, f.gather(-1, token[..., None])[..., 0])
    assert (token != f.argmax(-1)).any()
    assert made.call_args_list[0].kwargs == {"dtype": torch.float64}


def test_what_is_added_to_the_residuals_begins_smaller():
    torch.manual_seed(0)
    model = Transformer(6, 5, 8, dim=128, layers=8, heads=2, mlp=256, theta=10.0)
    for layer in model.model.layers:
        for part in layer.self_attn.o_proj, layer.mlp.down_proj:
            assert part.weight.std().item() == pytest.approx(0.02 / 4, rel=0.05)  # sqrt(16)
        assert layer.mlp.up_proj.weight.std().item() == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("score", [-torch.inf, torch.nan])
def test_a_policy_of_no_finite_scores_does_not_cheat(score, dtype):
    hidden = torch.tensor([[False] + [True] * 5])
    scores = torch.full((1, 6), score, dtype=dtype)
    assert policies.reveal(scores, hidden, torch.tensor([2])).sum() == 2
