"""The questions of word problems, one after another, as text of 27 characters: a to z and space.

Small letters, digits in words, the rest is space, as the end of Mahoney's wikifil.pl makes text8.
No held-out problem has the numbers of a training problem, but all come from the same templates.
"""

import functools
import hashlib
import re
from pathlib import Path

import numpy as np

from data import corpus
from data.vocabularies import Characters
from data.wordproblems import generate, templates

FOLDER = Path(__file__).resolve().parent  # where the texts are kept
CODE = generate.__file__, templates.__file__, templates.FILE, __file__  # what they depend on
HELD_OUT = 1000  # problems each to validate and to test
SPLITS = {"train": "train", "val": "validation", "test": "test"}  # of a corpus, of the problems
LETTERS = "abcdefghijklmnopqrstuvwxyz "
DIGITS = "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"


def make_once(count, length):
    """The folder of the text of `count` problems, in rows of `length` characters; made once."""
    code = b"".join(Path(file).read_bytes() for file in CODE)
    source = {"text_of_problems": count, "packed": True, "code": hashlib.sha256(code).hexdigest()}
    folder = FOLDER / f"{count}-{length}-{source['code'][:12]}"
    write = functools.partial(write_corpus, source=source, length=length)
    return corpus.make_once(folder, f"text of {count:,} word problems", write)


def write_corpus(folder, source, length):
    encoding = Characters(LETTERS)
    writer = corpus.Writer(folder, encoding, length, source, SPLITS)
    for split, kind in SPLITS.items():
        count = source["text_of_problems"] if split == "train" else HELD_OUT
        questions = (problem.question for problem in generate.make_problems(count, kind))
        tokens = np.array(encoding.encode(in_letters(" ".join(questions))), np.uint32)
        rows, rest = corpus.cut(tokens, length)
        writer.add(split, rows)
        writer.dropped["tokens_left_over"] += len(rest)
    writer.finish()


def in_letters(text):
    text = re.sub("[0-9]", lambda digit: f" {DIGITS[int(digit[0])]} ", text.lower())
    return re.sub("[^a-z]+", " ", text)
