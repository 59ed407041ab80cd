"""Files that data/ reads and writes: text, checksummed JSON and arrays; and a progress bar.

What is damaged is refused in one line; what is written appears whole, or not at all.

Files that the project keeps have checksums (CRC-32), compared whenever a file is opened: 8 seconds
for the 10 GB of TinyGSM. A JSON object has its own under "checksum". An array has one in a line of
JSON after it, which numpy does not read, together with a description of the array.
"""

import contextlib
import csv
import io
import json
import os
import platform
import sys
import zlib
from pathlib import Path

import numpy as np
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


# -- text ------------------------------------------------------------------------------------------
def lines(path, errors="strict"):
    """The lines of a file of UTF-8 text, with their ends. Raises ValueError that names the line."""
    with open(regular(path), "rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8", errors)
            except UnicodeDecodeError as error:
                raise ValueError(f"{path}, line {number}: not UTF-8 text: {error.reason}") from None


def csv_rows(path, errors="strict"):
    """(line number, fields) of the non-empty rows of a CSV file. Raises ValueError."""
    reader = csv.reader(lines(path, errors))
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise ValueError(f"{path}, line {reader.line_num}: {error}") from None
        if row:
            yield reader.line_num, row


def parse_json(text):
    """The value of a JSON text. Raises ValueError."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def sealed(data):
    """The JSON object with its checksum."""
    data = {key: value for key, value in data.items() if key != "checksum"}
    text = json.dumps(data, sort_keys=True)
    return data | {"checksum": f"{zlib.crc32(text.encode()):08x}"}


def unseal(text):
    """The JSON object of a text, bytes, which has its checksum. Raises ValueError."""
    data = parse_json(text.decode())
    if not isinstance(data, dict) or data != sealed(data):
        raise ValueError("not what was written to it")
    return data


# -- arrays ----------------------------------------------------------------------------------------
def open_array(path):
    """The array of real numbers in an .npy file, memory-mapped, and the bytes that follow it.

    Raises FileNotFoundError or ValueError that names the file, whatever is in it.
    """
    path = regular(path)
    try:
        array = np.load(path, mmap_mode="r")
        if array.dtype.kind not in "iuf":
            raise ValueError(f"an array of {array.dtype}, expected numbers")
    except Exception as error:  # numpy's are of many kinds
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{path}: not a whole .npy file: {reason}") from None
    with open(path, "rb") as file:
        file.seek(array.offset + array.nbytes)
        return array, file.read()


def open_kept(path):
    """The array in a file that GrowingArray.seal finished, memory-mapped, and its description.

    Raises FileNotFoundError or ValueError that names the file.
    """
    array, tail = open_array(path)
    try:
        about = unseal(tail)
    except ValueError:
        raise ValueError(f"{path}: no checksum after its array") from None
    form = {"dtype": array.dtype.str, "shape": [*array.shape]}
    if not array.flags.c_contiguous or about != about | form | {"array": zlib.crc32(array)}:
        raise ValueError(f"{path}: its checksum does not match its array")
    return array, about


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
