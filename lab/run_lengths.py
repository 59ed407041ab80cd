"""Run lengths decoded, as a task: train.py config/gym.py --task=lab.run_lengths --data=32.

    d7f9 | dddddddfffffffff, end, end, ...      letters and how often each is written

A row has up to 6 runs of 1 to 9 letters, at most `data` letters in all, and no two runs of one
letter side by side. What is written at a place follows from sums over the prompt, or from the few
letters before it once those are written. Padding, in prompt and answer, is `end`.
"""

import numpy as np

LETTERS = "abcdefghijklmnopqrstuvwxyz"
DIGITS = "123456789"
END = len(LETTERS + DIGITS)  # ids: the letters, the digits, end, mask
MASK = END + 1
RUNS = 6
ROWS = 60_000  # to train on


class Rows:
    """rows[indices (n,)] -> x0 (n, L), prompt (n, L) bool."""

    def __init__(self, x0):
        self.x0 = x0

    def __len__(self):
        return len(self.x0)

    def __getitem__(self, indices):
        x0 = self.x0[indices]
        return x0, np.broadcast_to(np.arange(x0.shape[1]) < 2 * RUNS, x0.shape).copy()


def made(most, count, seed):
    """Different rows (count, 2 * RUNS + most + 1): pairs of letter and digit, then the letters."""
    draw = np.random.default_rng(seed)
    rows = {}
    while len(rows) < count:
        runs = draw.integers(2, RUNS + 1)
        steps = draw.integers(1, len(LETTERS), size=runs)  # from letter to letter: never 0
        letters = steps.cumsum() % len(LETTERS)
        counts = draw.integers(1, len(DIGITS) + 1, size=runs)
        if counts.sum() > most:
            continue
        row = np.full(2 * RUNS + most + 1, END)
        row[0 : 2 * runs : 2] = letters
        row[1 : 2 * runs : 2] = len(LETTERS) + counts - 1
        row[2 * RUNS : 2 * RUNS + counts.sum()] = np.repeat(letters, counts)
        rows[row.tobytes()] = row
    return np.stack([*rows.values()])


class RunLengths:
    end = END
    mask_token = MASK
    vocab_size = MASK + 1

    def __init__(self, most, test_examples):
        rows = made(most, ROWS + test_examples, seed=most)
        self.length = rows.shape[1]
        self.test = Rows(rows[:test_examples])
        self.train = Rows(rows[test_examples:])

    def judge(self, tokens, x0, prompt):
        return ((tokens == x0) | prompt).all(1)

    def render(self, tokens, prompt):
        symbols = np.array([*LETTERS, *DIGITS, "", "."])
        return "".join(symbols[tokens[prompt]]) + " | " + "".join(symbols[tokens[~prompt]])

    def parse(self, text):
        """Letters and digits in turn -> x0 (1, L), prompt (1, L)."""
        ids = [(LETTERS + DIGITS).find(symbol) for symbol in text]
        letters, counts = ids[0::2], ids[1::2]
        right = len(letters) == len(counts) <= RUNS and all(0 <= each < 26 for each in letters)
        if not right or not all(26 <= each < END for each in counts):
            raise SystemExit(f"expected up to {RUNS} letters with a digit after each, got {text!r}")
        counts = np.array(counts, int) - 25
        if counts.sum() > self.length - 2 * RUNS - 1:
            raise SystemExit(f"{text!r} has {counts.sum()} letters, too many for this task")
        x0 = np.full((1, self.length), END)
        x0[0, : len(ids)] = ids
        x0[0, 2 * RUNS :][: counts.sum()] = np.repeat(letters, counts)
        return x0, np.arange(self.length)[None] < 2 * RUNS


def load(folder, test_examples):
    if not (folder.isdigit() and 9 <= int(folder) <= 100):
        raise SystemExit(f"--data={folder}: expected the most letters of an answer, 9 to 100")
    return RunLengths(int(folder), test_examples)
