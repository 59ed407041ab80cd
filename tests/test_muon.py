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


def make_optimizer(module, *args, **options):
    """Muon at the rate 0.01."""
    layers = torch.nn.ModuleList(part for name, part in module.items() if name != "head")
    optimizer = Muon(module, layers, *args, **options)
    optimizer.param_groups[0]["lr"].fill_(1e-2)  # one tensor, of all groups
    return optimizer


def split(module):
    """Its matrices, the head, and its vectors."""
    named = dict(module.named_parameters())
    ends = [p for name, p in named.items() if name == "head.weight"]
    matrices = [p for name, p in named.items() if p.dim() == 2 and name != "head.weight"]
    return matrices, ends, [p for p in named.values() if p.dim() == 1]


@pytest.mark.parametrize(
    "orthogonal, precision",
    [(False, torch.float32), (True, torch.float32), (True, torch.bfloat16)],
)
def test_matrices_follow_torch_muon_and_the_rest_adamw(orthogonal, precision):
    torch.manual_seed(0)
    shapes = {"a": (16, 16), "b": (16, 48), "c": (48, 16), "head": (16, 16)}
    ours = torch.nn.ModuleDict({name: torch.nn.Linear(*shape) for name, shape in shapes.items()})
    theirs, settings = copy.deepcopy(ours), dict(betas=(0.9, 0.99), weight_decay=0.1, fused=True)
    optimizers = [make_optimizer(ours, orthogonal, precision, **settings)]
    matrices, ends, vectors = split(theirs)
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


def test_a_saved_optimizer_goes_on_as_if_it_had_not_stopped():
    torch.manual_seed(0)
    first = torch.nn.ModuleDict({"a": torch.nn.Linear(8, 8)})
    second, x = copy.deepcopy(first), torch.randn(16, 8)
    one, other = make_optimizer(first, True), make_optimizer(second, True)
    for step in range(6):
        if step == 3:  # the other takes over what the first one was
            second.load_state_dict(first.state_dict())
            other.load_state_dict(copy.deepcopy(one.state_dict()))
        for module, optimizer in ((first, one), (second, other))[: 1 if step < 3 else 2]:
            module.zero_grad()
            module["a"](x).sin().square().mean().backward()
            optimizer.step()
    for p, q in zip(first.parameters(), second.parameters(), strict=True):
        assert p.equal(q)
