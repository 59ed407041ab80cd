r"""Tokenise instructions with Python programs, to fine-tune Dream-Coder (paper, section 4.5).

    python data/dream_coder/prepare.py                                        all from the hub
    python data/dream_coder/prepare.py --opencoder='A/*.parquet' --kodcode='B/*.parquet' \
        --instruct='C/*.parquet' --humaneval=HumanEval.jsonl --mbpp=mbpp.jsonl    from files

Mixes three data sets by a seeded choice until `limit` examples are kept: the two small ones whole,
and the first rows of the large one. An example is a conversation in the model's chat template
(rows.chat). Writes a folder that text.py reads; after an interruption the same command goes on.
Dropped, and counted in header.json, are rows that failed their tests, are not Python, do not fit,
or share words with HumanEval or MBPP (overlaps). It has run on files in the form of each set, not
against the hub. A model trained on the mix is trained on KodCode: no commercial use.
"""

import ast
import functools
import re
import sys
import unicodedata
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from configurator import configure
from data import rows
from data.processes import start

# -- what to read: a data set on the hub; or .jsonl or .parquet files, a pattern
opencoder = "OpenCoder-LLM/opc-sft-stage2"  # MIT
kodcode = "KodCode/KodCode-V1-SFT-4o"  # CC BY-NC 4.0
instruct = "nvidia/OpenCodeInstruct"  # CC BY 4.0
humaneval = "openai/openai_humaneval"
mbpp = "google-research-datasets/mbpp"
limit = 700_000  # 1.. examples to keep, held-out ones included
seed = 1  # of the mix
tokenizer = ""  # .tiktoken file, tokenizer.json or folder with one; "" = Qwen2's, as Dream's
# -- what to write
out = "data/dream_coder/tokens"  # folder
length = 640  # 2..65535 tokens of an example
val = 0.05  # 0..1 share of the questions held out
workers = None  # 1.. processes; None = one per core
if __name__ == "__main__":
    configure(globals())

warnings.simplefilter("ignore", SyntaxWarning)  # of the programs that are read
N = 13  # words in a row that overlap, as in arXiv 2005.14165
DISTINCT = 6  # words of a run that differ and are no numbers, at least


def main():
    coder = rows.tokenizer(tokenizer, "dream")
    solved = rows.load(humaneval, ["prompt", "canonical_solution"], split="test")
    splits = "prompt+train+validation+test"
    solved_too = rows.load(mbpp, ["text", "code"], "full", splits)
    tests = tuple(text for part in (solved, solved_too) for row in part for text in row.values())
    about = {"rows": [opencoder, kodcode, instruct], "limit": limit, "seed": seed, "val": val}
    folder = rows.Folder(out, coder, length, about)
    folder.add(mixed(), val, functools.partial(pair, tests), rows.chat, workers, limit)
    folder.finish()


# -- the sets --------------------------------------------------------------------------------------
def first_two(instruction, *programs):
    """The instruction, and the first program that is not empty."""
    return instruction, next(filter(None, programs), None)


def tested(instruction, program, score):
    """The pair, if the program passes nine in ten of its tests: the score is text, or nan."""
    try:
        if not float(score) >= 0.9:
            return "failed_tests"
    except (TypeError, ValueError):
        return "unusable"
    if isinstance(program, str) and not is_python(program):
        return "not_python"
    return instruction, program


def is_python(text):
    """Whether the fenced blocks of the text, or all of it if there are none, are Python."""
    blocks = re.findall(r"^```(\w*)(?:[^\w\n][^\n]*)?\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    if {name.lower() for name, _ in blocks} - {"", "python", "python3", "py"}:
        return False
    try:
        ast.parse("\n".join(code for _, code in blocks) or text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


SETS = [  # configuration on the hub, fields, their pair, share of the rows that are read
    ("educational_instruct", ["instruction", "code"], first_two, 118 / 1331),
    (None, ["question", "4o_solution", "solution"], first_two, 263 / 1331),
    (None, ["input", "output", "average_test_score"], tested, 950 / 1331),  # a third of them passes
]


def mixed():
    """All rows of the sets; the set of each is drawn at random.

    Field i of set k is in the column "k i", which is None in the rows of other sets.
    """
    import datasets

    parts = []
    for k, source in enumerate([opencoder, kodcode, instruct]):
        config, fields, _, _ = SETS[k]
        names = {field: f"{k} {i}" for i, field in enumerate(fields)}
        parts.append(rows.load(source, fields, config).rename_columns(names))
    shares = [share for *_, share in SETS]
    stop = "all_exhausted_without_replacement"
    return datasets.interleave_datasets(parts, shares, seed, stopping_strategy=stop)


def pair(tests, row):
    """Instruction and program of a row of `mixed`, or why it is dropped; tests: texts."""
    k = next((name[0] for name, value in row.items() if value is not None), "0")
    pair_of = SETS[int(k)][2]
    found = pair_of(*(value for name, value in row.items() if name[0] == k))
    if isinstance(rows.cleaned(found), str):
        return rows.cleaned(found)
    return "benchmark" if any(overlaps(text, tests) for text in found) else found


# -- overlap with test problems --------------------------------------------------------------------
def overlaps(text, tests):
    """Whether the text shares N words (of `words`) in a row with one of the tests, a tuple.

    With a test of fewer words, all of them in a row. Words in a row count only if DISTINCT
    different ones among them are not numbers.
    """
    found = words(text)
    return any(not known.isdisjoint(runs(found, n)) for n, known in known_runs(tests).items())


@functools.cache
def known_runs(tests):
    """{n: the runs of n words that overlap}"""
    known = {}
    for found in map(words, tests):
        n = min(N, len(found))
        known.setdefault(n, set()).update(filter(is_distinctive, runs(found, n)))
    return known


def words(text):
    return re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold())


def runs(found, n):
    """All runs of n words, as tuples."""
    return (tuple(found[at : at + n]) for at in range(len(found) - n + 1))


def is_distinctive(run):
    return len({word for word in run if not word.isdigit()}) >= DISTINCT


if __name__ == "__main__":
    start(main)
