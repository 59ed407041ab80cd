"""data/tinygsm/prepare.py on small sources. Oracle: each row's fate, decided here by hand."""

import hashlib
import json
import os

import numpy as np
import pytest
from conftest import HOUSE, run_main
from toys import contents, first_ranks, write_lines

from data import corpus, prepare_rows
from data.corpus import Examples, question_key
from data.tinygsm import prepare
from data.tokenizer import to_text
from data.vocabularies import open_kept

ROWS = [
    {"question": f"Ann has {i} pens and buys {i % 7}. How many?", "code": f"result = {i} + {i % 7}"}
    for i in range(400)
]
HELD_OUT = next(row for row in ROWS[50:] if question_key(row["question"]) < 0.1 * 2**64)
TEST = [
    {"question": HELD_OUT["question"].upper(), "answer": "#### 1"},
    {"question": "Ann has 3 pens and buys 3. How many?", "answer": "3 + 3 = 6\n#### 6"},
    {"question": "Bo\u2019s salary?", "answer": "He says #### 7.\n#### 1,000"},
]
UNUSABLE = [
    "not json", "[1]", "{}", '{"question": "Why?"}', '{"question": "Why?", "code": 3}',
    '{"question": " ", "code": "x"}', '{"question": "Why?", "code": "\\n"}',
]  # fmt: skip
LONG = {"question": "Why?", "code": "result = 1" + " + 1" * 100}
LEAK = {"question": "ann has 3 pens, and buys 3: how many", "code": "result = 6"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    rows = ROWS
    mixed = [*rows[:50], *UNUSABLE, "", LONG, LEAK, *rows[50:], *rows[:30]]
    write_lines(folder / "tiny.jsonl", mixed)
    write_lines(folder / "test.jsonl", TEST)
    (folder / "r.tiktoken").write_bytes(to_text(first_ranks(300)))
    return folder


@pytest.fixture
def run(monkeypatch, files, tmp_path):
    """Run the script's main with settings; the folder it wrote."""

    def run(**settings):
        paths = {"source": "tiny.jsonl", "gsm8k": "test.jsonl", "tokenizer": "r.tiktoken"}
        defaults = {name: str(files / file) for name, file in paths.items()}
        defaults |= {"out": str(tmp_path / "out"), "length": 64, "val": 0.1, "workers": 1}
        defaults |= {"code": "code", "limit": None}
        return run_main(prepare, **defaults | settings)

    monkeypatch.setattr(prepare_rows, "PIECE", 96)
    monkeypatch.setattr(prepare_rows, "CHUNK", 32)
    return run


def texts(folder, split):
    """What each row of the split says, up to the end."""
    encoding = open_kept(folder / "tokenizer.tiktoken")
    x0, _ = Examples(folder, split)[np.arange(len(Examples(folder, split)))]
    return [encoding.decode(row[row != encoding.end]) for row in x0]


def test_every_row_is_where_it_belongs(run, capsys):
    folder = run()
    kept = [row for row in ROWS + ROWS[:30] if row not in (ROWS[3], HELD_OUT)]
    expected = {"train": [], "val": []}
    for row in kept:
        split = "val" if question_key(row["question"]) < 0.1 * 2**64 else "train"
        expected[split].append(row["question"] + "\n" + row["code"])
    assert {split: texts(folder, split) for split in expected} == expected
    assert 20 < len(expected["val"]) < 70
    header = json.loads((folder / "header.json").read_text())
    assert header["dropped"] == {"unusable": len(UNUSABLE), "gsm8k_test": 4, "too_long": 1}
    test = [json.loads(line) for line in (folder / "test.jsonl").read_text().splitlines()]
    assert test == TEST
    printed = capsys.readouterr().out
    assert "not GSM8K's test set as published" in printed
    assert "4 gsm8k_test (first in row 4)" in printed


def test_interrupted_it_goes_on_and_gives_the_same_bytes(run, monkeypatch, tmp_path):
    """Pieces that were finished are not encoded again; other settings are not mixed with them."""
    whole = contents(run(out=str(tmp_path / "whole")))
    encode, calls = corpus.encode, []

    def interrupted(tokenizer, pairs, *args):
        calls.append(len(pairs))
        if len(calls) in (5, 10):  # in the second piece of three chunks
            raise KeyboardInterrupt
        return encode(tokenizer, pairs, *args)

    monkeypatch.setattr(corpus, "encode", interrupted)
    for settings in ({"length": 20}, {}):
        with pytest.raises(KeyboardInterrupt):
            run(**settings)
    assert not (tmp_path / "out").exists()
    assert contents(run()) == whole
    assert len(calls) == 10 + 14 - 3  # chunks of 440 rows
    with pytest.raises(FileExistsError, match="remove it"):
        run()


def test_a_source_that_changed_is_read_anew(run, monkeypatch, tmp_path):
    """Though it has the size and the time of the one that was read before the interruption."""
    source = write_lines(tmp_path / "a.jsonl", ROWS)
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(prepare, "write_rows", lambda *args: [*args[1]] and 1 / 0)
        run(source=str(source))
    before = source.stat()
    source.write_text(source.read_text().replace("Ann", "Bob"))
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    folder = run(source=str(source))
    assert all(text.startswith("Bob") for text in texts(folder, "train") + texts(folder, "val"))


def test_another_field_for_the_code(run, files, tmp_path):
    source = write_lines(tmp_path / "gsm8k.jsonl", TEST)
    other = {"question": "Ann?", "answer": "#### 1"}
    test = write_lines(tmp_path / "other.jsonl", [other])
    folder = run(source=str(source), code="answer", val=0.3, gsm8k=str(test))
    found = texts(folder, "train") + texts(folder, "val")
    assert sorted(found) == sorted(f"{row['question']}\n{row['answer']}" for row in TEST)
    with pytest.raises(ValueError, match=r"line 1 has no field 'answer', but code, question"):
        run(gsm8k=str(write_lines(tmp_path / "rows.jsonl", ROWS[:1])))


def test_published_checksum(run):
    file = HOUSE.parent / "shared" / "data" / "gsm8k" / "test.jsonl"
    if not file.exists():
        pytest.skip("GSM8K is not here")
    folder = run(gsm8k=str(file), limit=10)
    header = json.loads((folder / "header.json").read_text())
    assert header["source"]["gsm8k_test"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert header["source"]["gsm8k_test"] == prepare.SHA256
    assert len((folder / "test.jsonl").read_text().splitlines()) == 1319
