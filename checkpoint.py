"""Runs on disk: ckpt.pt, files beside it, and the modules that a run names as task and variant."""

import fcntl
import importlib
import os
import re
import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch

from model import Transformer


def module(name):
    """Import a file of this folder, of lab/ or its tests; a checkpoint may name it: no other."""
    is_ours = re.fullmatch(r"(?!train$)((tests\.)?lab\.)?\w+", str(name), re.ASCII)
    if not is_ours or not Path(__file__).parent.joinpath(f"{name.replace('.', '/')}.py").is_file():
        raise SystemExit(f"{name!r:.99}: there is no such file; lab/mine.py is written lab.mine")
    return importlib.import_module(name)


def of_variant(variant, name, default):
    """What a variant has under this name, else the default: --variant=lab.block is lab/block.py."""
    return getattr(module(variant), name, default) if variant else default


def opened(out_dir, name, mode):
    """A file of a run's folder; never through a link: the folder may come from anyone."""
    how = os.O_NOFOLLOW | os.O_NONBLOCK  # no pipe either, which would wait for a reader
    try:
        Path(out_dir).mkdir(parents=True, exist_ok=True)
        return open(Path(out_dir, name), mode, opener=lambda at, do: os.open(at, do | how, 0o644))
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        raise SystemExit(f"{out_dir}: {error}") from None


def claimed(out_dir, name):
    """A file to append to; SystemExit if another process, which is alive, has claimed it."""
    file = opened(out_dir, name, "a")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if isinstance(error, BlockingIOError):  # else the file system has no locks
            raise SystemExit(f"{out_dir}: another run writes here") from None
    return file


def save(saved, out_dir):
    """Write ckpt.pt, at once or not at all: a kill or a full disk leaves the old one."""
    file = opened(out_dir, "ckpt.pt.tmp", "wb")
    try:
        with file:
            torch.save(saved, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{out_dir}/ckpt.pt.tmp", f"{out_dir}/ckpt.pt")
    except (OSError, RuntimeError) as error:
        Path(out_dir, "ckpt.pt.tmp").unlink(missing_ok=True)
        raise SystemExit(f"{out_dir}/ckpt.pt: not written: {error}") from None


def load(out_dir):
    """What train.py has saved, on the CPU. No code of a stranger's file runs, nothing unfolds."""
    path = Path(out_dir, "ckpt.pt")
    try:
        archive = zipfile.ZipFile(path if path.is_file() or not path.exists() else os.devnull)
        if any(part.compress_type for part in archive.infolist()) or archive.testzip():
            raise ValueError("damaged, or compressed, which may take any amount of memory")
        saved = torch.load(path, map_location="cpu", weights_only=True)
        parts = {"config": {**saved["config"]}, "averaged": {**saved.get("averaged", {})}}
        return {**saved, **parts, "iteration": int(saved["iteration"])}
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
    """The model of a variant; SystemExit where options or weights do not fit it."""
    maker = of_variant(variant, "make_model", Transformer)
    try:
        if weights is not None:  # compare all sizes before memory is asked for
            if args["layers"] > len(weights):
                raise ValueError(f"{args['layers']} layers of {len(weights)} weights")
            with torch.device("meta"):
                maker(**args).load_state_dict(weights, assign=True)
        model = maker(**args)
        if weights is not None:
            model.load_state_dict(weights)
        return model
    except (ArithmeticError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise SystemExit(f"the model, its options, its weights do not fit: {error!r}") from None


def fingerprint(data):
    """How many rows there are to train on, and a checksum of 200 among them."""
    some = np.linspace(0, len(data) - 1, 200).astype(int)
    x0, prompt = (torch.as_tensor(part).cpu().numpy().tobytes() for part in data[some])
    return f"{len(data)} rows, checksum {zlib.crc32(x0 + prompt):08x}"


def load_model(out_dir, device):
    """The averaged model of a run, and its settings."""
    saved = load(out_dir)
    if not all(type(saved["config"].get(k)) is str for k in ("task", "data", "variant", "policy")):
        raise SystemExit(f"{out_dir}/ckpt.pt: no whole checkpoint: task, data, variant or policy")
    model = make(saved["config"]["variant"], saved.get("args"), saved["averaged"])
    return model.to(device).eval(), saved["config"]
