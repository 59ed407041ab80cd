"""data/tokenizer.py and data/vocabularies.py. Oracles: a textbook merge loop, Hugging Face's
library itself."""

import json
import random
import unicodedata

import pytest
import regex
from small import RANKS

from data import tokenizer, vocabularies
from data.tokenizer import Tokenizer, to_text
from data.vocabularies import open_kept

TEXTS = [
    "Ann has 12 apples and buys 30 more. How many apples does she have?",
    "def solve():\n    apples = 12 + 30\n    result = apples\n    return result",
    "The caf\u00e9's na\u00efve owner doesn't sell 7 apples; she's selling 8.\r\n\r\n  So?",
    "", " ", "\n\n\n", "a\r\n b", "x\u3000y", "cafe\u0301", "\u212b", "\u4e2d\u6587 \U0001f600",
    "<|endoftext|>", "a<|mask|>b", "<|im_start|>user", "\x00\x7f\u00ad", "-1.50$ /2=(3%)",
]  # fmt: skip
SMALL = Tokenizer(RANKS)


def textbook(text):
    """Ids by trying, in order of rank, every merge in every place."""
    ids = []
    for word in regex.findall(tokenizer.PATTERN, unicodedata.normalize("NFC", text)):
        parts = [bytes([byte]) for byte in word.encode()]
        while pairs := [i for i in range(len(parts) - 1) if parts[i] + parts[i + 1] in RANKS]:
            i = min(pairs, key=lambda i: RANKS[parts[i] + parts[i + 1]])
            parts = [*parts[:i], parts[i] + parts[i + 1], *parts[i + 2 :]]
        ids += [RANKS[part] for part in parts]
    return ids


def test_ids_are_those_of_the_textbook_and_text_survives():
    words = "I", "'ve", " ", "1", "2", " apples", ",\n\n", " ", " so", "?"
    assert regex.findall(tokenizer.PATTERN, "".join(words)) == [*words]
    rng = random.Random(0)
    ranges = [(32, 127), (0, 0x300), (0x300, 0x370), (0x1F300, 0x1F700), (0xAC00, 0xD7A4)]
    noise = ["".join(chr(rng.randrange(*rng.choice(ranges))) for _ in range(40)) for _ in range(50)]
    letters = ["".join(rng.choices("abc ", k=30)) for _ in range(300)]
    for text in TEXTS + letters + noise:
        ids = SMALL.encode(text)
        assert ids == textbook(text)
        assert SMALL.decode(ids) == unicodedata.normalize("NFC", text)


def test_special_ids_show_and_special_strings_are_text():
    assert (SMALL.end, SMALL.mask, SMALL.vocab_size) == (300, 301, 302)
    ids = SMALL.encode("a<|endoftext|>")
    assert SMALL.decode([*ids, SMALL.mask, SMALL.end]) == "a<|endoftext|><|mask|><|endoftext|>"
    dream = Tokenizer(RANKS, "dream")
    assert (dream.end, dream.mask, dream.vocab_size) == (300, 323, 721)  # n, n + 23, n + 421
    shown = "a<|im_start|><|im_end|><|303|><|beginoftext|><|mask|><|720|>"
    assert dream.decode([*dream.encode("a"), 301, 302, 303, 322, 323, 720]) == shown
    assert max(ids + dream.encode(shown)) < 300
    with pytest.raises(ValueError, match="id 721: must be 0 to 720"):
        dream.decode([721])


def test_what_is_no_table_of_ranks_fails(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file"):
        open_kept(tmp_path / "absent.tiktoken")
    for content in b"[]", b"YQ== x\n", b"\xff 1\n":
        (tmp_path / "a.tiktoken").write_bytes(content)
        with pytest.raises(ValueError, match=r"a\.tiktoken: .*expected bytes, a \.tiktoken"):
            open_kept(tmp_path / "a.tiktoken")
    with pytest.raises(ValueError, match="ranks must be 0 to 298, each once"):
        Tokenizer({token: rank for token, rank in RANKS.items() if rank != 280})
    with pytest.raises(ValueError, match="1 single bytes have no rank"):
        Tokenizer({b"??" if token == b"?" else token: rank for token, rank in RANKS.items()})


def test_download_is_verified(tmp_path, monkeypatch):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(tokenizer, "QWEN2_URL", str(tmp_path / "a.tiktoken"))
    with pytest.raises(OSError, match=r"cannot download .*supply Qwen2's tokenizer with --tok"):
        tokenizer.qwen2()
    (tmp_path / "a.tiktoken").write_bytes(to_text(RANKS))
    with pytest.raises(OSError, match="Hash mismatch"):
        tokenizer.qwen2()
    monkeypatch.setattr(tokenizer, "QWEN2", Tokenizer(RANKS).checksum)
    assert tokenizer.qwen2("dream").ranks == RANKS


# -- tokenizer.json --------------------------------------------------------------------------------
def test_a_tokenizer_of_hugging_face(tmp_path):
    """Byte-level BPE without a mask or an end, made by the library."""
    made = pytest.importorskip("tokenizers").ByteLevelBPETokenizer()
    made.train_from_iterator(TEXTS, 400, special_tokens=["<s>"], show_progress=False)
    made.save(str(tmp_path / "tokenizer.json"))
    n = made.get_vocab_size()
    found = vocabularies.find(str(tmp_path))
    assert (found.end, found.mask, found.vocab_size) == (n, n + 1, n + 2)
    for text in TEXTS:
        ids = found.encode(text)
        assert ids == made.encode(text).ids and found.decode([*ids, n]) == text + "<|endoftext|>"
    assert found.encode("<s>") != [made.token_to_id("<s>")], "in a text it is text"


def test_no_text_becomes_an_id_of_dream(tmp_path):
    library = pytest.importorskip("tokenizers")
    made = library.ByteLevelBPETokenizer()
    made.train_from_iterator(TEXTS, 300, show_progress=False)
    made.add_tokens([library.AddedToken("<think>", special=False)])
    made.save(str(tmp_path / "tokenizer.json"))
    found = vocabularies.find(str(tmp_path), "dream")
    ids = found.encode("<think>x")
    assert max(ids) < found.end and found.decode(ids) == "<think>x"


def test_a_tokenizer_that_is_none_is_named(tmp_path):
    pytest.importorskip("tokenizers")
    path = tmp_path / "a.json"
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1 << 31}, "merges": []}
    random = model | {"vocab": {"a": 0}, "dropout": 0.5}
    for kind, message in ({}, "a readable"), (model, "a usable"), (random, "a usable"):
        path.write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": kind}))
        with pytest.raises(ValueError, match=rf"^{path}: not {message} tokenizer.json.*; expected"):
            vocabularies.find(path)
