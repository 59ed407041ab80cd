"""Tokenise TinyGSM, 11.8 million questions with programs, and GSM8K's test set beside it.

    python data/tinygsm/prepare.py                                   all from the hub, about 10 GB
    python data/tinygsm/prepare.py --source='tinygsm/*.parquet' --gsm8k=test.jsonl --tokenizer=...
    python data/tinygsm/prepare.py --source=train.jsonl --code=answer    GSM8K's own solutions

Writes a folder that text.py reads, with test.jsonl (question, answer that ends in `#### NUMBER`).
After an interruption the same command goes on (prepare_rows.py), and ends with the same bytes. A
row goes to train or val by a hash of its question. Dropped, and counted in header.json, are
unusable rows, rows that do not fit, and every question that is in GSM8K's test set.
"""

import functools
import hashlib
import json
import sys
from pathlib import Path

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from configurator import configure
from data import corpus, sources
from data.files import lines, write_lines
from data.prepare_rows import encode_all, read_tokenizer, usable, write_rows
from data.processes import positive, start

# -- what to read --------------------------------------------------------------------------------
source = ""  # comma-separated .jsonl or .parquet files or patterns; "" = the hub's TinyGSM/TinyGSM
code = "code"  # field of the solution; the question's is `question`
revision = ""  # of TinyGSM on the hub: commit, branch or tag; "" = the newest
limit: int | None = None  # 1..: rows to read; None = all
gsm8k = ""  # GSM8K's test.jsonl; "" = the hub's openai/gsm8k
tokenizer = ""  # .tiktoken file, tokenizer.json or folder with one; "" = Qwen2's
# -- what to write -------------------------------------------------------------------------------
out = ""  # folder; "" = `tokens` beside this script
length = 512  # 2..65535: tokens of an example, with at least one end of text
val = 0.02  # 0..1: share of the questions held out
# -- system --------------------------------------------------------------------------------------
workers: int | None = None  # 1..1000: processes; None = one per core
if __name__ == "__main__":
    configure(globals())

HERE = Path(__file__).resolve().parent
TINYGSM = "TinyGSM/TinyGSM"
GSM8K, SHA256 = "openai/gsm8k", "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14"


def main():
    fields = "question", code
    positive(limit=limit, workers=workers)
    encoding = read_tokenizer(tokenizer)
    problems, checksum = read_gsm8k()
    given = sources.local(source, fields) if source else None
    origin, read = given or sources.hub(TINYGSM, fields, revision=revision)
    about = {"rows": origin, "code": code, "limit": limit, "val": val, "gsm8k_test": checksum}
    writer = corpus.Writer(out or HERE / "tokens", encoding, length, about)
    write_lines(writer.partial / "test.jsonl", problems)
    rows = read(writer.cache, limit)
    write_rows(writer, encode_all(writer, rows, pair_of, corpus.plain, workers), val)


def read_gsm8k():
    """The questions and answers of GSM8K's test set, and its sha256 as JSON lines."""
    rows = sources.read_small(gsm8k, {"question": str, "answer": str}, GSM8K, "main")
    problems = [{"question": question, "answer": answer} for question, answer in rows]
    content = "".join(json.dumps(problem) + "\n" for problem in problems)
    checksum = hashlib.sha256(content.encode()).hexdigest()
    if checksum != SHA256:
        print(f"warning: {len(rows)} test questions, but not GSM8K's test set as published")
    return problems, checksum


def pair_of(folder, row):
    """Question and code, or why the row is dropped."""
    pair = usable([*row.values()])
    if not isinstance(pair, str) and corpus.question_key(pair[0]) in test_keys(folder):
        return "gsm8k_test"
    return pair


@functools.cache
def test_keys(folder):
    rows = map(json.loads, lines(folder / "test.jsonl"))
    return {corpus.question_key(row["question"]) for row in rows}


if __name__ == "__main__":
    start(main)
