"""Bits per character of n-gram models, to compare trained models with.

    python data/text8/ngrams.py --data_dir=data/text8/tokens

Counts every n characters of the training rows, n up to `order`, and scores the held-out rows, each
by itself, as eval.py --nelbo does: the first characters of a row have shorter contexts.
Interpolated by Witten and Bell's rule: with N occurrences of a context and T different characters
after it,

    P_n(c | context) = (count(context, c) + T P_{n-1}(c | shorter context)) / (N + T).
"""

import sys
from pathlib import Path

import numpy as np

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from configurator import configure, errors_as_messages
from data.corpus import Examples

data_dir = "data/text8/tokens"  # a folder of characters
order = 5  # the largest n
split = "val"  # the rows to score: val or test
examples: int | None = None  # how many of these rows, from the first; None = all

LIMITS = """
    1 <= order <= 5    # there are 27 ** order counts
    1 <= examples <= 10**9    # None = all
"""


def main():
    with errors_as_messages():
        train, held_out = Examples(data_dir, "train"), Examples(data_dir, split)
        if train.header["tokenizer"]["kind"] != "characters":
            raise ValueError(f"{data_dir} has other tokens: expected characters, as of data/text8")
    counted = [np.asarray(each.tokens).reshape(-1, train.length) for each in (train, held_out)]
    for n, bits in enumerate(bits_per_character(*counted, train.end, order, examples), 1):
        print(f"{n}-gram: {bits:.4f} bits per character")


def bits_per_character(train, held_out, V, order, examples=None):
    """For n = 1 to order; train, held_out (N, L) ids below V."""
    models = probabilities(train, V, order)
    held_out = held_out[:examples]
    found = []
    for n in range(1, order + 1):
        bits = 0.0
        for size in range(1, min(n, held_out.shape[1]) + 1):
            codes = codes_of(held_out, V, size)
            codes = codes if size == n else codes[:, :1]  # the first characters of a row
            bits -= np.log2(models[size - 1].reshape(-1)[codes]).sum()
        found.append(bits / held_out.size)
    return found


def probabilities(rows, V, order):
    """P_n for n = 1 to order, (V ** (n - 1), V) each: of a character after its context."""
    found, shorter = [], np.full((1, V), 1 / V)
    for n in range(1, order + 1):
        counts = np.bincount(codes_of(rows, V, n).ravel(), minlength=V**n).reshape(-1, V)
        N, T = counts.sum(1, keepdims=True), (counts > 0).sum(1, keepdims=True)
        back = np.tile(shorter, (len(counts) // len(shorter), 1))  # drops the first of the context
        known = np.where(N > 0, (counts + T * back) / np.maximum(N + T, 1), back)
        found.append(known)
        shorter = known
    return found


def codes_of(rows, V, n):
    """A number for each run of n characters; rows (N, L) -> (N, L - n + 1)."""
    width = rows.shape[1] - n + 1
    return sum(rows[:, at : at + width].astype(np.int64) * V ** (n - 1 - at) for at in range(n))


if __name__ == "__main__":
    configure(globals())
    main()
