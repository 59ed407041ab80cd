"""Models too large for one device: FSDP2 splits weights, gradients and moments over the processes.

A checkpoint holds whole tensors, so a run can continue with other processes, or without sharding.
"""

import contextlib

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor


def split_up(model, layers, device):
    """Shard a model of token ids in place; layers: its parts that are gathered one by one.

    The rest stays whole until the end of the backward pass, which averages the gradients.
    """
    mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
    for part in (*layers, model):
        fully_shard(part, mesh=mesh)
        # Sum, then divide: gloo may compute a sum for an average (pytorch/pytorch, issue 162338).
        part.set_force_sum_reduction_for_comms(True)
    with torch.no_grad():  # the first module called becomes the root; a sampler would call a layer
        model(torch.zeros(1, 1, dtype=torch.long, device=device))
    model.reshard()


@contextlib.contextmanager
def unsharded(model):
    """Gathers a sharded model on every process, so a pass inside waits for no other process."""
    parts = [part for part in model.modules() if hasattr(part, "unshard")]
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.set_reshard_after_forward(part is not model, recurse=False)
            part.reshard()


def whole(tensor):
    """The tensor, gathered on the CPU if it is sharded; then all processes must call this."""
    return tensor.full_tensor().cpu() if hasattr(tensor, "full_tensor") else tensor


def like(tensor, other):
    """A whole tensor, cut as `other` is if that is sharded."""
    if not hasattr(other, "full_tensor") or not tensor.dim():
        return tensor
    return distribute_tensor(tensor, other.device_mesh, other.placements, src_data_rank=None)
