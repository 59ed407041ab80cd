"""data/dream_coder/prepare.py and overlap.py. Oracle: each row's fate, decided here by hand."""

import re

import numpy as np
import pytest
from conftest import HOUSE, run_main
from toys import contents, first_ranks, write_lines

from data import corpus, prepare_rows
from data.dream_coder import overlap, prepare
from data.tokenizer import to_text
from data.vocabularies import open_kept

SHARED = HOUSE.parent / "shared" / "data"

HUMANEVAL = {
    "task_id": "HumanEval/0",
    "prompt": "def pack(boxes):\n    '''Put as many of the red boxes as fit into every one of the "
    "two blue crates.\n    >>> pack([1, 2])\n    3\n    '''\n",
    "canonical_solution": "    return sum(heavy * depth + width - offset for heavy, depth, width, "
    "offset, colour, name in boxes if colour == 'red')\n",
    "test": "", "entry_point": "pack",
}  # fmt: skip
MBPP = [
    {"task_id": i, "text": f"Write a function to rotate plane number {i}.", "code": f"f = {i}"}
    | {"test_list": [], "test_setup_code": ""}
    for i in (2, 3, 4, 11, 600)
]
LEAKS = [
    ("As many of the red\n\n   boxes as fit: into EVERY one, of the two blue crates!", "x = 1"),
    ("Sum up.", "sum(heavy*depth+width-offset for heavy,depth,width,\n  offset,colour,name in b)"),
    ("Please write a  function to rotate plane\nnumber 600, quickly.", "x = 2"),
]
ROWS = {
    "opc": [{"instruction": f"Add {i} to x.", "code": f"x + {i}", "tag": 1} for i in range(60)],
    "kodcode": [
        {"question": f"Double {i}.", "4o_solution": ["", f"2 * {i}"][i % 2], "solution": f"{i} * 2"}
        for i in range(80)
    ],
    "opencodeinstruct": [
        {"input": f"Halve {i}.", "output": f"Here:\n```python\n{i} / 2\n```\nDone."}
        | {"average_test_score": ["1.0", "0.9", "nan", "none", "1", "0.95", "0.8", "0"][i % 8]}
        for i in range(120)
    ],
}
GOOD = "1.0", "0.9", "1", "0.95"
ODD = {
    "opc": [{"instruction": q, "code": a} for q, a in LEAKS]
    + [{"instruction": " ", "code": "x"}, {"instruction": "Why?", "code": None}]
    + [{"instruction": "Long?", "code": "x + " * 400 + "x"}],
    "kodcode": [{"question": "None?", "4o_solution": "", "solution": None}],
    "opencodeinstruct": [
        {"input": "C?", "output": f"```{name}\nint x;\n```", "average_test_score": "1.0"}
        for name in ("cpp", "python", "")
    ],
}
TEMPLATE = (
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n"
    "<|im_start|>assistant\n{}<|im_end|>"
)


def expected(rows):
    """The pairs that are to be kept."""
    pairs = [(row["instruction"], row["code"]) for row in rows["opc"]]
    pairs += [(row["question"], row["4o_solution"] or row["solution"]) for row in rows["kodcode"]]
    passed = (row for row in rows["opencodeinstruct"] if row["average_test_score"] in GOOD)
    return pairs + [(row["input"], row["output"]) for row in passed]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    for kind, rows in ROWS.items():
        write_lines(folder / f"{kind}.jsonl", rows[:20] + ODD[kind] + rows[20:])
    write_lines(folder / "HumanEval.json", [HUMANEVAL])
    write_lines(folder / "mbpp.json", MBPP)
    (folder / "r.tiktoken").write_bytes(to_text(first_ranks(300)))
    return folder


@pytest.fixture
def run(monkeypatch, files, tmp_path):
    """Run the script's main with settings; the folder it wrote."""

    def run(**settings):
        paths = {"source": "*.jsonl", "humaneval": "HumanEval.json", "mbpp": "mbpp.json"}
        paths |= {"tokenizer": "r.tiktoken"}
        defaults = {name: str(files / file) for name, file in paths.items()}
        defaults |= {"out": str(tmp_path / "out"), "length": 96, "val": 0.2, "workers": 1}
        defaults |= {"limit": 10_000, "seed": 1}
        return run_main(prepare, **defaults | settings)

    monkeypatch.setattr(prepare_rows, "PIECE", 48)
    monkeypatch.setattr(prepare_rows, "CHUNK", 16)
    return run


def texts(folder, split):
    """What each row of the split says, up to the end, and its prompt."""
    encoding = corpus.load_tokenizer(folder)
    examples = corpus.Examples(folder, split)
    x0, prompt = examples[np.arange(len(examples))]
    assert (x0[:, -1] == encoding.end).all()
    whole = [encoding.decode(row[row != encoding.end]) for row in x0]
    return whole, [encoding.decode(row[given]) for row, given in zip(x0, prompt, strict=True)]


def test_every_row_is_where_it_belongs(run):
    folder, found = run(), []
    for split in ("train", "val"):
        whole, prompts = texts(folder, split)
        for text, prompt in zip(whole, prompts, strict=True):
            pattern = re.escape(TEMPLATE).replace(r"\{\}", "(.*)")
            question, answer = re.fullmatch(pattern, text, re.DOTALL).groups()
            assert prompt == text.removesuffix(f"{answer}<|im_end|>")
            in_val = corpus.question_key(question) < 0.2 * 2**64
            assert split == ("val" if in_val else "train")
            found.append((question, answer))
    assert sorted(found) == sorted(expected(ROWS)) and len(found) == 200
    dropped = {"benchmark": 3, "unusable": 18, "failed_tests": 45, "too_long": 1, "not_python": 3}
    assert corpus.read_header(folder)["dropped"] == dropped


def test_mix_is_seeded_and_stops_at_the_limit(run, tmp_path):
    a, b, c = (run(limit=50, seed=s, out=str(tmp_path / f"{i}")) for i, s in enumerate([1, 1, 2]))
    assert contents(a) == contents(b)
    rows = [texts(folder, "train")[0] + texts(folder, "val")[0] for folder in (a, c)]
    assert len(rows[0]) == len(rows[1]) == 50 and rows[0] != rows[1]
    kinds = [sum(f"user\n{verb}" in row for row in rows[0]) for verb in ("Add", "Double", "Halve")]
    assert min(kinds) > 2  # all of them, from the start


def test_files_of_another_set_are_refused(run, tmp_path):
    own = write_lines(tmp_path / "own.jsonl", [{"task": "T", "program": "x"}])
    with pytest.raises(ValueError, match="has the fields program, task; known sets: instruction, "):
        run(source=str(own))


@pytest.mark.skipif(not (SHARED / "qwen2").exists(), reason="Qwen2's ranks are not here")
def test_chat_template_in_qwen2s_ids():
    encoding = open_kept(SHARED / "qwen2" / "qwen.tiktoken", "dream")
    assert (encoding.end, encoding.mask, encoding.vocab_size) == (151643, 151666, 152064)
    given, answer = corpus.chat(encoding, "Hello", "Hi", 100)
    system = [151644, 8948, 198, 2610, 525, 264, 10950, 17847, 13, 151645, 198]  # as published
    assert given == [*system, 151644, 872, 198, 9707, 151645, 198, 151644, 77091, 198]
    assert answer == [13048, 151645] and encoding.start == [151665]


# -- overlap -------------------------------------------------------------------------------------
LETTERS = "a b c d e f g h i j k l m n o p q r s t u v w x y z"


@pytest.mark.parametrize(
    "text, found",
    [
        ("A, b; c\nd-e f/g (h) i j   k l M", True),  # 13 words in a row
        ("a b c d e f g h i j k l", False),
        ("a b c d e f g h i j k l 0 n o p q r s t u v w x y", False),
        ("please sort a list\nof BIG numbers.", True),  # a whole text of 6 words
        ("sort a list of numbers", False),
        ("one two three", False),  # too short
        ("1 2 3 4 5 6 7 8 a b c", False),  # too few that are not numbers
    ],
)
def test_words_in_a_row(text, found):
    index = [LETTERS, "Sort a list of big numbers", "one two three", "1 2 3 4 5 6 7 8 a b c"]
    assert overlap.Index(index).overlaps(text) == found
