"""Running products of permutations, as a task: train.py config/products.py --data=MOVES.

A row is `moves` letters, each for one of eight permutations of five places that generate S5, and
then the product after each letter, as the place of each of five things that began in order:

    h d a | 1 4 0 3 2  2 3 1 0 4  ...           L = 6 * moves tokens; the letters are given

Each product follows in one step from the one before. To say the last one at once is the word
problem of S5, which is complete for NC1 (Barrington, 1989): unless TC0 = NC1, no transformer of a
fixed depth does it for all lengths (arXiv 2404.08819). A row is solved if every product is right.
"""

import itertools

import numpy as np

THINGS = 5
LETTERS = "abcdefgh"
MASK = THINGS + len(LETTERS)  # tokens: 0..4 the things, then the letters, then the mask
MOST = 200_000  # rows to train on

MOVES = np.array([*itertools.permutations(range(THINGS))])  # of which eight are drawn, (8, 5)
MOVES = MOVES[1 + np.random.default_rng(0).choice(119, len(LETTERS), replace=False)]


class Rows:
    """rows[indices (n,)] -> x0 (n, L), prompt (n, L) bool, of words that are numbers in base 8."""

    def __init__(self, numbers, moves):
        self.numbers = numbers
        self.moves = moves

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, indices):
        word = (
            self.numbers[indices][:, None] // len(LETTERS) ** np.arange(self.moves) % len(LETTERS)
        )
        places = np.tile(np.arange(THINGS), (len(word), 1))  # (n, 5)
        parts = [THINGS + word]
        for letters in word.T:
            places = np.take_along_axis(MOVES[letters], places, 1)
            parts.append(places)
        x0 = np.concatenate(parts, 1)
        return x0, np.broadcast_to(np.arange(x0.shape[1]) < self.moves, x0.shape).copy()


class Products:
    def __init__(self, moves, test_examples):
        self.length = 6 * moves
        self.vocab_size = MASK + 1
        self.mask_token = MASK
        words = len(LETTERS) ** moves
        draw = np.random.default_rng(moves)
        chosen = draw.permutation(words) if words < 1e6 else draw.integers(words, size=2 * MOST)
        numbers = np.array([*dict.fromkeys(chosen.tolist())])  # different ones, in the order drawn
        held_out = min(test_examples, words // 4)
        self.test = Rows(numbers[:held_out], moves)
        self.train = Rows(numbers[held_out:][:MOST], moves)

    def judge(self, tokens, x0, prompt):
        return (tokens == x0).all(1)

    def render(self, tokens, prompt):
        symbols = np.array([*map(str, range(THINGS)), *LETTERS, "."])[tokens]
        moves = len(tokens) // 6
        orders = symbols[moves:].reshape(moves, THINGS)
        return " ".join([*symbols[:moves], "|", *map("".join, orders)])

    def parse(self, text):
        """Letters -> x0 (1, L), prompt (1, L)."""
        word = [LETTERS.find(letter) for letter in text]
        moves = self.test.moves
        if len(word) != moves or min(word) < 0:
            raise SystemExit(f"expected {moves} letters of {LETTERS}, got {text!r}")
        return Rows(np.array([word @ len(LETTERS) ** np.arange(moves)]), moves)[[0]]


def load(folder, test_examples):
    if not (folder.isdecimal() and 1 <= int(folder) <= 20):
        raise SystemExit(f"--data={folder}: expected a number of moves, 1 to 20")
    return Products(int(folder), test_examples)
