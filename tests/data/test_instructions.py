"""data/dream_coder/prepare.py. Oracle: each row's fate, decided here by hand."""

import numpy as np
import pytest
from small import contents, header, run_main, write_lines

from data import rows
from data.dream_coder import prepare
from lab import own_text

BYTES = rows.tokenizer("bytes", "dream")
PROMPT = "Put as many of the red boxes as fit into every one of the two blue crates."
SOLUTION = "return sum(heavy * depth + width - x for heavy, depth, width, x, hue, name in b)"
FENCE = "Here:\n```{}\n{} / 2\n```\nDone."
SCORES = "1.0", "0.9", "1", "0.95", "nan", "none", "0.8", "0"  # four pass
OPC = [(f"Add {i} to x.", f"x + {i}") for i in range(60)]
KODCODE = [(f"Double {i}.", ["", f"2 * {i}"][i % 2], f"{i} * 2") for i in range(80)]
TESTED = [(f"Halve {i}.", FENCE.format("python", i), SCORES[i % 8]) for i in range(120)]
ODD = (
    [
        ("as many of the red\n\n   boxes as fit: into EVERY one, of the two blue crates!", "x = 1"),
        ("Sum.", "sum(heavy*depth+width-x for heavy,depth,width,\n  x,hue,name in b)"),
        ("Please write a  function to rotate plane\n600, quickly.", "x = 2"),
        *[(" ", "x"), ("Why?", None), ("Long?", "x + " * 400 + "x")],
    ],
    [("None?", "", None)],
    [("C?", FENCE.format(kind, "int x;"), "1") for kind in ("cpp", "python", "")],
)
KEPT = OPC + [(q, a or b) for q, a, b in KODCODE]
KEPT += [(q, a) for q, a, score in TESTED if score in SCORES[:4]]
DROPPED = {"benchmark": 3, "unusable": 18, "failed_tests": 45, "too_long": 1, "not_python": 3}
BEFORE = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
AFTER = "<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def how(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    names = "opencoder", "kodcode", "instruct", "humaneval", "mbpp"
    tables = zip(names, (OPC, KODCODE, TESTED), ODD, prepare.SETS, strict=False)
    for name, some, odd, (_, fields, _, _) in tables:
        objects = [dict(zip(fields, row, strict=True)) for row in some[:20] + odd + some[20:]]
        write_lines(folder / f"{name}.jsonl", objects)
    write_lines(folder / "humaneval.jsonl", [{"prompt": PROMPT, "canonical_solution": SOLUTION}])
    write_lines(
        folder / "mbpp.jsonl", [{"text": "Write a function to rotate plane 600.", "code": "f"}]
    )
    files = {name: str(folder / f"{name}.jsonl") for name in names}
    return files | {"tokenizer": "bytes", "length": 200, "val": 0.2}


def rows_of(out):
    """(split, question, answer) of every row, as text.py reads it."""
    problem = own_text.load(out, 0)
    for split, part in ("train", problem.train), ("val", problem.test):
        for x0, prompt in zip(*part[np.arange(len(part))], strict=True):
            given = BYTES.decode(x0[prompt])
            answer, end, _ = BYTES.decode(x0[~prompt]).partition("<|im_end|>")
            assert given.startswith(BEFORE) and given.endswith(AFTER) and end
            assert x0[-1] == problem.end and problem.mask_token == BYTES.mask
            yield split, given[len(BEFORE) : -len(AFTER)], answer


def test_every_row_is_where_it_belongs(how, tmp_path):
    found = [*rows_of(run_main(prepare, tmp_path / "out", **how))]
    assert sorted(pair for _, *pair in found) == sorted(map(list, KEPT)) and len(found) == 200
    for split, question, _ in found:
        assert (split == "val") == (rows.question_key(question) < 0.2 * 2**64)
    assert header(tmp_path / "out")["dropped"] == DROPPED


def test_the_mix_is_seeded_and_stops_at_the_limit(how, tmp_path):
    seeds = {"a": 1, "b": 1, "c": 2}
    a, b, c = (run_main(prepare, tmp_path / k, **how, limit=50, seed=v) for k, v in seeds.items())
    assert contents(a) == contents(b)
    first, other = ([question for _, question, _ in rows_of(out)] for out in (a, c))
    assert len(first) == len(other) == 50 and first != other


def test_words_in_a_row():
    letters = "a b c d e f g h i j k l m n o p q r s t u v w x y z"
    tests = letters, "Sort a list of big numbers", "one two three", "1 2 a b c d e"
    found = "A, b; c\nd-e f/g (h) i j   k l M", "please sort a list\nof BIG numbers."
    absent = "a b c d e f g h i j k l 0 n o p q r s t u v w x y", "one two three", "1 2 a b c d e"
    assert all(prepare.overlaps(text, tests) for text in found)
    assert not any(prepare.overlaps(text, tests) for text in absent)
