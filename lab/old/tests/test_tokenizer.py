"""Oracles: ids that Hugging Face's library made, a textbook merge loop, gpt-2's byte alphabet."""

import json
import random
import unicodedata

import pytest
import regex
from conftest import HOUSE
from toys import first_ranks

from data import tokenizer
from data.tokenizer import Tokenizer, to_text
from data.vocabularies import open_kept

SHARED = HOUSE.parent / "shared" / "data" / "qwen2"
TEXTS = [
    "Ann has 12 apples and buys 30 more. How many apples does she have?",
    "def solve():\n    apples = 12 + 30\n    result = apples\n    return result",
    "aaaa aaa aaaaaaa ababab abab bababa abc abcabc bcabca cabcab",
    "The caf\u00e9's na\u00efve owner doesn't sell 7 apples; she's selling 8.\r\n\r\n  So?",
]
STRANGE = [
    "", " ", "\n\n\n", "a\r\n b", "x\u3000y", "cafe\u0301", "\u212b", "\u4e2d\u6587 \U0001f600",
    "<|endoftext|>", "a<|mask|>b", "<|im_start|>user", "\x00\x7f\u00ad", "-1.50$ /2=(3%)",
]  # fmt: skip


@pytest.fixture(scope="module")
def ranks():
    return first_ranks(300)


@pytest.fixture(scope="module")
def small(ranks):
    return Tokenizer(ranks)


def textbook(text, ranks):
    """Ids by trying, in order of rank, every merge in every place."""
    ids = []
    for word in regex.findall(tokenizer.PATTERN, unicodedata.normalize("NFC", text)):
        parts = [bytes([byte]) for byte in word.encode()]
        while pairs := [i for i in range(len(parts) - 1) if parts[i] + parts[i + 1] in ranks]:
            i = min(pairs, key=lambda i: ranks[parts[i] + parts[i + 1]])
            parts = [*parts[:i], parts[i] + parts[i + 1], *parts[i + 2 :]]
        ids += [ranks[part] for part in parts]
    return ids


@pytest.mark.skipif(not SHARED.exists(), reason="Qwen2's ranks are not here")
def test_reference_ids():
    qwen2 = open_kept(SHARED / "qwen.tiktoken")
    assert qwen2.checksum == tokenizer.QWEN2
    assert (qwen2.end, qwen2.mask, qwen2.vocab_size) == (151643, 151644, 151645)
    with open(SHARED / "reference_ids.jsonl") as lines:
        rows = [json.loads(line) for line in lines]
    assert len(rows) == 384
    assert [qwen2.encode(row["text"]) for row in rows] == [row["ids"] for row in rows]


def test_text_survives(small):
    rng = random.Random(0)
    ranges = [(32, 127), (0, 0x300), (0x300, 0x370), (0x1F300, 0x1F700), (0xAC00, 0xD7A4)]
    noise = ["".join(chr(rng.randrange(*rng.choice(ranges))) for _ in range(40)) for _ in range(50)]
    for text in TEXTS + STRANGE + noise:
        ids = small.encode(text)
        assert small.decode(ids) == unicodedata.normalize("NFC", text)
        for part in ids, ids[1:], ids[:-1]:  # may begin or end within a character
            assert "".join(small.decode_each(part)) == small.decode(part)
            assert len(small.decode_each(part)) == len(part)
        assert all(0 <= i < small.end for i in ids)


def test_special_ids_show_and_special_strings_are_text(small):
    assert (small.end, small.mask, small.vocab_size) == (300, 301, 302)
    ids = small.encode("a<|endoftext|>")
    assert small.end not in ids
    assert small.decode([*ids, small.mask, small.end]) == "a<|endoftext|><|mask|><|endoftext|>"


def test_dreams_special_ids(ranks):
    dream = Tokenizer(ranks, "dream")
    assert (dream.end, dream.mask, dream.vocab_size) == (300, 323, 721)  # n, n + 23, n + 421
    assert dream.start == [322] and dream.ends == {300, 302}
    shown = "a<|im_start|><|im_end|><|303|><|beginoftext|><|mask|><|720|>"
    assert dream.decode([*dream.encode("a"), 301, 302, 303, 322, 323, 720]) == shown
    assert max(dream.encode(shown)) < 300


def test_ranks_encode_as_the_textbook_does(small, ranks):
    rng = random.Random(1)
    letters = ["".join(rng.choices("abc ", k=30)) for _ in range(300)]
    for text in TEXTS + STRANGE + letters:
        assert small.encode(text) == textbook(text, ranks)


def test_what_is_no_table_of_ranks_fails(tmp_path, ranks):
    with pytest.raises(FileNotFoundError, match="no such file"):
        open_kept(tmp_path / "absent.tiktoken")
    for content in (b"[]", b"YQ== x\n", b"\xff 1\n"):
        (tmp_path / "a.tiktoken").write_bytes(content)
        with pytest.raises(ValueError, match=r"a\.tiktoken: .*expected bytes, a \.tiktoken"):
            open_kept(tmp_path / "a.tiktoken")
    with pytest.raises(ValueError, match="ranks must be 0 to 298, each once"):
        Tokenizer({token: rank for token, rank in ranks.items() if rank != 280})
    with pytest.raises(ValueError, match="1 single bytes have no rank"):
        Tokenizer({b"??" if token == b"?" else token: rank for token, rank in ranks.items()})


def test_download_is_verified(tmp_path, monkeypatch, ranks):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(tokenizer, "QWEN2_URL", str(tmp_path / "a.tiktoken"))
    with pytest.raises(OSError, match=r"cannot download .*supply Qwen2's tokenizer with --tok"):
        tokenizer.qwen2()
    (tmp_path / "a.tiktoken").write_bytes(to_text(ranks))
    with pytest.raises(OSError, match="Hash mismatch"):
        tokenizer.qwen2()
    monkeypatch.setattr(tokenizer, "QWEN2", Tokenizer(ranks).checksum)
    assert tokenizer.qwen2("dream").ranks == ranks
