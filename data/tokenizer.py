"""Byte-pair encoding as Qwen2 does it: text -> ids, and special ids that no text encodes to.

Text is normalised to NFC and split into words by PATTERN (every digit is a word). In each word the
adjacent pair that makes the token of lowest rank is merged until no pair makes a token; id = rank.
The special tokens come after the n ranks (SPECIAL): Qwen2 has n = 151,643.

Ranks are {bytes: rank}, on disk as a `.tiktoken` file. They are read from such a file, from Hugging
Face's files or from the hub (`download`; nothing else here uses the network).
"""

import base64
import codecs
import hashlib
import itertools
import json
import unicodedata
import urllib.request
from http.client import HTTPException
from pathlib import Path

import numpy as np
import tiktoken

from data.files import brief, parse_json, regular
from engine.files import atomic_path

PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = "b2b1b8dfb5cc5f024bafc373121c6aba3f66f9a5a0269e243470a1de16a33186"  # checksum of its ranks
QWEN2_URL = "https://huggingface.co/Qwen/Qwen2-0.5B/resolve/main/tokenizer.json"
EXPECTED = (
    "a .tiktoken file, a Hugging Face tokenizer.json of byte-level BPE, or a folder with "
    "tokenizer.json or vocab.json and merges.txt"
)
BYTES = [bytes([byte]) for byte in range(256)]
END, MASK = "<|endoftext|>", "<|mask|>"  # END ends a text and pads it
IM_START, IM_END, BEGIN = "<|im_start|>", "<|im_end|>", "<|beginoftext|>"
SPECIAL = {  # {name: ({token: id - n}, how many ids there are after the ranks)}
    "plain": ({END: 0, MASK: 1}, 2),
    "dream": ({END: 0, IM_START: 1, IM_END: 2, BEGIN: 22, MASK: 23}, 421),  # 152,064 ids in all
}


class Tokenizer:
    """Encodes text to ids 0..n-1, n ranks. `special` {token: id}; `end`, `mask`, `vocab_size`.

    kind: of the special tokens, a key of SPECIAL. `start`: ids to prepend to a text that the model
    continues; `ends`: ids any of which ends an answer. `checksum` is the sha256 of the `.tiktoken`
    text. Raises ValueError if a rank is missing or taken twice, or if a byte has none.
    """

    file = "tokenizer.tiktoken"  # in the folder of a corpus

    def __init__(self, ranks, kind="plain"):
        if sorted(ranks.values()) != list(range(len(ranks))):
            raise ValueError(f"the {len(ranks)} ranks must be 0 to {len(ranks) - 1}, each once")
        if missing := [byte for byte in BYTES if byte not in ranks]:
            raise ValueError(f"{len(missing)} single bytes have no rank, {missing[0]} is the first")
        self.ranks, self.kind, n = ranks, kind, len(ranks)
        offsets, count = SPECIAL[kind]
        self.special = {token: n + offset for token, offset in offsets.items()}
        self.end, self.mask, self.vocab_size = self.special[END], self.special[MASK], n + count
        self.start = [self.special[BEGIN]] if BEGIN in self.special else []
        self.ends = {self.end, self.special.get(IM_END, self.end)}
        self.checksum = hashlib.sha256(to_text(ranks)).hexdigest()
        unused = {f"<|{i}|>": i for i in {*range(n, n + count)} - {*self.special.values()}}
        self.bpe = tiktoken.Encoding(
            self.checksum, pat_str=PATTERN, mergeable_ranks=ranks,
            special_tokens=self.special | unused,
        )  # fmt: skip

    def encode(self, text):
        """Ids of the text, list of int. `<|endoftext|>` in it is text like any other."""
        return self.bpe.encode_ordinary(unicodedata.normalize("NFC", text))

    def decode(self, ids):
        """The text of all ids; special ones show by name, like `<|endoftext|>`, or by number.

        Invalid UTF-8 becomes U+FFFD. Raises ValueError for an id outside the vocabulary.
        """
        ids = [int(i) for i in ids]
        if wrong := [i for i in ids if not 0 <= i < self.vocab_size]:
            raise ValueError(f"id {wrong[0]}: must be 0 to {self.vocab_size - 1}")
        return self.bpe.decode(ids)

    def characters(self, x0):
        """The number of characters that begin in each row (n, L), (n,).

        So a character that ends in another row counts once, and a special token not at all.
        """
        starts = np.zeros(self.vocab_size, np.int64)
        for token, rank in self.ranks.items():
            starts[rank] = sum(byte & 0xC0 != 0x80 for byte in token)  # of UTF-8
        return starts[x0].sum(1)

    def write(self, folder):
        """Write the ranks into the folder of a corpus."""
        save(self.ranks, folder / self.file)

    def decode_each(self, ids):
        """The text of each id; joined, they are the text of all.

        A character whose bytes span several ids belongs to the last. Raises as `decode`.
        """
        self.decode(ids)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        texts = [decoder.decode(self.bpe.decode_single_token_bytes(int(i))) for i in ids]
        return [*texts[:-1], texts[-1] + decoder.decode(b"", True)] if texts else []


def load(path, kind="plain"):
    """The Tokenizer of a `.tiktoken` file, a tokenizer.json, or a folder with Hugging Face's files.

    kind: of its special tokens, which are not read from the file. Raises FileNotFoundError that
    names what was expected, ValueError if the file is none of these.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file; expected {EXPECTED}")
    try:
        return Tokenizer(read(path), kind)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: {brief(error)}; expected {EXPECTED}") from None


def read(path):
    """The ranks in a file of any of these forms."""
    if path.suffix == ".tiktoken":
        rows = (line.split() for line in regular(path).read_bytes().splitlines() if line)
        return {base64.b64decode(token, validate=True): int(rank) for token, rank in rows}
    if path.is_dir() and not (path / "tokenizer.json").exists():
        if not (path / "vocab.json").exists() or not (path / "merges.txt").exists():
            raise FileNotFoundError(f"{path} lacks the files; expected {EXPECTED}")
        lines = (path / "merges.txt").read_text(encoding="utf-8").split("\n")
        merges = [line for line in lines[lines[0].startswith("#version") :] if line]
        return from_vocab(parse_json((path / "vocab.json").read_text(encoding="utf-8")), merges)
    file = path / "tokenizer.json" if path.is_dir() else path
    model = parse_json(regular(file).read_text(encoding="utf-8"))["model"]
    return from_vocab(model["vocab"], model["merges"])


def from_vocab(vocab, merges):
    """Ranks of Hugging Face's {token: id} and merges in order, each "a b" or ["a", "b"].

    Their tokens spell bytes as printable characters. Raises ValueError unless merge number i makes
    id 256 + i: else ids are not ranks.
    """
    for i, merge in enumerate(merges):
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if vocab.get("".join(pair)) != 256 + i:
            raise ValueError(f"merge {i}, {merge!r}, must make token {256 + i}")
    byte = {character: byte for byte, character in enumerate(printable())}
    return {bytes(byte[character] for character in token): i for token, i in vocab.items()}


def printable():
    """The character that stands for each byte: itself if it prints, else the next from U+0100."""
    spare = map(chr, itertools.count(256))
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    return [chr(byte) if byte in visible else next(spare) for byte in range(256)]


def to_text(ranks):
    """The `.tiktoken` text, bytes: a line a token, base64 and rank, in order of rank."""
    rows = sorted(ranks.items(), key=lambda item: item[1])
    return b"".join(b"%s %d\n" % (base64.b64encode(token), rank) for token, rank in rows)


def save(ranks, path):
    """Write a `.tiktoken` file; it appears once it is complete."""
    with atomic_path(path) as partial:
        partial.write_bytes(to_text(ranks))


def download(cache):
    """Path of Qwen2's ranks in the folder `cache`, from the hub if they are not there yet.

    Raises OSError that says how to supply the file by hand, ValueError if it is not Qwen2's.
    """
    path = Path(cache) / "qwen2.tiktoken"
    if path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == QWEN2:
        return path
    try:
        with urllib.request.urlopen(QWEN2_URL, timeout=60) as answer:
            model = json.load(answer)["model"]
    except (OSError, HTTPException) as error:
        raise OSError(f"cannot download {QWEN2_URL} ({error}); instead supply {EXPECTED}") from None
    ranks = from_vocab(model["vocab"], model["merges"])
    if (checksum := hashlib.sha256(to_text(ranks)).hexdigest()) != QWEN2:
        raise ValueError(f"{QWEN2_URL}: the ranks have checksum {checksum}, expected {QWEN2}")
    save(ranks, path)
    return path
