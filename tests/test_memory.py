"""The estimate against the peak that torch's profiler measures in a real step."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import losses
import policies
from losses import ChunkedObjective
from model import Transformer
from pretrained import lora, memory

ARGS = dict(
    vocab_size=6000, mask_token=5999, length=200, dim=96, layers=5, heads=6, kv_heads=2, mlp=256,
    theta=1e4, tied=False, shifted=True,
)  # fmt: skip
BATCH = 16


@pytest.mark.parametrize("rank, recompute", [(8, True), (8, False), (0, True)])
def test_estimate_is_the_measured_peak(rank, recompute, monkeypatch):
    monkeypatch.setitem(losses.CHUNK, "cpu", 1 << 20)
    sizes, _ = memory.estimate(ARGS, BATCH, rank, recompute, torch.float32)
    measured = measured_peak(rank, recompute)
    assert sum(sizes.values()) == pytest.approx(measured, rel=0.05)
    assert measured > 40 << 20


def measured_peak(rank, recompute):
    """Bytes of the weights, gradients and optimizer's state, and the peak in the next step."""
    model = Transformer(**ARGS)
    if rank:
        lora.Adapters(model, rank, 16)
    model.model.gradient_checkpointing = recompute
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, fused=True)
    objective = ChunkedObjective(model, policies.top_k)
    x0 = torch.randint(5999, (BATCH, 200))
    x, hidden = torch.full_like(x0, 5999), torch.ones_like(x0, dtype=torch.bool)

    def step():
        objective(x, x0, hidden)[0].backward()
        optimizer.step()

    step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        step()
    now = peak = 0
    for event in record.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    standing = sum(p.nbytes for p in model.parameters()) + 3 * sum(p.nbytes for p in trained)
    return standing + peak
