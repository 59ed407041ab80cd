"""Addition: generated sums of two numbers of D digits; low digits determine the high ones.

A row holds the digits of both numbers and of their sum, L = D + D + (D + 1), with the highest digit
first or the lowest: token d is the digit d, token 10 the mask. The prompt is the two numbers.
Column 0 is the units, whatever the order in a row.

A *carry chain* begins in a column whose digits add up to 10 or more and continues through the next
higher columns as long as their digits add up to 9: 95 + 5 has a chain of 2 columns. Uniform digits
rarely have a long one, so test sums come in strata by their longest chain, 0-1, 2-3, 4-7, ..., the
last up to D, equally filled: accuracy is the mean over these, not that of uniform sums. Within a
stratum all lengths are equally likely, and a sum is uniform except for its chain.

A sum is a function of its index, so a training set of any size takes no memory. A checksum of the
two numbers decides whether they are held out, so no test sum is trained on, however few there are.
"""

import re
import zlib
from typing import NamedTuple

import numpy as np

from engine.queue import scramble
from tasks import Problems, Task

MASK = 10
ORDERS = "highest", "lowest"
HELD_OUT = 16  # one in this many sums is held out
ATTEMPTS = 1 << 32  # distance between the seeds of two attempts at a sum; columns lie between
CARRY = np.argwhere(np.add.outer(np.arange(10), np.arange(10)) >= 10)  # (45, 2) pairs of digits
NO_CARRY = np.argwhere(np.add.outer(np.arange(10), np.arange(10)) < 10)  # (55, 2)


class Settings(NamedTuple):
    digits: int = 16  # 2..1000: of each of the two numbers
    digit_order: str = "highest"  # which digit of a number comes first in a row: highest or lowest
    long_chains: bool = False  # make long carry chains as frequent as short ones in training sums


# -- carries ---------------------------------------------------------------------------------------
def longest_chain(numbers):
    """The length of the longest carry chain; numbers (n, 2, D), units first -> (n,)."""
    longest = length = np.zeros(len(numbers), int)
    for column in numbers.sum(1).T:  # (n,)
        goes_on = np.where((column == 9) & (length > 0), length + 1, 0)
        length = np.where(column > 9, 1, goes_on)
        longest = np.maximum(longest, length)
    return longest


def strata(digits):
    """(shortest, longest) chain of each stratum."""
    starts = [0, *(1 << k for k in range(1, digits) if 1 << k < digits)]
    return [*zip(starts, [start - 1 for start in starts[1:]] + [digits], strict=True)]


def add(numbers):
    """Digits of the sums; numbers (n, 2, D) -> (n, D + 1), units first."""
    total = np.zeros((len(numbers), numbers.shape[2] + 1), int)
    total[:, :-1] = numbers.sum(1)
    for column in range(total.shape[1] - 1):
        total[:, column + 1] += total[:, column] // 10
    return total % 10


# -- sums by index ---------------------------------------------------------------------------------
def noise(index, attempt, size):
    """(n, size) uint64, a function of index (n,) and attempt only."""
    place = scramble(index.astype(np.uint64))[:, None] + np.uint64(attempt * ATTEMPTS)
    return scramble(place + np.arange(size, dtype=np.uint64))


def held_out(numbers):
    """Whether sums are held out for the test; numbers (n, 2, D) -> (n,)."""
    total = np.zeros(len(numbers), np.uint64)
    for digit in numbers.reshape(len(numbers), -1).T.astype(np.uint64):
        total = scramble(total + digit + np.uint64(1))
    return total % np.uint64(HELD_OUT) == 0


def candidates(index, attempt, chain, digits):
    """Uniform numbers, with a chain of at least that length inserted at a random place.

    index (n,); chain (n,), -1: insert nothing, 0: no column has a carry -> (n, 2, D).
    """
    random = noise(index, attempt, 3 * digits + 1)
    first, second, pair = (random[:, i * digits : (i + 1) * digits] for i in range(3))
    first, second = (first % np.uint64(10)).astype(int), (second % np.uint64(10)).astype(int)
    start = (random[:, -1] % np.maximum(digits - chain + 1, 1).astype(np.uint64)).astype(int)
    place = np.arange(digits) - start[:, None]  # in the chain
    second = np.where((place > 0) & (place < chain[:, None]), 9 - first, second)
    numbers = np.stack([first, second], 1)
    begins = ((place == 0) & (chain[:, None] > 0))[:, None]
    numbers = np.where(begins, CARRY[pair % np.uint64(45)].swapaxes(1, 2), numbers)
    bare = (chain == 0)[:, None, None]
    return np.where(bare, NO_CARRY[pair % np.uint64(55)].swapaxes(1, 2), numbers)


def draw(index, chain, digits, test):
    """Numbers whose longest chain is `chain` (n,), -1: any; test: held out or not -> (n, 2, D).

    Each is the first of its candidates that fits.
    """
    numbers, missing, attempt = np.zeros((len(index), 2, digits), int), np.arange(len(index)), 0
    while len(missing):
        found = candidates(index[missing], attempt, chain[missing], digits)
        fits = (chain[missing] < 0) | (longest_chain(found) == chain[missing])
        fits &= held_out(found) == test
        numbers[missing[fits]] = found[fits]
        missing, attempt = missing[~fits], attempt + 1
    return numbers


def between(low, high, index):
    """A whole number in low..high for each index (n,)."""
    span = np.asarray(high - low + 1, np.uint64)
    return low + (scramble(np.asarray(index, np.uint64)) % span).astype(int)


# -- rows ------------------------------------------------------------------------------------------
def rows_of(numbers, order):
    """Tokens (n, L) of numbers (n, 2, D)."""
    parts = numbers[:, 0], numbers[:, 1], add(numbers)
    return np.concatenate([in_order(part, order) for part in parts], 1)


def in_order(digits, order):
    """Digits (..., D), units first, in the order of a row; or back."""
    return digits[..., ::-1] if order == "highest" else digits


def prompt_of(rows):
    """True at the two numbers of rows (n, L)."""
    length = rows.shape[1]
    return np.tile(np.arange(length) < length // 3 * 2, (len(rows), 1))


def in_digits(digits):
    """Digits, units first, written as a number."""
    return "".join(map(str, digits[::-1]))


def parse(text, digits):
    """The numbers written as 123+456, (2, D), units first. Raises ValueError."""
    match = re.fullmatch(r"\s*([0-9]+)\s*\+\s*([0-9]+)\s*=?\s*", text)
    if not match or max(map(len, match.groups())) > digits:
        raise ValueError(f"prompt {text!r}: expected text like 12+34, at most {digits} digits each")
    return np.array([[int(d) for d in number.zfill(digits)[::-1]] for number in match.groups()])


# -- the task --------------------------------------------------------------------------------------
class Examples:
    """Sums: examples[indices (n,)] -> x0 (n, L), prompt (n, L) of numbers(indices) (n, 2, D)."""

    def __init__(self, count, numbers, order):
        self.count, self.numbers, self.order = count, numbers, order
        first, _ = self[np.arange(min(count, 256))]  # all are functions of their index
        self.checksum = zlib.crc32(np.ascontiguousarray(first))

    def __len__(self):
        return self.count

    def __getitem__(self, indices):
        rows = rows_of(self.numbers(indices), self.order)
        return rows, prompt_of(rows)


class Sums(Problems):
    """Numbers (n, 2, D), units first, to be added."""

    def __init__(self, numbers, order):
        self.numbers, self.order, self.digits = numbers, order, numbers.shape[2]
        self.bounds = strata(self.digits)
        self.strata = [f"{shortest}-{longest}" for shortest, longest in self.bounds]

    @classmethod
    def of_strata(cls, count, digits, order):
        """Held-out sums, from the strata in turn, so that these are equally filled."""
        index = np.arange(count)
        shortest, longest = np.array(strata(digits))[index % len(strata(digits))].T
        return cls(draw(index, between(shortest, longest, index), digits, test=True), order)

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, indices):
        rows = rows_of(self.numbers[indices], self.order)
        hidden = ~prompt_of(rows)
        return np.where(hidden, MASK, rows), hidden

    def judge(self, tokens, indices):
        numbers = self.numbers[indices]
        answers = in_order(np.asarray(tokens)[:, 2 * self.digits :], self.order)
        correct = (answers == add(numbers)).all(1)
        return [
            {"kind": "correct" if ok else "wrong", "sum": f"{in_digits(a)}+{in_digits(b)}"}
            | {"answer": in_digits(answer), "chain": int(chain), "stratum": self.stratum(chain)}
            for ok, (a, b), answer, chain in zip(
                correct, numbers, answers, longest_chain(numbers), strict=True
            )
        ]

    def stratum(self, chain):
        return self.strata[sum(chain > longest for _, longest in self.bounds)]

    def pieces(self, tokens, seen=None):
        shown = np.where(seen is None or seen, tokens, MASK)
        text = [*enumerate("0123456789_"[token] for token in shown)]
        parts = text[: self.digits], text[self.digits : 2 * self.digits], text[2 * self.digits :]
        first, second, answer = (part[:: 1 if self.order == "highest" else -1] for part in parts)
        return [*first, (None, " + "), *second, (None, " = "), *answer]

    def verdict(self, record):
        return f"{record['kind']}, longest carry chain {record['chain']}"


class Addition(Task):
    """Sums to train on, and held-out sums for accuracy and validation loss.

    long_chains: all lengths of a training sum's longest chain, 0 to D, are equally frequent.
    """

    def __init__(self, digits, order, train, test, long_chains):
        if order not in ORDERS:
            raise ValueError(f"digit_order {order!r}: expected {' or '.join(ORDERS)}")
        self.digits, self.order, self.long_chains = digits, order, long_chains
        self.length, self.vocab_size, self.mask = 3 * digits + 1, MASK + 1, MASK
        self.train = Examples(train, self.training_numbers, order)
        self.test = Sums.of_strata(test, digits, order)
        self.validation = Examples(test, self.test.numbers.__getitem__, order)

    def training_numbers(self, index):
        any_chain = np.full(len(index), -1)
        chain = between(0, self.digits, index) if self.long_chains else any_chain
        return draw(index, chain, self.digits, test=False)

    def prompts(self, texts):
        """Sums that a user types, like 123+456."""
        return Sums(np.stack([parse(text, self.digits) for text in texts]), self.order)


def load(config):
    """The sums that the configuration of a run asks for (keys as in train.py)."""
    names = "digits", "digit_order", "train_examples", "test_examples", "long_chains"
    return Addition(*(config[name] for name in names))
