"""Train vocabulary.tiktoken, the byte-pair vocabulary of the generated word problems, again.

    python data/wordproblems/train_tokenizer.py

The file is in the repository: only a change to generate.py or templates.py calls for another.
"""

import heapq
import itertools
import sys
import unicodedata
from collections import Counter, defaultdict
from pathlib import Path

import regex

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from configurator import configure
from data.tokenizer import BYTES, PATTERN, save
from data.wordproblems.generate import make_problems

size = 1500  # ranks; end of text and mask come on top
problems = 20_000  # whose words are counted

LIMITS = """
    256 <= size <= 10**6
    1 <= problems <= 10**8
"""

VOCABULARY = Path(__file__).with_name("vocabulary.tiktoken")


def main():
    texts = (
        part
        for problem in make_problems(problems, "train")
        for part in (problem.question + "\n", problem.code)
    )
    ranks = train_ranks(texts, size)
    save(ranks, VOCABULARY)
    print(f"{len(ranks)} ranks in {VOCABULARY}")


def train_ranks(texts, size):
    """`size` ranks by byte-pair encoding of the texts; fewer if their words run out of pairs.

    The next rank goes to the token that the most adjacent pairs in the words would make; ties go to
    the first in byte order. Pairs are counted by the token they make, because tiktoken merges by
    the result: ("a", "bc") and ("ab", "c") are one merge.
    """
    trainer = Trainer(Counter(word for text in texts for word in words(text)))
    while len(trainer.ranks) < size and (token := trainer.commonest()):
        trainer.add(token)
    return trainer.ranks


def words(text):
    return (word.encode() for word in regex.findall(PATTERN, unicodedata.normalize("NFC", text)))


class Trainer:
    """The words as merged so far, and the tokens that their adjacent pairs would make."""

    def __init__(self, words):
        """words {bytes: how often}"""
        self.ranks = {byte: rank for rank, byte in enumerate(BYTES)}
        self.parts = [[bytes([byte]) for byte in word] for word in words]
        self.times = list(words.values())
        self.counts = Counter()  # of each possible token
        self.homes = defaultdict(set)  # {token: indices of words in which it may be made}
        self.heap = []  # (-count, token); entries with an outdated count are skipped
        self.push(self.tally(range(len(self.parts)), +1))

    def commonest(self):
        """The token that the most adjacent pairs would make, None if no pairs are left."""
        while self.heap:
            count, token = heapq.heappop(self.heap)
            if 0 > count == -self.counts[token]:
                return token
        return None

    def add(self, token):
        """Give it the next rank and make it wherever it can be made."""
        self.ranks[token] = len(self.ranks)
        homes = self.homes.pop(token)
        changed = self.tally(homes, -1)
        for home in homes:
            merge(self.parts[home], token)
        self.push(changed | self.tally(homes, +1))

    def tally(self, homes, sign):
        """Add (+1) or remove (-1) the pairs of these words; returns the tokens they would make."""
        seen = set()
        for home in homes:
            for token in joined(self.parts[home]):
                self.counts[token] += sign * self.times[home]
                self.homes[token].add(home)
                seen.add(token)
        return seen

    def push(self, tokens):
        for token in tokens:
            heapq.heappush(self.heap, (-self.counts[token], token))


def joined(parts):
    """The tokens that adjacent parts would make."""
    return [a + b for a, b in itertools.pairwise(parts)]


def merge(parts, token):
    """Merge the parts of a word in place, from the left, where two adjacent ones make the token."""
    at = 0
    while at < len(parts) - 1:
        if parts[at] + parts[at + 1] == token:
            parts[at : at + 2] = [token]
        at += 1


if __name__ == "__main__":
    configure(globals())
    main()
