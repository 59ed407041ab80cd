"""Tokenise TinyGSM, 11.8 million questions with programs, and GSM8K's test set beside it.

    python data/tinygsm/prepare.py                                   all from the hub, about 10 GB
    python data/tinygsm/prepare.py --source='tinygsm/*.parquet' --gsm8k=test.jsonl --tokenizer=...
    python data/tinygsm/prepare.py --source=train.jsonl --code=answer    GSM8K's own solutions

Writes a folder that corpus.py reads, with test.jsonl (question, answer as it stands after `####`).
After an interruption the same command resumes, and ends with the same bytes. A row goes to train or
val by a hash of its question, so no question is in both. Dropped, and counted in header.json, are
unusable rows, rows that do not fit, and every question that is in GSM8K's test set.
"""

import functools
import hashlib
import itertools
import json
import sys
from pathlib import Path

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from configurator import configure
from data import corpus, sources
from data.prepare_rows import encode_all, finish, read_ranks, usable, write_rows
from data.processes import start
from engine.files import read_lines, write_lines

# -- what to read --------------------------------------------------------------------------------
source = ""  # comma-separated .jsonl or .parquet files or patterns; "" = the hub's TinyGSM/TinyGSM
code = "code"  # field of the solution; the question's is `question`
limit: int | None = None  # rows to read; None = all
gsm8k = ""  # GSM8K's test.jsonl; "" = the hub's openai/gsm8k
tokenizer = ""  # file or folder of ranks (tokenizer.py); "" = the hub's Qwen2
# -- what to write -------------------------------------------------------------------------------
out = ""  # folder; "" = `tokens` beside this script
length = 512  # tokens of an example, with at least one end of text
val = 0.02  # share of the questions held out
# -- system --------------------------------------------------------------------------------------
workers: int | None = None  # processes; None = one per core

LIMITS = """
    1 <= limit <= 10**10    # None = all
    2 <= length <= 10**6
    0 < val < 1
    1 <= workers <= 1000    # None = one per core
"""

HERE = Path(__file__).resolve().parent
TINYGSM, ROWS = "TinyGSM/TinyGSM", 11_800_000  # about
GSM8K, SHA256 = "openai/gsm8k", "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14"


def main():
    encoding = read_ranks(tokenizer, "plain")
    problems, checksum = read_gsm8k()
    fields = "question", code
    origin, rows = local_rows(fields) if source else sources.hub(TINYGSM, fields)
    about = {"rows": origin, "code": code, "limit": limit, "val": val, "gsm8k_test": checksum}
    writer = corpus.Writer(out or HERE / "tokens", encoding, length, about)
    write_lines(writer.partial / "test.jsonl", problems)
    results = encode_all(writer, itertools.islice(rows, limit), pair_of, corpus.plain, workers)
    write_rows(writer, results, val, total=limit or (None if source else ROWS))
    finish(writer)


def local_rows(fields):
    """What the header records of the files, and their rows (question, code)."""
    files = sources.files(source)
    rows = (sources.read_file(file, fields) for file in files)
    return sources.origin(files), itertools.chain.from_iterable(rows)


def read_gsm8k():
    """GSM8K's test set: objects of question and number as text, and its sha256 as JSON lines."""
    rows = sources.read_small(gsm8k, {"question": str, "answer": str}, GSM8K, "main")
    lines = (json.dumps({"question": q, "answer": a}) + "\n" for q, a in rows)
    checksum = hashlib.sha256("".join(lines).encode()).hexdigest()
    if checksum != SHA256:
        print(f"warning: {len(rows)} test questions, but not GSM8K's test set as published")
    return [{"question": q, "answer": number(a)} for q, a in rows], checksum


def number(answer):
    """The text after `####`. Raises ValueError if there is no `####`."""
    _, mark, text = answer.rpartition("####")
    if not mark:
        raise ValueError(f"a test answer without a number after ####: {answer!r}")
    return text.strip()


def pair_of(folder, row):
    """The row (question, code), or why it is dropped."""
    if not usable(row):
        return "unusable"
    return "gsm8k_test" if corpus.question_key(row[0]) in keys_once(folder / "test.jsonl") else row


@functools.cache
def keys_once(path):
    return {corpus.question_key(row["question"]) for row in read_lines(path)}


if __name__ == "__main__":
    configure(globals())
    start(main)
