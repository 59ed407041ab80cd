"""Prompts and responses as token ids on disk, for text.py: encoded and written here.

An example of L tokens is `question, newline | code, end, end, ...`: the prompt, left of the bar, is
given; the rest is predicted, padding included. In a conversation (`chat`) the answer is predicted.
Prompt and code are encoded separately, because at inference only the prompt is known: in a single
text a token could span the bar. An example that does not fit with one `end` after it is dropped,
because a truncated program never returns. Windows line ends become newlines.

A folder has header.json, the tokenizer's file and, for each split, one file per flat array:
`<split>.tokens.npy` the ids of all examples, concatenated, without `end` after each; `.starts.npy`
(N + 1) where each begins; `.prompts.npy` (N) the length of its prompt.
"""

import hashlib
import itertools
import os
import re
import shutil
import unicodedata
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data import files
from data.tokenizer import IM_END, IM_START

ABOUT = "checksum", "kind", "vocab_size", "end", "mask"  # a tokenizer, in the header
PIECE = 1 << 16  # characters of a document encoded at once
QUESTION = 1 << 14  # characters that tell questions apart
CHARACTERS = 256  # kept per token of a row: more do not fit, and might overflow tiktoken's stack


# -- encoding --------------------------------------------------------------------------------------
class Encoded(NamedTuple):
    """n examples: ids, concatenated (T,); of each, (n,), its length, its prompt's, key, losses."""

    tokens: np.ndarray
    lengths: np.ndarray
    prompts: np.ndarray
    keys: np.ndarray
    losses: np.ndarray  # places in LOSSES

    def select(self, rows):
        """The examples where rows (n,) bool is True."""
        tokens = self.tokens[np.repeat(rows, self.lengths)]
        return Encoded(tokens, *(column[rows] for column in self[1:]))


def plain(tokenizer, question, code, most):
    """question, newline | code"""
    prompt = tokenizer.encode(prompt_text(question)[:most])
    return prompt, tokenizer.encode(newlines(code).strip("\n")[:most])


def chat(tokenizer, question, answer, most):
    """System, user and start of the assistant's turn, as in Qwen2 and Dream | answer, its end.

    Text that looks like a special token is encoded as text.
    """
    start = tokenizer.special[IM_START]
    end = tokenizer.special[IM_END]
    user = "user\n" + newlines(question).strip()[:most]
    prompt = []
    for turn in "system\nYou are a helpful assistant.", user:
        prompt += [start, *tokenizer.encode(turn), end, *tokenizer.encode("\n")]
    prompt += [start, *tokenizer.encode("assistant\n")]
    return prompt, [*tokenizer.encode(newlines(answer).strip("\n")[:most]), end]


def document(tokenizer, text, _, most):
    """No prompt | the text, of any length, its end"""
    text = newlines(text)
    pieces = (text[at : at + PIECE] for at in range(0, len(text), PIECE))
    ids = [i for piece in pieces for i in tokenizer.encode(piece)]
    return [], [*ids, tokenizer.end] if ids else []


def prompt_text(question):
    """The prompt that a model is given, in training and at inference."""
    return newlines(question).strip() + "\n"


def newlines(text):
    """The text with the line ends of Unix."""
    return text.replace("\r\n", "\n")


def encode(tokenizer, pairs, length, form=plain):
    """(question, code) strings -> Encoded examples, and for each pair "" or why it was dropped.

    A pair may be a word that says why its row is dropped. form(tokenizer, question, code, maximum
    characters of each) -> ids of prompt and answer; length: maximum tokens, one end included.
    """
    kept, reasons = [], []
    for pair in pairs:
        if isinstance(pair, str):
            reasons.append(pair)
            continue
        watched = Watched(tokenizer)
        prompt, answer = form(watched, *pair, CHARACTERS * length)
        reasons.append(why_dropped(len(prompt), len(answer), length))
        if not reasons[-1]:
            kept.append((prompt + answer, len(prompt), question_key(pair[0]), watched.loss))
    ids, prompts, keys, losses = zip(*kept, strict=True) if kept else [()] * 4
    lengths = np.array([*map(len, ids)], np.int64)
    tokens = np.fromiter(itertools.chain.from_iterable(ids), np.uint32, lengths.sum())
    columns = np.array(prompts, int), np.array(keys, np.uint64), np.array(losses, np.uint8)
    return Encoded(tokens, lengths, *columns), reasons


def why_dropped(prompt, answer, length):
    """Why an example with so many tokens is dropped, "" if it fits."""
    if prompt >= length:
        return "prompt_too_long"
    if prompt + answer >= length:
        return "too_long"
    return "" if answer else "empty"  # a tokenizer may leave out what it does not know


def cut(tokens, length):
    """Full rows of a stream of tokens (T,), Encoded, and the tokens that are left over."""
    n = len(tokens) // length
    zeros = np.zeros(n, np.uint64)
    rows = Encoded(tokens[: n * length], np.full(n, length), zeros, zeros, zeros)
    return rows, tokens[n * length :]


def question_key(question):
    """64-bit hash of the question's words, whatever the case, punctuation and white space.

    Where words are at most half of it, as in a drawn puzzle, all that is no white space counts.
    """
    question = question[:QUESTION]  # to normalise it takes quadratic time at worst
    text = unicodedata.normalize("NFKC", question).casefold()
    words = re.findall(r"\w+", text)
    symbols = squeezed(text)
    content = " ".join(words) if 2 * sum(map(len, words)) > len(symbols) else symbols
    digest = hashlib.blake2b(content.encode(errors="replace"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


# -- what a tokenizer loses ------------------------------------------------------------------------
def squeezed(text):
    """Without its white space."""
    return "".join(text.split())


LOSSES = {  # {what is lost of a text: what is left of it}
    "": str,
    "white space": squeezed,
    "case": str.casefold,
    "case and white space": lambda text: squeezed(text).casefold(),
    "characters": lambda text: "",
}


def what_is_lost(text, back):
    """The place in LOSSES of what a text has lost when it comes back from its ids."""
    text, back = (unicodedata.normalize("NFC", each) for each in (text, back))
    return [form(text) == form(back) for form in LOSSES.values()].index(True)


class Watched:
    """A tokenizer that encodes one row, and what is lost of its texts."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.special = tokenizer.special
        self.end = tokenizer.end
        self.loss = 0

    def encode(self, text):
        ids = self.tokenizer.encode(text)
        back = self.tokenizer.decode_text(ids)
        if back != text:
            self.loss = max(self.loss, what_is_lost(text, back))
        return ids


# -- writing ---------------------------------------------------------------------------------------
class Column:
    """A .npy file that grows by `append`; it is whole once `finish` has been called."""

    def __init__(self, path, dtype):
        self.path = path
        self.dtype = np.dtype(dtype)
        self.count = 0
        path.write_bytes(b"")
        self.finish()

    def append(self, values):
        with open(self.path, "ab") as file:
            file.write(np.ascontiguousarray(values, self.dtype).data)
        self.count += len(values)

    def finish(self):
        """Write the header, which numpy pads to one length for every count."""
        form = {"descr": self.dtype.str, "fortran_order": False, "shape": (self.count,)}
        with open(self.path, "r+b") as file:
            np.lib.format.write_array_header_1_0(file, form)
            os.fsync(file.fileno())


class Writer:
    """Appends examples to a folder that appears on `finish`; until then it is `<folder>.partial`.

    source: where the examples come from, any JSON. `dropped` and `lost`, {reason: rows}, go into
    the header. Files that are put into `partial` are kept; `cache` in it survives until `finish`,
    for a script that is started again. length: 1 to 65,535. Raises FileExistsError if the folder
    exists.
    """

    def __init__(self, folder, tokenizer, length, source):
        if not 1 <= length < 1 << 16:
            raise ValueError(f"length={length}: expected 1 to 65,535 tokens")
        self.folder = Path(folder)
        self.partial = self.folder.with_name(f"{self.folder.name}.partial")
        self.cache = self.partial / "cache"
        self.dropped = Counter()
        self.lost = Counter()
        if self.folder.exists():
            raise FileExistsError(
                f"{folder} already exists: remove it to write it again, or give another --out"
            )
        about = {name: getattr(tokenizer, name) for name in ABOUT}
        self.header = {"source": source, "length": length, "tokenizer": about}
        self.cache.mkdir(parents=True, exist_ok=True)
        for path in self.partial.iterdir():
            if path != self.cache:
                path.unlink()
        (self.partial / tokenizer.file).write_bytes(tokenizer.content)
        ids = np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32
        columns = {"tokens": ids, "starts": np.int64, "prompts": np.uint16}
        self.splits = {
            split: [Column(self.partial / f"{split}.{name}.npy", columns[name]) for name in columns]
            for split in ("train", "val")
        }
        for _, starts, _ in self.splits.values():
            starts.append([0])

    def add(self, split, encoded):
        """Append Encoded examples to a split."""
        tokens, starts, prompts = self.splits[split]
        starts.append(tokens.count + encoded.lengths.cumsum())
        tokens.append(encoded.tokens)
        prompts.append(encoded.prompts)

    def finish(self):
        """Write header.json and make the folder appear; returns the header."""
        shutil.rmtree(self.cache, ignore_errors=True)
        for column in itertools.chain(*self.splits.values()):
            column.finish()
        splits = {
            split: {"examples": prompts.count, "tokens": tokens.count}
            for split, (tokens, _, prompts) in self.splits.items()
        }
        header = self.header | {"splits": splits, "dropped": self.dropped, "lost": self.lost}
        files.write_json(self.partial / "header.json", header)
        self.partial.rename(self.folder)
        return header
