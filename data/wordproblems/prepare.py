"""Generate word problems and tokenise them, for a run with dataset=text.

Writes a folder as corpus.py reads it, beside this script, with the questions of the test set in
test.jsonl, and questions of templates never trained on in transfer.jsonl. Its name depends on the
settings and the generator's code, so that a run finds it, or makes another if either has changed.
vocabulary.tiktoken is a byte-pair encoding of 1,500 tokens, learned from generated problems.
"""

import functools
import hashlib
from pathlib import Path

from data import corpus, vocabularies
from data.files import progress_bar, write_lines
from data.wordproblems.generate import make_problems

HERE = Path(__file__).resolve().parent
FOLDER = HERE  # where the generated data sets are kept
# what the problems depend on
CODE = "vocabulary.tiktoken", "generate.py", "templates.py", "templates.txt"
HELD_OUT = 1000  # problems each to validate, to test, and to test transfer to other templates


def make_once(count, templates, length):
    """The folder of `count` generated word problems to train on; made if it does not exist.

    Rows have `length` tokens, longer problems are dropped; templates: see make_problems.
    Raises ValueError if these have too few problems.
    """
    content = repr((templates, length)).encode(), *((HERE / name).read_bytes() for name in CODE)
    checksum = hashlib.sha256(b"".join(content)).hexdigest()
    folder = FOLDER / f"{count}-{checksum[:12]}"
    source = {"wordproblems": count, "templates": [*templates], "code": checksum}
    write = functools.partial(write_corpus, source=source, length=length)
    return corpus.make_once(folder, f"{count:,} word problems", write)


def write_corpus(folder, source, length):
    encoding = vocabularies.open_kept(HERE / "vocabulary.tiktoken")
    writer = corpus.Writer(folder, encoding, length, source)
    add_problems(writer, encoding, source["wordproblems"], source["templates"], length)
    writer.finish()


def add_problems(writer, encoding, count, templates, length):
    for split, kind, n in (("train", "train", count), ("val", "validation", HELD_OUT)):
        pairs = [problem[:2] for problem in make_problems(n, kind, only=templates)]
        for at in progress_bar(range(0, n, 1000), kind, unit="k"):
            encoded, reasons = corpus.encode(encoding, pairs[at : at + 1000], length)
            writer.add(split, encoded)
            writer.dropped.update(filter(None, reasons))
    for kind in ("test", "transfer"):
        problems = make_problems(HELD_OUT, kind, only=templates)
        _, reasons = corpus.encode(encoding, [problem[:2] for problem in problems], length)
        fitting = [p._asdict() for p, reason in zip(problems, reasons, strict=True) if not reason]
        write_lines(writer.partial / f"{kind}.jsonl", fitting)
