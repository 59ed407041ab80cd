"""Saved runs: their models, to sample from and to evaluate, and their tasks."""

import zlib
from pathlib import Path
from typing import NamedTuple

import torch

import tasks
from engine import checkpoint
from model import Transformer


class Saved(NamedTuple):
    """A model to evaluate: averaged (EMA) weights if the run has them."""

    model: Transformer
    config: dict  # of its run
    iteration: int
    block: int  # size of block diffusion's blocks, 0 = none


def open_run(path, device="cpu", length=0):
    """The Saved model of a checkpoint, or of weights that a run kept.

    length: the longest sequence, if longer than in training. Raises ValueError, or
    FileNotFoundError, if there is no such model in it.
    """
    state = checkpoint.load(path)
    args = state["model_args"]
    try:
        args["length"] = max(length, args["length"])
        if state["config"].get("lora_rank"):
            from pretrained import lora

            model, _ = lora.restore(state, device)
        else:
            model = Transformer(**args)
            model.load_state_dict(state.get("ema", state.get("model")))
        model = model.to(device).eval()
        return Saved(model, state["config"], state["iteration"], state["block"])
    except (ValueError, TypeError, LookupError, AttributeError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} is not a checkpoint of this program: {reason:.200}") from None


def kept_weights(out_dir):
    """Files of averaged weights that a run kept, in order, or its checkpoint."""
    return sorted(Path(out_dir, "weights").glob("*.pt")) or [Path(out_dir, "checkpoint.pt")]


def load_task(config):
    """The task of a saved run. Raises ValueError for an invalid configuration.

    The run may be a stranger's, so a judge that it names is not executed: see eval.py --problems.
    """
    if config.get("eval_judge") != "exact":
        config = config | {"eval_judge": ""}
    try:
        return tasks.get(config["dataset"]).load(config)
    except (TypeError, LookupError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"the configuration in the checkpoint is not valid: {reason}") from None


def checksum(model):
    """CRC-32 of the weights."""
    crc = 0
    for weight in model.state_dict().values():
        crc = zlib.crc32(weight.cpu().contiguous().view(torch.uint8).numpy(), crc)
    return crc
