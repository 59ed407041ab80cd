"""Muon against torch.optim.Muon and AdamW, and its orthogonalisation against the SVD."""

import copy

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

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


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rate", [1e-2, torch.tensor(1e-2)])
def test_matrices_follow_torch_muon_and_the_rest_adamw(precision, rate):
    torch.manual_seed(0)
    ours = torch.nn.ModuleDict(
        {"a": torch.nn.Linear(16, 16), "b": torch.nn.Linear(16, 48), "c": torch.nn.Linear(48, 16)}
    )
    theirs = copy.deepcopy(ours)
    matrices, vectors = split(ours)
    optimizer = Muon(
        [{"params": matrices, "orthogonal": True}, {"params": vectors, "weight_decay": 0.0}],
        lr=rate, weight_decay=0.1, betas=(0.9, 0.99), precision=precision, fused=True,
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


def test_a_step_in_float32_makes_no_bfloat16_and_no_new_state():
    torch.manual_seed(0)
    module = torch.nn.Linear(8, 8, bias=False)
    optimizer = Muon([{"params": [module.weight], "orthogonal": True}], lr=1e-2)
    seen, buffers = set(), []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            out = op(*args, **(kwargs or {}))
            seen.update(t.dtype for t in tree_leaves(out) if isinstance(t, torch.Tensor))
            return out

    for _ in range(3):
        module(torch.randn(16, 8)).square().mean().backward()
        with Watch():
            optimizer.step()
        buffers.append(optimizer.state[module.weight]["momentum_buffer"].data_ptr())
    assert seen == {torch.float32} and len(set(buffers)) == 1


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
