"""The next training examples, in a queue on the device: x0 (n, L), prompt (n, L), number (n,).

Examples come in an endless sequence of shuffled epochs. Of W processes, process r takes examples
r, r + W, r + 2W, ... of that sequence, so together they use every example exactly once per epoch,
however fast each process uses up its share. Another number of processes can continue from there
(elastic.py): skipped examples come first, in `ahead`, and the sequence continues from `base`.

`take` runs on the device: rows that want an example find it by a running count. The host refills
the ring behind that count, and reads it only when it cannot be sure that enough is left.

    slot:   0 ... known ......... taken ......... filled ... size
            used | maybe used    | still to come | free       (all modulo `size`)

The order is a function of (seed, epoch), which takes no memory.
"""

import zlib

import numpy as np
import torch

CHUNK = 1 << 14  # rows read at once for a checksum
ROUNDS = 8  # of the Feistel network that shuffles; more than enough for any size


class ExampleQueue:
    """data[indices (n,)] -> x0 (n, L) integer, prompt (n, L) bool, as numpy arrays; len(data).

    rows: the most that one `take` can ask for. Raises ValueError for empty data, or an example that
    is all prompt.
    """

    def __init__(self, data, rows, device="cpu", seed=0, rank=0, world=1):
        self.data, self.rows, self.seed, self.rank, self.world = data, rows, seed, rank, world
        if len(data) == 0:
            raise ValueError("the training set is empty")
        self.size = max(32 * rows, 1024)  # examples in the ring
        try:
            (_, L), (_, _) = (part.shape for part in data[np.zeros(1, np.int64)])
        except (TypeError, LookupError, AttributeError, ValueError) as error:
            raise ValueError(
                f"data[array([0])] failed, {type(error).__name__}: {error}; expected x0 (1, L) and "
                "prompt (1, L), so stack the rows of a Dataset that has single ones"
            ) from None
        self.x0 = torch.zeros(self.size, L, dtype=torch.long, device=device)
        self.prompt = torch.zeros(self.size, L, dtype=torch.bool, device=device)
        self.number = torch.zeros(self.size, dtype=torch.long, device=device)  # index in the data
        self.load_state_dict({"taken": 0, "ahead": torch.zeros(0, dtype=torch.long), "base": 0})

    def take(self, wanted):
        """The next examples for the rows that want one, wanted (rows,) bool.

        Returns x0, prompt (rows, L) and number (rows,), the index in the data; arbitrary in the
        other rows.
        """
        self.top_up()
        slot = (self.taken + wanted.cumsum(0) - 1) % self.size
        self.taken.add_(wanted.sum())
        return self.x0[slot], self.prompt[slot], self.number[slot]

    def top_up(self):
        """Make sure that the next take finds what it may ask for; half a ring at a time.

        Each of the `unseen` takes since the host read the count took at most `rows`.
        """
        if self.filled - self.known < (self.unseen + 1) * self.rows:
            self.known, self.unseen = int(self.taken), 0  # waits for the device
            if self.filled - self.known <= self.size // 2:
                self.fill(self.size // 2)
        self.unseen += 1

    def passes(self):
        """Epochs so far, over all processes, if each has taken as many examples as this one."""
        return (self.base - len(self.ahead) + int(self.taken) * self.world) / len(self.data)

    def state_dict(self):
        ahead = torch.from_numpy(self.ahead)
        return {"taken": int(self.taken), "ahead": ahead, "base": self.base}

    def load_state_dict(self, state):
        self.ahead, self.base = state["ahead"].numpy(), state["base"]
        self.taken = torch.tensor(state["taken"], device=self.x0.device)  # (), the running count
        self.known = self.filled = state["taken"]
        self.unseen = 0  # takes since `known` was read
        self.fill(self.size // 2)

    def fill(self, n):
        count = np.arange(self.filled, self.filled + n)
        place = count * self.world + self.rank
        number = examples_at(place, self.ahead, self.base, len(self.data), self.seed)
        x0, prompt = self.data[number]
        if (full := prompt.all(1)).any():
            raise ValueError(f"example {number[full][0]}: the prompt leaves no position to predict")
        slot = self.moved(count % self.size, torch.long)
        for ring, part in (self.number, number), (self.x0, x0), (self.prompt, prompt):
            ring.index_copy_(0, slot, self.moved(part, ring.dtype))
        self.filled += n

    def moved(self, part, dtype):
        """An array on the device; to CUDA from pinned memory, for which the host does not wait."""
        part = torch.as_tensor(part).to(dtype)
        part = part.pin_memory() if self.x0.is_cuda else part
        return part.to(self.x0.device, non_blocking=self.x0.is_cuda)


def examples_at(place, ahead, base, size, seed):
    """Places in the sequence (n,) -> indices into the data: `ahead`, then epochs from `base` on."""
    epoch, index = np.divmod(place - len(ahead) + base, size)
    for e in np.unique(epoch[place >= len(ahead)]):
        index[epoch == e] = shuffled(index[epoch == e], size, (seed, int(e)))
    index[place < len(ahead)] = ahead[place[place < len(ahead)]]
    return index


def shuffled(index, size, key):
    """index (n,) under a random permutation of 0..size - 1; key: whole numbers.

    A Feistel network on two equal halves of the bits; results outside 0..size - 1 go through it
    again until they are inside.
    """
    half = np.uint64(((size - 1).bit_length() + 1) // 2 or 1)
    low = (np.uint64(1) << half) - np.uint64(1)
    keys = np.random.SeedSequence(key).generate_state(ROUNDS, np.uint64)
    index, outside = index.astype(np.uint64), np.arange(len(index))
    while len(outside):
        left, right = index[outside] >> half, index[outside] & low
        for k in keys:
            left, right = right, left ^ (scramble(right ^ k) & low)
        index[outside] = left << half | right
        outside = outside[index[outside] >= size]
    return index.astype(np.int64)


def scramble(number):
    """A random function uint64 -> uint64: the finalizer of splitmix64."""
    z = number * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def rows_and_passes(total, most, world):
    """Rows of an update -> rows per process and forward pass, and forward passes per update.

    most: rows per process and pass; None = no limit. Raises ValueError for rows that do not split.
    """
    own, rest = divmod(total, world)
    if rest or not own:
        raise ValueError(f"{total} rows per update: expected a multiple of the {world} processes")
    passes = next(n for n in range(1, own + 1) if own % n == 0 and own // n <= (most or own))
    return own // passes, passes


def fingerprint(data):
    """The number of examples, and a checksum of all: the data's own `checksum`, if it has one."""
    crc = getattr(data, "checksum", 0)
    for at in range(0, 0 if crc else len(data), CHUNK):
        for part in data[np.arange(at, min(at + CHUNK, len(data)))]:
            crc = zlib.crc32(np.ascontiguousarray(part), crc)
    return [len(data), crc]
