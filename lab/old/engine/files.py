"""Files of a run: written whole or not at all, one run per folder, read with a message."""

import contextlib
import io
import json
import math
import os
import platform
import shutil
import sys
from pathlib import Path

import filelock
from tqdm import tqdm

BAR = "{desc}: {n:.0f}/{total_fmt} {bar} {elapsed}<{remaining}, {rate_fmt}{postfix}"
LINE = "{desc}: {n:.0f} of {total_fmt}, {elapsed} elapsed, {remaining} left, {rate_fmt}{postfix}"
LINES = 8  # seconds between two lines, at least


class Lock:
    """Reserves a folder for one run: `with Lock(folder)`, until the process ends, however it ends.

    Raises ValueError naming the process that holds it, OSError if the folder cannot be written.
    """

    def __init__(self, folder, name="lock"):
        self.folder, self.path = Path(folder), Path(folder, name)
        self.file = filelock.FileLock(self.path)

    def __enter__(self):
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.file.acquire(timeout=0)
            self.path.write_text(f"process {os.getpid()} on {platform.node()}\n")
        except filelock.Timeout:
            holder = self.path.read_text().strip() or "another process"
            wait = "wait until it ends, or use another folder"
            raise ValueError(f"{self.folder} is in use by {holder}: {wait}") from None
        except OSError as error:
            raise OSError(f"cannot write {self.folder}: {error}; use another folder") from None
        return self

    def __exit__(self, *_):
        self.path.unlink(missing_ok=True)
        self.file.release()
        with contextlib.suppress(OSError):
            self.folder.rmdir()  # if a run that was refused has left it empty


@contextlib.contextmanager
def atomic_path(path):
    """A temporary path for a file or a folder, which becomes `path` once the body has written it.

    A kill at any moment leaves the old `path` or the new one: the data reaches the disk before the
    rename. Each process has its own temporary name, and a failing body leaves nothing behind.
    Raises OSError if `path` is a folder that is not empty.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{platform.node()}-{os.getpid()}.tmp")
    remove(partial)  # a killed process may have had the same id
    try:
        yield partial
        for part in (partial, *partial.rglob("*")):
            if part.is_file():
                with open(part, "rb") as file:
                    os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        remove(partial)


def remove(path):
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def write(path, text):
    with atomic_path(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path, data):
    write(path, json.dumps(data, indent=1) + "\n")


def write_lines(path, rows):
    write(path, "".join(json.dumps(row) + "\n" for row in rows))


def read_lines(path):
    """The objects of JSON lines; none without a file; a last line that a kill cut off is dropped.

    Raises ValueError naming a line that is not a JSON object.
    """
    lines = regular(path).read_bytes().split(b"\n")[:-1] if Path(path).exists() else []
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(json_value(line))
            if not isinstance(rows[-1], dict):
                raise ValueError
        except (ValueError, RecursionError):
            shown = ascii(line[:60])[1:]
            raise ValueError(
                f"{path}, line {number}: not a JSON object: {shown}; remove it, or move the file"
            ) from None
    return rows


def read_json(path):
    """The content of a JSON file. Raises ValueError naming the file if it is damaged."""
    try:
        return json_value(regular(path).read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged, move it away: {error}") from None


def regular(path):
    """The path, if it is a file: a folder has no contents, a pipe or a device may have no end."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file")
    if not path.is_file():
        raise ValueError(f"{path}: not a file")
    return path


def json_value(content):
    """The value of a JSON text, bytes. Raises ValueError, also for a number that is not finite."""
    return json.loads(content.decode(), parse_float=finite, parse_int=finite, parse_constant=finite)


def finite(text):
    if not math.isfinite(float(text)):
        raise ValueError(f"{text[:20]} is not a finite number")
    return int(text) if text.lstrip("-").isdecimal() else float(text)


class Lines(tqdm):
    """A bar where standard error is no terminal: some 25 lines, the first after LINES seconds."""

    def display(self, msg=None, pos=None):
        if msg is None and self.n > self.initial:
            say(str(self))
            elapsed = self.format_dict["elapsed"]
            expected = elapsed * (self.total - self.initial) / (self.n - self.initial)
            # The first update may take a minute, to compile: do not trust `expected` too early.
            self.mininterval = max(LINES, min(expected / 20, elapsed / 2))


def progress_bar(*args, show=True, **options):
    """tqdm's bar, which must have a total; lines unless standard error is a terminal."""
    if sys.stderr.isatty():
        return tqdm(*args, bar_format=BAR, disable=not show, **options)
    options |= dict(bar_format=LINE, smoothing=0.3, mininterval=LINES, delay=LINES, miniters=1)
    return Lines(*args, file=io.StringIO(), disable=not show, **options)  # say() clears no line


def say(text):
    """Print a line on standard error without breaking a progress bar."""
    tqdm.write(text, file=sys.stderr)
