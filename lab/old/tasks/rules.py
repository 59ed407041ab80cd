"""Four small tasks for comparing methods: any row that keeps its prompt and the rule is right.

permutations    p and q of ELEMENTS letters, which are given, and p[q]: one right answer
sums            three numbers of D digits in base 7, and their sum, the highest digit first: one
latin           a Latin square with some cells given: a few right answers
brackets        a balanced string of ( ) and [ ], uniform over all, some given: very many
"""

import math

import numpy as np

from tasks import Problems, Task

ELEMENTS = 10  # of a permutation, at most 26
BASE = 7  # of sums
D = 3  # digits of a number
SIDE = 6  # of a Latin square, at most 9
CLUES = 16  # its given cells
POOL = 400  # Latin squares, whose rows, columns and symbols are shuffled
PAIRS = 16  # of brackets
GIVEN = 8  # of these signs


# -- rows: (count, L) tokens and prompt, and the rule: (n, L) -> right (n,) bool -------------------
def permutations(count, rng):
    n = ELEMENTS
    p, q = rng.random((2, count, n)).argsort(2)
    given = np.arange(3 * n) < 2 * n
    return np.concatenate([p, q, np.take_along_axis(p, q, 1)], 1), np.tile(given, (count, 1))


def composed(rows):
    p, q, answer = np.split(rows, 3, axis=1)
    return (np.take_along_axis(p, np.minimum(q, len(q[0]) - 1), 1) == answer).all(1)


def sums(count, rng):
    numbers = rng.integers(BASE, size=(count, 3, D))
    total = (numbers @ BASE ** np.arange(D)[::-1]).sum(1)
    answer = total[:, None] // BASE ** np.arange(D + 1)[::-1] % BASE
    rows = np.concatenate([numbers.reshape(count, -1), answer], 1)
    return rows, np.tile(np.arange(4 * D + 1) < 3 * D, (count, 1))


def added(rows):
    numbers, answer = rows[:, : 3 * D].reshape(-1, 3, D), rows[:, 3 * D :]
    weight = BASE ** np.arange(D + 1)[::-1]
    return (numbers @ weight[1:]).sum(1) == answer @ weight


def latin(count, rng):
    n = SIDE
    pool = np.stack([square(n, rng) for _ in range(POOL)])[rng.integers(POOL, size=count)]
    rows, columns, symbols = rng.random((3, count, n)).argsort(2)
    grids = pool[np.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]
    grids = np.take_along_axis(symbols, grids.reshape(count, -1), 1)
    return grids, random_places(grids.shape, CLUES, rng)


def square(n, rng):
    """A random Latin square (n, n): rows that fit, from the top; a dead end begins anew."""
    grid = np.full((n, n), -1)
    for row in range(n):
        for column in rng.permutation(n):
            free = [*{*range(n)} - {*grid[row].tolist(), *grid[:, column].tolist()}]
            if not free:
                return square(n, rng)
            grid[row, column] = rng.choice(free)
    return grid


def is_latin(rows):
    n = math.isqrt(rows.shape[1])
    grids, symbols = rows.reshape(-1, n, n), np.arange(n)
    columns = np.sort(grids, 1) == symbols[:, None]
    return (columns & (np.sort(grids, 2) == symbols)).all((1, 2))


def brackets(count, rng):
    L = 2 * PAIRS
    ways = np.zeros((L + 1, L + 3))  # ways[left, height + 1] to end a string; height -1 has none
    ways[0, 1] = 1
    for left in range(L):
        ways[left + 1, 1:-1] = ways[left, 2:] + ways[left, :-2]
    rows, height = np.zeros((count, L), int), np.zeros(count, int)
    opened, each = np.zeros((count, L + 1), int), np.arange(count)  # kinds of open brackets
    for i in range(L):
        up = rng.random(count) < ways[L - i - 1, height + 2] / ways[L - i, height + 1]
        kind = np.where(up, rng.integers(2, size=count), opened[each, height - 1])
        opened[each, height] = np.where(up, kind, opened[each, height])
        rows[:, i] = np.where(up, kind, 2 + kind)
        height += np.where(up, 1, -1)
    return rows, random_places(rows.shape, GIVEN, rng)


def are_balanced(rows):
    return np.array([is_balanced(row) for row in rows])


def is_balanced(row):
    opened = []
    for token in row:
        if token < 2:
            opened.append(token)
        elif not opened or opened.pop() != token - 2:
            return False
    return not opened


def random_places(shape, count, rng):
    return rng.random(shape).argsort(1).argsort(1) < count


# -- the task --------------------------------------------------------------------------------------
KINDS = {
    "permutations": (permutations, composed, "abcdefghijklmnopqrstuvwxyz"[:ELEMENTS]),
    "sums": (sums, added, "0123456"),
    "latin": (latin, is_latin, "123456789"[:SIDE]),
    "brackets": (brackets, are_balanced, "([)]"),
}  # rows, rule, signs


class Rows:
    """rows[indices (n,)] -> x0 (n, L) ids, prompt (n, L) bool."""

    def __init__(self, make, count, seed):
        self.x0, self.prompt = make(count, np.random.default_rng(seed))
        self.x0 = self.x0.astype(np.uint8)

    def __len__(self):
        return len(self.x0)

    def __getitem__(self, indices):
        return self.x0[indices], self.prompt[indices]


class Tests(Problems):
    def __init__(self, rows, rule, signs):
        self.rows, self.rule, self.signs = rows, rule, signs + "_"

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, indices):
        x0, prompt = self.rows[indices]
        return np.where(prompt, x0, len(self.signs) - 1), ~prompt

    def judge(self, tokens, indices):
        x0, prompt = self.rows[indices]
        tokens = np.asarray(tokens).astype(int)
        right = ((tokens == x0) | ~prompt).all(1) & self.rule(tokens)
        return [{"kind": "correct" if each else "wrong"} for each in right]

    def again(self, attempt):
        return self

    def pieces(self, tokens, seen=None):
        shown = np.where(seen is None or seen, tokens, len(self.signs) - 1)
        return [(place, self.signs[token]) for place, token in enumerate(shown)]


class Small(Task):
    def __init__(self, config):
        make, rule, signs = KINDS[config["dataset"]]
        self.train = Rows(make, config["train_examples"], seed=0)
        self.validation = Rows(make, config["test_examples"], seed=1)
        self.length, self.vocab_size = self.train.x0.shape[1], len(signs) + 1
        self.mask = len(signs)
        self.test = Tests(self.validation, rule, signs)


def load(config):
    return Small(config)
