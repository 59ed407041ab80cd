"""Saved runs: their models, to sample from and to evaluate, and their tasks.

A run is read from its own folder, or from one that export.py wrote: both hold all that sampling
needs, the tokenizer too, and can be moved to another machine.
"""

import zlib
from pathlib import Path
from typing import NamedTuple

import torch

import configurator
import tasks
from engine import checkpoint, files
from model import Transformer
from pretrained import card, hf

EXPORTED = "run.json"  # in an exported folder: all of a checkpoint but the weights
MOST = 1 << 20  # held-out examples, or tokens of a row, of a run that is opened
RANGES = {  # of model_args and block, which may be a stranger's
    "length": (1, MOST), "layers": (1, 1024), "heads": (1, 1024), "loops": (1, 64),
    "eps": (0.0, 1.0), "theta": (1.0, 1e12), "block": (0, MOST),
}  # fmt: skip


class Saved(NamedTuple):
    """A model to evaluate: averaged (EMA) weights if the run has them."""

    model: Transformer
    config: dict  # of its run
    iteration: int
    block: int  # size of block diffusion's blocks, 0 = none
    args: dict  # of model.Transformer


def open_run(path, device="cpu", length=0):
    """The Saved model of a run's folder or of one that export.py wrote, of a checkpoint, or of
    weights that a run kept.

    length: the longest sequence, if longer than in training. Raises ValueError, or
    FileNotFoundError, if there is no such model in it.
    """
    state = load(path)
    args = state["model_args"]
    try:
        args["length"] = max(length, args["length"])
        check(args | {"block": state["block"]})
        if state["config"].get("lora_rank"):
            from pretrained import lora

            model, _ = lora.restore(state, device)
        else:
            weights = state.get("ema", state.get("model"))
            model = Transformer(**args)
            model.load_state_dict(weights)
            if not all(w.is_floating_point() and w.isfinite().all() for w in weights.values()):
                raise ValueError("weights that are not finite, or no floating-point numbers")
        model = model.to(device).eval()
        if state.get("checksum") not in (None, checksum(model)):
            raise ValueError("the weights are not those that were exported")
        return Saved(model, state["config"], state["iteration"], state["block"], args)
    except (ValueError, TypeError, LookupError, AttributeError, RuntimeError) as error:
        reason = configurator.printable(" ".join(str(error).split()))
        raise ValueError(f"{path} is not a checkpoint of this program: {reason:.200}") from None


def check(args):
    """Raise ValueError for model_args, and a block, outside RANGES."""
    for name, (low, high) in (RANGES | {"mask_token": (0, args["vocab_size"] - 1)}).items():
        value = args.get(name, low)
        if type(value) is not type(low) or not low <= value <= high:
            raise ValueError(f"{name} {value!r}: expected {low} to {high}")


def load(path):
    """The state in a checkpoint; of an exported folder, what sampling needs of it.

    Where its data_dir is not, or has other data, the folder itself has header and tokenizer.
    """
    path = Path(path)
    folder = path if path.is_dir() else path.parent
    if (folder / EXPORTED).is_file() and not (folder / "checkpoint.pt").exists():
        state = checkpoint.checked(files.read_json(folder / EXPORTED), folder / EXPORTED)
        shards = hf.shard_paths(folder)
        state["ema"] = {name: each for shard in shards for name, each in hf.tensors_in(shard)}
        state["ema"].setdefault("lm_head.weight", state["ema"].get("model.embed_tokens.weight"))
    else:
        state = checkpoint.load(path / "checkpoint.pt" if path.is_dir() else path)
    names = str(state["config"].get("data_dir") or folder), folder
    data, own = (Path(name, "header.json") for name in names)
    if own.is_file() and not (data.is_file() and data.read_bytes() == own.read_bytes()):
        state["config"] = state["config"] | {"data_dir": str(folder)}
    return state


def describe(folder, state, model):
    """Write what `load` needs beside the weights of a model that was exported."""
    about = {name: state[name] for name in ("model_args", "iteration", "block")}
    about |= {"config": card.shown(state["config"]) | {"lora_rank": 0}}
    files.write_json(Path(folder, EXPORTED), about | {"checksum": checksum(model.float())})


def kept_weights(out_dir):
    """Files of averaged weights that a run kept, in order, or its checkpoint."""
    return sorted(Path(out_dir, "weights").glob("*.pt")) or [Path(out_dir, "checkpoint.pt")]


def load_task(config, model=None):
    """The task of a saved run, to evaluate it. Raises ValueError for an invalid configuration, or
    for a model of fewer tokens.

    Generated examples to train on are not needed, and not made: held-out ones are the same. The run
    may be a stranger's, so a judge that it names is not executed: see eval.py --problems.
    """
    try:
        judge = "exact" if config.get("eval_judge") == "exact" else ""
        less = config | {"train_examples": 1, "eval_judge": judge}
        if not 1 <= config["test_examples"] <= MOST:
            raise ValueError(f"test_examples {config['test_examples']}: expected 1 to {MOST}")
        if fields := tasks.settings_of(config):
            for name, key in configurator.read_fields(fields).items():
                value = less.get(name, key.default)  # a setting may be newer than the run
                less[name] = configurator.checked(f"saved {name}", key, value)
        task = tasks.get(config["dataset"]).load(less)
        if model and task.vocab_size > model.vocab_size:
            raise ValueError(f"{task.vocab_size} tokens, but the model knows {model.vocab_size}")
        return task
    except (TypeError, LookupError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"the configuration in the checkpoint is not valid: {reason}") from None


def checksum(model):
    """CRC-32 of the weights."""
    crc = 0
    for weight in model.state_dict().values():
        crc = zlib.crc32(weight.cpu().contiguous().view(torch.uint8).numpy(), crc)
    return crc
