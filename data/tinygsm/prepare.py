"""Tokenise TinyGSM, 11.8 million questions with programs, and GSM8K's test set beside it.

    python data/tinygsm/prepare.py                                   all from the hub, about 10 GB
    python data/tinygsm/prepare.py --source='tinygsm/*.parquet' --gsm8k=test.jsonl --tokenizer=...
    python data/tinygsm/prepare.py --source=train.jsonl --code=answer    GSM8K's own solutions

Writes a folder as corpus.py reads it, with test.jsonl (question, answer as it stands after `####`).
The same command goes on where it was interrupted, and ends with the same bytes. A row goes to train
or val by a hash of its question, so no question is in both. Dropped and counted in header.json:
unusable rows, what does not fit, and every question that is in GSM8K's test set.
"""

import functools
import hashlib
import itertools
import json
import sys
from pathlib import Path

import numpy as np
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from configurator import configure
from data import sources
from data.corpus import Writer, encode, question_key
from data.sources import by_hand
from data.tokenizer import QWEN2, download, load

# -- what to read --------------------------------------------------------------------------------
source = ""  # .jsonl or .parquet files, patterns, with commas; "" = the hub's TinyGSM/TinyGSM
code = "code"  # field of the solution, beside `question`
limit: int | None = None  # rows to read; None = all
gsm8k = ""  # GSM8K's test.jsonl; "" = the hub's openai/gsm8k
tokenizer = ""  # file or folder of ranks (tokenizer.py); "" = the hub's Qwen2
# -- what to write -------------------------------------------------------------------------------
out = ""  # folder; "" = `tokens` beside this script
length = 512  # tokens of an example, with at least one end of text
val = 0.02  # share of the questions held out
# -- system --------------------------------------------------------------------------------------
workers: int | None = None  # processes; None = one per core

HERE = Path(__file__).resolve().parent
TINYGSM, ROWS = "TinyGSM/TinyGSM", 11_800_000  # about
GSM8K, SHA256 = "openai/gsm8k", "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14"
CHUNK, COMMIT = 2048, 50  # rows of a worker's task; tasks between the points to go on from


def main():
    if not 0 < val < 1:
        raise ValueError(f"val={val}: must be more than 0 and less than 1")
    encoding = read_ranks()
    whose = "Qwen2's" if encoding.checksum == QWEN2 else "not Qwen2's"
    print(f"tokenizer: {encoding.end:,} ranks, {whose}")
    problems, checksum = read_gsm8k()
    fields = "question", code
    origin, rows = local_source(fields) if source else sources.hub(TINYGSM, fields)
    about = {"rows": origin, "code": code, "limit": limit, "val": val, "gsm8k_test": checksum}
    writer = Writer(out or HERE / "tokens", encoding, length, about)
    lines = (json.dumps({"question": q, "answer": a}) + "\n" for q, a in problems)
    (writer.partial / "test.jsonl").write_text("".join(lines))
    write_rows(writer, rows, {question_key(question) for question, _ in problems})
    sources.report(writer.finish(), writer.folder)


def write_rows(writer, rows, test_keys):
    """Encode the rows (question, code) that no earlier run has committed, in their order."""
    done = writer.progress or 0
    test_keys = np.array([*test_keys], np.uint64)
    tasks = sources.chunks(itertools.islice(rows, done, limit), CHUNK)
    task = functools.partial(encode_rows, writer.partial / "tokenizer.tiktoken", length)
    total = limit or (None if source else ROWS)
    processes = workers or sources.cores()
    with sources.pool(processes) as pool, tqdm(total=total, initial=done, unit=" rows") as bar:
        results = sources.in_order(pool, task, tasks, 2 * processes)
        for number, (count, encoded, dropped) in enumerate(results, 1):
            if done == 0 and dropped["unusable"] == count:
                raise ValueError(f"the first {count} rows have no text in `question` and `{code}`")
            in_test = np.isin(encoded.keys, test_keys)
            in_val = encoded.keys < val * 2.0**64
            writer.add("train", encoded.select(~in_test & ~in_val))
            writer.add("val", encoded.select(~in_test & in_val))
            writer.dropped.update(dropped, gsm8k_test=int(in_test.sum()))
            done += count
            bar.update(count)
            if number % COMMIT == 0:
                writer.commit(done)


def encode_rows(ranks, length, rows):
    """A worker's task: rows (question, code) -> how many, Encoded, Counter of what was dropped."""
    usable = [row for row in rows if all(isinstance(text, str) and text.strip() for text in row)]
    encoded, dropped = encode(sources.load_once(ranks), usable, length)
    dropped["unusable"] = len(rows) - len(usable)
    return len(rows), encoded, dropped


# -- sources -------------------------------------------------------------------------------------
def local_source(fields):
    """What the header says of the files, and their rows (question, code), what is absent None."""
    files = sources.files(source)
    rows = (sources.read_file(file, fields) for file in files)
    return sources.origin(files), itertools.chain.from_iterable(rows)


def read_ranks():
    if tokenizer:
        return load(tokenizer)
    with by_hand("Qwen2's ranks", "--tokenizer=PATH"):
        return load(download(HERE))


def read_gsm8k():
    """GSM8K's test set: pairs of question and number as text, and its sha256 as JSON lines."""
    rows = gsm8k_file() if gsm8k else gsm8k_hub()
    rows = [{"question": row["question"], "answer": row["answer"]} for row in rows]
    checksum = hashlib.sha256("".join(json.dumps(row) + "\n" for row in rows).encode()).hexdigest()
    if checksum != SHA256:
        print(f"warning: {len(rows)} test questions, but not GSM8K's test set as published")
    return [(row["question"], number(row["answer"])) for row in rows], checksum


def gsm8k_file():
    with open(gsm8k, encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines if line.strip()]
    if not all(isinstance(row, dict) and {"question", "answer"} <= row.keys() for row in rows):
        raise ValueError(f"{gsm8k}: every line must have question and answer")
    return rows


def gsm8k_hub():
    with by_hand(GSM8K, "--gsm8k=test.jsonl"):
        import datasets

        return datasets.load_dataset(GSM8K, "main", split="test")


def number(answer):
    """What follows `#### `, as it stands. Raises ValueError if nothing does."""
    _, mark, text = answer.rpartition("####")
    if not mark:
        raise ValueError(f"a test answer without a number after ####: {answer!r}")
    return text.strip()


if __name__ == "__main__":
    configure(globals())
    sources.start(main)
