"""Tokenizers beside data/tokenizer.py: characters, and any that Hugging Face's library reads.

All have `encode`, `decode`, `characters`, `end`, `mask`, `vocab_size`, `kind`, `checksum`, and
`write(folder)`, whose file a corpus keeps and `open_kept` reads. `end` and `mask` are two ids after
those of the vocabulary, whatever special tokens it has of its own.
"""

import hashlib
import itertools
from pathlib import Path

import numpy as np

from data import tokenizer
from data.files import brief, regular
from data.tokenizer import BYTES, END, MASK, Tokenizer

EXPECTED = "bytes, a .tiktoken file, a tokenizer.json, or a folder with one"


class Vocabulary:
    """n ids of text; n = end of text, n + 1 = mask."""

    file = Tokenizer.file

    def __init__(self, n, content):
        self.end, self.mask, self.vocab_size = n, n + 1, n + 2
        self.special, self.ends, self.start = {END: n, MASK: n + 1}, {n}, []
        self.checksum = hashlib.sha256(content).hexdigest()

    def decode(self, ids):
        """The text of all ids; `end` and `mask` show by name.

        Raises ValueError for an id outside the vocabulary.
        """
        ids = [int(i) for i in ids]
        if wrong := [i for i in ids if not 0 <= i < self.vocab_size]:
            raise ValueError(f"id {wrong[0]}: must be 0 to {self.vocab_size - 1}")
        names = {i: name for name, i in self.special.items()}
        groups = itertools.groupby(ids, key=lambda i: names.get(i, ""))
        return "".join(
            name * len([*group]) if name else self.decode_text([*group]) for name, group in groups
        )

    def decode_each(self, ids):
        """The text of each id; joined, they are the text of all. Raises as `decode`.

        A character whose bytes span several ids belongs to the last.
        """
        texts, shown = [], ""
        for n in range(1, len(ids) + 1):
            text = self.decode(ids[:n])
            if text.endswith("\N{REPLACEMENT CHARACTER}") and n < len(ids):
                text = shown
            texts.append(text[len(shown) :])
            shown = text
        return texts


class Characters(Vocabulary):
    """A token per character of an ASCII alphabet, `ranks` {byte: id}."""

    kind = "characters"

    def __init__(self, ranks):
        if sorted(ranks.values()) != list(range(len(ranks))) or max(map(len, ranks)) > 1:
            raise ValueError(f"expected characters with ids 0 to {len(ranks) - 1}, each once")
        super().__init__(len(ranks), tokenizer.to_text(ranks))
        self.ranks = ranks
        self.letters = b"".join(sorted(ranks, key=ranks.get)).decode("ascii")
        self.ids = np.full(256, -1)
        self.ids[[byte[0] for byte in ranks]] = [*ranks.values()]

    @classmethod
    def of(cls, letters):
        return cls({letter.encode("ascii"): i for i, letter in enumerate(letters)})

    def encode(self, text):
        """Ids, list of int. Raises ValueError for a character outside the alphabet."""
        ids = self.ids[np.frombuffer(text.encode("ascii", "replace"), np.uint8)]
        if (ids < 0).any():
            found = text[int((ids < 0).argmax())]
            raise ValueError(f"the text has {found!r}: expected characters of {self.letters!r}")
        return ids.tolist()

    def decode_text(self, ids):
        return "".join(self.letters[i] for i in ids)

    def characters(self, x0):
        """The number of characters in each row (n, L), (n,); an end of text is none."""
        return (x0 < self.end).sum(1)

    def write(self, folder):
        tokenizer.save(self.ranks, folder / self.file)


class HuggingFace(Vocabulary):
    """A tokenizer.json, read by the library `tokenizers`; no special tokens are added.

    content: of the file. Raises ValueError if the library cannot read it, or is missing.
    """

    kind, file = "huggingface", "tokenizer.json"

    def __init__(self, content):
        try:
            import tokenizers
        except ImportError:
            raise ValueError("a tokenizer.json needs `pip install tokenizers`") from None
        try:
            self.library = tokenizers.Tokenizer.from_str(content)
        except Exception as error:  # the library raises Exception itself
            raise ValueError(f"not a readable tokenizer.json: {brief(error)}") from None
        self.library.no_truncation()
        self.library.no_padding()
        self.library.encode_special_tokens = True  # text that looks like one is text
        self.content = content
        if not (known := self.library.get_vocab().values()):
            raise ValueError("its vocabulary is empty")
        super().__init__(max(known) + 1, content.encode())
        unknown = getattr(self.library.model, "unk_token", None)
        self.unknown = self.library.token_to_id(unknown) if unknown else None

    def encode(self, text):
        """Ids of the text, list of int."""
        try:
            return self.library.encode(text, add_special_tokens=False).ids
        except Exception as error:  # the library raises Exception itself
            raise ValueError(f"the tokenizer fails on {brief(text)}: {brief(error)}") from None

    def decode_text(self, ids):
        return self.library.decode(ids, skip_special_tokens=False)

    def characters(self, x0):
        """The number of characters in each row (n, L), (n,); an end of text is none."""
        rows = ([i for i in row if i != self.end] for row in x0.tolist())
        return np.array([len(self.decode_text(row)) for row in rows])

    def write(self, folder):
        (folder / self.file).write_text(self.content, encoding="utf-8")


def find(name):
    """The tokenizer of a name, as in EXPECTED. Raises FileNotFoundError or ValueError."""
    if name == "bytes":
        return Tokenizer({byte: rank for rank, byte in enumerate(BYTES)})
    path = Path(name)
    path = path / "tokenizer.json" if (path / "tokenizer.json").exists() else path
    if not path.exists():
        raise FileNotFoundError(f"tokenizer {name}: no such file; expected {EXPECTED}")
    return read_library(path) if path.suffix == ".json" else tokenizer.load(path)


def file_of(kind):
    """The name of the file in which a corpus keeps a tokenizer of the kind."""
    return HuggingFace.file if kind == HuggingFace.kind else Tokenizer.file


def open_kept(path, kind):
    """The tokenizer that `write` kept. Raises FileNotFoundError or ValueError."""
    if kind == HuggingFace.kind:
        return read_library(path)
    return (
        Characters(tokenizer.read(path)) if kind == Characters.kind else tokenizer.load(path, kind)
    )


def read_library(path):
    """The tokenizer of a tokenizer.json. Raises ValueError that names the file."""
    content = read_text(path)
    try:
        return HuggingFace(content)
    except ValueError as error:
        raise ValueError(f"{path}: {error}; expected {EXPECTED}") from None


def read_text(path):
    """The text of a UTF-8 file. Raises ValueError that names the file if it is not UTF-8."""
    try:
        return regular(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path}: not UTF-8 text; expected {EXPECTED}") from None
