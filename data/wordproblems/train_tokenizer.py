"""Train vocabulary.tiktoken, the byte-pair vocabulary of the generated word problems, again.

    python data/wordproblems/train_tokenizer.py

The file is in the repository: only a change to generate.py or templates.py calls for another.
"""

import itertools
import sys
import unicodedata
from collections import Counter
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
    times = Counter(word for text in texts for word in words(text))
    parts = {word: [bytes([byte]) for byte in word] for word in times}
    ranks = {byte: rank for rank, byte in enumerate(BYTES)}
    while len(ranks) < size:
        counts = Counter()  # of each possible token
        for word, pieces in parts.items():
            for a, b in itertools.pairwise(pieces):
                counts[a + b] += times[word]
        if not counts:
            break
        token = min(counts, key=lambda token: (-counts[token], token))
        ranks[token] = len(ranks)
        for word, pieces in parts.items():
            if token in word:
                merge(pieces, token)
    return ranks


def words(text):
    return (word.encode() for word in regex.findall(PATTERN, unicodedata.normalize("NFC", text)))


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
