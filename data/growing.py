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
        """Write the header to disk. Numpy pads it to the same length for every count."""
        shape = self.count, *self.item
        header = {"descr": self.dtype.str, "fortran_order": False, "shape": shape}
        with open(self.path, "r+b") as file:
            np.lib.format.write_array_header_1_0(file, header)
            os.fsync(file.fileno())

    def seal(self, about):
        """Finish the file: append a description of the array, with checksums of both."""
        self.finish()
        shape = [self.count, *self.item]
        form = {"dtype": self.dtype.str, "shape": shape, "array": self.checksum}
        with open(self.path, "ab") as file:
            file.write(json.dumps(files.sealed(about | form)).encode() + b"\n")
