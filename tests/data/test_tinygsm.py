"""data/tinygsm/prepare.py, and how it goes on after an interruption. Oracle: each row's fate,
decided here by hand."""

import hashlib
import json
import os
import re

import pytest
from small import RANKS, contents, header, run_main, write_lines

import text
from data import corpus
from data.corpus import question_key
from data.tinygsm import prepare
from data.tokenizer import to_text

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


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run the script on mixed rows; the folder it wrote."""
    mixed = [*ROWS[:50], *UNUSABLE, "", LONG, LEAK, *ROWS[50:], *ROWS[:30]]
    write_lines(tmp_path / "tiny.jsonl", mixed)
    write_lines(tmp_path / "test.jsonl", [*TEST, " "])
    (tmp_path / "r.tiktoken").write_bytes(to_text(RANKS))
    monkeypatch.chdir(tmp_path)
    files = {"source": "tiny.jsonl", "gsm8k": "test.jsonl", "tokenizer": "r.tiktoken"}
    return lambda out="out", **settings: run_main(prepare, tmp_path / out, **files | settings)


def texts(folder, split):
    """What each row of train or test says, up to the end."""
    task = text.load(folder, None)
    x0, prompt = getattr(task, split)[:]
    return [task.render(*row) for row in zip(x0, prompt, strict=True)]


def test_every_row_is_where_it_belongs(run, capsys):
    folder = run()
    expected = {"train": [], "test": []}
    for row in ROWS + ROWS[:30]:
        if row not in (ROWS[3], HELD_OUT):
            split = "test" if question_key(row["question"]) < 0.1 * 2**64 else "train"
            expected[split].append(row["question"] + "\n" + row["code"])
    assert {split: texts(folder, split) for split in expected} == expected
    assert 20 < len(expected["test"]) < 70
    assert header(folder)["dropped"] == {"unusable": 7, "gsm8k_test": 4, "too_long": 1}
    assert [*map(json.loads, (folder / "test.jsonl").read_text().splitlines())] == TEST
    assert "4 gsm8k_test (first in row 4)" in capsys.readouterr().out


def test_interrupted_it_goes_on_and_gives_the_same_bytes(run, monkeypatch, tmp_path):
    """Pieces that were finished are not encoded again; not mixed in are those of other settings,
    nor of another source, though it has the name, the size and the time of the last."""
    whole = contents(run("whole"))
    encode = corpus.encode
    calls = []

    def interrupted(tokenizer, pairs, *args):
        calls.append(len(pairs))
        if len(calls) in (5, 10, 15):  # in the second piece of three chunks
            raise KeyboardInterrupt
        return encode(tokenizer, pairs, *args)

    monkeypatch.setattr(corpus, "encode", interrupted)
    source = tmp_path / "tiny.jsonl"
    for length, name in (64, "Bob"), (20, "Ann"), (64, "Ann"):
        source.write_text(re.sub("Ann|Bob", name, source.read_text()))
        os.utime(source, (0, 0))
        with pytest.raises(KeyboardInterrupt):
            run(length=length)
        (tmp_path / "out.partial" / "old.jsonl").touch()
    assert not (tmp_path / "out").exists()
    assert contents(run()) == whole and not (tmp_path / "out.partial").exists()
    assert len(calls) == 15 + 14 - 3  # chunks of 440 rows
    with pytest.raises(FileExistsError, match="remove it"):
        run()


def test_another_field_for_the_code_and_the_published_test_set(run, monkeypatch, tmp_path, capsys):
    content = write_lines(tmp_path / "own.jsonl", [{"question": "Bo?", "answer": "1"}]).read_bytes()
    monkeypatch.setattr(prepare, "SHA256", hashlib.sha256(content).hexdigest())
    with pytest.raises(ValueError, match=r"3 rows read, .* dropped: 3 gsm8k_test"):
        run("none", source="test.jsonl", code="answer")
    assert "not GSM8K's test set as published" in capsys.readouterr().out
    folder = run(source="test.jsonl", code="answer", gsm8k="own.jsonl", val=0.3)
    assert "published" not in capsys.readouterr().out
    found = texts(folder, "train") + texts(folder, "test")
    assert sorted(found) == sorted(f"{row['question']}\n{row['answer']}" for row in TEST)
    for row, message in (ROWS[0], "has no field 'answer', but code, question"), (" ", "is empty"):
        write_lines(tmp_path / "own.jsonl", [row])
        with pytest.raises(ValueError, match=message):
            run("none", gsm8k="own.jsonl")
