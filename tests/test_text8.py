"""data/text8: the file, its likeness, generated text. Oracles: slow loops, own texts."""

import hashlib
import json
import math
import re
import zipfile

import numpy as np
import pytest
from conftest import ROOT, evaluate, run_script, train

from configurator import read_keys
from data import corpus
from data.corpus import Examples
from data.text8 import generated, prepare

TEXT = "".join("abc de fgh ij"[i % 13 - i // 13 % 5] for i in range(4000))


@pytest.fixture
def call(monkeypatch, tmp_path):
    """Run the script's main with settings; the folder it wrote."""

    def call(**settings):
        keys = read_keys((ROOT / "data" / "text8" / "prepare.py").read_text())
        given = {name: key.default for name, key in keys.items()}
        given |= {"out": str(tmp_path / "out"), "length": 16} | settings
        for name, value in given.items():
            monkeypatch.setattr(prepare, name, value)
        prepare.main()
        return tmp_path / "out"

    return call


def text_of(folder, split):
    encoding, examples = corpus.load_tokenizer(folder), Examples(folder, split)
    x0, prompt = examples[np.arange(len(examples))]
    assert not prompt.any() and x0.max() < encoding.end == 27
    return encoding.decode(x0.ravel())


@pytest.mark.parametrize("packed", ["plain", "zip"])
def test_the_split_and_its_rows(call, tmp_path, packed, capsys, monkeypatch):
    monkeypatch.setattr(prepare, "ROWS", 7)
    path = tmp_path / "text8"
    path.write_text(TEXT)
    if packed == "zip":
        with zipfile.ZipFile(tmp_path / "text8.zip", "w") as archive:
            archive.write(path, "text8")
        path = tmp_path / "text8.zip"
    folder = call(source=str(path))
    ends = {"train": (0, 3600), "val": (3600, 3800), "test": (3800, 4000)}
    for split, (begin, end) in ends.items():
        whole = TEXT[begin:end]
        assert text_of(folder, split) == whole[: len(whole) // 16 * 16]
    assert corpus.read_header(folder)["dropped"] == {"tokens_left_over": 16}
    assert "4,000 characters, not text8 as published" in capsys.readouterr().out


def test_text8_itself_is_recognised(call, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(prepare, "MD5", hashlib.md5(TEXT.encode()).hexdigest())
    (tmp_path / "text8").write_text(TEXT)
    assert corpus.read_header(call(source=str(tmp_path / "text8")))["source"]["text8"] is True
    assert "4,000 characters, text8 as published" in capsys.readouterr().out


def slow(text):
    """As the last lines of wikifil.pl say, a character at a time."""
    out = " "
    for c in text:
        word = f" {prepare.DIGITS[int(c)]} " if c in "0123456789" else c.lower()
        for each in word:
            each = each if each in prepare.LETTERS else " "
            out += "" if each == " " == out[-1] else each
    return out[1:]


def test_any_text_made_like_text8():
    text = "In 1984, O'Brien's caf\u00e9 -- 42% CHEAPER!\r\n\tYes; no."
    ascii_text = text.encode().decode("ascii", "replace")
    found = prepare.like_text8(text.encode()).decode()
    assert found == slow(ascii_text.replace("\ufffd", "?"))
    assert found == "in one nine eight four o brien s caf four two cheaper yes no "


@pytest.mark.parametrize(
    "content, settings, message",
    [
        (b"abC", {}, r"b'C' at byte 2, expected a to z and space alone; --normalise"),
        (b"abc" * 106, {}, r"318 characters, expected at least 320"),
        (b"abc", {"source": ""}, r"expected text8 from http"),
    ],
)
def test_mistakes_are_named(call, tmp_path, content, settings, message):
    (tmp_path / "text8").write_bytes(content)
    with pytest.raises((ValueError, OSError), match=message):
        call(**{"source": str(tmp_path / "text8")} | settings)
    assert not (tmp_path / "out").exists()
    (tmp_path / "a.zip").write_bytes(b"PK no zip")
    with pytest.raises(ValueError, match=r"a\.zip: expected a \.zip of one file"):
        call(source=str(tmp_path / "a.zip"))


def test_download(call, monkeypatch, tmp_path):
    monkeypatch.setattr(prepare, "HERE", tmp_path)
    monkeypatch.setattr(prepare, "URL", (tmp_path / "there.zip").as_uri())
    with pytest.raises(OSError, match="urlopen error"):
        call(source="download")
    with zipfile.ZipFile(tmp_path / "there.zip", "w") as archive:
        archive.writestr("text8", TEXT)
    assert text_of(call(source="download"), "train") == TEXT[:3600]


def test_generated_text_shares_no_problem(monkeypatch, tmp_path):
    monkeypatch.setattr(generated, "FOLDER", tmp_path)
    monkeypatch.setattr(generated, "HELD_OUT", 40)
    folder = generated.make_once(100, 64)
    problems = generated.generate.make_problems(100, "train")
    words = re.sub(
        r"\d", lambda d: f" {prepare.DIGITS[int(d[0])]} ", " ".join(p[0] for p in problems)
    )
    words = re.sub("[^a-z]+", " ", words.lower())
    assert text_of(folder, "train") == words[: len(words) // 64 * 64]
    assert len(text_of(folder, "val")) > 2000 < len(text_of(folder, "test"))
    assert generated.make_once(100, 64) == folder and len([*tmp_path.iterdir()]) == 1


def test_the_laptop_run_in_bits_per_character(monkeypatch, tmp_path):
    """The loss of a character is that of a token here: bits are nats over log 2."""
    monkeypatch.setattr(generated, "FOLDER", tmp_path)
    monkeypatch.setattr(generated, "HELD_OUT", 20)
    flags = "--train_examples=50", "--test_examples=8", "--text_length=64", "--max_iters=3"
    train(tmp_path / "run", "config/text_mini.py", "--eval_interval=3", *flags)
    printed = evaluate(tmp_path / "run", "--nelbo", "--masks=2", "--problems=test")
    found = json.loads((tmp_path / "run" / "nelbo.json").read_text())
    assert found["set"] == "test" and "bits per character" in printed
    assert found["bits_per_character"] == pytest.approx(found["per_token"] / math.log(2))
    assert found["per_token"] == found["per_token_without_padding"]
    printed = run_script(
        "sample.py", f"--out_dir={tmp_path}/run", "--prompt=tom has ", "--reveal=9"
    )
    assert re.match("tom has [a-z ]", printed)
    with pytest.raises(SystemExit, match="the text has 'T': expected characters of"):
        run_script("sample.py", f"--out_dir={tmp_path}/run", "--prompt=Tom")
