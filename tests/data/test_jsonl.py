"""data/jsonl/prepare.py and data/corpus.py, read back by text.py. Oracles: each row's fate decided
by hand, rows put together with Python lists, Hugging Face's library itself."""

import json
from types import SimpleNamespace

import datasets
import huggingface_hub
import numpy as np
import pyarrow.parquet
import pytest
from small import VOCABULARY, contents, header, run_main, write_lines

import text
from data import corpus, vocabularies
from data.corpus import question_key
from data.jsonl import prepare

PAIRS = [{"ask": f"How much is {i} + {i % 7}?", "say": f"It is {i + i % 7}."} for i in range(300)]
PAIRS.append({"ask": "Why?", "say": "x" * 58})
DOCUMENTS = [f"caf\u00e9 number {i}: " + "the cat sat. " * (i % 9) for i in range(200)]
LONG = ["".join(f"{i} " for i in range(30_000)), "c" * 100, "b" * 100]  # longer than any row
PARAGRAPHS = [f"a{n}\nb{n}\n" for n in range(40)]
BAD = [b"not json", b"{}", b'{"ask": "Why?"}', b'{"ask": " ", "say": "x", "text": " "}']
NO_TEXT = [b'{"ask": "caf\xe9?", "say": "x"}', b'{"ask": "half?", "say": "\\ud800"}', b'{"ask": 3}']


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    long = [{"ask": "Why?", "say": "x" * 59}, {"ask": "x" * 63, "say": "y"}]  # by one token
    lines = [json.dumps(row).encode() for row in [*PAIRS[:9], *long, *PAIRS[9:]]]
    lines[9:9] = [*BAD, b"", b"  ", *NO_TEXT]
    (folder / "pairs.jsonl").write_bytes(b"\xef\xbb\xbf" + b"\r\n".join(lines))  # with a BOM
    write_lines(folder / "texts.jsonl", ["{}", *({"text": each} for each in DOCUMENTS)])
    write_lines(folder / "long.jsonl", [{"text": each} for each in LONG])
    (folder / "lines.txt").write_bytes("\n \n".join(PARAGRAPHS).replace("\n", "\r\n").encode())
    (folder / "array.jsonl").write_text(json.dumps(PAIRS))
    (folder / "indented.jsonl").write_text("\n".join(json.dumps(row, indent=1) for row in PAIRS))
    write_lines(folder / "one.jsonl", [{"ask": "Why?", "say": f"{i}"} for i in range(60)])
    (folder / "damaged.parquet").write_bytes(b"PAR1")
    (folder / "empty.jsonl").touch()
    return folder


@pytest.fixture
def call(tmp_path, files, monkeypatch):
    """Run the script in the folder of files; the folder it wrote."""
    monkeypatch.chdir(files)
    outs = (tmp_path / f"out{i}" for i in range(9))
    return lambda **settings: run_main(prepare, next(outs), **settings)


def rows(folder, split):
    """x0 and prompt (N, L) of train or test."""
    examples = getattr(text.load(folder, None), split)
    return examples[np.arange(len(examples))]


def test_every_pair_is_where_it_belongs(call, capsys):
    folder = call(source="pairs.jsonl, ./p*s.jsonl", prompt="ask", response="say")  # read once
    held_out = {row["ask"] for row in PAIRS if question_key(row["ask"]) < 0.1 * 2**64}
    assert 10 < len(held_out) < 60
    for split in "train", "test":
        expected = [row for row in PAIRS if (row["ask"] in held_out) == (split == "test")]
        x0, prompt = rows(folder, split)
        for row, x, given in zip(expected, x0, prompt, strict=True):
            ids = [*f"{row['ask']}\n{row['say']}".encode()]
            assert x.tolist() == ids + [256] * (64 - len(ids))
            assert given.sum() == len(row["ask"]) + 1 and given[: given.sum()].all()
    assert header(folder)["dropped"] == {"unusable": 7, "too_long": 1, "prompt_too_long": 1}
    assert "dropped: 7 unusable (first in row 10), 1 too_long (first" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "texts", "val"),
    [("texts.jsonl", DOCUMENTS, 0.1), ("long.jsonl", LONG, 0.6), ("lines.txt", PARAGRAPHS, 0.5)],
)
def test_packed_rows_are_the_documents_one_after_another(call, name, texts, val):
    folder = call(source=name, text="text", val=val)
    left = 0
    for split in "train", "test":
        kept = [t for t in texts if (question_key(t) < val * 2.0**64) == (split == "test")]
        stream = [i for t in kept for i in [*t.encode(), 256]]
        x0, prompt = rows(folder, split)
        assert (x0.ravel() == stream[: x0.size]).all() and not prompt.any()
        assert 0 <= len(stream) - x0.size < 64 <= x0.size
        left += len(stream) - x0.size
    assert header(folder)["dropped"]["tokens_left_over"] == left


def test_parquet_and_the_hub_give_the_same_rows(call, monkeypatch, tmp_path):
    """Whatever the types of columns that nobody asked for, and wherever the fields stand."""
    fields = {"prompt": "ask", "response": "say"}
    for name, part, more in ("a", PAIRS[:150], 1), ("b", PAIRS[150:], "one"):
        table = [{"say": row["say"], "id": more, "ask": row["ask"]} for row in part]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(table), tmp_path / f"{name}.parquet")
    none = pyarrow.parquet.read_table(tmp_path / "a.parquet").slice(0, 0)
    pyarrow.parquet.write_table(none, tmp_path / "0.parquet")
    local = contents(call(source=f"{tmp_path}/*.parquet", **fields))

    def load_dataset(path, name, split, revision, streaming=False, cache_dir=None):
        assert (path, name, split, revision) == ("me/set", "main", "test", "abc")
        found = datasets.Dataset.from_list(PAIRS)
        return found.to_iterable_dataset() if streaming else found

    def dataset_info(self, name, revision):
        return SimpleNamespace(sha={"v1": "abc"}[revision])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", dataset_info)
    fields |= {"source": "me/set", "config": "main", "split": "test"}
    remote = contents(call(revision="v1", **fields))
    assert json.loads(remote.pop("header.json"))["source"]["rows"][0]["revision"] == "abc"
    assert local.keys() - remote.keys() == {"header.json"} and remote.items() <= local.items()
    some = call(revision="v1", limit=200, **fields)
    assert sum(len(rows(some, split)[0]) for split in ("train", "test")) == 200
    with pytest.raises(OSError, match=r"cannot read me/set .*KeyError.*supply it with --source="):
        call(revision="v2", **fields)


NO_LINE = r"no field 'say', nor any other: expected one JSON object a line"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prompt": "ask"}, "expected --prompt=FIELD and --response=FIELD, or --text"),
        ({"prompt": "asks", "response": "say"}, r"has no field 'asks', but ask, say"),
        ({"source": "empty.jsonl", "text": "say"}, NO_LINE),
        ({"source": "array.jsonl", "text": "say"}, NO_LINE),
        ({"source": "indented.jsonl", "text": "say"}, NO_LINE),
        ({"tokenizer": "none.json", "text": "text"}, "no such file; expected bytes, a .tiktoken"),
        ({"text": "ask", "val": 1e-9}, r"^310 .*'val': 0. kept, .*le .first in row 10.*--val"),
        ({"source": "one.jsonl", "prompt": "ask", "response": "say"}, "same prompt go to the same"),
        ({"source": "damaged.parquet", "text": "text"}, r"ed\.parquet: not a whole \.parquet file"),
        ({"source": "pairs.jsonl,c.jsonl", "text": "say"}, "source 'c.jsonl': no such file"),
        ({"source": "*", "text": "say"}, "expected .jsonl, .parquet or .txt files, all of one"),
        ({"text": "say", "length": 70_000}, "length=70000: expected 1 to 65,535 tokens"),
        ({"text": "say", "limit": 0}, "limit=0: expected a whole number, from 1"),
    ],
)
def test_mistakes_are_named(call, tmp_path, settings, message):
    with pytest.raises((ValueError, OSError), match=message):
        call(**{"source": "pairs.jsonl"} | settings)
    assert not (tmp_path / "out0").exists()


# -- what a tokenizer loses ------------------------------------------------------------------------
def test_what_a_tokenizer_loses_is_said(call, tmp_path, capsys):
    tokenizers = pytest.importorskip("tokenizers")
    words = {word: i for i, word in enumerate(["[UNK]", "how", "much", "is", "it"])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    told = [("how " * i + "much", said) for i in range(20) for said in ("it  is", "it is 5", "")]
    source = write_lines(tmp_path / "a.jsonl", [{"ask": q, "say": a} for q, a in told])
    fields = {"prompt": "ask", "response": "say", "val": 0.5}
    folder = call(source=str(source), tokenizer=str(tmp_path), **fields)
    assert header(folder)["lost"] == {"white space": 20, "characters": 20}
    said = "loses: 20 white space (first in row 1), 20 characters (first in row 2)\n"
    assert said in capsys.readouterr().out
    assert header(call(source=str(source), **fields))["lost"] == {}


def test_a_corpus_of_a_tokenizer_json_is_shown_and_asked(call, tmp_path):
    made = pytest.importorskip("tokenizers").ByteLevelBPETokenizer()
    made.train_from_iterator(["Why not?"] * 3, 300, show_progress=False)
    made.save(str(tmp_path / "tokenizer.json"))
    fields = {"prompt": "ask", "response": "say", "source": "pairs.jsonl", "length": 64}
    task = text.load(call(tokenizer=str(tmp_path), **fields), 1)
    x0, given = task.parse("Why \u00e9?")
    assert (
        given.sum() < len("Why \u00e9?\n".encode())
        and task.render(x0[0], given[0]) == "Why \u00e9?\n"
    )
    x0[0, 0] = task.mask_token
    assert task.render(x0[0], given[0])[0] == "\N{LIGHT SHADE}"


def test_names_of_losses():
    texts = "caf\u00e9 ", "a b\n", "A b", "A b", "a b"
    backs = "cafe\u0301 ", "ab", "a b", "ab", "a"
    assert [*map(corpus.what_is_lost, texts, backs)] == [0, 1, 2, 3, 4]
    assert [*corpus.LOSSES] == ["", "white space", "case", "case and white space", "characters"]


# -- corpus.py -------------------------------------------------------------------------------------
def test_windows_line_ends_are_newlines():
    unix, windows = "Why?\nOr\n\nnot? \n", "Why?\r\nOr\r\n\r\nnot? \r\n"
    dream = vocabularies.find("bytes", "dream")
    for form in corpus.plain, corpus.chat, corpus.document:
        assert form(dream, windows, windows, 99) == form(dream, unix, unix, 99)


def test_text_that_would_overflow_the_encoder_is_too_long():
    blanks = " " * 3_000_000
    pairs = [("Why?", blanks + "x"), ("Why" + blanks + "not?", "x"), "unusable", ("Why?", "\n")]
    reasons = corpus.encode(VOCABULARY, pairs, 512)[1]
    assert reasons == ["too_long", "prompt_too_long", "unusable", "empty"]


def test_keys_ignore_form_only():
    same = "Ann has 1.5 pens.", "  ann has 1.5\npens", "ANN has 1,5 (pens)", "Ann has \uff11.5 pens"
    other = "Ann has 15 pens.", "Ann has 1.5 pen s.", "Anna has 1.5 pens."
    assert len({question_key(question) for question in same}) == 1
    assert len({question_key(question) for question in same + other}) == 4
    assert len({question_key(each) for each in ("###", " ###\n", "+-|", "$$")}) == 3
    drawn = "+ + X +\n+ @ - +", "+ - X +\n+ @ + +", "A# #B", "#A B#"  # all have one word or two
    assert len({question_key(each) for each in drawn}) == 4
    long = "e" * corpus.QUESTION
    assert question_key(long) == question_key(long + "x") != question_key("a" + long)
    assert question_key(same[0]) == 1198275333716499575  # on every machine: splits depend on it


@pytest.mark.parametrize(("base", "dtype"), [(0, np.uint16), (70_000, np.uint32)])
def test_ids_beyond_16_bits(base, dtype, tmp_path):
    tokenizer = vocabularies.find("bytes")
    tokenizer.vocab_size = 258 + base
    tokenizer.encode = lambda text: [base + byte for byte in text.encode()]
    tokenizer.decode_text = lambda ids: bytes(i - base for i in ids).decode()
    writer = corpus.Writer(tmp_path / "out", tokenizer, 60, {})
    for split in "train", "val":
        writer.add(split, corpus.encode(tokenizer, [("Why?", "So.")] * 3, 60)[0])
    writer.finish()
    found = text.load(tmp_path / "out", None).train
    assert found.tokens.dtype == dtype
    assert (found[np.arange(3)][0][:, :8] == [base + byte for byte in b"Why?\nSo."]).all()
