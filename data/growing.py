"""A .npy file that grows along its first axis: for arrays whose size is only known at the end."""

import json
import math
import os
import zlib

import numpy as np

from data import files


class GrowingArray:
    """Appends items of shape `item` to a file; `count`: items so far, `checksum`: their CRC-32.

    Keeps the first `count` items of an existing file. Raises ValueError if their checksum differs.
    """

    def __init__(self, path, dtype, item=(), count=0, checksum=0):
        self.path, self.dtype, self.item = path, np.dtype(dtype), item
        self.count, self.checksum = count, checksum
        path.touch()
        self.flush()
        end = self.start + count * math.prod(item) * self.dtype.itemsize
        if files.checksum(path, self.start, end) != checksum:
            raise files.damaged(path, "not what was written to it", path.parent)
        os.truncate(path, end)

    def append(self, values):
        values = np.ascontiguousarray(values, self.dtype)
        with open(self.path, "ab") as file:
            file.write(values.data)
        self.count += len(values)
        self.checksum = zlib.crc32(values, self.checksum)

    def flush(self):
        """Flush to disk. Numpy pads the header, so that its length is the same for every count."""
        header = {"descr": self.dtype.str, "fortran_order": False, "shape": self.shape}
        with open(self.path, "r+b") as file:
            np.lib.format.write_array_header_1_0(file, header)
            self.start = file.tell()
            os.fsync(file.fileno())

    @property
    def shape(self):
        return self.count, *self.item

    def seal(self, about):
        """Finish the file: append a description of the array, with checksums of both."""
        self.flush()
        form = {"dtype": self.dtype.str, "shape": [*self.shape], "array": self.checksum}
        with open(self.path, "ab") as file:
            file.write(json.dumps(files.sealed(about | form)).encode() + b"\n")
