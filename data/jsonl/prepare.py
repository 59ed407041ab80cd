r"""Tokenise text of your own, with prompts and responses or without, to train on.

    python data/jsonl/prepare.py --source=chat.jsonl --prompt=question --response=answer
    python data/jsonl/prepare.py --source='books/*.parquet' --text=text --tokenizer=tokenizer.json
    python data/jsonl/prepare.py --source=book.txt --text=text        each paragraph is a document
    python data/jsonl/prepare.py --source=openai/gsm8k --config=main --prompt=question \
        --response=answer                                                 from the Hugging Face hub
    python train.py --task=text --data=data/jsonl/tokens

With --prompt and --response an example is `prompt, newline | response, end, end, ...` up to
`length`, and what does not fit is dropped. With --text there is no prompt: documents are joined
with an end between them and cut into rows of `length` tokens. A row goes to train or val by a hash
of its prompt, or of the document. What was dropped and why, and what the tokenizer lost, is printed
and kept in header.json.
After an interruption the same command goes on (prepare_rows.py), and ends with the same bytes.
"""

import re
import sys
from pathlib import Path

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from configurator import configure
from data import corpus, sources
from data.prepare_rows import encode_all, read_tokenizer, usable, write_rows
from data.processes import positive, start

# -- what to read --------------------------------------------------------------------------------
source = ""  # comma-separated .jsonl, .parquet or .txt files or patterns; or on the hub: me/set
config = ""  # of the data set on the hub, if it has several
split = "train"  # of the data set on the hub
revision = ""  # of the data set on the hub: commit, branch or tag; "" = the newest
prompt = ""  # field of the prompt
response = ""  # field of the response
text = ""  # instead of both, the field of text without prompts
limit: int | None = None  # 1..: rows to read; None = all
tokenizer = "bytes"  # bytes, or a file: .tiktoken ranks, tokenizer.json; or a folder with one
# -- what to write -------------------------------------------------------------------------------
out = ""  # folder; "" = `tokens` beside this script
length = 256  # 2..65535: tokens of a row
val = 0.05  # 0..1: share of the prompts, or of the documents, held out
# -- system --------------------------------------------------------------------------------------
workers: int | None = None  # 1..1000: processes; None = one per core
if __name__ == "__main__":
    configure(globals())

HERE = Path(__file__).resolve().parent
HUB_NAME = r"[\w.-]+(/[\w.-]+)?"
FILES = ".jsonl", ".parquet", ".json", ".txt", ".gz", ".csv", ".tsv"  # no names on the hub


def main():
    fields = asked_for()
    positive(limit=limit, workers=workers)
    encoding = read_tokenizer(tokenizer)
    origin, read = find_source(fields)
    about = {"rows": origin, "fields": fields, "limit": limit, "val": val, "packed": bool(text)}
    writer = corpus.Writer(out or HERE / "tokens", encoding, length, about)
    form = corpus.document if text else corpus.plain
    rows = read(writer.cache, limit)
    write_rows(writer, encode_all(writer, rows, pair_of, form, workers), val, packed=bool(text))


def asked_for():
    """The fields to read. Raises ValueError for settings that contradict each other."""
    if bool(prompt) != bool(response) or bool(prompt) == bool(text):
        raise ValueError(
            f"prompt {prompt!r}, response {response!r}, text {text!r}: expected --prompt=FIELD and "
            "--response=FIELD, or --text=FIELD alone"
        )
    return [text] if text else [prompt, response]


def find_source(fields):
    """What the header records of the source, and a function that reads its rows."""
    is_name = re.fullmatch(HUB_NAME, source) and not source.endswith(FILES)
    if is_name and not Path(source).exists():
        return sources.hub(source, fields, config or None, split, revision)
    return sources.local(source, fields)


def pair_of(folder, row):
    """Prompt and response, or the text and ""; or why the row is dropped."""
    pair = usable([*row.values()])
    return pair if isinstance(pair, str) or len(pair) == 2 else (*pair, "")


if __name__ == "__main__":
    start(main)
