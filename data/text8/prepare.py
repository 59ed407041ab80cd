"""Cut text8 into rows of characters: the benchmark of text without prompts.

    python data/text8/prepare.py --source=text8.zip              or text8, from mattmahoney.net/dc
    python data/text8/prepare.py --source=download               from there, 31 MB
    python data/text8/prepare.py --source=BOOK.txt --normalise   any text, made like text8

text8 is 10^8 characters of Wikipedia, a to z and space alone. Of the file, 90 % are to train on,
then 5 % to validate and 5 % to test, as the literature splits it (90M, 5M, 5M); each is cut into
rows of `length` characters, and what is left over of a part is dropped. Writes a folder as
corpus.py reads it, which config/text8.py trains on.
"""

import hashlib
import re
import sys
import urllib.request
import zipfile
from http.client import HTTPException
from pathlib import Path

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from configurator import configure
from data import corpus, vocabularies
from data.files import regular
from data.prepare_rows import finish
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
SHARES = {"train": (0, 90), "val": (90, 95), "test": (95, 100)}  # per cent of the file
SLAB = 1 << 20  # characters that are encoded at once


def main():
    content = read(source)
    content = like_text8(content) if normalise else content
    if wrong := re.search(rb"[^a-z ]", content):
        raise ValueError(
            f"{source}: {wrong[0]!r} at byte {wrong.start():,}, expected a to z and space alone; "
            "--normalise makes any text like that"
        )
    if len(content) < (least := 20 * length):  # of which 5 % are a row
        raise ValueError(
            f"{source}: {len(content):,} characters, expected at least {least:,} for a row each in "
            f"val and test: give more text, or a smaller --length than {length}"
        )
    checksum = hashlib.md5(content).hexdigest()
    print(f"{len(content):,} characters, {'' if checksum == MD5 else 'not '}text8 as published")
    about = {"text8": checksum == MD5, "md5": checksum, "packed": True}
    encoding = vocabularies.Characters.of(LETTERS)
    writer = corpus.Writer(out or HERE / "tokens", encoding, length, about, SHARES)
    for name, (begin, end) in SHARES.items():
        begin, end = (len(content) * share // 100 for share in (begin, end))
        add(writer, name, encoding, content[begin:end])
    finish(writer)


def add(writer, split, encoding, content):
    """Append the rows of a part, and count what is left over."""
    packer = corpus.Packer(writer.header["length"])
    for at in progress_bar(range(0, len(content), SLAB), split, unit="M"):
        writer.add(split, packer.rows(encoding.encode(content[at : at + SLAB].decode("ascii"))))
    writer.dropped["tokens_left_over"] += len(packer.rest)


def like_text8(content):
    """As text8 was made of Wikipedia (the end of Mahoney's wikifil.pl); bytes to bytes."""
    content = content.lower()  # of ASCII alone
    for digit, word in enumerate(DIGITS):
        content = content.replace(b"%d" % digit, f" {word} ".encode())
    return re.sub(rb"[^a-z]+", b" ", content)


def read(source):
    """The bytes of the file. Raises OSError or ValueError."""
    if not source:
        raise ValueError(
            f"source is empty: expected text8 or text8.zip (from {URL}), another file of text, or "
            "--source=download"
        )
    path = download(HERE / "text8.zip") if source == "download" else regular(source)
    if path.suffix != ".zip":
        return path.read_bytes()
    try:
        with zipfile.ZipFile(path) as archive:
            (name,) = archive.namelist()
            return archive.read(name)
    except (zipfile.BadZipFile, ValueError, EOFError) as error:
        raise ValueError(f"{path}: expected a .zip of one file: {error}") from None


def download(path):
    """The path, once the file is there. Raises OSError that says how to supply it by hand."""
    if path.exists():
        return path
    try:
        with urllib.request.urlopen(URL, timeout=60) as answer, atomic_path(path) as partial:
            size = int(answer.headers.get("Content-Length", 0)) or None
            with (
                open(partial, "wb") as file,
                progress_bar(total=size, unit="B", unit_scale=True) as bar,
            ):
                while block := answer.read(SLAB):
                    bar.update(file.write(block))
    except (OSError, HTTPException) as error:
        raise OSError(
            f"cannot download {URL} ({error}): supply text8 or text8.zip with --source=FILE"
        ) from None
    return path


if __name__ == "__main__":
    configure(globals())
    start(main)
