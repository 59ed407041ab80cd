"""A .npy file that grows along its first axis: for arrays whose size is known at the end only."""

import math
import os

import numpy as np


class GrowingArray:
    """Appends items of the shape `item` to a file; of what is there the first `count` are kept."""

    def __init__(self, path, dtype, count=0, item=()):
        self.path, self.dtype, self.count, self.item = path, np.dtype(dtype), count, item
        path.touch()
        self.flush()
        os.truncate(path, self.start + count * math.prod(item) * self.dtype.itemsize)

    def append(self, values):
        with open(self.path, "ab") as file:
            file.write(np.ascontiguousarray(values, self.dtype).data)
        self.count += len(values)

    def flush(self):
        """Bring all to disk. Numpy pads the header, so that it is as long for every count."""
        shape = self.count, *self.item
        header = {"descr": self.dtype.str, "fortran_order": False, "shape": shape}
        with open(self.path, "r+b") as file:
            np.lib.format.write_array_header_1_0(file, header)
            self.start = file.tell()
            os.fsync(file.fileno())
