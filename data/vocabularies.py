"""Tokenizers beside data/tokenizer.py: characters, and any that Hugging Face's library reads.

`find` takes the name that a user gives, `open_kept` the file that a corpus keeps.
"""

from pathlib import Path

import numpy as np

from data import tokenizer
from data.files import brief, regular
from data.tokenizer import BYTES, Tokenizer, Vocabulary

EXPECTED = "bytes, a .tiktoken file, a tokenizer.json, or a folder with one"


class Characters(Vocabulary):
    """A token per character of an ASCII alphabet, `ranks` {byte: id}."""

    kind = "characters"

    def __init__(self, ranks):
        super().__init__(len(ranks), "plain", tokenizer.to_text(ranks))
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
            wrong = text[int((ids < 0).argmax())]
            raise ValueError(f"the text has {wrong!r}: expected characters of {self.letters!r}")
        return ids.tolist()

    def decode_text(self, ids):
        return "".join(self.letters[i] for i in ids)

    def write(self, folder):
        tokenizer.save(self.ranks, folder / self.file)


class HuggingFace(Vocabulary):
    """A tokenizer.json, read by the library `tokenizers`; no special tokens of its own are used.

    content: of the file; kind "dream" puts the special ids of Dream after those of text, as
    Tokenizer does; any other puts end and mask after all ids. Raises ValueError if the library
    cannot read it, or is missing.
    """

    file = "tokenizer.json"

    def __init__(self, content, kind="huggingface"):
        try:
            import tokenizers

            self.library = tokenizers.Tokenizer.from_str(content)
        except ImportError:
            raise ValueError("a tokenizer.json needs `pip install tokenizers`") from None
        except Exception as error:  # the library raises Exception itself
            raise ValueError(f"not a readable tokenizer.json: {brief(error)}") from None
        self.library.no_truncation()
        self.library.no_padding()
        self.library.encode_special_tokens = True  # text that looks like one is text
        self.content, self.kind, is_dream = content, kind, kind == "dream"
        ids = self.library.get_vocab(with_added_tokens=not is_dream).values()
        if not ids:
            raise ValueError("its vocabulary is empty")
        super().__init__(max(ids) + 1, "dream" if is_dream else "plain", content.encode())

    def encode(self, text):
        """Ids of the text, list of int."""
        try:
            return self.library.encode(text, add_special_tokens=False).ids
        except Exception as error:  # the library raises Exception itself
            raise ValueError(f"the tokenizer fails on {brief(text)}: {brief(error)}") from None

    def decode_text(self, ids):
        return self.library.decode(ids, skip_special_tokens=False)

    def write(self, folder):
        (folder / self.file).write_text(self.content, encoding="utf-8")


def find(name, kind=None):
    """The tokenizer of a name, as in EXPECTED, or Qwen2's if it is "".

    kind "dream": with Dream's special tokens. Raises OSError or ValueError.
    """
    if not name:
        return tokenizer.qwen2(kind or "plain")
    if name == "bytes":
        return Tokenizer({byte: rank for rank, byte in enumerate(BYTES)}, kind or "plain")
    path = Path(name)
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.exists():
        raise FileNotFoundError(f"tokenizer {path}: no such file; expected {EXPECTED}")
    return open_kept(path, kind or ("huggingface" if path.suffix == ".json" else "plain"))


def open_kept(path, kind):
    """The tokenizer that `write` kept. Raises FileNotFoundError or ValueError."""
    if path.suffix == ".json":
        return read_library(path, kind)
    if kind == Characters.kind:
        return Characters(tokenizer.parse(path.read_bytes()))
    return tokenizer.load(path, kind)


def read_library(path, kind):
    """The tokenizer of a tokenizer.json. Raises ValueError that names the file."""
    try:
        return HuggingFace(regular(path).read_text(encoding="utf-8"), kind)
    except ValueError as error:  # UnicodeDecodeError is one
        raise ValueError(f"{path}: {error}; expected {EXPECTED}") from None
