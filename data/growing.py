"""A .npy file that grows along its first axis: for arrays whose size is only known at the end."""

import json
import os
import zlib

import numpy as np

from data import files


class GrowingArray:
    """Writes items of shape `item` to a new file; `count`: items so far, `checksum`: their CRC-32.

    The file is a whole .npy file once `finish` or `seal` has been called.
    """

    def __init__(self, path, dtype, item=()):
        self.path, self.dtype, self.item = path, np.dtype(dtype), item
        self.count, self.checksum = 0, 0
        path.write_bytes(b"")
        self.finish()

    def append(self, values):
        values = np.ascontiguousarray(values, self.dtype)
        with open(self.path, "ab") as file:
            file.write(values.data)
        self.count += len(values)
        self.checksum = zlib.crc32(values, self.checksum)

    def finish(self):
        """Write the header, which numpy pads to one length for every count; returns `checksum`."""
        form = {"descr": self.dtype.str, "fortran_order": False, "shape": (self.count, *self.item)}
        with open(self.path, "r+b") as file:
            np.lib.format.write_array_header_1_0(file, form)
            os.fsync(file.fileno())
        return self.checksum

    def seal(self, about):
        """Finish the file: append a description of the array, with checksums of both."""
        form = {"dtype": self.dtype.str, "shape": [self.count, *self.item], "array": self.finish()}
        with open(self.path, "ab") as file:
            file.write(json.dumps(files.sealed(about | form)).encode() + b"\n")
