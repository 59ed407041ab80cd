"""Text like text8 that needs no download: generated word problems, one after another.

The problems are those of data/wordproblems: no validation problem has the numbers of a training
problem, but the sentences come from the same templates.
"""

import hashlib
from pathlib import Path

from data import corpus
from data.text8 import prepare
from data.wordproblems import generate, templates

FOLDER = Path(__file__).resolve().parent  # where the texts are kept
CODE = generate.__file__, templates.__file__, prepare.__file__  # what they depend on
HELD_OUT = 1000  # problems each to validate and to test
SPLITS = {"train": "train", "val": "validation", "test": "test"}  # of a corpus, of the problems


def make_once(count, length):
    """The folder of the text of `count` problems to train on, in rows of `length` characters.

    Made if it does not exist. Raises ValueError if the folder holds another text.
    """
    code = b"".join(Path(file).read_bytes() for file in CODE)
    source = {"text_of_problems": count, "packed": True, "code": hashlib.sha256(code).hexdigest()}
    folder = FOLDER / f"{count}-{length}-{source['code'][:12]}"
    what = f"text of {count:,} word problems"
    return corpus.make_once(
        folder, source, what, lambda own: prepare.write(own, source, length, texts(count))
    )


def texts(count):
    """The text of each split, like text8, bytes."""
    problems = {
        split: generate.make_problems(count if split == "train" else HELD_OUT, kind)
        for split, kind in SPLITS.items()
    }
    return {
        split: prepare.like_text8(" ".join(problem.question for problem in each).encode())
        for split, each in problems.items()
    }
