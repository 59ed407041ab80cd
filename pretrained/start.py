"""What a run starts from: its weights, from scratch or another run's, or its own checkpoint."""

import re
from pathlib import Path

import torch

from engine import checkpoint
from engine.files import say
from engine.processes import local_rank
from model import Transformer


def make_model(origin, task, saved, model_args, adapters, device):
    """The model, the part of it that is saved (itself, or its adapters), and its arguments.

    origin: scratch, another run's FILE.pt, or hf: and a folder, or NAME@REVISION on the hub; saved:
    a checkpoint to resume, whose weights are loaded later, or None; model_args: as the run's
    settings have them; adapters: rank (0 = all weights are trained) and alpha of LoRA, dtype of the
    frozen weights. Raises ValueError for another origin, or one that does not fit the data.
    """
    name, weights = origin.removeprefix("hf:"), None
    if name != origin:
        from pretrained import finetune

        return finetune.make_model(name, task, saved, model_args, adapters, device)
    if adapters[0] or not (origin == "scratch" or origin.endswith(".pt")):
        expected = "hf:FOLDER" if adapters[0] else "scratch, resume, continue, FILE.pt or hf:FOLDER"
        raise ValueError(f"init_from {origin!r}: expected {expected}")
    if saved:
        model_args = saved["model_args"]
    elif origin != "scratch":
        weights, model_args = from_run(origin, model_args)
    model = Transformer(**model_args).to(device)
    if weights:
        model.load_state_dict(weights)
    return model, model, model_args


def folder_of(config):
    return Path(str(config["out_dir"]) or "out/{name}_{method}_{seed}".format_map(config))


def settings_of_run(config):
    """The settings of the run that resumes or continues, which flags alone change; {} if none."""
    path = folder_of(config) / "checkpoint.pt"
    if not (re.match("resume$|continue(:|$)", str(config["init_from"])) and path.exists()):
        return {}
    if local_rank() == 0:
        say(f"settings as in {path}, but for those in --key=value")
    own = {"out_dir": str(path.parent), "init_from": config["init_from"]}
    return checkpoint.load(path)["config"] | own


def pinned(origin):
    """The origin, with the commit of a model on the hub, which the run records and keeps."""
    name = origin.removeprefix("hf:")
    if name == origin or Path(name).is_dir() or re.fullmatch(".*@[0-9a-f]{40}", name):
        return origin
    from pretrained import hf

    commit = hf.resolve(name).name  # the folder's name in the hub's cache
    return f"hf:{name.partition('@')[0]}@{commit}"


def from_run(path, model_args):
    """Another run's averaged weights to start from, and the model_args for them.

    If that run was autoregressive, attention becomes bidirectional and logits stay `shifted`. Its
    mask embedding was never trained, so it is set to the mean of all others: "some unknown token".

    Raises ValueError if the architectures differ.
    """
    state = checkpoint.load(path)
    if state["config"].get("lora_rank"):
        raise ValueError(
            f"{path} has only adapters: start from the output of pretrained.export --merge"
        )
    theirs = state["model_args"]
    differ = [key for key in model_args if model_args[key] != theirs.get(key, key == "loops")]
    differ = [key for key in differ if key not in ("causal", "shifted")]
    if differ:
        which = ", ".join(f"{key} {theirs.get(key)} -> {model_args[key]}" for key in differ)
        raise ValueError(f"{path} has another architecture: {which}")
    weights = state.get("ema", state.get("model"))
    if theirs["causal"]:
        embedding, mask = weights["model.embed_tokens.weight"], theirs["mask_token"]
        others = torch.arange(len(embedding)) != mask
        embedding[mask] = embedding[others].mean(0)
    return weights, model_args | {"shifted": theirs["shifted"]}
