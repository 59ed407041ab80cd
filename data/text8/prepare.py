"""Cut text8 into rows of characters: the benchmark of text without prompts.

    python data/text8/prepare.py --source=text8.zip              or text8, from mattmahoney.net/dc
    python data/text8/prepare.py --source=download               from there, 31 MB
    python data/text8/prepare.py --source=BOOK.txt --normalise   any text, made like text8

text8 is 10^8 characters of Wikipedia, a to z and space alone. Of the file, 90 % are to train on,
then 5 % to validate and 5 % to test, as the literature splits it; each is cut into rows of `length`
characters. Writes a folder as corpus.py reads it, which config/text8.py trains on.
"""

import hashlib
import re
import sys
import urllib.request
import zipfile
from pathlib import Path

import numpy as np

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from configurator import configure
from data import corpus, vocabularies
from data.files import regular
from data.processes import start
from engine.files import atomic_path, progress_bar

source = ""  # a file, or a .zip of one; download = text8 from its author's site
normalise = False  # make any text like text8: small letters, digits in words, the rest is space
out = ""  # folder; "" = `tokens` beside this script
length = 256  # characters of a row

LIMITS = """
    2 <= length <= 65535
"""

HERE = Path(__file__).resolve().parent
LETTERS = "abcdefghijklmnopqrstuvwxyz "
URL, MD5 = "https://mattmahoney.net/dc/text8.zip", "3bea1919949baf155f99411df5fada7e"  # of text8
DIGITS = "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"
SHARES = 90, 95, 100  # per cent of the file where train, val and test end
ROWS = 4096  # encoded at once


def main():
    content = like_text8(read(source)) if normalise else read(source)
    if wrong := re.search(rb"[^a-z ]", content):
        raise ValueError(
            f"{source}: {wrong[0]!r} at byte {wrong.start():,}, expected a to z and space alone; "
            "--normalise makes any text like that"
        )
    if len(content) < (least := 20 * length):  # of which 5 % are a row
        raise ValueError(f"{source}: {len(content):,} characters, expected at least {least:,}")
    checksum = hashlib.md5(content).hexdigest()
    print(f"{len(content):,} characters, {'' if checksum == MD5 else 'not '}text8 as published")
    about = {"text8": checksum == MD5, "md5": checksum, "packed": True}
    ends = [len(content) * share // 100 for share in SHARES]
    parts = (content[begin:end] for begin, end in zip([0, *ends], ends, strict=False))
    texts = dict(zip(("train", "val", "test"), parts, strict=True))
    corpus.report(write(out or HERE / "tokens", about, length, texts))


def write(folder, source, length, texts):
    """Write the folder of texts {split: bytes}; what is left over of each is dropped."""
    encoding = vocabularies.Characters.of(LETTERS)
    writer = corpus.Writer(folder, encoding, length, source, texts)
    slab = length * ROWS
    for split, text in texts.items():
        for at in progress_bar(range(0, len(text), slab), split):
            tokens = np.array(encoding.encode(text[at : at + slab].decode("ascii")), np.uint32)
            rows, rest = corpus.cut(tokens, length)
            writer.add(split, rows)
        writer.dropped["tokens_left_over"] += len(rest)
    return writer.finish()


def like_text8(content):
    """As text8 was made of Wikipedia (the end of Mahoney's wikifil.pl); bytes to bytes."""
    content = content.lower()  # of ASCII alone
    for digit, word in enumerate(DIGITS):
        content = content.replace(b"%d" % digit, f" {word} ".encode())
    return re.sub(rb"[^a-z]+", b" ", content)


def read(source):
    """The bytes of the file. Raises OSError or ValueError."""
    if not source:
        raise ValueError(f"source is empty: expected text8 from {URL}, or --source=download")
    path = download(HERE / "text8.zip") if source == "download" else regular(source)
    if path.suffix != ".zip":
        return path.read_bytes()
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.read(archive.namelist()[0])
    except (zipfile.BadZipFile, IndexError, EOFError) as error:
        raise ValueError(f"{path}: expected a .zip of one file: {error}") from None


def download(path):
    """The path, once the file is there. Raises OSError that says how to supply it by hand."""
    if not path.exists():
        try:
            with urllib.request.urlopen(URL, timeout=60) as answer, atomic_path(path) as partial:
                partial.write_bytes(answer.read())
        except OSError as error:
            raise OSError(f"cannot download {URL} ({error}): supply it with --source=FILE") from None
    return path


if __name__ == "__main__":
    configure(globals())
    start(main)
