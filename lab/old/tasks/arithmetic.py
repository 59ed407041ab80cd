"""Arithmetic: generated tasks with one certain answer, on numbers of D digits.

add: both numbers and their sum, L = D + D + (D + 1). subtract: the same sum, read backwards: the
sum less the second number is the first, L = (D + 1) + D + D. sort: D digits and the same digits
sorted, ascending from left to right, L = D + D. Numbers have the highest digit first: token d is
the digit d, token 10 the mask; all but the last part is the prompt. Column 0 is the units.

A *carry chain* begins in a column whose digits add up to 10 or more and continues through the next
higher columns as long as their digits add up to 9: 95 + 5 has a chain of 2 columns. Uniform digits
rarely have a long one, so test sums come in strata by their longest chain, 0-1, 2-3, 4-7, ..., the
last up to D, equally filled: accuracy is the mean over these, not over uniform sums. Within a
stratum all lengths are equally likely, and a sum is uniform except for its chain. A difference
borrows where its sum carries, so it has the same strata. Digits to sort have none.

A sum is a function of its index, so a training set of any size takes no memory. A checksum of the
two numbers decides whether they are held out, so no test sum is trained on, however few there are.
"""

import zlib
from typing import NamedTuple

import numpy as np

from engine.queue import scramble
from tasks import Problems, Task

MASK = 10
SIGNS = {"add": "+", "subtract": "-", "sort": ""}  # between the numbers of a prompt
HELD_OUT = 16  # one in this many sums is held out
ATTEMPTS = 1 << 32  # distance between the seeds of two attempts at a sum; columns lie between
CARRY = np.argwhere(np.add.outer(np.arange(10), np.arange(10)) >= 10)  # (45, 2) pairs of digits
NO_CARRY = np.argwhere(np.add.outer(np.arange(10), np.arange(10)) < 10)  # (55, 2)


class Settings(NamedTuple):
    operation: str = "add"  # add, subtract or sort
    digits: int = 16  # 2..1000: of each number (the sum has one more)


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
    first = (first % np.uint64(10)).astype(int)
    second = (second % np.uint64(10)).astype(int)
    start = (random[:, -1] % np.maximum(digits - chain + 1, 1).astype(np.uint64)).astype(int)
    place = np.arange(digits) - start[:, None]  # in the chain
    second = np.where((place > 0) & (place < chain[:, None]), 9 - first, second)
    numbers = np.stack([first, second], 1)
    begins = ((place == 0) & (chain[:, None] > 0))[:, None]
    numbers = np.where(begins, CARRY[pair % np.uint64(45)].swapaxes(1, 2), numbers)
    bare = (chain == 0)[:, None, None]
    return np.where(bare, NO_CARRY[pair % np.uint64(55)].swapaxes(1, 2), numbers)


def draw(index, chain, digits, test, count=2):
    """Numbers whose longest chain is `chain` (n,), -1: any; test: held out or not -> (n, count, D).

    Each is the first of its candidates that fits.
    """
    numbers = np.zeros((len(index), count, digits), int)
    missing = np.arange(len(index))
    attempt = 0
    while len(missing):
        found = candidates(index[missing], attempt, chain[missing], digits)[:, :count]
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
def parts_of(numbers, operation):
    """What a row is made of, the answer last: digits (n, D or D + 1), units first."""
    first, second = numbers[:, 0], numbers[:, -1]
    if operation == "sort":
        return first, -np.sort(-first, 1)
    return (first, second, add(numbers)) if operation == "add" else (add(numbers), second, first)


def in_digits(digits):
    """Digits, units first, written as a number."""
    return "".join(map(str, digits[::-1]))


def parse(text, operation, digits):
    """The numbers, units first, of text like 123+456, 579-456 (2, D) or, to sort, 31542 (1, D)."""
    sign = SIGNS[operation]
    given = "".join(text.split()).removesuffix("=").split(sign or None)
    numbers = [int(part) for part in given if part.isascii() and part.isdigit()]
    if operation == "subtract" and len(numbers) == 2:
        numbers[0] -= numbers[1]  # the answer
    fits = all(0 <= number < 10**digits for number in numbers)
    if len(given) != len(numbers) or len(numbers) != (2 if sign else 1) or not fits:
        example = {"+": "12+34", "-": "46-12", "": "4213"}[sign]
        raise ValueError(f"prompt {text!r}: expected text like {example}, up to {digits} digits")
    return np.array([[int(d) for d in f"{n:0{digits}}"[::-1]] for n in numbers])


# -- the task --------------------------------------------------------------------------------------
class Rows:
    """rows[indices (n,)] -> x0 (n, L), prompt (n, L), of numbers(indices) (n, 2, D)."""

    def __init__(self, count, numbers, operation):
        self.count = count
        self.numbers = numbers
        self.operation = operation
        first, _ = self[np.arange(min(count, 256))]  # all are functions of their index
        self.checksum = zlib.crc32(np.ascontiguousarray(first))

    def __len__(self):
        return self.count

    def __getitem__(self, indices):
        parts = parts_of(self.numbers(indices), self.operation)
        rows = np.concatenate([part[:, ::-1] for part in parts], 1)
        prompt = np.arange(rows.shape[1]) < rows.shape[1] - parts[-1].shape[1]
        return rows, np.tile(prompt, (len(rows), 1))


class Exercises(Problems):
    """Numbers (n, 2, D), units first, to be added, subtracted or sorted."""

    def __init__(self, numbers, operation):
        self.numbers, self.operation = numbers, operation
        self.rows = Rows(len(numbers), numbers.__getitem__, operation)

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, indices):
        rows, prompt = self.rows[indices]
        return np.where(prompt, rows, MASK), ~prompt

    def judge(self, tokens, indices):
        """Records; `chain` is the longest carry chain."""
        *given, answers = parts_of(self.numbers[indices], self.operation)
        chosen = np.asarray(tokens)[:, -answers.shape[1] :][:, ::-1]
        records = []
        for n, chain in enumerate(longest_chain(self.numbers[indices])):
            kind = "correct" if (chosen[n] == answers[n]).all() else "wrong"
            text = SIGNS[self.operation].join(in_digits(part[n]) for part in given)
            record = {"kind": kind, "problem": text, "answer": in_digits(chosen[n])}
            records.append(record | ({} if self.operation == "sort" else {"chain": int(chain)}))
        return records

    def pieces(self, tokens, seen=None):
        shown = np.where(seen is None or seen, tokens, MASK)
        pieces = []
        for part in parts_of(self.numbers[:1], self.operation):
            start = sum(i is not None for i, _ in pieces)
            size = part.shape[1]
            if pieces:
                last = start + size == len(shown)
                pieces.append((None, " = " if last else f" {SIGNS[self.operation]} "))
            pieces += [(i, "0123456789_"[shown[i]]) for i in range(start, start + size)]
        return pieces

    def verdict(self, record):
        chain = f", longest carry chain {record['chain']}" if "chain" in record else ""
        return record["kind"] + chain


class Arithmetic(Task):
    """Exercises to train on, and held-out ones for accuracy and validation loss."""

    def __init__(self, operation, digits, train, test):
        if operation not in SIGNS:
            raise ValueError(f"operation {operation!r}: expected {' or '.join(SIGNS)}")
        self.operation, self.digits = operation, digits
        self.count = 1 if operation == "sort" else 2  # numbers
        self.train = Rows(train, self.training_numbers, operation)
        self.test = Exercises(self.test_numbers(test), operation)
        self.validation = Rows(test, self.test.numbers.__getitem__, operation)
        self.vocab_size, self.mask = MASK + 1, MASK
        self.length = self.train[np.zeros(1, int)][0].shape[1]

    def training_numbers(self, index):
        return draw(index, np.full(len(index), -1), self.digits, False, self.count)

    def test_numbers(self, count):
        """Held-out ones, from the strata in turn, so that these are equally filled."""
        index, bounds = np.arange(count), np.array(strata(self.digits))
        chain = between(*bounds[index % len(bounds)].T, index)
        if self.operation == "sort":
            chain = np.full(count, -1)
        return draw(index, chain, self.digits, True, self.count)

    def prompts(self, texts):
        """Those that a user types, like 123+456."""
        numbers = [parse(text, self.operation, self.digits) for text in texts]
        return Exercises(np.stack(numbers), self.operation)


def load(config):
    """What the configuration of a run asks for (keys as in train.py)."""
    names = "operation", "digits", "train_examples", "test_examples"
    return Arithmetic(*(config[name] for name in names))
