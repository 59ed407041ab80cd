"""Read files that may be damaged or of unknown origin: each is checked, and an error is one line.

Files that the project keeps have checksums (CRC-32). A JSON object has its own under "checksum". An
array has one in a line of JSON after it in the same file, which numpy does not read, together with
a description of the array. All of them are compared whenever a file is opened. A core does 1.3
GB/s: a fraction of a second for puzzles, and it would be 8 seconds for the 10 GB of TinyGSM.
Remembering which files were intact would be faster, but is one more thing that can be wrong.
"""

import itertools
import json
import math
import os
import zlib
from pathlib import Path

import numpy as np

from engine.files import progress_bar

SLAB = 1 << 24  # bytes read at once
LONGEST = 1 << 24  # bytes of a line of text
TAIL = 1 << 26  # bytes read after an array: 15 million ratings of puzzles
LARGE = 1 << 30  # bytes from which on a checksum shows its progress


def regular(path):
    """The path, if it is a file: a folder has no contents, a pipe or a device may have no end."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file")
    if not path.is_file():
        raise ValueError(f"{path}: not a file")
    return path


def brief(value):
    """The value as a message shows it, shortened if it is long."""
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:100]}... ({len(text):,} characters)"


def damaged(path, why, folder=None):
    """The error for a damaged file; folder: what to delete, if the file is part of a whole."""
    return ValueError(f"{path} is damaged ({why}): delete {folder or 'it'} to make it again")


# -- text ------------------------------------------------------------------------------------------
def lines(path, errors="strict"):
    """The lines of a file of UTF-8 text, with their ends. Raises ValueError that names the line."""
    with open(regular(path), "rb") as file:
        for number in itertools.count(1):
            line = file.readline(LONGEST + 1)
            if len(line) > LONGEST:
                raise ValueError(f"{path}, line {number}: more than {LONGEST:,} bytes")
            if not line:
                return
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8", errors)
            except UnicodeDecodeError as error:
                raise ValueError(f"{path}, line {number}: not UTF-8 text: {error.reason}") from None


def parse_json(text):
    """The value of a JSON text. Raises ValueError."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_object(path, folder=None):
    """The object in a JSON file. Raises ValueError that names it; folder: as in `damaged`."""
    try:
        found = parse_json(regular(path).read_bytes().decode())
    except FileNotFoundError:
        raise
    except ValueError as error:
        raise damaged(path, f"not JSON: {error}", folder) from None
    if not isinstance(found, dict):
        raise damaged(path, "not a JSON object", folder)
    return found


def sealed(data):
    """The JSON object with its checksum."""
    data = {key: value for key, value in data.items() if key != "checksum"}
    text = json.dumps(data, sort_keys=True)
    return data | {"checksum": f"{zlib.crc32(text.encode()):08x}"}


def is_sealed(data):
    """Whether the JSON object matches its checksum."""
    return data == sealed(data)


# -- arrays ----------------------------------------------------------------------------------------
def open_array(path):
    """The array of real numbers in an .npy file, memory-mapped, and the bytes that follow it.

    Raises FileNotFoundError or ValueError that names the file, whatever is in it.
    """
    with open(regular(path), "rb") as file:
        try:
            shape, fortran, dtype = read_npy_header(file)
        except Exception as error:  # numpy's are of many kinds
            reason = str(error).partition("\n")[0]
            raise ValueError(f"{path}: not an .npy file: {reason}") from None
        if dtype.kind not in "iuf":
            raise ValueError(f"{path}: an array of {dtype}, expected numbers")
        start, size = file.tell(), os.fstat(file.fileno()).st_size
        end = start + math.prod(shape) * dtype.itemsize
        if min(shape, default=0) < 0 or end > size:
            raise ValueError(f"{path}: {size:,} bytes, but its header says {end:,}")
        file.seek(end)
        tail = file.read(TAIL)
    if end == start:
        return np.empty(shape, dtype), tail
    return np.memmap(path, dtype, "r", start, shape, "F" if fortran else "C"), tail


def read_npy_header(file):
    """Shape, whether it is in Fortran order, dtype."""
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    return np.lib.format.read_array_header_2_0(file)


def checksum(path, start=0, end=None):
    """CRC-32 of a file's bytes from start to end; end=None: all the rest."""
    left = (os.path.getsize(path) if end is None else end) - start
    found = 0
    with open(path, "rb") as file, progress_bar(
        total=left, unit="B", unit_scale=True, desc=f"checking {path}", show=left >= LARGE
    ) as bar:  # fmt: skip
        file.seek(start)
        while left > 0 and (part := file.read(min(SLAB, left))):
            found = zlib.crc32(part, found)
            left -= len(part)
            bar.update(len(part))
    return found


def open_kept(path):
    """The array in a file that GrowingArray.seal finished, memory-mapped, and its description.

    Raises FileNotFoundError or ValueError that names the file.
    """
    array, tail = open_array(path)
    try:
        about = parse_json(tail.decode())
        whole = isinstance(about, dict) and is_sealed(about)
    except ValueError:
        whole = False
    if not whole:
        raise ValueError(f"{path}: no checksum after its array")
    start = os.path.getsize(path) - len(tail) - array.nbytes
    form = {"dtype": array.dtype.str, "shape": [*array.shape]}
    form["array"] = checksum(path, start, start + array.nbytes)
    if about != about | form or not array.flags.c_contiguous:
        raise ValueError(f"{path}: its checksum does not match its array")
    return array, about
