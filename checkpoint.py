"""Checkpoints: everything that a run is, in one file, written so that a kill never leaves half.

A checkpoint is a dictionary of tensors and plain values: `iteration`, `config`, `model_args`,
`model`, `ema` if there is one, `optimizer`, and one entry per process in `ranks` (its stream of
contexts and its random states). Of a run with LoRA `model` is the adapters alone, and the base is
read from where `init_from` says. `torch.load(weights_only=True)` reads it, so opening one never
runs code.
"""

import itertools
import zlib
from pathlib import Path

import torch

from model import Transformer
from pretrained import lora
from record import appearing


def save(state, path):
    with appearing(path) as partial, open(partial, "wb") as file:
        torch.save(state, file)


def load(path):
    """Raises FileNotFoundError where there is none, ValueError where it is none."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"no checkpoint {path}: train first, or give the run's out_dir")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(f"{path} is no checkpoint: {error}") from error


def unused(path):
    """The path with the first number before its suffix with which there is no such file."""
    names = (path.with_name(f"{path.stem}.{n}{path.suffix}") for n in itertools.count(1))
    return next(name for name in names if not name.exists())


def set_aside(folder):
    """Move a run, with what was measured of it, into a new folder inside its own; that folder.

    It is a run's folder too: every script takes it as out_dir.
    """
    kept = unused(folder / "before")
    kept.mkdir()
    for pattern in ("weights", "*.jsonl", "*.json", "*.md", "checkpoint.pt"):
        for path in list(folder.glob(pattern)):
            path.rename(kept / path.name)
    return kept


def load_model(path, device="cpu", length=0):
    """For sampling: the model, averaged (EMA) if the run has that, its configuration and age.

    path: a checkpoint, or weights that a run kept. length: of the longest sequence, where that is
    more than what the run was trained on.
    """
    state = load(path)
    state["model_args"]["length"] = max(length, state["model_args"]["length"])
    return build(state, device), state["config"], state["iteration"]


def build(state, device):
    """The model of a checkpoint, to evaluate."""
    if state["config"].get("lora_rank"):
        model, _ = lora.restore(state, device)
    else:
        model = Transformer(**state["model_args"])
        model.load_state_dict(final_weights(state))
    return model.to(device).eval()


def final_weights(state):
    return state["ema"] if "ema" in state else state["model"]


def checksum(model):
    """Of the weights; other weights have another one."""
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
    `shifted`. It never saw the mask token, whose embedding is still noise: it becomes the mean of
    the others, that of a token of which nothing is known.

    Raises ValueError where the architectures differ.
    """
    state = load(source)
    if "model_args" not in state:
        raise ValueError(f"{source} is no checkpoint of a run")
    if state["config"].get("lora_rank"):
        raise ValueError(f"{source} has adapters only: start from what export.py --merge writes")
    theirs = state["model_args"]
    differ = [key for key in model_args if model_args[key] != theirs[key]]
    differ = [key for key in differ if key not in ("causal", "shifted", "block")]
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
