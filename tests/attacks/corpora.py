"""Damaged folders of tokenised text: arrays, header, tokenizer, problems."""

import json
import shutil

import numpy as np

from tests.attacks.checkpoints import byte_changed
from tests.attacks.lab import ALL_TEXT, Case, printed, weights
from tests.attacks.puzzles import HEADER, objects, zipped

NEW = ("train.py", *ALL_TEXT, "--data_dir={out}/corpus", "--out_dir={out}/new")
COLUMNS = "tokens", "starts", "prompts", "keys"


def outcome(folder, ended):
    return weights(folder / "new"), printed(folder, ended)


def corpus(lab, rng):
    for name, file, change in [*array_changes(lab, rng), *text_changes(lab, rng)]:

        def arrange(folder, file=file, change=change):
            shutil.copytree(lab.corpus, folder / "corpus")
            change(folder / "corpus" / file)

        whole = whole_of(lab)
        yield Case(f"{file}: {name}", NEW, arrange, outcome, whole, names=f"{file}|case/corpus")


def whole_of(lab, known={}):  # noqa: B006
    """That of the undamaged folder, made once."""
    if lab not in known:
        source = lab.folder / "with_corpus"
        shutil.copytree(lab.corpus, source / "corpus")
        known[lab] = lab.whole(NEW, source, outcome)
    return known[lab]


# -- arrays ----------------------------------------------------------------------------------------
def array_changes(lab, rng):
    for split in ("train", "val"):
        for column in COLUMNS:
            file = f"{split}.{column}.npy"
            data, values = (lab.corpus / file).read_bytes(), np.load(lab.corpus / file)
            for _ in range(2):
                at, value = rng.randrange(HEADER, len(data)), rng.randrange(1, 256)
                yield f"byte {at} ^ {value}", file, bytes_put(byte_changed(at, value)(data))
            yield "half", file, bytes_put(data[: len(data) // 2])
            yield "an item less", file, array_put(values[:-1])
            if split == "train":
                yield from train_changes(file, data, values)


def train_changes(file, data, values):
    yield "empty", file, bytes_put(b"")
    yield "header byte", file, bytes_put(byte_changed(20, 255)(data))
    yield "reversed", file, array_put(values[::-1].copy())
    yield "zeros", file, array_put(np.zeros_like(values))
    yield "float", file, array_put(values.astype(float))
    yield "objects", file, bytes_put(objects(values))
    yield "missing", file, lambda path: path.unlink()
    if "keys" not in file:
        yield "the largest number", file, array_put(largest(values))
        yield "two dimensions", file, array_put(values[:, None])
        yield "a zip archive", file, bytes_put(zipped(values))


def largest(values):
    values = values.copy()
    values[len(values) // 2] = np.iinfo(values.dtype).max
    return values


def bytes_put(data):
    return lambda path: path.write_bytes(data)


def array_put(values):
    def put(path):
        with open(path, "wb") as file:
            np.save(file, values)

    return put


# -- text files ------------------------------------------------------------------------------------
def text_changes(lab, rng):
    for name, change in HEADER_CHANGES.items():
        yield name, "header.json", header_put(change)
    tokenizer = (lab.corpus / "tokenizer.tiktoken").read_bytes()
    rows = tokenizer.splitlines(keepends=True)
    swapped = [*rows[:300], swap_ranks(rows[300], rows[301]), *rows[302:]]
    for name, data in {
        "empty": b"", "half": tokenizer[: len(tokenizer) // 2], "a line less": b"".join(rows[:-1]),
        "no base64": b"!!" + tokenizer, "binary": b"\xff\xfe\x00", "two ranks swapped":
        b"".join(swapped), "a line more": tokenizer + b"eHl6enkx 1500\n",
    }.items():  # fmt: skip
        yield name, "tokenizer.tiktoken", bytes_put(data)
    yield "missing", "tokenizer.tiktoken", lambda path: path.unlink()
    good = (lab.corpus / "test.jsonl").read_text()
    for name, text in problem_changes(good).items():
        data = text if isinstance(text, bytes) else text.encode()
        yield name, "test.jsonl", bytes_put(data)
    yield "missing", "test.jsonl", lambda path: path.unlink()
    for file in ("header.json", "tokenizer.tiktoken", "train.tokens.npy"):
        yield "a folder", file, lambda path: (path.unlink(), path.mkdir())
    yield "missing", "header.json", lambda path: path.unlink()


def swap_ranks(one, other):
    (a, i), (b, j) = one.split(), other.split()
    return b"%s %s\n%s %s\n" % (a, j, b, i)


HEADER_CHANGES = {
    "empty": b"", "half": lambda data: data[: len(data) // 2], "no UTF-8": b"\xff\xfe{}",
    "a list": b"[]", "a number": b"3", "{}": b"{}",
    "format 2": {"format": 2}, "format of text": {"format": "1"},
    "length 10^9": {"length": 10**9}, "length of text": {"length": "x"}, "length 0": {"length": 0},
    "length -1": {"length": -1}, "length 20": {"length": 20}, "length null": {"length": None},
    "no length": {"length": ...}, "no splits": {"splits": ...}, "splits a list": {"splits": []},
    "no tokenizer": {"tokenizer": ...}, "tokenizer of text": {"tokenizer": "x"},
}  # fmt: skip


def header_put(change):
    """change: new bytes, a function of the old ones, or keys to set (...: to remove)."""

    def put(path):
        old = path.read_bytes()
        if isinstance(change, dict):
            header = json.loads(old) | change
            kept = {key: value for key, value in header.items() if value is not ...}
            path.write_text(json.dumps(kept))
        else:
            path.write_bytes(change(old) if callable(change) else change)

    return put


def problem_changes(good):
    first, rest = good.split("\n", 1)
    row = json.loads(first)
    return {
        "empty": "", "half a line": good[:40], "no UTF-8": b"\xff\xfe" + good.encode(),
        "no JSON": "hello\n" + rest, "a list": "[1]\n" + rest, "a number": "3\n" + rest,
        "no question": json.dumps({"answer": 3}) + "\n" + rest,
        "no answer": json.dumps({"question": "What?"}) + "\n" + rest,
        "question a number": json.dumps(row | {"question": 3}) + "\n" + rest,
        "answer a list": json.dumps(row | {"answer": [1]}) + "\n" + rest,
        "answer of words": json.dumps(row | {"answer": "many"}) + "\n" + rest,
    }  # fmt: skip


GROUPS = {"corpus": corpus}
