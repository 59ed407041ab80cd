r"""Tokenise instructions with Python programs, to fine-tune Dream-Coder (paper, section 4.5).

    python data/dream_coder/prepare.py                                        all from the hub
    python data/dream_coder/prepare.py --source='FOLDER/*.parquet' --humaneval=HumanEval.jsonl \
        --mbpp=mbpp.jsonl --tokenizer=FOLDER                                  from files

Mixes the data sets of SETS by a seeded choice until `limit` examples are kept. An example is a
conversation in the model's chat template (corpus.chat). Writes a folder that text.py reads. After
an interruption the same command goes on, and ends with the same bytes. Rows are dropped, and
counted in header.json, if they are unusable, failed their tests, are not Python, do not fit, or
overlap with a problem of HumanEval or MBPP (overlap.py).
"""

import ast
import functools
import itertools
import json
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import numpy as np

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from configurator import configure
from data import corpus, sources
from data.dream_coder import overlap
from data.files import write_json
from data.prepare_rows import encode_all, read_tokenizer, usable, write_rows
from data.processes import positive, start

# -- what to read --------------------------------------------------------------------------------
source = ""  # comma-separated .jsonl or .parquet files or patterns; "" = the data sets on the hub
limit = 700_000  # 1..: examples to keep, held-out ones included
seed = 1  # 0..18446744073709551615: of the mix
humaneval = ""  # HumanEval.jsonl; "" = the hub's openai/openai_humaneval
mbpp = ""  # mbpp.jsonl; "" = the hub's google-research-datasets/mbpp
tokenizer = ""  # .tiktoken file, tokenizer.json or folder with one; "" = Qwen2's, as Dream's
# -- what to write -------------------------------------------------------------------------------
out = ""  # folder; "" = `tokens` beside this script
length = 640  # 2..65535: tokens of an example, with at least one end of text
val = 0.05  # 0..1: share of the questions held out
# -- system --------------------------------------------------------------------------------------
workers: int | None = None  # 1..1000: processes; None = one per core
if __name__ == "__main__":
    configure(globals())

HERE = Path(__file__).resolve().parent
HUMANEVAL = "openai/openai_humaneval"
MBPP = "google-research-datasets/mbpp"


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
    try:
        if not float(score) >= 0.9:  # the share of its tests that it passes, as text; maybe nan
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
    "OpenCoder-LLM/opc-sft-stage2": Set(
        "educational_instruct", ("instruction", "code"), first_two, 118
    ),
    "KodCode/KodCode-V1-SFT-4o": Set(
        None, ("question", "4o_solution", "solution"), first_two, 263
    ),
    "nvidia/OpenCodeInstruct": Set(
        None, ("input", "output", "average_test_score"), tested, 950
    ),
}  # fmt: skip


def main():
    positive(limit=limit, workers=workers)
    encoding = read_tokenizer(tokenizer, "dream")
    tests = benchmarks()
    sets = local_sets() if source else hub_sets()
    origin = [row for rows, _ in sets.values() for row in rows]
    about = {"rows": origin, "limit": limit, "seed": seed, "val": val}
    about |= {"benchmarks": crc32(repr(tests).encode())}
    writer = corpus.Writer(out or HERE / "tokens", encoding, length, about)
    write_json(writer.partial / "benchmarks.json", tests)
    rows = mixed({name: read(writer.cache) for name, (_, read) in sets.items()})
    write_rows(writer, encode_all(writer, rows, pair_of, corpus.chat, workers), val, limit)


def pair_of(folder, row):
    """Instruction and program of a row of `mixed`, or why it is dropped."""
    filled = [name for name, value in row.items() if value is not None]
    if not filled:
        return "unusable"
    kind = filled[0].rpartition("/")[0]
    pair = SETS[kind].pair(*(row[name] for name in row if name.rpartition("/")[0] == kind))
    pair = pair if isinstance(pair, str) else usable(pair)
    if isinstance(pair, str):
        return pair
    return "benchmark" if any(map(index_once(folder).overlaps, pair)) else pair


@functools.cache
def index_once(folder):
    return overlap.Index(json.loads((folder / "benchmarks.json").read_text(encoding="utf-8")))


# -- sources -------------------------------------------------------------------------------------
def benchmarks():
    """All problems and solutions of HumanEval, and of MBPP, of all its splits."""
    solved = {"prompt": str, "canonical_solution": str}
    splits = "prompt", "train", "validation", "test"
    rows = sources.read_small(humaneval, solved, HUMANEVAL)
    rows += sources.read_small(mbpp, {"text": str, "code": str}, MBPP, "full", splits)
    return [*itertools.chain(*rows)]


def hub_sets():
    """{name: what the header records of a data set on the hub, and a function that reads it}."""
    return {name: sources.hub(name, each.fields, each.config) for name, each in SETS.items()}


def local_sets():
    """As hub_sets, from local files; a file's field names tell which data set it is of."""
    groups = {}
    for file in sources.files(source):
        groups.setdefault(recognised(file), []).append(file)
    return {name: sources.local(files, SETS[name].fields) for name, files in groups.items()}


def recognised(file):
    """The set that a file belongs to. Raises ValueError with the known ones."""
    present = sources.fields_of(file)
    for name, each in SETS.items():
        if {*each.fields} <= {*present}:
            return name
    known = "; ".join(", ".join(each.fields) for each in SETS.values())
    raise ValueError(f"{file} has the fields {', '.join(sorted(present))}; known sets: {known}")


def mixed(sets):
    """All rows of the sets {name: Dataset}; the set of each is drawn at random, by weight and seed.

    Field i of a set is in the column `<name>/<i>`, which is None in the rows of other sets.
    """
    import datasets

    renamed = [
        rows.rename_columns({name: f"{kind}/{i}" for i, name in enumerate(rows.column_names)})
        for kind, rows in sets.items()
    ]
    weights = np.array([SETS[kind].weight for kind in sets])
    chances = weights / weights.sum()
    stop = "all_exhausted_without_replacement"
    return datasets.interleave_datasets(renamed, chances, seed, stopping_strategy=stop)


if __name__ == "__main__":
    start(main)
