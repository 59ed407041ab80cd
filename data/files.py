"""Files that appear whole or not at all, and a progress bar, for the scripts of data/ and lab/."""

import contextlib
import io
import json
import os
import platform
import sys
from pathlib import Path

from tqdm import tqdm

SECONDS = 5  # between two lines of progress, at least


@contextlib.contextmanager
def atomic_path(path):
    """A temporary path of a file, which is renamed to `path` once the body has written it.

    A kill at any moment leaves the old file or the new one, and a failing body nothing behind.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{platform.node()}-{os.getpid()}.tmp")
    try:
        yield partial
        with open(partial, "rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_json(path, data):
    with atomic_path(path) as partial:
        partial.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


class Lines(tqdm):
    """A bar as lines, for a log file: some 25, the first after SECONDS."""

    def display(self, msg=None, pos=None):
        if msg is None and self.n > self.initial:
            print(self, file=sys.stderr, flush=True)
            elapsed = self.format_dict["elapsed"]
            expected = elapsed * (self.total - self.initial) / (self.n - self.initial)
            self.mininterval = max(SECONDS, min(expected / 20, elapsed / 2))


def progress_bar(*args, **options):
    """tqdm's bar, which must have a total; lines unless standard error is a terminal."""
    if sys.stderr.isatty():
        return tqdm(*args, **options)
    options |= {"mininterval": SECONDS, "delay": SECONDS, "miniters": 1, "file": io.StringIO()}
    return Lines(*args, **options)
