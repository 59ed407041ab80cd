"""Files that data/ reads and writes: text, JSON, CSV; and a progress bar.

What cannot be read is refused in one line; what is written appears whole, or not at all.
"""

import contextlib
import csv
import io
import json
import os
import platform
import sys
from pathlib import Path

from tqdm import tqdm

SECONDS = 5  # between two lines of progress, at least


def brief(value):
    """The value as a message shows it, shortened if it is long."""
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:100]}... ({len(text):,} characters)"


def regular(path):
    """The path, if it is a file: a folder has no contents, a pipe or a device may have no end."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file")
    if not path.is_file():
        raise ValueError(f"{path}: not a file")
    return path


# -- writing ---------------------------------------------------------------------------------------
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


def write_lines(path, rows):
    with atomic_path(path) as partial:
        text = "".join(json.dumps(row) + "\n" for row in rows)
        partial.write_text(text, encoding="utf-8")


# -- reading ---------------------------------------------------------------------------------------
def lines(path, errors="strict"):
    """The lines of a file of UTF-8 text, with their ends. Raises ValueError that names the line."""
    with open(regular(path), "rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8", errors)
            except UnicodeDecodeError as error:
                raise ValueError(f"{path}, line {number}: not UTF-8 text: {error.reason}") from None


def csv_rows(path):
    """(line number, fields without white space at their ends) of the rows that are not empty."""
    reader = csv.reader(lines(path, "replace"))
    try:
        for row in reader:
            fields = [field.strip() for field in row]
            if fields not in ([], [""]):
                yield reader.line_num, fields
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: {error}") from None


def parse_json(text):
    """The value of a JSON text. Raises ValueError."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


# -- progress --------------------------------------------------------------------------------------
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
