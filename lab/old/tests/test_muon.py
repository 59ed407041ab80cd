"""Muon against torch.optim.Muon and AdamW, and its orthogonalisation against the SVD."""

import copy

import pytest
import torch

from engine.muon import Muon, orthogonalise


@pytest.mark.parametrize("precision, noise", [(torch.float32, 1e-4), (torch.bfloat16, 0.03)])
@pytest.mark.parametrize("shape", [(1, 24, 24), (3, 40, 16), (2, 16, 40)])
def test_orthogonalise_moves_the_singular_values_to_one(shape, precision, noise):
    torch.manual_seed(0)
    g = torch.randn(shape) @ torch.diag(torch.logspace(0, -1, shape[-1]))
    u, _, vh = torch.linalg.svd(g, full_matrices=False)
    found = orthogonalise(g, precision)
    assert found.dtype is torch.float32
    singular = torch.linalg.svdvals(found)
    assert singular.min() > 0.65 and singular.max() < 1.2
    within = u.mT @ found @ vh.mT  # diagonal in the basis of g
    diagonal = torch.diag_embed(within.diagonal(dim1=-2, dim2=-1))
    torch.testing.assert_close(within, diagonal, atol=noise, rtol=0)


@pytest.mark.parametrize(
    "orthogonal, precision",
    [(False, torch.float32), (True, torch.float32), (True, torch.bfloat16)],
)
def test_matrices_follow_torch_muon_and_the_rest_adamw(orthogonal, precision):
    torch.manual_seed(0)
    shapes = {"a": (16, 16), "b": (16, 48), "c": (48, 16), "head": (16, 16)}
    ours = torch.nn.ModuleDict({name: torch.nn.Linear(*shape) for name, shape in shapes.items()})
    theirs, settings = copy.deepcopy(ours), dict(betas=(0.9, 0.99), weight_decay=0.1, fused=True)
    layers = torch.nn.ModuleList(ours[name] for name in "abc")
    optimizers = [Muon(ours, layers, orthogonal, precision, **settings)]
    optimizers[0].param_groups[0]["lr"].fill_(1e-2)  # one tensor, of all groups
    matrices = [theirs[name].weight for name in "abc"]
    ends = [theirs["head"].weight]
    vectors = [part.bias for part in theirs.values()]
    if orthogonal:
        others = dict(lr=1e-2, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
        optimizers.append(torch.optim.Muon(matrices, **others))
    decayed = ends if orthogonal else ends + matrices
    groups = [{"params": decayed}, {"params": vectors, "weight_decay": 0.0}]
    optimizers.append(torch.optim.AdamW(groups, lr=1e-2, **settings))
    for _ in range(4):  # gradients that differ, so that Nesterov's momentum matters
        for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    moved = 4 * 1e-2 * 0.2 * 48**0.5
    tolerance = 0.03 * moved if orthogonal else 1e-7  # theirs: bfloat16
    for (name, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, atol=tolerance, rtol=0, msg=name)
