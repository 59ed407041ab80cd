"""Runs on disk: ckpt.pt, files beside it, and the modules that a run names as task and variant."""

import importlib
import os
from pathlib import Path

import torch

from model import Transformer


def module(name):
    """Import a file of this folder, as lab.block; nothing else, since a checkpoint may name it."""
    if not Path(__file__).parent.joinpath(*name.split(".")).with_suffix(".py").is_file():
        raise SystemExit(f"{name}: there is no such file; lab/mine.py is written lab.mine")
    return importlib.import_module(name)


def of_variant(variant, name, default):
    """What a variant has under this name, else the default: --variant=lab.block is lab/block.py."""
    return getattr(module(variant), name, default) if variant else default


def opened(out_dir, name, mode):
    """A file of a run's folder; never through a link: the folder may come from anyone."""
    no_link = lambda path, flags: os.open(path, flags | os.O_NOFOLLOW, 0o644)  # noqa: E731
    return open(Path(out_dir, name), mode, opener=no_link)


def save(saved, out_dir):
    """Write ckpt.pt, at once or not at all: a kill leaves the old one."""
    Path(out_dir).mkdir(parents=True, exist_ok=True)
    with opened(out_dir, "ckpt.pt.tmp", "wb") as file:
        torch.save(saved, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{out_dir}/ckpt.pt.tmp", f"{out_dir}/ckpt.pt")


def load(out_dir):
    """What train.py has saved, on the CPU. No code of a stranger's file runs."""
    path = Path(out_dir, "ckpt.pt")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch's are of many kinds
        raise SystemExit(f"{path}: no whole checkpoint of train.py: {error!r:.99}") from None


def resumed(out_dir, config):
    """What a run goes on from, None at its beginning; SystemExit if its folder is another's."""
    if not Path(out_dir, "ckpt.pt").exists():
        return None
    if not config["resume"]:
        raise SystemExit(f"{out_dir}/ckpt.pt exists: add --resume, or choose another --out_dir")
    saved = load(out_dir)
    free = "resume", "max_iters", "out_dir", "device", "dtype", "compile"
    kept = [k for k in config if k not in free and not k.endswith("_interval")]
    if changed := [k for k in kept if config[k] != saved["config"].get(k)]:
        raise SystemExit(f"{out_dir}/ckpt.pt was made with another {', '.join(changed)}")
    return saved


def make(variant, args, weights=None):
    """The model of a variant; TypeError or RuntimeError where options or weights do not fit it."""
    model = of_variant(variant, "make_model", Transformer)(**args)
    model.load_state_dict(weights or model.state_dict())
    return model


def load_model(out_dir, device):
    """The averaged model of a run, and its settings."""
    saved = load(out_dir)
    model = make(saved["config"]["variant"], saved["args"], saved["averaged"])
    return model.to(device).eval(), saved["config"]
