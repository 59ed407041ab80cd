"""Questions and their programs as token ids on disk: the writer and the reader (memory-mapped).

An example of L tokens is `question, newline | code, end, end, ...`: the prompt, left of the bar, is
given; the rest is predicted, padding included. In a conversation (`chat`) the answer is predicted.
Prompt and code are encoded separately, because at inference only the prompt is known: in a single
text a token could span the bar. An example that does not fit with one `end` after it is dropped,
because a truncated program never returns.

A folder has header.json, the tokenizer's file and, for each split, one file per flat array:
`<split>.tokens.npy` the ids of all examples, concatenated, without `end` after each; `.starts.npy`
(N + 1) where each begins; `.prompts.npy` (N) the length of its prompt. The header has checksums
(CRC-32) of itself, of each array and of every other file.
"""

import hashlib
import itertools
import re
import shutil
import tempfile
import unicodedata
import zlib
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data import files, vocabularies
from data.growing import GrowingArray
from data.tokenizer import IM_END, IM_START

FORMAT = 2
COLUMNS = "tokens", "starts", "prompts"
ABOUT = "checksum", "kind", "vocab_size", "end", "mask"  # a tokenizer, in the header
PIECE = 1 << 16  # characters of a document encoded at once
QUESTION = 1 << 14  # characters that tell questions apart
CHARACTERS = 256  # kept per token of a row: more do not fit, and might overflow tiktoken's stack


# -- encoding --------------------------------------------------------------------------------------
class Encoded(NamedTuple):
    """n examples: ids, concatenated (T,); of each its length, its prompt's length, its key (n,)."""

    tokens: np.ndarray
    lengths: np.ndarray
    prompts: np.ndarray
    keys: np.ndarray

    def select(self, rows):
        """The examples where rows (n,) bool is True."""
        tokens = self.tokens[np.repeat(rows, self.lengths)]
        return Encoded(tokens, self.lengths[rows], self.prompts[rows], self.keys[rows])


def plain(tokenizer, question, code, most):
    """question, newline | code"""
    prompt = tokenizer.encode(prompt_text(question)[:most])
    return prompt, tokenizer.encode(code.strip("\n")[:most])


def encode(tokenizer, pairs, length, form=plain):
    """(question, code) strings -> Encoded examples, and for each pair "" or why it was dropped.

    A pair may be a word that says why its row is dropped. form(tokenizer, question, code, maximum
    characters of each) -> ids of prompt and answer; length: maximum tokens, one end included.
    """
    ids, prompts, keys, reasons = [], [], [], []
    for pair in pairs:
        if isinstance(pair, str):
            reasons.append(pair)
            continue
        prompt, answer = form(tokenizer, *pair, CHARACTERS * length)
        reasons.append(why_dropped(len(prompt), len(answer), length))
        if not reasons[-1]:
            ids.append(prompt + answer)
            prompts.append(len(prompt))
            keys.append(question_key(pair[0]))
    lengths = np.array([*map(len, ids)], np.int64)
    tokens = np.fromiter(itertools.chain.from_iterable(ids), np.uint32, lengths.sum())
    return Encoded(tokens, lengths, np.array(prompts, int), np.array(keys, np.uint64)), reasons


def why_dropped(prompt, answer, length):
    """Why an example with so many tokens is dropped, "" if it fits."""
    if prompt >= length:
        return "prompt_too_long"
    if prompt + answer >= length:
        return "too_long"
    return "" if answer else "empty"  # a tokenizer may leave out what it does not know


def chat(tokenizer, question, answer, most):
    """System, user and start of the assistant's turn, as in Qwen2 and Dream | answer, its end.

    Text that looks like a special token is encoded as text.
    """
    start = tokenizer.special[IM_START]
    end = tokenizer.special[IM_END]
    prompt = []
    for turn in "system\nYou are a helpful assistant.", "user\n" + question.strip()[:most]:
        prompt += [start, *tokenizer.encode(turn), end, *tokenizer.encode("\n")]
    prompt += [start, *tokenizer.encode("assistant\n")]
    return prompt, [*tokenizer.encode(answer.strip("\n")[:most]), end]


def document(tokenizer, text, _, most):
    """No prompt | the text, of any length, its end"""
    pieces = (text[at : at + PIECE] for at in range(0, len(text), PIECE))
    ids = [i for piece in pieces for i in tokenizer.encode(piece)]
    return [], [*ids, tokenizer.end] if ids else []


def cut(tokens, length):
    """Full rows of a stream of tokens (T,), Encoded, and the tokens that are left over."""
    n = len(tokens) // length
    zeros = np.zeros(n, np.uint64)
    rows = Encoded(tokens[: n * length], np.full(n, length), zeros, zeros)
    return rows, tokens[n * length :]


def prompt_text(question):
    """The prompt that a model is given, in training and at inference."""
    return question.strip() + "\n"


def question_key(question):
    """64-bit hash of the question's words, whatever the case, punctuation and white space."""
    question = question[:QUESTION]  # to normalise it takes quadratic time at worst
    words = re.findall(r"\w+", unicodedata.normalize("NFKC", question).casefold())
    content = (" ".join(words) or question.strip()).encode(errors="replace")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


# -- reading ---------------------------------------------------------------------------------------
class Examples:
    """The examples of a split, memory-mapped; examples[indices (n,)] -> x0 (n, L), prompt (n, L).

    x0 int32 ids, padded with `end`; prompt bool, True at the question. L is the length
    that the folder was written for. Raises FileNotFoundError if the folder holds no corpus,
    ValueError if it has no such split or a file is damaged.
    """

    def __init__(self, folder, split):
        self.header = read_header(folder)
        if split not in self.header["splits"]:
            raise ValueError(f"{folder} has the splits {[*self.header['splits']]}, not {split!r}")
        self.length = self.header["length"]
        self.end = self.header["tokenizer"]["end"]
        columns = self.header["splits"][split]["columns"]
        self.checksum = zlib.crc32(repr([columns, self.length, self.end]).encode())
        self.tokens, self.starts, self.prompts = (
            open_column(Path(folder), f"{split}.{name}.npy", columns[name][1]) for name in COLUMNS
        )

    def __len__(self):
        return len(self.prompts)

    def __getitem__(self, indices):
        start, stop = self.starts[:-1][indices], self.starts[1:][indices]  # (n,)
        column = np.arange(self.length)
        inside = column < (stop - start)[:, None]  # (n, L)
        x0 = np.full(inside.shape, self.end, np.int32)
        x0[inside] = self.tokens[(start[:, None] + column)[inside]]
        return x0, column < self.prompts[indices][:, None]


def open_column(folder, name, checksum):
    """The array of a file, memory-mapped. Raises ValueError if it has another checksum."""
    try:
        array, _ = files.open_array(folder / name)
        if zlib.crc32(array) != checksum:
            raise ValueError("its checksum is not that in header.json")
    except (ValueError, FileNotFoundError) as error:
        raise damaged(folder, name, error) from None
    return np.asarray(array)


def damaged(folder, name, why):
    """The error for a file that is not what was written."""
    if name.endswith(("npy", "jsonl")) and not any(Path(folder).glob("*.npy")):  # a run's copy
        return FileNotFoundError(f"{folder} has a tokenizer, but no data: sample with a --prompt")
    return ValueError(f"{folder}/{name} is damaged ({why}): delete {folder} to make it again")


def read_header(folder):
    """header.json. Raises FileNotFoundError or ValueError if the folder is not a corpus."""
    path = Path(folder) / "header.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder} is not a prepared corpus (no header.json): see data/*/prepare.py"
        )
    try:
        header = files.unseal(path.read_bytes())
    except (ValueError, OSError) as error:
        raise damaged(folder, path.name, error) from None
    if header["format"] != FORMAT:
        version = f"has format {header['format']}, expected {FORMAT}"
        raise ValueError(f"{path} {version}: delete {folder} to make it again")
    return header


def kept_file(folder, name):
    """The path of another file of a corpus. Raises FileNotFoundError, ValueError if it changed."""
    checksum = read_header(folder)["files"].get(name)
    path = Path(folder) / name
    if checksum is None:
        raise FileNotFoundError(f"{folder} was prepared without {name}")
    if not path.is_file() or zlib.crc32(path.read_bytes()) != checksum:
        raise damaged(folder, name, "not what was written to it")
    return path


def needed(folder):
    """The files of a corpus that a prompt needs: header and tokenizer."""
    (name,) = (name for name in read_header(folder)["files"] if name.startswith("tokenizer."))
    return Path(folder, "header.json"), Path(folder, name)


def load_tokenizer(folder):
    """The tokenizer that a corpus was encoded with. Raises ValueError if its file has changed."""
    path = needed(folder)[1]
    kind = read_header(folder)["tokenizer"]["kind"]
    return vocabularies.open_kept(kept_file(folder, path.name), kind)


# -- writing ---------------------------------------------------------------------------------------
def make_once(folder, what, write):
    """The folder of a corpus; if it does not exist, write(folder) makes it."""
    if not folder.exists():
        print(f"making {what}: {folder}", flush=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as own:
            write(Path(own, folder.name))
            try:
                Path(own, folder.name).rename(folder)
            except OSError:
                if not folder.exists():  # else another run was making the same, and first
                    raise
    return folder


class Writer:
    """Appends examples to a folder that appears on `finish`; until then it is `<folder>.partial`.

    source: where the examples come from, any JSON. `dropped` {reason: rows} goes into the header.
    Files that are put into `partial` are kept; `cache` in it survives until `finish`, for a script
    that is started again. length: 1 to 65,535. Raises FileExistsError if the folder exists.
    """

    def __init__(self, folder, tokenizer, length, source, splits=("train", "val")):
        if not 1 <= length < 1 << 16:
            raise ValueError(f"length={length}: expected 1 to 65,535 tokens")
        self.folder, self.dropped = Path(folder), Counter()
        self.partial = self.folder.with_name(f"{self.folder.name}.partial")
        self.cache = self.partial / "cache"
        if self.folder.exists():
            raise FileExistsError(
                f"{folder} already exists: remove it to write it again, or give another --out"
            )
        about = {name: getattr(tokenizer, name) for name in ABOUT}
        self.header = {"format": FORMAT, "source": source, "length": length, "tokenizer": about}
        self.cache.mkdir(parents=True, exist_ok=True)
        for path in self.partial.iterdir():
            if path != self.cache:
                path.unlink()
        (self.partial / tokenizer.file).write_bytes(tokenizer.content)
        dtypes = np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32, np.int64, np.uint16
        self.splits = {
            split: [
                GrowingArray(self.partial / f"{split}.{name}.npy", dtype)
                for name, dtype in zip(COLUMNS, dtypes, strict=True)
            ]
            for split in splits
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
        others = (path for path in sorted(self.partial.iterdir()) if path.suffix != ".npy")
        checksums = {path.name: zlib.crc32(path.read_bytes()) for path in others}
        splits = {}
        for split, arrays in self.splits.items():
            columns = {
                name: [array.count, array.finish()]
                for name, array in zip(COLUMNS, arrays, strict=True)
            }
            splits[split] = {"examples": arrays[2].count, "tokens": arrays[0].count}
            splits[split] |= {"columns": columns}
        more = {"splits": splits, "dropped": dict(self.dropped), "files": checksums}
        header = files.sealed(self.header | more)
        files.write_json(self.partial / "header.json", header)
        self.partial.rename(self.folder)
        return header
