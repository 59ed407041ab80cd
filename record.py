"""The record of a run: metrics.jsonl, one JSON object per line.

    {"type": "config", "config": {...}, "versions": {...}, "commit": ...}    first, at each resume
    {"type": "train", "iter", "loss", "grad_norm", "epoch", "lr", "examples_per_second"}
    {"type": "eval", "iter", "accuracy": {policy: share}, "val_loss", "examples"}

`iter` counts finished updates, `epoch` the passes over the data that were taken up (a chain stays
in use for several updates). grad_norm is taken before clipping; accuracy and val_loss are those of
the averaged weights.
"""

import contextlib
import json
import os
import platform
import shutil
import subprocess
from importlib import metadata
from pathlib import Path


class Metrics:
    """Appends to the file; a run resumed at iteration `start` first drops what lies beyond it.

    evaluated: whether it holds an evaluation at `start`. Raises ValueError for a damaged file.
    """

    def __init__(self, path, config, start):
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        old = read_lines(path) if start else []
        kept = [line for line in old if line.get("iter", 0) <= start]
        header = {"type": "config", "config": config, "versions": versions(), "commit": commit()}
        write_lines(path, [*kept, header])
        self.evaluated = any(line["type"] == "eval" and line["iter"] == start for line in kept)

    def write(self, **line):
        with open(self.path, "a") as file:
            file.write(json.dumps(line) + "\n")


def versions():
    found = {"python": platform.python_version(), "torch": metadata.version("torch")}
    return found | {"numpy": metadata.version("numpy"), "platform": platform.platform()}


def commit():
    """The commit of the code, with + when files differ from it; None outside a repository."""
    here = Path(__file__).parent
    command = ["git", "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(
            command, cwd=here, capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


@contextlib.contextmanager
def appearing(path):
    """A temporary path for a file or a folder, which becomes `path` once the body has written it.

    A kill at any moment leaves the old `path` or the new one, never half of it: the data reach the
    disk before the rename. The temporary name belongs to this process, so several may write the
    same file; what a failing body leaves is removed. Raises OSError where `path` is a folder with
    something in it.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    remove(partial)  # a killed process may have had the same number
    try:
        yield partial
        for each in (partial, *partial.rglob("*")):
            if each.is_file():
                with open(each, "rb") as file:
                    os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        remove(partial)


def remove(path):
    """A file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def write(path, text):
    with appearing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path, data):
    write(path, json.dumps(data, indent=1) + "\n")


def write_lines(path, rows):
    """JSON lines."""
    write(path, "".join(json.dumps(row) + "\n" for row in rows))


def read_lines(path):
    """The objects of JSON lines, none without a file; an end that a kill cut off is left out.

    Raises ValueError that names a damaged line.
    """
    path = Path(path)
    texts = path.read_text(encoding="utf-8").split("\n")[:-1] if path.is_file() else []
    rows = []
    for number, text in enumerate(texts, start=1):
        try:
            rows.append(json.loads(text))
        except ValueError:
            raise ValueError(f"{path}, line {number}: not JSON: {text[:60]!r}") from None
    return rows


def table(head, rows):
    """Lists of strings as markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
