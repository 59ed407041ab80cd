"""Tokenizers beside data/tokenizer.py: any that Hugging Face's library reads, found by name.

`find` takes the name that a user gives, `open_kept` the file that a corpus keeps.
"""

import json
from pathlib import Path

from data import tokenizer
from data.files import brief, regular
from data.tokenizer import BYTES, Tokenizer, Vocabulary

EXPECTED = "bytes, a .tiktoken file, a tokenizer.json, or a folder with one"


class HuggingFace(Vocabulary):
    """A tokenizer.json, read by the library `tokenizers`; no special tokens of its own are used.

    content: of the file; kind "dream" puts Dream's special ids after the ids of text, as
    Tokenizer does; any other puts end and mask after all ids. Raises ValueError if the library
    cannot read it, or is missing.
    """

    file = "tokenizer.json"

    def __init__(self, content, kind="huggingface"):
        try:
            import tokenizers

            text = content.decode()
            if kind == "dream":  # its special ids take the place of those that were added
                text = json.dumps(json.loads(text) | {"added_tokens": []})
            self.library = tokenizers.Tokenizer.from_str(text)
        except ImportError:
            raise ValueError("a tokenizer.json needs `pip install tokenizers`") from None
        except Exception as error:  # the library raises Exception itself
            raise ValueError(f"not a readable tokenizer.json: {brief(error)}") from None
        self.library.no_truncation()
        self.library.no_padding()
        self.library.encode_special_tokens = True  # text that looks like one is text
        self.kind, is_dream = kind, kind == "dream"
        ids = self.library.get_vocab(with_added_tokens=not is_dream).values()
        if max(ids, default=0) >= 1 << 31 or getattr(self.library.model, "dropout", None):
            raise ValueError("not a usable tokenizer.json: ids beyond 2^31, or random (dropout)")
        super().__init__(max(ids, default=-1) + 1, "dream" if is_dream else "plain", content)

    def encode(self, text):
        """Ids of the text, list of int."""
        return self.library.encode(text, add_special_tokens=False).ids

    def decode_text(self, ids):
        return self.library.decode(ids, skip_special_tokens=False)


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


def open_kept(path, kind="plain"):
    """The tokenizer in a file. Raises FileNotFoundError, or ValueError that names the file."""
    content = regular(path).read_bytes()
    try:
        if path.suffix == ".json":
            return HuggingFace(content, kind)
        return Tokenizer(tokenizer.parse(content), kind)
    except ValueError as error:
        raise ValueError(f"{path}: {str(error)[:300]}; expected {EXPECTED}") from None
