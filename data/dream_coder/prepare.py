r"""Tokenise instructions with Python programs, to fine-tune Dream-Coder (paper, section 4.5).

    python data/dream_coder/prepare.py                                        all from the hub
    python data/dream_coder/prepare.py --source='FOLDER/*.parquet' --humaneval=HumanEval.jsonl \
        --mbpp=mbpp.jsonl --tokenizer=FOLDER                                  from files

Mixes the data sets of SETS by a seeded choice until `limit` examples are kept: the two small sets
whole, and the first rows of the large one. An example is a conversation in the model's chat
template (rows.chat). Writes a folder that text.py reads. After an interruption the same command
goes on. Dropped, and counted in header.json, are rows that failed their tests, are not Python, do
not fit, or overlap with HumanEval or MBPP (Index). It has run on files in the form of each set, not
against the hub. A model trained on the mix is trained on KodCode: no commercial use.
"""

import ast
import functools
import glob
import re
import sys
import unicodedata
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from configurator import configure
from data import rows
from data.processes import positive, start

# -- what to read
source = ""  # .jsonl or .parquet files, a pattern: their fields tell the set; "" = from the hub
limit = 700_000  # examples to keep, held-out ones included
seed = 1  # of the mix
humaneval = "openai/openai_humaneval"  # on the hub; or HumanEval.jsonl
mbpp = "google-research-datasets/mbpp"  # on the hub; or mbpp.jsonl
tokenizer = ""  # .tiktoken file, tokenizer.json or folder with one; "" = Qwen2's, as Dream's
# -- what to write
out = "data/dream_coder/tokens"  # folder
length = 640  # tokens of an example
val = 0.05  # share of the questions held out
workers = None  # processes; None = one per core
if __name__ == "__main__":
    configure(globals())

N = 13  # words in a row that overlap, as in arXiv 2005.14165
DISTINCT = 6  # words of a run that differ and are no numbers, at least


class Set(NamedTuple):
    """A data set; pair(its fields) -> instruction and program, or why the row is dropped."""

    config: str | None
    fields: tuple
    pair: Callable
    weight: float  # how many of its rows are read, relative to the others


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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse("\n".join(code for _, code in blocks) or text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


SETS = {  # about a third of the last set's 5,000,000 rows pass: its weight fills the mix to `limit`
    "OpenCoder-LLM/opc-sft-stage2": Set(  # MIT
        "educational_instruct", ("instruction", "code"), first_two, 118
    ),
    "KodCode/KodCode-V1-SFT-4o": Set(  # CC BY-NC 4.0
        None, ("question", "4o_solution", "solution"), first_two, 263
    ),
    "nvidia/OpenCodeInstruct": Set(  # CC BY 4.0
        None, ("input", "output", "average_test_score"), tested, 950
    ),
}  # fmt: skip


def main():
    positive(limit=limit, workers=workers)
    coder = rows.tokenizer(tokenizer, "dream")
    solved = rows.load(humaneval, ["prompt", "canonical_solution"], split="test")
    splits = "prompt+train+validation+test"
    solved_too = rows.load(mbpp, ["text", "code"], "full", splits)
    tests = tuple(text for part in (solved, solved_too) for row in part for text in row.values())
    about = {"rows": source or [*SETS], "limit": limit, "seed": seed, "val": val}
    folder = rows.Folder(out, coder, length, about)
    pieces = folder.encoded(mixed(), functools.partial(pair, tests), rows.chat, workers)
    folder.divide(pieces, val, limit)
    folder.finish()


def mixed():
    """All rows of the sets; the set of each is drawn at random, by weight and seed.

    Field i of a set is in the column `<name>/<i>`, which is None in the rows of other sets.
    """
    import datasets

    found = local_sets() if source else {
        name: rows.load(name, each.fields, each.config) for name, each in SETS.items()
    }  # fmt: skip
    renamed = [
        part.rename_columns({field: f"{name}/{i}" for i, field in enumerate(part.column_names)})
        for name, part in found.items()
    ]
    weights = np.array([SETS[name].weight for name in found])
    stop = "all_exhausted_without_replacement"
    chances = weights / weights.sum()
    return datasets.interleave_datasets(renamed, chances, seed, stopping_strategy=stop)


def local_sets():
    """{name: rows} of the sets that the files belong to."""
    import datasets

    found = {}
    for file in sorted(glob.glob(source)):
        part = rows.load(file)
        names = [name for name, each in SETS.items() if {*each.fields} <= {*part.column_names}]
        if not names:
            known = "; ".join(", ".join(each.fields) for each in SETS.values())
            fields = ", ".join(part.column_names)
            raise ValueError(f"{file} has the fields {fields}; known sets: {known}")
        found.setdefault(names[0], []).append(part.select_columns([*SETS[names[0]].fields]))
    if not found:
        raise FileNotFoundError(f"{source}: no such file")
    return {name: datasets.concatenate_datasets(parts) for name, parts in found.items()}


def pair(tests, row):
    """Instruction and program of a row of `mixed`, or why it is dropped; tests: texts."""
    filled = [name for name, value in row.items() if value is not None]
    if not filled:
        return "unusable"
    kind = filled[0].rpartition("/")[0]
    found = SETS[kind].pair(*(row[name] for name in row if name.rpartition("/")[0] == kind))
    if isinstance(rows.cleaned(found), str):
        return rows.cleaned(found)
    return "benchmark" if any(map(index_of(tests).overlaps, found)) else found


# -- overlap with test problems --------------------------------------------------------------------
class Index:
    """Finds texts that share words with some others.

    Two texts overlap if they have the same N words (runs of `\\w`, in lower case) in a row. A text
    of fewer words overlaps with each that has all of its words in a row. Words in a row count only
    if DISTINCT different ones among them are not numbers.
    """

    def __init__(self, texts):
        self.runs = {}
        for text in texts:
            n = min(N, len(words(text)))
            if found := {*filter(is_distinctive, runs(text, n))}:
                self.runs.setdefault(n, set()).update(found)

    def overlaps(self, text):
        return any(not known.isdisjoint(runs(text, n)) for n, known in self.runs.items())


index_of = functools.cache(Index)  # once in a worker


def words(text):
    return re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold())


def runs(text, n):
    """All runs of n words of the text, as tuples."""
    found = words(text)
    return (tuple(found[at : at + n]) for at in range(len(found) - n + 1))


def is_distinctive(run):
    return len({word for word in run if not word.isdigit()}) >= DISTINCT


if __name__ == "__main__":
    start(main)
