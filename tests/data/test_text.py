"""lab/text.py: what a folder of rows gives to a model, what is shown, and folders that are none."""

import os
import shutil
import subprocess
import sys
import unicodedata
from html import escape
from xml.etree import ElementTree

import numpy as np
import pytest
from conftest import RANKS, ROOT, prepare, write_lines

from lab import gsm8k, text

PAIRS = [(f"a{i}\n b", f"if x:\n\ty = {i}\u3000\U0001f468\u200d\U0001f469") for i in range(60)]


@pytest.fixture
def rows(tmp_path):
    source = write_lines(tmp_path / "a.jsonl", [{"ask": ask, "say": say} for ask, say in PAIRS])
    flags = {"source": source, "prompt": "ask", "response": "say", "length": 48, "val": 0.2}
    return prepare("jsonl", **flags, out=tmp_path / "rows")


def test_a_prompt_is_that_of_training_wherever_it_comes_from(rows):
    task = text.load(rows, 1)
    x0, given = task.train[[3]]
    said = task.tokenizer.decode(x0[given])[:-1]
    windows = said.replace("\n", "\r\n")
    write_lines(rows / "test.jsonl", [{"question": f"{windows}\r\n", "answer": "#### 1"}])
    word = gsm8k.load(rows, 1)
    typed = [said, windows, f"\n\r\n{windows}\r\n\n", said.replace("\n", "\r")]
    found = [each.parse(prompt) for each in (task, word) for prompt in typed] + [word.test[:1]]
    assert all((x[prompt] == x0[given]).all() and (prompt == given).all() for x, prompt in found)
    with pytest.raises(SystemExit, match="no room in rows of 48"):
        task.parse("Who is " * 99)


def test_blanks_are_hidden_and_all_else_is_given(rows):
    for task in text.load(rows, 1), gsm8k.load(rows, 1):
        x0, given = task.parse("a{3}\r\nb{1}c{0}\n")
        ids = [97, *[task.mask_token] * 3, 10, 98, task.mask_token, *b"c{0}"]
        assert x0[0].tolist() == ids + [task.end] * (48 - len(ids))
        assert np.flatnonzero(~given[0]).tolist() == [1, 2, 3, 6]
        assert task.render(np.where(given, x0, 65)[0], given[0]) == "aAAA\nbAc{0}"
        ended = task.render(np.where(given, x0, task.end)[0], given[0])
        assert ended.replace("<|endoftext|>", "E") == "aEEE\nbEc{0}"  # what is given still shows
        with pytest.raises(SystemExit, match="48 tokens leave no room"):
            task.parse("a{47}")


def test_rows_are_padded_shown_and_judged(rows):
    task = text.load(rows, 1)
    x0, given = task.test[[1] * 5]
    shown = task.render(x0[0], given[0])
    ids = [*shown.encode()]
    assert shown in ["\n".join(pair) for pair in PAIRS]
    assert x0[0].tolist() == ids + [256] * (48 - len(ids))
    tokens = x0.copy()
    tokens[1, len(ids) + 1 :] = 65  # after the end anything may stand
    tokens[2, len(ids)] = 65
    tokens[3, len(ids) - 1] = task.end  # cut short
    tokens[4, 0] = task.mask_token  # of the prompt, which is given
    assert task.judge(tokens, x0, given).tolist() == [True, True, False, False, True]
    assert task.render(tokens[4], given[4]) == "\N{LIGHT SHADE}" + shown[1:]


def test_what_a_terminal_obeys_or_an_svg_may_not_have_is_taken_away_and_nothing_else():
    every = "".join(map(chr, range(0x20000)))
    embed = "LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"
    shown = text.printable(every)
    gone = {c for c in every if unicodedata.category(c) in ("Cc", "Cs")} - {"\n", "\t"}
    gone |= {c for c in every if unicodedata.bidirectional(c) in embed} | {"\ufffe", "\uffff"}
    assert shown == "".join(c for c in every if c not in gone)
    ElementTree.fromstring(f"<text>{escape(shown)}</text>")


ARRAYS = {  # tokens, starts, prompts, as they must not be
    "all_prompt": lambda t, s, p: (t, s, np.append(p[:-1], s[-1] - s[-2])),
    "fewer_prompts": lambda t, s, p: (t, s, p[:-1]),
    "negative_prompts": lambda t, s, p: (t, s, p.astype(int) - 99),
    "fewer_tokens": lambda t, s, p: (t[:-1], s, p),
    "begins_later": lambda t, s, p: (t, np.append(1, s[1:]), p),
    "backwards": lambda t, s, p: (t, s[::-1].astype(np.uint64), p),
    "too_long": lambda t, s, p: (np.tile(t, 2), np.append(s, 2 * s[-1]), np.append(p, 1)),
    "ids_too_large": lambda t, s, p: (t + 200, s, p),
    "negative_ids": lambda t, s, p: (t.astype(int) - 99, s, p),
    "floats": lambda t, s, p: (t * 1.0, s, p),
    "objects": lambda t, s, p: (t, s.astype(object), p),
}


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("split", ["train", "val"])
def test_arrays_that_are_no_rows_are_refused(rows, name, split):
    files = [rows / f"{split}.{each}.npy" for each in ("tokens", "starts", "prompts")]
    for file, array in zip(files, ARRAYS[name](*map(np.load, files)), strict=True):
        np.save(file, array)
    with pytest.raises(SystemExit, match=f"^[^\n]*{split}[^\n]*$"):
        text.load(rows, 1).train[:1]


INSTEAD = {  # of a file; no one writes into the pipe, and the device has no end
    "nothing": lambda file, whole: None,
    "cut": lambda file, whole: file.write_bytes(whole[:-9]),
    "other": lambda file, whole: shutil.copy(RANKS, file),
    "deep": lambda file, whole: file.write_bytes(b"[" * 99_999),
    "pipe": lambda file, whole: os.mkfifo(file),
    "device": lambda file, whole: file.symlink_to("/dev/zero"),
}
NAMES = "header.json", "tokenizer.tiktoken", "val.tokens.npy", "train.prompts.npy"
CASES = [(name, change) for name in NAMES for change in INSTEAD.values()]
HEADERS = [("48", each) for each in ("47", "48.0", "true", "null", '"48"', "[48]")]
HEADERS += [('"<|mask|>"', '"<|endoftext|>"'), (', "<|mask|>"', ""), ("{", '{"mask": 0, ')]
CASES += [
    (NAMES[0], lambda file, whole, change=change: file.write_text(whole.decode().replace(*change)))
    for change in HEADERS
]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_files_that_were_not_written_together_are_refused(rows, case):
    name, change = CASES[case]
    whole = (rows / name).read_bytes()
    (rows / name).unlink()
    change(rows / name, whole)
    with pytest.raises(SystemExit, match=r"^[^\n]*rows[^\n]*$"):
        text.load(rows, 1).train[:1]


@pytest.mark.parametrize(("data", "script"), [("data/tinygsm/tokens", "tinygsm"), ("a", "jsonl")])
def test_missing_data_are_made_by_a_command_that_is_said(monkeypatch, data, script):
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit, match=f"no such file; python data/{script}/prepare.py --help"):
        text.load(data, 1)


def test_a_locale_that_is_not_utf8(tmp_path):
    write_lines(tmp_path / "a.jsonl", [{"t": f"caf\u00e9 {i} \u4e2d"} for i in range(60)])
    script = [sys.executable, "data/jsonl/prepare.py", "--length=8", "--text=t", "--val=0.5"]
    env = os.environ | {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    flags = [f"--source={tmp_path}/a.jsonl", f"--out={tmp_path}/rows"]
    subprocess.run([*script, *flags], cwd=ROOT, env=env, check=True, capture_output=True)
    task = text.load(tmp_path / "rows", 1)
    assert "caf\u00e9" in task.tokenizer.decode(task.train.tokens)
