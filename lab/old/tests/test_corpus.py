"""Oracle: rows made one by one with Python lists."""

import json

import numpy as np
import pytest
from toys import contents, first_ranks, flipped

from data import corpus, files
from data.corpus import Examples, Writer, encode, question_key
from data.tokenizer import Tokenizer

LENGTH = 60
PAIRS = [
    (
        f"Ann has {a} pens and buys {b}. How many?",
        f"def f():\n    return {a} + {b}" + " + 0" * (a % 5),
    )
    for a, b in (divmod(i, 10) for i in range(60))
]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer(first_ranks(290))


def write(folder, tokenizer, pairs=PAIRS, length=LENGTH):
    writer = Writer(folder, tokenizer, length, {"rows": 1})
    for at in range(0, len(pairs), 7):
        encoded, reasons = encode(tokenizer, pairs[at : at + 7], length)
        writer.add("val" if at % 3 == 1 else "train", encoded)
        writer.dropped.update(filter(None, reasons))
    return writer.finish()


def test_rows_as_made_one_by_one(tmp_path, tokenizer):
    rows, end = {"train": [], "val": []}, tokenizer.end
    for at, (question, answer) in enumerate(PAIRS):
        given = tokenizer.encode(question + "\n")
        ids = given + tokenizer.encode(answer) + [end]
        if len(ids) <= LENGTH:
            ids += [end] * (LENGTH - len(ids))
            split = "val" if at // 7 * 7 % 3 == 1 else "train"
            rows[split].append((ids, [place < len(given) for place in range(LENGTH)]))

    header = write(tmp_path / "set", tokenizer)
    assert header == json.loads((tmp_path / "set" / "header.json").read_text())
    for split, expected in rows.items():
        data = Examples(tmp_path / "set", split)
        assert len(data) == len(expected) == header["splits"][split]["examples"] > 5
        order = np.random.default_rng(0).permutation(len(data))
        x0, prompt = data[order]
        found = zip(x0.tolist(), prompt.tolist(), strict=True)
        assert [*found] == [expected[i] for i in order] and prompt.dtype == bool
    kept = sum(map(len, rows.values()))
    assert header["dropped"] == {"too_long": len(PAIRS) - kept} and kept < len(PAIRS)
    assert data.end == end == 290 and data.length == LENGTH


def test_text_that_would_overflow_the_encoder_is_too_long(tokenizer):
    blanks = " " * 3_000_000
    pairs = [("Why?", blanks + "x"), ("Why" + blanks + "not?", "x"), "unusable"]
    assert encode(tokenizer, pairs, 512)[1] == ["too_long", "prompt_too_long", "unusable"]


def test_keys_ignore_form_only():
    same = [
        "Ann has 1.5 pens.",
        "  ann has 1.5\npens",
        "ANN has 1,5 (pens)",
        "Ann has \uff11.5 pens",
    ]
    other = ["Ann has 15 pens.", "Ann has 1.5 pen s.", "Anna has 1.5 pens."]
    assert len({question_key(question) for question in same}) == 1
    assert len({question_key(question) for question in same + other}) == 4
    assert len({question_key(each) for each in ("###", " ###\n", "+-|", "$$")}) == 3
    long = "e" + "\u0301\u0316" * 500_000  # to normalise all of it would take minutes
    assert question_key(long) == question_key(long + "x") != question_key("a" + long)
    assert question_key(same[0]) == 1198275333716499575  # on every machine: splits depend on it


def test_wide_ids(tmp_path, tokenizer):
    class Wide(Tokenizer):
        def encode(self, text):
            return [70_000 + i for i in super().encode(text)]

    wide = Wide(tokenizer.ranks)
    wide.vocab_size = 80_000
    write(tmp_path / "set", wide)
    x0, _ = Examples(tmp_path / "set", "train")[np.arange(3)]
    assert x0.max() >= 70_000
    write(tmp_path / "small", tokenizer)
    dtypes = [Examples(tmp_path / name, "train").tokens.dtype for name in ("set", "small")]
    assert dtypes == [np.uint32, np.uint16]


def test_what_cannot_be_written_or_read(tmp_path, tokenizer):
    write(tmp_path / "set", tokenizer)
    with pytest.raises(FileExistsError, match="remove it"):
        Writer(tmp_path / "set", tokenizer, LENGTH, "test")
    with pytest.raises(ValueError, match=r"train.*val.*not 'test'"):
        Examples(tmp_path / "set", "test")
    header = json.loads((tmp_path / "set" / "header.json").read_text())
    (tmp_path / "set" / "header.json").write_text(json.dumps(files.sealed(header | {"format": 0})))
    with pytest.raises(ValueError, match="has format 0"):
        Examples(tmp_path / "set", "train")


def test_a_writer_that_was_interrupted_starts_anew(tmp_path, tokenizer):
    """What it left is not taken for finished, and goes, but for its cache."""
    writer = Writer(tmp_path / "set", tokenizer, LENGTH, {"rows": 1})
    writer.add("train", encode(tokenizer, PAIRS, LENGTH)[0])
    (writer.partial / "old.jsonl").touch()
    with pytest.raises(FileNotFoundError, match="not a prepared corpus"):
        Examples(tmp_path / "set.partial", "train")
    assert Writer(tmp_path / "set", tokenizer, LENGTH, {"rows": 1}).cache.exists()
    assert Writer(tmp_path / "set", tokenizer, LENGTH, {"rows": 1, "val": 0.5})
    write(tmp_path / "set", tokenizer)
    write(tmp_path / "whole", tokenizer)
    assert contents(tmp_path / "set") == contents(tmp_path / "whole")


def test_a_damaged_file_is_refused(tmp_path, tokenizer):
    """One bit of what it says, an end that is missing, nothing, a folder: all in one line that
    names the folder, the file, and the way out."""
    folder = tmp_path / "whole"
    writer = Writer(folder, tokenizer, LENGTH, "test")
    for split in ("train", "val"):
        writer.add(split, encode(tokenizer, PAIRS, LENGTH)[0])
    (writer.partial / "test.jsonl").write_text('{"question": "Why?", "answer": 1}\n')
    writer.finish()

    def read_all():
        for split in ("train", "val"):
            Examples(folder, split)
        corpus.load_tokenizer(folder)
        corpus.kept_file(folder, "test.jsonl")

    rng = np.random.default_rng(0)
    for name, content in contents(folder).items():
        start = 128 if name.endswith(".npy") else 0  # where numpy's header ends
        places = [*rng.integers(start, len(content), 5), len(content) - 1]
        bad = [flipped(content, at) for at in places]
        bad += [b"", content[:-2], b"\xff\xfe\0", b"[" * 10**5, None]
        for damaged in bad:
            if damaged is None:
                (folder / name).unlink()
            elif damaged.strip() == content.strip():
                continue  # blank space at the end of JSON
            else:
                (folder / name).write_bytes(damaged)
            with pytest.raises((ValueError, FileNotFoundError)) as error:
                read_all()
            message = str(error.value)
            assert "\n" not in message and str(folder) in message and name in message, message
            assert "delete" in message or "no header.json" in message
        (folder / name).write_bytes(content)
    read_all()
