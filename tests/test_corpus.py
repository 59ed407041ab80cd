"""Oracle: rows made one by one with Python lists."""

import json
import random

import numpy as np
import pytest

from data.corpus import Examples, Writer, encode, prompt_text, question_key
from data.tokenizer import Tokenizer, load
from data.wordproblems.train_tokenizer import train_ranks
from example_queue import ExampleQueue

LENGTH = 37
PAIRS = [
    (
        f"Ann has {a} pens and buys {b}. How many?",
        f"def f():\n    return {a} + {b}" + " + 0" * (a % 5),
    )
    for a, b in (divmod(i, 10) for i in range(60))
]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer(train_ranks([text for pair in PAIRS for text in pair], 290))


def row(tokenizer, pair, length):
    """An example as a list, and its prompt, slowly; None if it doesn't fit."""
    given = tokenizer.encode(pair[0] + "\n")
    ids = given + tokenizer.encode(pair[1]) + [tokenizer.end]
    if len(ids) > length:
        return None
    ids += [tokenizer.end] * (length - len(ids))
    return ids, [True] * len(given) + [False] * (length - len(given))


def write(folder, tokenizer, pairs=PAIRS, length=LENGTH):
    writer = Writer(folder, tokenizer, length, "test")
    for at in range(0, len(pairs), 7):
        encoded, dropped = encode(tokenizer, pairs[at : at + 7], length)
        writer.add("val" if at % 3 == 1 else "train", encoded)
        writer.dropped.update(dropped)
    return writer.finish()


def expected(tokenizer, split):
    chosen = [p for at, p in enumerate(PAIRS) if (at // 7 * 7 % 3 == 1) == (split == "val")]
    return [row(tokenizer, p, LENGTH) for p in chosen if row(tokenizer, p, LENGTH)]


def test_rows_as_made_one_by_one(tmp_path, tokenizer):
    header = write(tmp_path / "set", tokenizer)
    assert header == json.loads((tmp_path / "set" / "header.json").read_text())
    kept = 0
    for split in ("train", "val"):
        data, rows = Examples(tmp_path / "set", split), expected(tokenizer, split)
        assert len(data) == len(rows) == header["splits"][split]["examples"] > 5
        order = np.random.default_rng(0).permutation(len(rows))
        x0, prompt = data[order]
        assert x0.tolist() == [rows[i][0] for i in order]
        assert prompt.tolist() == [rows[i][1] for i in order]
        assert prompt.dtype == bool and (~prompt).any(1).all()
        kept += len(rows)
    assert header["dropped"] == {"too_long": len(PAIRS) - kept} and kept < len(PAIRS)
    assert data.end == 290 and data.length == LENGTH


def test_folder_has_its_tokenizer(tmp_path, tokenizer):
    header = write(tmp_path / "set", tokenizer)
    found = load(tmp_path / "set" / "tokenizer.tiktoken")
    assert found.checksum == tokenizer.checksum == header["tokenizer"]["checksum"]
    x0, prompt = Examples(tmp_path / "set", "train")[[0]]
    assert found.decode(x0[0][prompt[0]]) == prompt_text(PAIRS[0][0])


def test_length_that_just_fits(tokenizer):
    needed = (
        len(tokenizer.encode(prompt_text(PAIRS[0][0]))) + len(tokenizer.encode(PAIRS[0][1])) + 1
    )
    given = len(tokenizer.encode(prompt_text(PAIRS[0][0])))
    for length, count, dropped in [
        (needed, 1, {}),
        (needed - 1, 0, {"too_long": 1}),
        (given, 0, {"prompt_too_long": 1}),
    ]:
        encoded, found = encode(tokenizer, PAIRS[:1], length)
        assert (len(encoded.lengths), dict(found)) == (count, dropped)


def test_text_that_would_overflow_the_encoder_is_too_long(tokenizer):
    blanks = " " * 3_000_000
    _, dropped = encode(tokenizer, [("Why?", blanks + "x"), ("Why" + blanks + "not?", "x")], 512)
    assert dropped == {"too_long": 1, "prompt_too_long": 1}


def test_select(tokenizer):
    whole, _ = encode(tokenizer, PAIRS, 100)
    odd, _ = encode(tokenizer, PAIRS[1::2], 100)
    selected = whole.select(np.arange(len(PAIRS)) % 2 == 1)
    assert all(np.array_equal(a, b) for a, b in zip(selected, odd, strict=True))


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


def test_interrupted_writer_goes_on_from_its_commit(tmp_path, tokenizer):
    """Whatever was written after the commit, and wherever it broke off."""
    write(tmp_path / "whole", tokenizer)
    rng = random.Random(0)
    for trial in range(4):
        folder, at, done = tmp_path / f"parts{trial}", 0, False
        while not done:
            writer = Writer(folder, tokenizer, LENGTH, "test")
            at = writer.progress or 0
            stop = at + 7 * rng.randrange(1, 5)
            while at < min(stop, len(PAIRS)):
                encoded, dropped = encode(tokenizer, PAIRS[at : at + 7], LENGTH)
                writer.add("val" if at % 3 == 1 else "train", encoded)
                writer.dropped.update(dropped)
                at += 7
                if rng.random() < 0.7:
                    writer.commit(at)
            assert not folder.exists()
            done = at >= len(PAIRS)
        writer.finish()
        assert contents(folder) == contents(tmp_path / "whole")


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_what_cannot_be_written_or_read(tmp_path, tokenizer):
    write(tmp_path / "set", tokenizer)
    with pytest.raises(FileExistsError, match="remove it"):
        Writer(tmp_path / "set", tokenizer, LENGTH, "test")
    Writer(tmp_path / "other", tokenizer, LENGTH, "test").commit()
    for length, source in ((LENGTH + 1, "test"), (LENGTH, "elsewhere")):
        with pytest.raises(ValueError, match="another source or other settings"):
            Writer(tmp_path / "other", tokenizer, length, source)
    with pytest.raises(ValueError, match="length=65536"):
        Writer(tmp_path / "new", tokenizer, 1 << 16, "test")
    with pytest.raises(FileNotFoundError, match="not a prepared corpus"):
        Examples(tmp_path / "other.partial", "train")
    with pytest.raises(ValueError, match=r"train.*val.*not 'test'"):
        Examples(tmp_path / "set", "test")
    header = json.loads((tmp_path / "set" / "header.json").read_text())
    (tmp_path / "set" / "header.json").write_text(json.dumps(header | {"format": 0}))
    with pytest.raises(ValueError, match="has format 0"):
        Examples(tmp_path / "set", "train")


def test_empty_split(tmp_path, tokenizer):
    Writer(tmp_path / "set", tokenizer, LENGTH, "test").finish()
    assert len(Examples(tmp_path / "set", "val")) == 0


def test_queue_takes_it(tmp_path, tokenizer):
    write(tmp_path / "set", tokenizer)
    data = Examples(tmp_path / "set", "train")
    queue = ExampleQueue(data, 4)
    queue.top_up()
    x0, prompt, _ = queue.take(queue.taken.new_ones(4).bool())
    rows = {tuple(row) for row in data[np.arange(len(data))][0].tolist()}
    assert {tuple(row) for row in x0.tolist()} <= rows and x0.shape == prompt.shape
