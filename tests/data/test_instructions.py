"""data/dream_coder/prepare.py. Oracle: each row's fate, decided here by hand."""

import pytest
from conftest import prepare, write_lines

from data import rows
from lab import text

SOLUTION = "Put as many of the red boxes as fit into every one of the two blue crates."
SCORES = "1.0", "0.9", "1", "0.95", "nan", "none", "0.8", "0"  # four pass
SETS = {  # in the form of each: fields, rows, rows that are dropped
    "opencoder": (
        ["instruction", "code"],
        [(f"Add {i} to x.\r\n", f"\nx +\r\n{i}\n") for i in range(60)],
        [("AS many of the red\n\n boxes; as: fit into EVERY one of the two blue crates!", "1"),
         ("Sum.", f"'{SOLUTION}'"), (" ", "x"), ("Why?", None), ("Long?", "x + " * 400)],
    ),
    "kodcode": (
        ["question", "4o_solution", "solution"],
        [(f"Double {i}.", ["", f"2 * {i}"][i % 2], f"{i} * 2") for i in range(80)],
        [("None?", "", None)],
    ),
    "instruct": (
        ["input", "output", "average_test_score"],
        [(f"Halve {i}.", f"{i} / 2", SCORES[i % 4]) for i in range(60)],
        [("No.", "x", score) for score in SCORES[4:] * 9] + [("Empty?", "", "1.0")],
    ),
}  # fmt: skip
KEPT = {(f"Add {i} to x.", f"x +\n{i}") for i in range(60)}
KEPT |= {(f"Double {i}.", f"2 * {i}" if i % 2 else f"{i} * 2") for i in range(80)}
KEPT |= {(f"Halve {i}.", f"{i} / 2") for i in range(60)}
BEFORE = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
AFTER = "<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture
def call(tmp_path):
    """Run the script; the folder it wrote."""
    task = {"prompt": "def f():", "canonical_solution": SOLUTION, "text": "Rotate.", "code": "f"}
    flags = dict.fromkeys(["humaneval", "mbpp"], write_lines(tmp_path / "a.jsonl", [task]))
    for name, (fields, some, odd) in SETS.items():
        lines = [dict(zip(fields, row, strict=True)) for row in some[:20] + odd + some[20:]]
        flags[name] = write_lines(tmp_path / f"{name}.jsonl", lines)
    flags |= {"tokenizer": "bytes", "length": 200, "val": 0.2}
    return lambda out, **more: prepare("dream_coder", out=tmp_path / out, **flags | more)


def rows_of(folder):
    """(split, question, answer) of every row."""
    task = text.load(folder, 0)
    assert (task.mask_token, task.vocab_size) == (256 + 23, 256 + 421)
    for split, part in ("train", task.train), ("val", task.test):
        for x0, prompt in zip(*part[:], strict=True):
            given, answer = (task.tokenizer.decode(x0[where]) for where in (prompt, ~prompt))
            assert given.startswith(BEFORE) and given.endswith(AFTER) and "<|im_end|>" in answer
            yield split, given[len(BEFORE) : -len(AFTER)], answer.partition("<|im_end|>")[0]


def test_every_row_is_where_it_belongs(call, capsys):
    found = [*rows_of(call("a"))]
    assert {(ask, say) for _, ask, say in found} == KEPT and len(found) == len(KEPT) == 200
    assert all((split == "val") == (rows.question_key(q) < 0.2 * 2**64) for split, q, _ in found)
    said = capsys.readouterr().out
    for dropped in "2 benchmark", "4 unusable", "36 failed_tests", "1 too_long":
        assert dropped in said


def test_the_mix_is_seeded_and_stops_at_the_limit(call):
    some = [{*rows_of(call(f"{seed}{i}", limit=50, seed=seed))} for i, seed in enumerate((1, 1, 2))]
    assert some[0] == some[1] != some[2] and [*map(len, some)] == [50, 50, 50]
