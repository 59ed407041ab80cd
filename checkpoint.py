"""Checkpoints: everything that a run is, in one file, written so that a kill never leaves half.

A checkpoint is a dictionary of tensors and plain values: `iteration`, `config`, `model_args`,
`model`, `ema`, `optimizer`, and one entry per process in `ranks` (its stream of contexts and its
random states). `torch.load(weights_only=True)` reads it, so opening one never runs code.
"""

import os
from pathlib import Path

import torch

from model import Transformer


def save(state, path):
    """Write to a temporary name, then rename: the file is the old one or the new one."""
    temporary = Path(f"{path}.tmp")
    with open(temporary, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def load(path):
    """Raises FileNotFoundError that says what to do when there is none."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"no checkpoint {path}: train first, or give the run's out_dir")
    return torch.load(path, map_location="cpu", weights_only=True)


def load_model(path, device="cpu"):
    """The model with its averaged (EMA) weights, for sampling, and the run's configuration."""
    state = load(path)
    model = Transformer(**state["model_args"])
    model.load_state_dict(state["ema"])
    return model.to(device).eval(), state["config"]


def random_states():
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
    return {"cpu": torch.get_rng_state(), "cuda": cuda}


def set_random_states(states):
    torch.set_rng_state(states["cpu"])
    if states["cuda"] is not None:
        torch.cuda.set_rng_state(states["cuda"])
