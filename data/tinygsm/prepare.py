"""Tokenise TinyGSM, 11.8 million questions with programs, and put GSM8K's test set beside it.

    python data/tinygsm/prepare.py                                   all from the hub, about 10 GB
    python data/tinygsm/prepare.py --source='tinygsm/*.parquet' --gsm8k=test.jsonl --tokenizer=...
    python data/tinygsm/prepare.py --source=train.jsonl --code=answer    GSM8K's own solutions

Writes a folder that text.py reads (rows.py), with test.jsonl: GSM8K's 1,319 test questions, of
github.com/openai/grade-school-math. A row is dropped if it does not fit, or if its question has the
same words as one of these; paraphrases are not detected. After an interruption the same command
goes on. The folder has an estimated 10 GB, and takes twice as much until it is whole. TinyGSM and
GSM8K state the licence MIT.
"""

import functools
import hashlib
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from configurator import configure
from data import rows
from data.processes import start

# -- what to read
source = "TinyGSM/TinyGSM"  # on the hub; or .jsonl or .parquet files, a pattern
code = "code"  # field of the solution; the question's is `question`
gsm8k = "openai/gsm8k"  # on the hub; or its test.jsonl
tokenizer = ""  # .tiktoken file, tokenizer.json or folder with one; "" = Qwen2's, downloaded
# -- what to write
out = "data/tinygsm/tokens"  # folder
length = 512  # 2..65535 tokens of a row
val = 0.02  # 0..1 share of the questions held out
workers = None  # 1.. processes; None = one per core
if __name__ == "__main__":
    configure(globals())

SHA256 = "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14"  # of test.jsonl


def main():
    coder = rows.tokenizer(tokenizer)
    test = rows.load(gsm8k, ["question", "answer"], "main", "test")
    lines = "".join(json.dumps(problem) + "\n" for problem in test)
    checksum = hashlib.sha256(lines.encode()).hexdigest()
    if checksum != SHA256:
        print(f"warning: {len(test):,} questions that are not GSM8K's test set as published")
    about = {"rows": source, "code": code, "val": val, "gsm8k": checksum}
    folder = rows.Folder(out, coder, length, about)
    (folder.partial / "test.jsonl").write_text(lines)
    keys = frozenset(map(rows.question_key, test["question"]))
    examples = rows.load(source, ["question", code])
    folder.add(examples, val, functools.partial(pair, keys), workers=workers)
    folder.finish()


def pair(keys, row):
    """Question and code; or why the row is dropped, if its question has one of the keys."""
    question, code = row.values()
    is_taken = isinstance(question, str) and rows.question_key(question) in keys
    return "gsm8k_test" if is_taken else (question, code)


if __name__ == "__main__":
    start(main)
