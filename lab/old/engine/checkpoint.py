"""Checkpoints: the complete state of a run in one file, which a kill never leaves half-written.

A checkpoint is a dictionary of tensors and plain values: `iteration`, `config`, `model_args`, what
the run's parts call their state (`model`, `ema`, `optimizer`), and in `ranks`, per process, its
chains, its place in the data and its random states: 5 MB for 1,024 chains of 512 tokens, and 1 GB
if each token carries 512 numbers of state.

`torch.load(weights_only=True)` reads it, and no file that it names is executed, so opening one
never runs code. But a stranger's settings decide which data sample.py and eval.py then read, which
base model they download, and how much they generate; or, if it is resumed, how much is trained.
"""

import itertools
import zipfile
from pathlib import Path

import torch

from engine.files import atomic_path

FORMAT = 2
# Of any saved model, what is read, and its type
FORM = {"iteration": int, "config": dict, "model_args": dict}
PARTS = {"model": dict, "optimizer": dict, "ranks": list, "device": str, "data": dict}  # to resume


def save(state, path):
    """Atomic: after a crash `path` is the old file or the new one. One writer per folder.

    Raises OSError, with the reason, if it cannot be written.
    """
    for left in path.parent.glob(f"{path.name}.*.tmp"):
        left.unlink()  # by a process that was killed while writing
    try:
        with atomic_path(path) as partial, open(partial, "wb") as file:
            torch.save(state | {"format": FORMAT}, file)
    except (OSError, RuntimeError) as error:  # torch hides the first behind the second
        while error.__context__ is not None and not isinstance(error, OSError):
            error = error.__context__
        if not isinstance(error, OSError):
            raise
        raise OSError(f"cannot write {path}: {error.strerror}") from None


def load(path):
    """The state in a file, its tensors memory-mapped.

    Raises FileNotFoundError if the file is missing; ValueError if any byte of it is damaged, or it
    is not a checkpoint.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"no checkpoint {path}: train first, or name another run's folder")
    try:
        with zipfile.ZipFile(path) as archive:  # torch.load does not compare the checksums
            if damaged := archive.testzip():
                raise ValueError(f"the checksum of {damaged} does not match")
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # of many types: it may be any file
        reason = f"{error}" if type(error) is ValueError else type(error).__name__
        raise ValueError(
            f"{path} is damaged or not a checkpoint ({reason}): use a copy, or start a new run"
        ) from None
    found = repr(checked(state, path).get("format"))  # it may be anything, a tensor too
    if found != repr(FORMAT):
        raise ValueError(f"{path} has format {found:.60}, expected {FORMAT}: train anew")
    return state


def checked(state, path):
    """The state, if it has the FORM. Raises ValueError that names the file."""
    if not isinstance(state, dict) or any(type(state.get(key)) is not FORM[key] for key in FORM):
        raise ValueError(f"{path} is not a checkpoint of this program")
    return state


def load_whole(path):
    """The state in a checkpoint. Raises ValueError if it holds only weights."""
    state = load(path)
    if missing := [key for key in PARTS if not isinstance(state.get(key), PARTS[key])]:
        raise ValueError(f"{path} has no {', '.join(missing)}: it holds only weights")
    return state


def archive(folder):
    """Move a run, with its measurements, into a new folder inside its own; returns that."""
    names = (folder / f"before.{number}" for number in itertools.count(1))
    kept = next(path for path in names if not path.exists())
    kept.mkdir()
    for pattern in ("weights", "*.jsonl", "*.json", "*.md", "tokenizer.*", "checkpoint.pt"):
        for path in list(folder.glob(pattern)):
            path.rename(kept / path.name)
    return kept
