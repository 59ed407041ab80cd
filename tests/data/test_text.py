"""lab/text.py: what a folder of rows gives to a model, what is shown, and folders that are none."""

import json
import os
import shutil
import subprocess
import sys
import unicodedata
from html import escape
from xml.etree import ElementTree

import numpy as np
import pytest
from small import RANKS, ROOT, prepare, write_lines

from lab import gsm8k, text

PAIRS = [(f"a{i}\n b", f"if x:\n\ty = {i}\u3000\U0001f468\u200d\U0001f469") for i in range(60)]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    write_lines(folder / "a.jsonl", [{"ask": ask, "say": say} for ask, say in PAIRS])
    flags = {"source": folder / "a.jsonl", "prompt": "ask", "response": "say"}
    return prepare("jsonl", **flags, length=48, val=0.2, out=folder / "rows")


@pytest.fixture
def rows(made, tmp_path):
    return shutil.copytree(made, tmp_path / "rows")


def test_a_prompt_is_that_of_training_wherever_it_comes_from(rows):
    task = text.load(rows, 1)
    x0, given = task.train[[3]]
    said = task.tokenizer.decode(x0[given])[:-1]
    windows = said.replace("\n", "\r\n")
    write_lines(rows / "test.jsonl", [{"question": f"{windows}\r\n", "answer": "#### 1"}])
    assert task.render(x0[0], given[0]) in ["\n".join(pair) for pair in PAIRS]
    word = gsm8k.load(rows, 1)
    typed = [said, windows, f"\n\r\n{windows}\r\n\n", said.replace("\n", "\r")]
    found = [each.parse(prompt) for each in (task, word) for prompt in typed] + [word.test[:1]]
    assert all((x[prompt] == x0[given]).all() and (prompt == given).all() for x, prompt in found)
    x0[0, 0] = task.mask_token
    assert task.render(x0[0], given[0])[0] == "\N{LIGHT SHADE}"
    with pytest.raises(SystemExit, match="no room in rows of 48"):
        task.parse("Who is " * 99)


def test_what_a_terminal_obeys_or_an_svg_may_not_have_is_taken_away_and_nothing_else():
    every = "".join(map(chr, range(0x110000)))
    embed = "LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"
    shown = text.printable(every)
    gone = {*every} - {*shown}
    control = {c for c in every if unicodedata.category(c) in ("Cc", "Cs")} - {"\n", "\t"}
    assert gone == control | {c for c in every if unicodedata.bidirectional(c) in embed} | {
        "\ufffe", "\uffff"
    }  # fmt: skip
    assert shown == "".join(c for c in every if c not in gone)
    ElementTree.fromstring(f"<text>{escape(shown)}</text>")


ARRAYS = {  # tokens, starts, prompts, as they must not be
    "all_prompt": lambda t, s, p: (t, s, np.diff(s)),
    "one_all_prompt": lambda t, s, p: (t, s, np.append(p[:-1], s[-1] - s[-2])),
    "fewer_prompts": lambda t, s, p: (t, s, p[:-1]),
    "negative_prompts": lambda t, s, p: (t, s, p.astype(int) - 99),
    "fewer_tokens": lambda t, s, p: (t[:-1], s, p),
    "begins_later": lambda t, s, p: (t, s + 1, p),
    "backwards": lambda t, s, p: (t, s[::-1].astype(np.uint64), p),
    "no_rows": lambda t, s, p: (t, s[:1], p[:0]),
    "too_long": lambda t, s, p: (np.tile(t, 2), np.append(s, 2 * s[-1]), np.append(p, 1)),
    "ids_too_large": lambda t, s, p: (t + 200, s, p),
    "negative_ids": lambda t, s, p: (t.astype(int) - 99, s, p),
    "floats": lambda t, s, p: (t * 1.0, s, p),
    "columns": lambda t, s, p: (t[:, None], s, p),
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


def replaced(make):
    return lambda file: (file.unlink(), make(file))


def header(**changes):
    return lambda file: file.write_text(json.dumps(json.loads(file.read_text()) | changes))


FILES = [
    (name, change)
    for name in ("header.json", "tokenizer.tiktoken", "val.tokens.npy", "train.prompts.npy")
    for change in (
        replaced(os.mkfifo),
        replaced(lambda file: file.symlink_to("/dev/zero")),
        replaced(os.mkdir),
        replaced(lambda file: file.with_name("none")),
        lambda file: file.write_bytes(file.read_bytes()[:-9]),
        lambda file: file.write_bytes(b"[" * 99_999),
        lambda file: shutil.copy(RANKS, file),
    )
]
FILES += [("header.json", header(length=each)) for each in (47, 48.0, True, None, "48", [48])]
SPECIAL = [], ["<|mask|>", "<|endoftext|>"], ["<|endoftext|>", 1], 2, None
FILES += [("header.json", header(special=each)) for each in SPECIAL]
FILES += [("header.json", header(**each)) for each in ({"checksum": 1}, {"mask": 0})]


@pytest.mark.parametrize("case", range(len(FILES)))
def test_files_that_were_not_written_together_are_refused(rows, case):
    """None is waited for: a pipe has no writer, a device no end."""
    name, change = FILES[case]
    change(rows / name)
    with pytest.raises(SystemExit, match="^[^\n]*rows[^\n]*$"):
        text.load(rows, 1).train[:1]


@pytest.mark.parametrize(
    ("path", "command"),
    [
        ("data/gym/lcm_9", "gym/prepare.py --name=lcm_9"),
        ("data/gym", "gym/prepare.py --name=NAME"),
        ("data/tinygsm/t", "tinygsm/prepare.py --out='data/tinygsm/t'"),
        ("data/jsonl", f"jsonl/prepare.py{text.PREPARE['jsonl']}"),
        ("out/x y", f"jsonl/prepare.py{text.PREPARE['jsonl']} --out='out/x y'"),
    ],
)
def test_missing_data_are_made_by_a_command_that_is_said(path, command, monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit) as end:
        text.load(path, 1)
    assert str(end.value).endswith(f"make it with: python data/{command}")


def test_a_locale_that_is_not_utf8(tmp_path):
    rows = [json.dumps({"t": f"caf\u00e9 {i} \u4e2d"}, ensure_ascii=False) for i in range(60)]
    write_lines(tmp_path / "a.jsonl", rows)
    script = [sys.executable, "data/jsonl/prepare.py", "--length=8", "--text=t", "--val=0.5"]
    env = os.environ | {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    flags = [f"--source={tmp_path}/a.jsonl", f"--out={tmp_path}/rows"]
    subprocess.run([*script, *flags], cwd=ROOT, env=env, check=True, capture_output=True)
    tokens = np.load(tmp_path / "rows/train.tokens.npy")
    assert "caf\u00e9" in bytes(tokens[tokens < 256].tolist()).decode(errors="replace")
