"""data/rows.py and the scripts on it. Oracles: a textbook merge loop, Hugging Face's library, each
row's fate decided by hand, arrays put together with Python lists."""

import base64
import hashlib
import itertools
import json
import random
import unicodedata
from pathlib import Path
from unittest.mock import patch

import datasets
import numpy as np
import pyarrow.parquet
import pytest
import regex
import tokenizers
from small import VOCABULARY, contents, header, run_main, write_lines

import text
from data import rows
from data.jsonl import prepare as jsonl
from data.tinygsm import prepare as tinygsm
from lab import own_text

PAIRS = [{"ask": f"How much is {i} + {i % 7}?", "say": f"It is {i + i % 7}."} for i in range(300)]
PAIRS[40:40] = [
    {"ask": "\r\n  caf\u00e9\r\n\u0301 \u00bd \u2167 \r\n", "say": "\r\n yes\r\n\rno \r"},
    {"ask": "Why?", "say": "x" * 58},
    {"ask": "Why?", "say": "x" * 59},  # too long by one byte
    {"ask": "x" * 62, "say": "y"},
    {"ask": "x" * 64, "say": "y"},
    {"ask": "blank", "say": " " * 3_000_000 + "x"},  # tiktoken fails on so many
    {"ask": " ", "say": "x"},
    {"ask": "Why?", "say": None},
    {"ask": "Why?", "say": "\n"},
]
DOCUMENTS = [{"text": f"caf\u00e9 {i}:\r\n" + "the cat sat. " * (i % 9)} for i in range(200)]
DOCUMENTS += [{"text": " "}, {"text": " apples" * 20_000}, {"text": None}]
TEXTS = [
    "Ann has 12 apples and buys 30 more. How many apples does she have?",
    "def solve():\n    apples = 12 + 30\n    result = apples\n    return result",
    "The caf\u00e9's na\u00efve owner doesn't sell 7 apples; she's selling 8.\r\n\r\n  So?",
    "", " ", "\n\n\n", "a\r\n b", "x\u3000y", "cafe\u0301", "\u212b", "\u4e2d\u6587 \U0001f600",
    "<|endoftext|>", "a<|mask|>b", "<|im_start|>user", "\x00\x7f\u00ad", "-1.50$ /2=(3%)",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Rows in files, and a tokenizer of each kind."""
    folder = tmp_path_factory.mktemp("files")
    write_lines(folder / "pairs.jsonl", PAIRS)
    write_lines(folder / "texts.jsonl", DOCUMENTS)
    write_lines(folder / "damaged.jsonl", [PAIRS[0], "{", PAIRS[1]])
    write_lines(folder / "one.jsonl", [{"ask": "Why?", "say": f"{i}"} for i in range(60)])
    (folder / "a.tiktoken").write_bytes(VOCABULARY.content)
    made = tokenizers.ByteLevelBPETokenizer()
    made.train_from_iterator(TEXTS, 400, special_tokens=["<s>"], show_progress=False)
    made.add_tokens([tokenizers.AddedToken("<think>", special=False)])
    made.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def call(tmp_path, folder, monkeypatch):
    """Run data/jsonl/prepare.py in the folder of files; the folder it wrote."""
    monkeypatch.chdir(folder)
    outs = (tmp_path / f"out{i}" for i in range(9))
    return lambda **settings: run_main(jsonl, next(outs), **settings)


def arrays(folder):
    names = [f"{split}.{name}" for split in ("train", "val") for name in ("tokens", "starts")]
    return [np.load(folder / f"{name}.npy").tolist() for name in names]


def in_val(text, val):
    """By the words of the text, as it was decided once and for all."""
    words = regex.findall(r"[\p{L}\p{N}_]+", unicodedata.normalize("NFKC", text).casefold())
    digest = hashlib.blake2b(" ".join(words).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") < val * 2**64


# -- rows ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["bytes", "a.tiktoken", "tokenizer.json"])
def test_pairs_are_those_of_a_slow_loop(call, name):
    out = call(source="pairs.jsonl", prompt="ask", response="say", tokenizer=name)
    coder = rows.tokenizer(name)
    expected = {split: ([], [0], []) for split in (False, True)}
    dropped = {"unusable": 3}
    for row in PAIRS:
        if not (row["ask"].strip() and row["say"] and row["say"].strip()):
            continue
        ask, say = ("\n".join(regex.split("\r\n|\r", row[name])) for name in ("ask", "say"))
        if len(say) < 1_000_000:
            prompt = coder.encode(ask.strip("\n") + "\n")
            ids = prompt + coder.encode(say.strip("\n"))
        if len(say) > 1_000_000 or len(ids) >= 64:
            why = "prompt_too_long" if ask == "x" * 64 else "too_long"
            dropped[why] = dropped.get(why, 0) + 1
            continue
        tokens, starts, prompts = expected[in_val(ask, 0.1)]
        tokens += ids
        starts.append(len(tokens))
        prompts.append(len(prompt))
    assert arrays(out) == [*expected[False][:2], *expected[True][:2]]
    for split, name in (False, "train"), (True, "val"):
        assert np.load(out / f"{name}.prompts.npy").tolist() == expected[split][2]
    assert header(out)["dropped"] == dropped and len(expected[True][2]) > 10
    assert name != "bytes" or dropped == {"unusable": 3, "too_long": 3, "prompt_too_long": 1}


@pytest.mark.parametrize("name", ["bytes", "a.tiktoken"])
def test_documents_are_joined_and_cut(call, name):
    """Long ones are encoded in pieces; what is left over of a split is dropped."""
    out = call(source="texts.jsonl", text="text", tokenizer=name, val=0.5)
    coder = rows.tokenizer(name)
    streams = [], []
    for row in DOCUMENTS:
        whole = (row["text"] or "").replace("\r\n", "\n")
        if whole.strip():
            stream = streams[in_val(whole[:16_384], 0.5)]
            for at in range(0, len(whole), 65_536):
                stream.extend(coder.encode(whole[at : at + 65_536]))
            stream.append(coder.end)
    counts = [len(stream) // 64 for stream in streams]
    assert min(counts) > 9
    assert arrays(out)[0::2] == [s[: n * 64] for s, n in zip(streams, counts, strict=True)]
    assert arrays(out)[1::2] == [[*range(0, n * 64 + 1, 64)] for n in counts]
    assert not np.load(out / "train.prompts.npy").any()


def test_parquet_gives_the_same_rows_and_paragraphs_are_documents(call, tmp_path):
    fields = {"prompt": "ask", "response": "say"}
    lines = contents(call(source="pairs.jsonl", **fields))
    for name, part in ("a", PAIRS[:150]), ("b", PAIRS[150:]):
        table = pyarrow.Table.from_pylist([{"say": row["say"], "ask": row["ask"]} for row in part])
        pyarrow.parquet.write_table(table, tmp_path / f"{name}.parquet")
    other = contents(call(source=f"{tmp_path}/*.parquet", **fields))
    assert {name for name in lines if lines[name] != other[name]} == {"header.json"}
    paragraphs = [f"a{i}\nb{i}" for i in range(90)]
    (tmp_path / "a.txt").write_text("\n\n".join(paragraphs))
    tokens = arrays(call(source=f"{tmp_path}/a.txt", text="text", val=0.5))[0]
    found = bytes(0 if i == 256 else i for i in tokens).decode().split("\0")
    assert found[:-1] == [each for each in paragraphs if not in_val(each, 0.5)][: len(found) - 1]


def test_ids_beyond_16_bits(tmp_path, call):
    lines = (b"%s %d\n" % (base64.b64encode(b"z%d" % i), i) for i in range(1500, 71_500))
    (tmp_path / "many.tiktoken").write_bytes(VOCABULARY.content + b"".join(lines))
    many = str(tmp_path / "many.tiktoken")
    out = call(source="pairs.jsonl", prompt="ask", response="say", tokenizer=many)
    assert np.load(out / "val.tokens.npy").dtype == np.uint32
    assert header(out)["tokenizer"]["mask"] == 71_501


# -- other scripts ---------------------------------------------------------------------------------
ROWS = [
    {"question": f"Ann has {i} pens and buys {i % 7}. How many?", "code": f"result = {i} + {i % 7}"}
    for i in range(400)
]
TEST = [
    {"question": ROWS[77]["question"].upper(), "answer": "#### 1"},
    {"question": "Ann has 3 pens and buys 3. How many?", "answer": "3 + 3 = 6\n#### 6"},
    {"question": "Bo\u2019s salary?", "answer": "He says #### 7.\n#### 1,000"},
]
LEAK = {"question": "ann has 3 pens, and buys 3: how many", "code": "result = 6"}


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """Run data/tinygsm/prepare.py; the folder it wrote."""
    mixed = [*ROWS[:50], {"question": "Why?"}, LEAK, *ROWS[50:], *ROWS[:30]]
    write_lines(tmp_path / "tiny.jsonl", mixed)
    write_lines(tmp_path / "test.jsonl", TEST)
    (tmp_path / "r.tiktoken").write_bytes(VOCABULARY.content)
    monkeypatch.chdir(tmp_path)
    files = {"source": "tiny.jsonl", "gsm8k": "test.jsonl", "tokenizer": "r.tiktoken"}
    return lambda out="out", **settings: run_main(tinygsm, tmp_path / out, **files | settings)


def shown(folder, split):
    """What each row of train or test says."""
    task = own_text.load(folder, None)
    return [task.render(*row) for row in zip(*getattr(task, split)[:], strict=True)]


def test_questions_of_the_test_set_are_left_out(tiny, capsys):
    out = tiny()
    kept = [row for row in ROWS + ROWS[:30] if row not in (ROWS[3], ROWS[77])]
    for split, is_val in ("train", False), ("test", True):
        expected = [row for row in kept if in_val(row["question"], 0.1) == is_val]
        assert shown(out, split) == [f"{row['question']}\n{row['code']}" for row in expected]
    assert header(out)["dropped"] == {"unusable": 1, "gsm8k_test": 4}
    assert [*map(json.loads, (out / "test.jsonl").read_text().splitlines())] == TEST
    assert "not GSM8K's test set as published" in capsys.readouterr().out
    with pytest.raises(FileExistsError, match="remove it"):
        tiny()


def test_interrupted_it_goes_on_and_gives_the_same_bytes(tiny, monkeypatch):
    """Pieces that were finished are not encoded again; those of other settings are not mixed in."""
    whole = contents(tiny("whole"))
    encode = rows.encode
    seen = []

    def interrupted(*args):
        seen.append(args)
        if len(seen) in (250, 550):  # in the third piece of 96
            raise KeyboardInterrupt
        return encode(*args)

    monkeypatch.setattr(rows, "encode", interrupted)
    for length in 64, 63:
        with pytest.raises(KeyboardInterrupt):
            tiny(length=length)
    assert not Path("out").exists()
    assert contents(tiny()) == whole and not Path("out.partial").exists()
    assert len(seen) == 550 + 432 - 192


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prompt": "ask"}, "expected --source, and --prompt and --response, or --text alone"),
        ({"prompt": "asks", "response": "say"}, r"Column name \['asks'\] not in .*'ask', 'say'"),
        ({"source": "none.jsonl"}, "cannot read none.jsonl: no such file"),
        ({"source": "damaged.jsonl"}, "cannot read damaged.jsonl: JSON parse error.* in row 1"),
        ({"source": "a.tiktoken"}, "a.tiktoken: expected files of .jsonl, .json, .parquet, .txt"),
        ({"tokenizer": "none.json"}, "No such file or directory: 'none.json'"),
        ({"tokenizer": "pairs.jsonl"}, "pairs.jsonl is no .tiktoken file or tokenizer.json"),
        ({"val": 1e-9}, "'val': 0.*dropped: 2 unusable; expected some in each"),
        ({"source": "one.jsonl", "prompt": "ask", "response": "say"}, "the same prompt stay toget"),
        ({"length": 70_000}, "length=70000: expected 2 to 65,535 tokens"),
    ],
)
def test_mistakes_are_named(call, settings, message):
    field = {} if "prompt" in settings else {"text": "say"}
    with pytest.raises((ValueError, OSError), match=message):
        call(**{"source": "pairs.jsonl"} | field | settings)


def test_the_hub_is_asked_and_a_failure_says_what_to_do(monkeypatch):
    def load_dataset(*args, split):
        assert (args, split) == (("me/set", "main"), "test")
        return datasets.Dataset.from_list([{"say": "b", "ask": "a"}])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert [*rows.load("me/set", ["ask", "say"], "main", "test")] == [{"ask": "a", "say": "b"}]
    with pytest.raises(OSError, match=r"cannot read other from the hub; download its files"):
        rows.load("other", ["ask"])


# -- the tokenizer ---------------------------------------------------------------------------------
def textbook(text):
    """Ids by trying, in order of rank, every merge in every place."""
    lines = map(bytes.split, VOCABULARY.content.splitlines())
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    ids = []
    for word in regex.findall(rows.PATTERN, unicodedata.normalize("NFC", text)):
        parts = [bytes([byte]) for byte in word.encode()]
        while pairs := [i for i in range(len(parts) - 1) if parts[i] + parts[i + 1] in ranks]:
            i = min(pairs, key=lambda i: ranks[parts[i] + parts[i + 1]])
            parts = [*parts[:i], parts[i] + parts[i + 1], *parts[i + 2 :]]
        ids += [ranks[part] for part in parts]
    return ids


def test_ids_are_those_of_the_textbook_and_text_survives():
    words = "I", "'ve", " ", "1", "2", " apples", ",\n\n", " ", " so", "?"
    assert regex.findall(rows.PATTERN, "".join(words)) == [*words]
    rng = random.Random(0)
    ranges = [(32, 127), (0, 0x300), (0x300, 0x370), (0x1F300, 0x1F700), (0xAC00, 0xD7A4)]
    noise = ["".join(chr(rng.randrange(*rng.choice(ranges))) for _ in range(40)) for _ in range(50)]
    letters = ["".join(rng.choices("abc ", k=30)) for _ in range(300)]
    for each in TEXTS + letters + noise:
        ids = VOCABULARY.encode(each)
        assert ids == textbook(each)
        assert VOCABULARY.decode(ids) == unicodedata.normalize("NFC", each)


def test_special_ids_show_and_special_strings_are_text(folder):
    """Also where a tokenizer.json has tokens of its own; Dream's take their places."""
    for name, kind in itertools.product(("a.tiktoken", "tokenizer.json"), ("plain", "dream")):
        coder = rows.tokenizer(folder / name, kind)
        n, mask = coder.end, coder.mask
        assert (mask - n, coder.vocab_size - n) == ((1, 2) if kind == "plain" else (23, 421))
        ids = coder.encode("a<|endoftext|><s><think>")
        assert coder.decode([*ids, mask, n]) == "a<|endoftext|><s><think><|mask|><|endoftext|>"
        assert max(ids) < n and coder.text(np.array([*ids[:2], n, mask])) == coder.decode(ids[:2])
    assert coder.decode([n + 1, n + 2, n + 3]) == f"<|im_start|><|im_end|><|{n + 3}|>"
    made = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    coder = rows.tokenizer(folder)  # the folder with it
    assert [coder.encode(text) for text in TEXTS] == [made.encode(text).ids for text in TEXTS]
    assert coder.end == made.get_vocab_size()
    assert rows.tokenizer(folder, "dream").end == made.get_vocab_size(with_added_tokens=False)
    assert made.token_to_id("<s>") not in coder.encode("a<s>")


def test_what_is_no_table_of_ranks_fails(tmp_path):
    lines = VOCABULARY.content.splitlines(keepends=True)
    for content in b"[]", b"YQ== x\n", b"\xff 1\n", b"".join(lines[:-2] + lines[-1:]), b"YWI= 0":
        (tmp_path / "a.tiktoken").write_bytes(content)
        with pytest.raises(ValueError, match=r"a\.tiktoken is no .tiktoken file"):
            rows.tokenizer(tmp_path / "a.tiktoken")


def test_download_is_verified(tmp_path, monkeypatch):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(rows, "QWEN2", str(tmp_path / "a.tiktoken"))
    (tmp_path / "a.tiktoken").write_bytes(VOCABULARY.content)
    with pytest.raises(OSError, match=r"cannot download .* with --tokenizer=PATH: Hash mismatch"):
        rows.tokenizer("")
    monkeypatch.setattr(rows, "QWEN2_SHA256", hashlib.sha256(VOCABULARY.content).hexdigest())
    assert rows.tokenizer("", "dream").content == VOCABULARY.content


def test_what_a_tokenizer_loses_is_said(capsys):
    class Lossy:
        encode = staticmethod(str.split)
        decode_text = staticmethod(" ".join)

    told = [("how " * i + "much", say) for i in range(20) for say in ("it is", "it  is")]
    assert rows.say_what_is_lost(Lossy, told) == 40
    said = "the tokenizer changes 40 of the first rows: 'much\\nit is' to 'much it is'\n"
    assert said in capsys.readouterr().out
    assert rows.say_what_is_lost(VOCABULARY, told) == 0 and not capsys.readouterr().out


@pytest.mark.parametrize("name", ["a.tiktoken", "tokenizer.json"])
def test_a_typed_prompt_is_that_of_training_and_shows(call, name):
    out = call(source="pairs.jsonl", prompt="ask", response="say", tokenizer=name)
    task = own_text.load(out, 1)
    x0, given = task.train[:1]
    said = task.tokenizer.decode(x0[given])
    typed, prompt = task.parse(f"\n{said}\n")
    assert (prompt == given).all() and (typed[prompt] == x0[given]).all()
    x0[0, 0] = task.mask_token
    assert task.render(typed[0], prompt[0]) == said
    assert task.render(x0[0], given[0])[0] == "\N{LIGHT SHADE}"
    with pytest.raises(SystemExit, match="no room in rows of 64"):
        task.parse("Who is " * 99)
    numbers = text.load(out, 1)
    assert numbers.render(typed[0], prompt[0]).split() == [*map(str, typed[prompt])]


def test_keys_ignore_form_only():
    same = "Ann has 1.5 pens.", "  ann has 1.5\npens", "ANN has 1,5 (pens)", "Ann has \uff11.5 pens"
    other = "Ann has 15 pens.", "Ann has 1.5 pen s.", "Anna has 1.5 pens."
    assert len({rows.question_key(question) for question in same}) == 1
    assert len({rows.question_key(question) for question in same + other}) == 4
    drawn = "+ + X +\n+ @ - +", "+ - X +\n+ @ + +", "A# #B", "#A B#"  # all have one word or two
    assert len({rows.question_key(each) for each in drawn}) == 4
    assert rows.question_key(same[0]) == 1198275333716499575  # on every machine: splits rest on it


@pytest.mark.parametrize("scheme", ["always", "first", "never"])
def test_a_long_document_is_encoded_as_a_whole(scheme):
    """Although some tokenizers put a blank before whatever they are given."""
    draw = random.Random(0)
    words = (draw.choice(["the", "cat", "sat"]) + " " * draw.randint(1, 3) for _ in range(200))
    text = "".join(words) + "end"
    ids = {symbol: i for i, symbol in enumerate(sorted({*text, "\u2581"}))}
    library = tokenizers.Tokenizer(tokenizers.models.BPE(ids, []))
    library.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme=scheme)
    coder = rows.of_json(library.to_str().encode(), "plain")
    with patch.object(rows, "DOCUMENT", 40):
        assert rows.document(coder, text) == ([], [*coder.encode(text), coder.end])
