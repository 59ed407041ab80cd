"""The next training examples, in a queue on the device: x0 (n, L), prompt (n, L), number (n,).

Examples come in an endless sequence of shuffled epochs. Of W processes, process r takes examples
r, r + W, r + 2W, ... of that sequence, so together they use every example exactly once per epoch,
whatever the size of the data set and however fast each process uses up its share. A different
number of processes can continue from there (`share_out`): examples that the earlier processes
skipped come first, in `ahead`, and the sequence continues from `base`.

`take` runs on the device alone: rows that want an example find it by a running count. The host
tops up the ring behind that count without waiting for it: the calls made so far bound from above
how many examples were taken, and an earlier copy of the count bounds it from below.
The order is a function of (seed, epoch), computed where it is needed, so it takes no memory and
the whole state is the count, `ahead` and `base`. Not here: reading the data (tasks/, data/).
"""

import zlib

import numpy as np
import torch

ROUNDS = 8  # of the Feistel network that shuffles; more than enough for any size


class ExampleQueue:
    """data[indices (n,)] -> x0 (n, L) integer, prompt (n, L) bool, as numpy arrays; len(data).

    rows: the most examples that one `take` can ask for; takes: calls of it per `top_up`.
    """

    def __init__(self, data, rows, device="cpu", seed=0, rank=0, world=1, takes=1):
        self.data, self.rows, self.seed, self.rank, self.world = data, rows, seed, rank, world
        self.takes = takes
        if len(data) == 0:
            raise ValueError("the training set is empty")
        self.size = max(32 * rows, 2 * takes * rows, 1024)  # examples in the ring
        L = data[np.zeros(1, np.int64)][0].shape[1]
        self.x0 = torch.zeros(self.size, L, dtype=torch.long, device=device)
        self.prompt = torch.zeros(self.size, L, dtype=torch.bool, device=device)
        self.number = torch.zeros(self.size, dtype=torch.long, device=device)  # index in the data
        self.ahead, self.base = np.zeros(0, np.int64), 0
        self.taken = torch.zeros((), dtype=torch.long, device=device)  # the running count
        self.start(0)

    def take(self, wanted):
        """The next examples for the rows that want one, wanted (rows,) bool.

        Returns x0, prompt (rows, L) and number (rows,), the index in the data; arbitrary in the
        other rows. The host must call `top_up` first, once per `takes` calls.
        """
        slot = (self.taken + wanted.cumsum(0) - 1) % self.size
        self.taken.add_(wanted.sum())
        return self.x0[slot], self.prompt[slot], self.number[slot]

    def top_up(self):
        """Make sure that the next takes find what they may ask for; half a ring at a time.

        The host knows only how much was taken when the last count arrived (`known`), and that each
        of the `unseen` takes since then took at most `rows`. It fills slots that are certainly
        free, and waits for the device only if that leaves too few examples for `takes` more.
        """
        self.observe()
        self.refill()
        if self.filled - self.known < (self.unseen + self.takes) * self.rows:
            self.copy = None  # stale: the host ran far ahead, so wait for the count itself
            self.known, self.unseen = int(self.taken), 0
            self.refill()
        self.unseen += self.takes

    def passes(self):
        """Epochs so far, over all processes, if each has taken as many examples as this one."""
        return (self.base - len(self.ahead) + self.known * self.world) / len(self.data)

    def look_up(self, number):
        """x0, prompt (..., L) of the examples with these numbers (...), on the CPU.

        Raises ValueError for a number that no example has.
        """
        wanted = number.flatten().cpu().numpy()
        if not ((wanted >= 0) & (wanted < len(self.data))).all():
            raise ValueError(f"expected numbers of {len(self.data)} training examples")
        x0, prompt = (torch.as_tensor(part) for part in self.data[wanted])
        return (part.view(*number.shape, x0.shape[1]) for part in (x0.long(), prompt.bool()))

    def state_dict(self):
        ahead = torch.from_numpy(self.ahead)
        return {"taken": self.taken.clone(), "ahead": ahead, "base": self.base}

    def load_state_dict(self, state):
        self.ahead, self.base = state["ahead"].numpy(), state["base"]
        self.taken.copy_(state["taken"])
        self.start(int(state["taken"]))

    def share_out(self, states, returned):
        """Continue where the queues of other processes stopped, given the state_dict of each.

        First come the examples `returned` (n,), indices of data that were taken and given back, and
        those that a slower process had not reached yet.
        """
        taken = [int(state["taken"]) for state in states]
        self.ahead, self.base = states[0]["ahead"].numpy(), states[0]["base"]
        reached = max(count * len(states) for count in taken)  # nothing beyond it was taken
        left = np.arange(min(taken) * len(states), max(reached, len(self.ahead)))
        rank = left % len(states)
        left = left[(left >= reached) | (left // len(states) >= np.array(taken)[rank])]
        ahead = np.concatenate([returned, self.indices(left)])
        self.base += max(0, reached - len(self.ahead))
        self.ahead = ahead
        self.taken.zero_()
        self.start(0)

    def start(self, taken):
        self.known, self.unseen = taken, 0  # the last count read, and the takes since then
        self.filled = taken
        self.copy = None
        self.fill(self.size // 2)

    def refill(self):
        if self.filled - self.known <= self.size // 2:
            self.fill(self.size // 2)

    def observe(self):
        """Learn how many examples were taken; on CUDA from an asynchronous copy."""
        if self.taken.device.type != "cuda":
            self.known, self.unseen = int(self.taken), 0
            return
        if self.copy is not None:
            count, before = self.copy
            if not count.arrived():
                return
            self.known, self.unseen = count.value(), self.unseen - before
        self.copy = Arriving(self.taken), self.unseen

    def fill(self, n):
        count = np.arange(self.filled, self.filled + n)
        number = self.indices(count * self.world + self.rank)
        x0, prompt = self.data[number]
        if (full := prompt.all(1)).any():
            raise ValueError(f"example {number[full][0]}: the prompt leaves no position to predict")
        slot = to_device(count % self.size, self.x0)
        self.number.index_copy_(0, slot, to_device(number, self.number))
        self.x0.index_copy_(0, slot, to_device(x0, self.x0))
        self.prompt.index_copy_(0, slot, to_device(prompt, self.prompt))
        self.filled += n

    def indices(self, place):
        """Places in the sequence (n,) -> indices into the data: `ahead`, then all epochs."""
        ahead = len(self.ahead)
        epoch, index = np.divmod(place - ahead + self.base, len(self.data))
        for e in np.unique(epoch[place >= ahead]):
            index[epoch == e] = shuffled(index[epoch == e], len(self.data), (self.seed, int(e)))
        index[place < ahead] = self.ahead[place[place < ahead]]
        return index


def shuffled(index, size, key):
    """index (n,) under a random permutation of 0..size - 1; key: whole numbers.

    The permutation takes no memory: it is a Feistel network on two equal halves of the bits, and
    results outside 0..size - 1 go through it again until they are inside.
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


def fingerprint(data):
    """The number of examples, and a checksum of the first ones."""
    x0, prompt = data[np.arange(min(256, len(data)))]
    parts = np.asarray(x0, np.int64).tobytes(), np.asarray(prompt, bool).tobytes()
    return [len(data), zlib.crc32(b"".join(parts))]


class Arriving:
    """A number () being copied from the device to the host, which need not wait for it yet."""

    def __init__(self, number):
        self.event, self.copy = None, number
        if number.is_cuda:
            self.copy = torch.empty((), dtype=number.dtype, pin_memory=True)
            self.copy.copy_(number, non_blocking=True)
            self.event = torch.cuda.current_stream().record_event()

    def arrived(self):
        return self.event is None or self.event.query()

    def value(self):
        if self.event:
            self.event.synchronize()
        return int(self.copy.cpu().numpy())


def to_device(array, like):
    """A copy with the dtype and device of `like`; to CUDA from pinned memory, without waiting."""
    tensor = torch.as_tensor(array).to(like.dtype)
    return tensor.pin_memory().to(like.device, non_blocking=True) if like.is_cuda else tensor
