"""Questions and their programs as token ids on disk: the writer and the reader (memory-mapped).

An example of L tokens is `question, newline | code, end, end, ...`: the prompt, left of the bar, is
given; the rest is predicted, padding included. In a conversation (`chat`) the answer is predicted.
Prompt and code are encoded separately, because at inference only the prompt is known: in a single
text a token could span the bar. An example that does not fit with one `end` after it is dropped,
because a truncated program never returns.

A folder has header.json, the tokenizer's file and, for each split, one file per flat array:
`<split>.tokens.npy` the ids of all examples, concatenated, without `end` after each; `.starts.npy`
(N + 1) where each begins; `.prompts.npy` (N) the length of its prompt; `.keys.npy` (N) a hash of
its question. The header has checksums of itself, of each array and of every other file, so that
what is read is what was written.
"""

import hashlib
import itertools
import json
import os
import re
import unicodedata
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data import files, vocabularies
from data.growing import GrowingArray
from data.tokenizer import IM_END, IM_START
from engine.files import atomic_path, write_json

FORMAT = 2
COLUMNS = ("tokens", "starts", "prompts", "keys")
LENGTHS = range(1, 1 << 16)  # that an example may have
PIECE = 1 << 16  # characters of a document encoded at once
CHARACTERS = 256  # kept per token of a row: more do not fit, and might overflow tiktoken's stack


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


def encode(tokenizer, pairs, length, form=None):
    """(question, code) strings -> Encoded, and a Counter of what was dropped and why.

    form(tokenizer, question, code, maximum characters of each) -> ids of prompt and answer;
    length: maximum tokens of an example, one end included.
    """
    form = form or plain
    ids, lengths, prompts, keys, dropped = [], [], [], [], Counter()
    most = CHARACTERS * length
    for question, code in pairs:
        given, answer = form(tokenizer, question, code, most)
        if len(given) >= length:
            dropped["prompt_too_long"] += 1
        elif len(given) + len(answer) >= length:
            dropped["too_long"] += 1
        elif not answer:  # a tokenizer may leave out what it does not know
            dropped["empty"] += 1
        else:
            ids += [given, answer]
            lengths.append(len(given) + len(answer))
            prompts.append(len(given))
            keys.append(question_key(question))
    tokens = np.fromiter(itertools.chain.from_iterable(ids), np.uint32, sum(lengths))
    lengths, prompts = np.array(lengths, np.int64), np.array(prompts, np.int64)
    return Encoded(tokens, lengths, prompts, np.array(keys, np.uint64)), dropped


def plain(tokenizer, question, code, most):
    """question, newline | code"""
    given = tokenizer.encode(prompt_text(question)[:most])
    return given, tokenizer.encode(code.strip("\n")[:most])


def chat(tokenizer, question, answer, most):
    """System, user and start of the assistant's turn, as in Qwen2 and Dream | answer, its end.

    Text that looks like a special token is encoded as text.
    """
    start, end = tokenizer.special[IM_START], tokenizer.special[IM_END]

    def turn(text):
        return [start, *tokenizer.encode(text)]

    given = [*turn("system\nYou are a helpful assistant."), end, *tokenizer.encode("\n")]
    given += [*turn("user\n" + question.strip()[:most]), end, *tokenizer.encode("\n")]
    given += turn("assistant\n")
    return given, [*tokenizer.encode(answer.strip("\n")[:most]), end]


def document(tokenizer, text, _, most):
    """No prompt | the text, of any length, its end"""
    pieces = (text[at : at + PIECE] for at in range(0, len(text), PIECE))
    ids = [i for piece in pieces for i in tokenizer.encode(piece)]
    return [], [*ids, tokenizer.end] if ids else []


class Packer:
    """Cuts a stream of tokens into full rows; `rest` (fewer than length) waits for more."""

    def __init__(self, length, rest=()):
        self.length, self.rest = length, np.array(rest, np.uint32)

    def rows(self, tokens):
        """Encoded rows of `rest` followed by tokens (T,); a row's key is a hash of its tokens."""
        tokens = np.concatenate([self.rest, np.asarray(tokens, np.uint32)])
        n = len(tokens) // self.length
        tokens, self.rest = np.split(tokens, [n * self.length])
        keys = [hash_of(row.tobytes()) for row in tokens.reshape(n, self.length)]
        lengths, keys = np.full(n, self.length), np.array(keys, np.uint64)
        return Encoded(tokens, lengths, np.zeros(n, np.int64), keys)


def prompt_text(question):
    """The prompt that a model is given, in training and at inference."""
    return question.strip() + "\n"


def question_key(question):
    """64-bit hash of the question's words, whatever the case, punctuation and white space."""
    words = re.findall(r"\w+", unicodedata.normalize("NFKC", question).casefold())
    return hash_of((" ".join(words) or question.strip()).encode(errors="replace"))


def hash_of(content):
    """A 64-bit hash of the bytes."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


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
        self.length, self.end = self.header["length"], self.header["tokenizer"]["end"]
        arrays = open_columns(Path(folder), split, self.header)
        self.tokens, self.starts, self.prompts, self.keys = arrays
        if complaint := self.fault():
            raise files.damaged(Path(folder) / f"{split}.*.npy", complaint, folder)

    def fault(self):
        """Describe what no writer would have written; None if nothing is wrong."""
        if {len(self.starts) - 1, len(self.keys)} != {len(self)}:
            return "not as many keys and starts as prompts"
        lengths = np.diff(self.starts)
        if [self.starts[0], self.starts[-1]] != [0, len(self.tokens)] or (lengths < 1).any():
            return "the examples do not follow each other"
        if (lengths > self.length).any() or (self.prompts > lengths).any():
            return "an example is longer than its row, or its prompt than the example"
        if self.tokens.max(initial=0) >= self.header["tokenizer"]["vocab_size"]:
            return "an id is outside the vocabulary"
        return None

    def __len__(self):
        return len(self.prompts)

    def __getitem__(self, indices):
        start, stop = self.starts[:-1][indices], self.starts[1:][indices]  # (n,)
        column = np.arange(self.length)
        inside = column < (stop - start)[:, None]  # (n, L)
        x0 = np.full(inside.shape, self.end, np.int32)
        x0[inside] = self.tokens[(start[:, None] + column)[inside]]
        return x0, column < self.prompts[indices][:, None]


def dtypes(vocab_size):
    """The dtype of each column."""
    ids = np.uint16 if vocab_size <= 1 << 16 else np.uint32
    return dict(zip(COLUMNS, map(np.dtype, (ids, np.int64, np.uint16, np.uint64)), strict=True))


def open_columns(folder, split, header):
    """The arrays of a split, memory-mapped. Raises ValueError if one does not match the header."""
    for column, dtype in dtypes(header["tokenizer"]["vocab_size"]).items():
        path = folder / f"{split}.{column}.npy"
        try:
            array, rest = files.open_array(path)
        except (ValueError, FileNotFoundError) as error:
            raise ValueError(f"{error}: delete {folder} to make it again") from None
        count, checksum = header["splits"][split]["columns"][column]
        if (array.dtype, array.shape, rest) != (dtype, (count,), b""):
            raise files.damaged(path, "its form is not that in header.json", folder)
        if files.checksum(path, path.stat().st_size - array.nbytes) != checksum:
            raise files.damaged(path, "its checksum is not that in header.json", folder)
        yield np.asarray(array)


def read_header(folder):
    """header.json. Raises FileNotFoundError or ValueError if the folder is not a corpus."""
    path = Path(folder) / "header.json"
    if not path.exists():
        raise FileNotFoundError(
            f"{folder} is not a prepared corpus (no header.json): see data/*/prepare.py"
        )
    header = files.read_object(path, folder)
    if header.get("format") != FORMAT:
        found = f"has format {files.brief(header.get('format'))}, expected {FORMAT}"
        raise ValueError(f"{path} {found}: delete {folder} to make it again")
    if not files.is_sealed(header) or not is_sound(header):
        raise files.damaged(path, "not what was written to it", folder)
    return header


def is_sound(header):
    """Whether a header has all of its fields, with plausible numbers."""
    try:
        about, splits = header["tokenizer"], header["splits"].values()
        ids = about["end"], about["mask"], about["vocab_size"]
        columns = [split["columns"][name] for split in splits for name in COLUMNS]
        numbers = [header["length"], *ids, *(n for count, crc in columns for n in (count, crc))]
        return (
            all(type(number) is int and number >= 0 for number in numbers)
            and header["length"] in LENGTHS
            and max(ids[:2]) < about["vocab_size"] < 1 << 31
            and isinstance(header["files"], dict)
        )
    except (KeyError, TypeError, AttributeError, ValueError):
        return False


def kept_file(folder, name):
    """The path of another file of a corpus. Raises FileNotFoundError, ValueError if it changed."""
    found, path = read_header(folder)["files"].get(name), Path(folder) / name
    if found is None:
        raise FileNotFoundError(f"{folder} was prepared without {name}")
    if not path.is_file() or files.checksum(path) != found:
        raise files.damaged(path, "not what was written to it", folder)
    return path


def load_tokenizer(folder):
    """The tokenizer that a corpus was encoded with. Raises ValueError if its file has changed."""
    about = read_header(folder)["tokenizer"]
    path = kept_file(folder, vocabularies.file_of(about["kind"]))
    encoding = vocabularies.open_kept(path, about["kind"])
    if about_tokenizer(encoding) != about:
        raise files.damaged(path, "not the tokenizer that header.json names", folder)
    return encoding


def about_tokenizer(tokenizer):
    """The header's description of a tokenizer."""
    names = "checksum", "kind", "vocab_size", "end", "mask"
    return {name: getattr(tokenizer, name) for name in names}


def make_once(folder, source, what, write):
    """The folder of a corpus; if it does not exist, write(folder) makes it. source: any JSON.

    Raises ValueError if the folder holds a corpus of another source.
    """
    if not folder.exists():
        print(f"making {what}: {folder}", flush=True)
        try:
            with atomic_path(folder) as own:  # another run may be making the same
                write(own)
        except OSError:
            if not folder.exists():  # else the other run was first
                raise
    if read_header(folder)["source"] != source:
        raise ValueError(f"{folder} holds other problems than expected: delete it to make it again")
    return folder


class Writer:
    """Appends examples to a folder that appears on `finish`; until then it is `<folder>.partial`.

    source: where the examples come from, any JSON. A writer that finds a partial folder of the same
    source, tokenizer and length resumes from its latest `commit`, and has its `progress`. Raises
    FileExistsError if the folder exists, ValueError if the partial one does not match.
    """

    def __init__(self, folder, tokenizer, length, source, splits=("train", "val")):
        self.folder = Path(folder)
        self.partial = self.folder.with_name(f"{self.folder.name}.partial")
        if self.folder.exists():
            raise FileExistsError(
                f"{folder} already exists: remove it to write it again, or give another --out"
            )
        if length not in LENGTHS:
            raise ValueError(f"length={length}: must be 1 to {LENGTHS[-1]}")
        self.header = {"format": FORMAT, "source": source, "length": length}
        self.header["tokenizer"] = about_tokenizer(tokenizer)
        state = self.latest()
        self.progress, self.dropped = state["progress"], Counter(state["dropped"])
        self.partial.mkdir(parents=True, exist_ok=True)
        tokenizer.write(self.partial)
        kinds, known = dtypes(tokenizer.vocab_size), state["columns"]
        self.splits = {s: Split(self.partial, s, kinds, known.get(s, {})) for s in splits}

    def add(self, split, encoded):
        """Append Encoded examples to a split."""
        self.splits[split].append(encoded)

    def commit(self, progress=None):
        """Make what was added so far, and `dropped`, the point from which another writer resumes.

        progress: any JSON, such as how much of the source has been read.
        """
        columns = {name: split.flush() for name, split in self.splits.items()}
        state = {"progress": progress, "dropped": self.dropped, "columns": columns}
        write_json(self.partial / "state.json", files.sealed({"header": self.header} | state))

    def finish(self):
        """Write header.json and make the folder appear; returns the header."""
        splits = {name: split.summary() for name, split in self.splits.items()}
        others = {
            path.name: files.checksum(path)
            for path in sorted(self.partial.iterdir())
            if path.suffix != ".npy" and path.name != "state.json"
        }
        header = self.header | {"splits": splits, "dropped": dict(self.dropped), "files": others}
        header = files.sealed(header)
        write_json(self.partial / "header.json", header)
        os.replace(self.partial, self.folder)
        (self.folder / "state.json").unlink(missing_ok=True)
        return header

    def latest(self):
        """What the latest commit recorded."""
        path = self.partial / "state.json"
        if not path.exists():
            return {"progress": None, "dropped": {}, "columns": {}}
        state = files.read_object(path, self.partial)
        if not files.is_sealed(state):
            raise files.damaged(path, "its checksum is not that of its contents", self.partial)
        if state["header"] != json.loads(json.dumps(self.header)):
            raise ValueError(f"{self.partial} has another source or other settings: remove it")
        return state


class Split:
    """The four growing arrays of a split."""

    def __init__(self, folder, name, kinds, known):
        """kinds {column: dtype}; known {column: (count, checksum)} of what is already on disk."""
        self.columns = {
            column: GrowingArray(folder / f"{name}.{column}.npy", dtype, (), *known.get(column, ()))
            for column, dtype in kinds.items()
        }
        if self.columns["starts"].count == 0:
            self.columns["starts"].append(np.zeros(1, np.int64))

    def append(self, encoded):
        starts = self.columns["tokens"].count + encoded.lengths.cumsum()
        values = encoded.tokens, starts, encoded.prompts, encoded.keys
        for column, part in zip(self.columns.values(), values, strict=True):
            column.append(part)

    def flush(self):
        """Flush all columns to disk; returns {column: [count, checksum]}."""
        for column in self.columns.values():
            column.flush()
        return {name: [column.count, column.checksum] for name, column in self.columns.items()}

    def summary(self):
        """The header's entry for this split."""
        columns = self.flush()
        starts, keys = (np.load(self.columns[name].path) for name in ("starts", "keys"))
        return {
            "examples": columns["prompts"][0],
            "tokens": columns["tokens"][0],
            "longest": int(np.diff(starts).max(initial=0)),
            "questions": len(np.unique(keys)),  # different ones
            "columns": columns,
        }
