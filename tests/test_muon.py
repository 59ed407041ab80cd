"""Muon against torch.optim.Muon and AdamW, and its orthogonalisation against the SVD."""

import copy

import pytest
import torch

from muon import Muon, orthogonalise


@pytest.mark.parametrize("shape", [(24, 24), (3, 40, 16), (2, 16, 40)])
def test_orthogonalise_moves_the_singular_values_to_one(shape):
    torch.manual_seed(0)
    g = torch.randn(shape) @ torch.diag(torch.logspace(0, -1, shape[-1]))
    u, _, vh = torch.linalg.svd(g, full_matrices=False)
    found = orthogonalise(g)
    singular = torch.linalg.svdvals(found)
    assert singular.min() > 0.65 and singular.max() < 1.2
    within = u.mT @ found @ vh.mT  # diagonal in the basis of g
    diagonal = torch.diag_embed(within.diagonal(dim1=-2, dim2=-1))
    torch.testing.assert_close(within, diagonal, atol=1e-4, rtol=0)


def test_matrices_follow_torch_muon_and_the_rest_adamw():
    torch.manual_seed(0)
    ours = torch.nn.ModuleDict(
        {"a": torch.nn.Linear(16, 16), "b": torch.nn.Linear(16, 48), "c": torch.nn.Linear(48, 16)}
    )
    theirs = copy.deepcopy(ours)
    matrices, vectors = split(ours)
    optimizer = Muon(
        [{"params": matrices, "orthogonal": True}, {"params": vectors, "weight_decay": 0.0}],
        lr=1e-2, weight_decay=0.1, betas=(0.9, 0.99),
    )  # fmt: skip
    matrices, vectors = split(theirs)
    muon = torch.optim.Muon(matrices, lr=1e-2, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    adamw = torch.optim.AdamW(vectors, lr=1e-2, weight_decay=0.0, betas=(0.9, 0.99))
    x = torch.randn(64, 16)  # enough rows for gradients of full rank
    for _ in range(4):
        for module in ours, theirs:
            module.zero_grad()
            (module["c"](module["b"](module["a"](x)).relu()) - x.sin()).square().mean().backward()
        for each in optimizer, muon, adamw:
            each.step()
    for (name, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        moved = 4 * 1e-2 * 0.2 * 48**0.5
        torch.testing.assert_close(p, q, atol=0.03 * moved, rtol=0, msg=name)  # theirs: bfloat16


def split(module):
    parameters = list(module.parameters())
    return [p for p in parameters if p.dim() == 2], [p for p in parameters if p.dim() == 1]


def test_a_saved_optimizer_goes_on_as_if_it_had_not_stopped():
    torch.manual_seed(0)
    first = torch.nn.Linear(8, 8)
    second = copy.deepcopy(first)
    x, optimizers = torch.randn(16, 8), []
    for module in first, second:
        matrices, vectors = split(module)
        groups = [{"params": matrices, "orthogonal": True}, {"params": vectors}]
        optimizers.append(Muon(groups, lr=1e-2))
    one, other = optimizers
    for step in range(6):
        if step == 3:  # the other takes over what the first one was
            second.load_state_dict(first.state_dict())
            other.load_state_dict(copy.deepcopy(one.state_dict()))
        for module, optimizer in ((first, one), (second, other))[: 1 if step < 3 else 2]:
            module.zero_grad()
            module(x).sin().square().mean().backward()
            optimizer.step()
    for p, q in zip(first.parameters(), second.parameters(), strict=True):
        assert p.equal(q)
