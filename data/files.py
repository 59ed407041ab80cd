"""Files that appear whole or not at all, and a progress bar, for the scripts of data/ and lab/."""

import contextlib
import json
import os
import sys
from pathlib import Path

from tqdm import tqdm


@contextlib.contextmanager
def atomic_path(path):
    """A temporary path of a file, which is renamed to `path` once the body has written it.

    A kill at any moment leaves the old file or the new one, and a failing body nothing behind.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.tmp")
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


def progress_bar(*args, **options):
    """tqdm's bar; in a log file it is written every ten seconds, not ten times a second."""
    return tqdm(*args, mininterval=0.1 if sys.stderr.isatty() else 10, **options)
