"""data/rows.py, data/tokenizer.py and the scripts on them. Oracles: a textbook merge loop, the fate
of each row decided by hand, arrays put together with Python lists."""

import base64
import hashlib
import json
import random
import unicodedata
from itertools import accumulate, chain, repeat
from unittest.mock import DEFAULT, Mock

import datasets
import numpy as np
import pyarrow.parquet
import pytest
import regex
from conftest import RANKS, prepare, write_lines

from data import rows, tokenizer
from lab import text

VOCABULARY = tokenizer.named(RANKS)
PAIRS = [(f"How much is {i} + {i % 7}?", f"It is {i + i % 7}.") for i in range(300)]
PAIRS[40:40] = [
    ("\r\n  caf\u00e9\r\n\u0301 \u00bd \u2167 \r\n", "\r\n yes\r\n\rno \r"),
    *[("Why?", "x" * 58), ("Why?", "x" * 59), ("x" * 64, "y")],  # the second is too long by a byte
    ("blank", " " * 3_000_000 + "x"),  # tiktoken fails on so many at once
    *[(" ", "x"), ("Why?", None), ("Why?", "\n")],
]
ROWS = [{"ask": ask, "say": say} for ask, say in PAIRS]
DOCUMENTS = [f"caf\u00e9 {i}:\nA" + " cat sat." * (i % 9) for i in range(200)]
DOCUMENTS += [" ", " apples" * 20_000]
FIELDS = {"prompt": "ask", "response": "say"}


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Run data/jsonl/prepare.py in a folder with files of rows; the folder it wrote."""
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "pairs.jsonl", ROWS)
    outs = (tmp_path / f"out{i}" for i in range(9))
    return lambda source="pairs.jsonl", **flags: prepare(
        "jsonl", **{"source": source, "length": 64, "val": 0.1, "out": next(outs)} | flags
    )


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def arrays(folder, split):
    return [np.load(folder / f"{split}.{x}.npy").tolist() for x in ("tokens", "starts", "prompts")]


def in_val(text, val):
    """By the words of the text, as it was decided once and for all."""
    words = regex.findall(r"[\p{L}\p{N}_]+", unicodedata.normalize("NFKC", text).casefold())
    digest = hashlib.blake2b(" ".join(words).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") < val * 2**64


@pytest.mark.parametrize("name", ["bytes", RANKS, "many.tiktoken"])
def test_pairs_are_those_of_a_slow_loop(call, name, capsys, tmp_path):
    more = (b"%s %d\n" % (base64.b64encode(b"z%d" % i), i) for i in range(1500, 71_500))
    (tmp_path / "many.tiktoken").write_bytes(VOCABULARY.content + b"".join(more))
    out = call(**FIELDS, tokenizer=name)
    coder = tokenizer.named(name)
    wide = np.load(out / "val.tokens.npy").dtype == np.uint32  # ids beyond 16 bits
    assert wide == (coder.vocab_size > 1 << 16) == (name == "many.tiktoken")
    kept = {False: [], True: []}
    too_long = 0
    for pair in PAIRS:
        if all(text and text.strip() for text in pair):
            ask, say = ("\n".join(regex.split("\r\n|\r", text)).strip("\n") for text in pair)
            prompt = coder.encode(ask + "\n")
            ids = prompt + coder.encode(say)
            too_long += len(ids) >= 64
            kept[in_val(ask, 0.1)] += [(len(prompt), ids)] * (len(ids) < 64)
    for split, is_val in ("train", False), ("val", True):
        prompts, ids = zip(*kept[is_val], strict=True)
        starts = accumulate(map(len, ids), initial=0)
        assert arrays(out, split) == [[*chain(*ids)], [*starts], [*prompts]] and len(ids) > 10
    said = capsys.readouterr().out
    assert f"{too_long} too_long" in said and "3 unusable" in said


@pytest.mark.parametrize("name", ["bytes", RANKS])
def test_documents_are_joined_and_cut(call, name, tmp_path):
    """Long ones are encoded in pieces; what is left over of a split is dropped."""
    windows = "\ufeff" + "\n\n".join(DOCUMENTS).replace("\n", "\r\n")
    (tmp_path / "a.txt").write_text(windows, encoding="utf-8", newline="")
    out = call("a.txt", text="text", tokenizer=name, val=0.5)
    coder = tokenizer.named(name)
    for split, is_val in ("train", False), ("val", True):
        stream = []
        for whole in filter(str.strip, DOCUMENTS):
            if in_val(whole[:16_384], 0.5) == is_val:
                pieces = (whole[at : at + 65_536] for at in range(0, len(whole), 65_536))
                stream += [*chain(*map(coder.encode, pieces)), coder.end]
        count = len(stream) // 64
        starts = [*range(0, count * 64 + 1, 64)]
        assert arrays(out, split) == [stream[: count * 64], starts, [0] * count]


def test_the_same_rows_in_other_files(call, tmp_path, capsys):
    """Columns that nobody asks for are of mixed types, and differ from file to file."""
    expected = contents(call(**FIELDS))
    odd = [{"id": [i, "x"][i % 2], "\u20ac": i} | row for i, row in enumerate(ROWS)]
    for at, folder in enumerate(("x/a/[b]", "x/a", "x")):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        part = odd[103 * at :][:103]
        write_lines(tmp_path / folder / "d.jsonl", part)
        columns = {name: [row[name] for row in part] for name in ("say", "ask")}
        table = pyarrow.table(columns | {folder: [*range(len(part))]})
        pyarrow.parquet.write_table(table, tmp_path / folder / "d.parquet")
    (tmp_path / "list [1]?.json").write_text("\n" + json.dumps(odd, indent=1))
    windows = "\r\n\r\n".join(json.dumps(row, ensure_ascii=False) for row in odd)
    (tmp_path / "*.jsonl").write_text(f"\ufeff{windows}\r\n", encoding="utf-8", newline="")
    for source in "x/**/*.jsonl", "x/**.parquet", "list [1]?.json", "*.jsonl":
        assert contents(call(source, **FIELDS)) == expected, source
    assert capsys.readouterr().out.count(", 3 files\n") == 2


def test_numbers_and_dates_stay_as_they_are_written(tmp_path):
    written = ['"2024-01-05T00:00:00"', '"12:30"', "1e3", "0.10", "-0", "NaN", "1" * 5000, '"true"']
    for some in written, written[:1], written[3:4]:
        (tmp_path / "a.jsonl").write_text("\n".join(f'{{"say": {each}}}' for each in some))
        found = rows.load(f"{tmp_path}/a.jsonl", ["say"])
        assert found["say"][:] == [each.strip('"') for each in some]


FILES = {  # that have no text in `say`, and the reason
    "none.jsonl": (None, "cannot read none.jsonl: 0 files; expected .jsonl"),
    "damaged.jsonl": (b'{"say": "a"}\n{\n{"say": "b"}\n', "damaged.jsonl: .*line 2 column"),
    "latin.jsonl": (b'{"say": "caf\xe9"}', "cannot read latin.jsonl: 'utf-8' codec"),
    "latin.txt": (b"caf\xe9", "cannot read latin.txt: 'utf-8' codec"),
    "true.jsonl": (b'{"say": true}', "expected text in .'say'.*'bool'"),
    "list.jsonl": (b'{"say": "a"}\n{"say": ["a"]}', "expected text in .'say'.*Json"),
    "other.jsonl": (b'{"says": "a"}', "expected text in .'say'.*'null'"),
    "surrogate.jsonl": (rb'{"say": "\ud800"}', "cannot read surrogate.jsonl: .*surrogates"),
    "deep.json": (b"[" * 100_000, "cannot read deep.json: "),
    "cut.parquet": (b"PAR1", "cannot read cut.parquet: "),
    "one.jsonl": (b'{"say": "a"}\n' * 60, "(val|train) is empty: give more text"),
}
FLAGS = [
    ({"text": "", "prompt": "ask", "response": "ask"}, "expected --source, and --prompt and"),
    ({"source": "zero.jsonl"}, "cannot read zero.jsonl: 0 files; expected .jsonl"),
    ({"source": "dates.parquet"}, r"expected text in .'say'.*'timestamp"),
    ({"tokenizer": "cut.tiktoken"}, "cut.tiktoken: no --tokenizer=FILE.tiktoken: "),
    ({"tokenizer": ""}, "pairs.jsonl: no --tokenizer=FILE.tiktoken: Hash mismatch"),
]
FLAGS += [({"source": name}, message) for name, (_, message) in FILES.items()]


@pytest.mark.parametrize(("flags", "message"), FLAGS)
def test_mistakes_are_one_line(call, tmp_path, flags, message, monkeypatch):
    dates = pyarrow.table({"say": pyarrow.array([0], pyarrow.timestamp("s"))})
    pyarrow.parquet.write_table(dates, tmp_path / "dates.parquet")
    (tmp_path / "zero.jsonl").symlink_to("/dev/zero")
    lines = VOCABULARY.content.splitlines(keepends=True)
    (tmp_path / "cut.tiktoken").write_bytes(b"".join(lines[:-2] + lines[-1:]))
    monkeypatch.setattr(tokenizer, "QWEN2", "pairs.jsonl")  # what is downloaded
    name = flags.get("source")
    if (content := FILES.get(name, (None,))[0]) is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(SystemExit, match=message) as end:
        call(**{"text": "text" if name == "latin.txt" else "say"} | flags)
    assert "\n" not in str(end.value) and not [*tmp_path.glob("out?")]


def test_the_hub_is_asked(monkeypatch):
    asked = Mock(return_value=datasets.Dataset.from_list([{"say": "b", "ask": "a"}]))
    monkeypatch.setattr(datasets, "load_dataset", asked)
    assert [*rows.load("me/set", ["ask"], "main", "test")] == [{"ask": "a"}]
    asked.assert_called_once_with("me/set", "main", split="test")


def test_interrupted_it_begins_again_and_gives_the_same_bytes(call, tmp_path, monkeypatch):
    whole = contents(call(**FIELDS))
    for name, at in ("encode", 250), ("save", 2), ("header", 1):
        effects = [*repeat(DEFAULT, at - 1), KeyboardInterrupt]
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(rows, name, Mock(wraps=getattr(rows, name), side_effect=effects))
            call(**FIELDS, length=63, out="out")
        assert not (tmp_path / "out").exists()
    assert contents(call(**FIELDS, out="out")) == whole
    with pytest.raises(SystemExit, match="out exists: remove it, or choose another --out"):
        call(source="is not even read", **FIELDS, out="out")


def test_questions_of_gsm8k_are_left_out_of_tinygsm(tmp_path, capsys):
    pens = [(f"Ann has {i} pens and buys {i % 7}. How many?", f"x = {i}") for i in range(400)]
    leaks = pens[3:78:74]
    every = [*pens, ("ann has 3 pens, and buys 3: how many", "x = 6"), ("Why?", None)]
    source = write_lines(tmp_path / "a.jsonl", [{"question": a, "code": b} for a, b in every])
    test = [{"question": ask.upper(), "answer": "7.\n#### 1,000"} for ask, _ in leaks]
    flags = {"gsm8k": write_lines(tmp_path / "b.jsonl", test), "tokenizer": RANKS, "length": 64}
    out = prepare("tinygsm", source=source, **flags, val=0.1, out=tmp_path / "out")
    task = text.load(out, None)
    for part, is_val in (task.train, False), (task.test, True):
        kept = [pair for pair in pens if pair not in leaks and in_val(pair[0], 0.1) == is_val]
        shown = [task.render(*row) for row in zip(*part[:], strict=True)]
        assert shown == ["\n".join(pair) for pair in kept]
    assert "3 gsm8k_test" in (said := capsys.readouterr().out) and "1 unusable" in said
    assert [*map(json.loads, (out / "test.jsonl").read_text().splitlines())] == test


TEXTS = [
    "The caf\u00e9's na\u00efve owner doesn't sell 7 apples; she's selling 8.\r\n\r\n  So?",
    "", " ", "\n\n\n", "a\r\n b", "x\u3000y", "cafe\u0301", "\u4e2d\u6587 \U0001f600", "<|mask|>b",
]  # fmt: skip


def test_text_survives_and_special_strings_are_text():
    words = "I", "'ve", " ", "1", "2", " apples", ",\n\n", " ", " so", "?"
    assert regex.findall(tokenizer.PATTERN, "".join(words)) == [*words]
    rng = random.Random(0)
    noise = ["".join(chr(rng.randrange(0x3000)) for _ in range(40)) for _ in range(50)]
    for each in TEXTS + noise:
        ids = VOCABULARY.encode(each)
        normal = unicodedata.normalize("NFC", each)
        assert VOCABULARY.decode(ids) == normal and max(ids, default=0) < 1500
        parts = regex.findall(tokenizer.PATTERN, normal)
        assert ids == [*chain(*map(VOCABULARY.encode, parts))]
    assert VOCABULARY.decode([1501, *VOCABULARY.encode("a"), 1500]) == "<|mask|>a<|endoftext|>"


def test_keys_ignore_form_only():
    same = "Ann has 1.5 pens.", "  ann has 1.5\npens", "ANN has 1,5 (pens)", "Ann has \uff11.5 pens"
    other = "Ann has 15 pens.", "Ann has 1.5 pen s.", "Anna has 1.5 pens."
    drawn = "+ + X +\n+ @ - +", "+ - X +\n+ @ + +", "A# #B", "#A B#"  # all have one word or two
    for texts, count in (same, 1), (same + other, 4), (drawn, 4):
        assert len({rows.question_key(each) for each in texts}) == count
    assert rows.question_key(same[0]) == 1198275333716499575  # on every machine: splits rest on it
