"""Checkpoints: everything that a run is, in one file, written so that a kill never leaves half.

A checkpoint is a dictionary of tensors and plain values: `iteration`, `config`, `model_args`,
`block` (the size of block diffusion's blocks by then, 0 = none), `model`, `ema` if there is one,
`optimizer`, and one entry per process in `ranks` (its stream of contexts and its random states). Of
a run with LoRA `model` is the adapters alone, and the base is read from where `init_from` says.
`torch.load(weights_only=True)` reads it, so opening one never runs code.
"""

import itertools
import zlib
from pathlib import Path
from typing import NamedTuple

import torch

import backend
from model import Transformer
from record import appearing

# What a resumed run may have otherwise than the saved one (and all settings of evaluation).
MAY_CHANGE = "name", "max_iters", "log_interval", "checkpoint_interval", "keep_every", "out_dir"


def save(state, path):
    """The file is the old one or the new one, whatever happens. Its folder is this run's alone."""
    for left in path.parent.glob(f"{path.name}.*.tmp"):
        left.unlink()  # of a process that was killed while it wrote
    with appearing(path) as partial, open(partial, "wb") as file:
        torch.save(state, file)


def load(path):
    """Raises FileNotFoundError if the file is missing, ValueError if it is no checkpoint."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"no checkpoint {path}: train first, or give the run's out_dir")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(f"{path} is no checkpoint: {error}") from error


def archive(folder):
    """Move a run, with what was measured of it, into a new folder inside its own; that folder.

    It is a run's folder too: every script takes it as out_dir.
    """
    names = (folder / f"before.{number}" for number in itertools.count(1))
    kept = next(path for path in names if not path.exists())
    kept.mkdir()
    for pattern in ("weights", "*.jsonl", "*.json", "*.md", "checkpoint.pt"):
        for path in list(folder.glob(pattern)):
            path.rename(kept / path.name)
    return kept


class Saved(NamedTuple):
    """A model to evaluate: averaged (EMA) weights if the run has them."""

    model: Transformer
    config: dict  # of its run
    iteration: int
    block: int  # size of block diffusion's blocks, 0 = none


def load_model(path, device="cpu", length=0):
    """The Saved model of a checkpoint, or of weights that a run kept.

    length: of the longest sequence, if that is more than in training.
    """
    state = load(path)
    args = state["model_args"]
    args["length"] = max(length, args["length"])
    if state["config"].get("lora_rank"):
        from pretrained import lora

        model, _ = lora.restore(state, device)
    else:
        model = Transformer(**args)
        model.load_state_dict(final_weights(state))
    return Saved(model.to(device).eval(), state["config"], state["iteration"], state["block"])


def final_weights(state):
    return state["ema"] if "ema" in state else state["model"]


def checksum(model):
    """CRC-32 of the weights."""
    crc = 0
    for weight in model.state_dict().values():
        crc = zlib.crc32(weight.cpu().contiguous().view(torch.uint8).numpy(), crc)
    return crc


def weights(out_dir):
    """The averaged weights that a run kept along the way, in order, or else its checkpoint."""
    kept = sorted(Path(out_dir, "weights").glob("*.pt"))
    return kept or [Path(out_dir, "checkpoint.pt")]


def starting_point(source, model_args):
    """Another run's averaged weights to start from, and model_args that suit them.

    An autoregressive run starts one with masks: attention becomes bidirectional, logits stay
    `shifted`. The mask embedding was never trained, so it is set to the mean of all others: "some
    unknown token".

    Raises ValueError where the architectures differ.
    """
    state = load(source)
    if "model_args" not in state:
        raise ValueError(f"{source} is no checkpoint of a run")
    if state["config"].get("lora_rank"):
        raise ValueError(
            f"{source} has adapters only: start from what pretrained.export --merge writes"
        )
    theirs = state["model_args"]
    differ = [key for key in model_args if model_args[key] != theirs[key]]
    differ = [key for key in differ if key not in ("causal", "shifted")]
    if differ:
        which = ", ".join(f"{key} {theirs[key]} -> {model_args[key]}" for key in differ)
        raise ValueError(f"{source} has another architecture: {which}")
    weights = final_weights(state)
    if theirs["causal"]:
        embedding, mask = weights["model.embed_tokens.weight"], theirs["mask_token"]
        others = torch.arange(len(embedding)) != mask
        embedding[mask] = embedding[others].mean(0)
    return weights, model_args | {"shifted": theirs["shifted"]}


def random_states():
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
    return {"cpu": torch.get_rng_state(), "cuda": cuda}


def set_random_states(states):
    torch.set_rng_state(states["cpu"])
    if states["cuda"] is not None:
        torch.cuda.set_rng_state(states["cuda"])


# -- saving and resuming a run ---------------------------------------------------------------------
class Keeper:
    """Saves a run and restores it. parts: what has a state_dict, by name; data: a fingerprint."""

    def __init__(self, folder, config, model_args, parts, stream, data, device, rank):
        self.folder, self.config, self.model_args = folder, config, model_args
        self.parts, self.stream, self.data = parts, stream, data
        self.device, self.rank = device, rank

    def save_checkpoint(self, iteration, block):
        """checkpoint.pt: everything. Every process calls it, the first one writes."""
        ranks = backend.gather({"stream": self.stream.state_dict(), **random_states()})
        if self.rank == 0:
            state = {name: part.state_dict() for name, part in self.parts.items()}
            state |= {"ranks": ranks, "device": self.device.type, "data": self.data}
            save(state | self.about(iteration, block), self.folder / "checkpoint.pt")

    def save_weights(self, iteration, block):
        """weights/<iteration>.pt: the averaged weights alone."""
        if self.rank == 0:
            weights = self.parts.get("ema", self.parts["model"]).state_dict()
            state = {"ema": weights} | self.about(iteration, block)
            save(state, self.folder / "weights" / f"{iteration:06d}.pt")

    def about(self, iteration, block):
        about = {"iteration": iteration, "block": block, "config": self.config}
        return about | {"model_args": self.model_args}

    def restore(self, saved):
        """Put everything back as the checkpoint has it; its iteration.

        Raises ValueError if the training data are others.
        """
        if saved["data"] != self.data:
            raise ValueError("a resumed run must keep its data: the training examples differ")
        for name, part in self.parts.items():
            part.load_state_dict(saved[name])
        self.stream.load_state_dict(saved["ranks"][self.rank]["stream"])
        set_random_states(saved["ranks"][self.rank])
        return saved["iteration"]


def check_resumable(saved, config, world, device):
    """Raise ValueError where a run of this configuration could not go on as the saved one would."""
    differ = [key for key in config if config[key] != saved["config"].get(key)]
    differ = [key for key in differ if key not in MAY_CHANGE and not key.startswith("eval_")]
    if differ:
        was = ", ".join(f"{key} {saved['config'].get(key)} -> {config[key]}" for key in differ)
        raise ValueError(f"a saved run must keep its configuration: {was}")
    if saved["iteration"] > config["max_iters"]:
        raise ValueError(f"max_iters {config['max_iters']}: the run is at {saved['iteration']}")
    there, here = (len(saved["ranks"]), saved["device"]), (world, device.type)
    if there != here:
        raise ValueError(f"a resumed run must keep its processes and device: {there} -> {here}")
