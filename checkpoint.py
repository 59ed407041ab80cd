"""Checkpoints: everything that a run is, in one file, written so that a kill never leaves half.

A checkpoint is a dictionary of tensors and plain values: `iteration`, `config`, `model_args`,
`model`, `ema` if there is one, `optimizer`, and one entry per process in `ranks` (its stream of
contexts and its random states). Of a run with LoRA `model` is the adapters alone, and the base is
read from where `init_from` says. `torch.load(weights_only=True)` reads it, so opening one never
runs code.
"""

import itertools
import os
from pathlib import Path

import torch

import lora
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
    """Raises FileNotFoundError where there is none, ValueError where it is none."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"no checkpoint {path}: train first, or give the run's out_dir")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(f"{path} is no checkpoint: {error}") from error


def move_aside(path):
    """Rename a file that a new run would overwrite; its new path, or None where there is none."""
    path = Path(path)
    if not path.exists():
        return None
    names = (path.with_name(f"{path.stem}.{n}{path.suffix}") for n in itertools.count(1))
    free = next(name for name in names if not name.exists())
    return path.rename(free)


def load_model(path, device="cpu"):
    """For sampling: the model, averaged (EMA) if the run has that, its configuration and age."""
    state = load(path)
    config = state["config"]
    if config.get("lora_rank"):
        model, _ = lora.restore(state, device)
    else:
        model = Transformer(**state["model_args"])
        model.load_state_dict(state.get("ema", state["model"]))
    return model.to(device).eval(), config, state["iteration"]


def random_states():
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
    return {"cpu": torch.get_rng_state(), "cuda": cuda}


def set_random_states(states):
    torch.set_rng_state(states["cpu"])
    if states["cuda"] is not None:
        torch.cuda.set_rng_state(states["cuda"])
