r"""Tokenise text of your own, with prompts and responses or without, to train on.

    python data/jsonl/prepare.py --source=chat.jsonl --prompt=question --response=answer
    python data/jsonl/prepare.py --source='books/*.parquet' --text=text --tokenizer=tokenizer.json
    python data/jsonl/prepare.py --source=book.txt --text=text         each paragraph is a document
    python data/jsonl/prepare.py --source=openai/gsm8k --config=main --prompt=question \
        --response=answer                                                  from the Hugging Face hub
    python train.py config/own_text.py

With --prompt and --response a row is one example, with --text documents are joined and cut into
rows (rows.py). Rows without text in the fields, and rows that are too long, are dropped; the script
says how many, and what the tokenizer loses: some leave out white space, case or unknown words.
After an interruption the same command goes on.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from configurator import configure
from data import rows
from data.processes import start

# -- what to read
source = ""  # .jsonl, .parquet or .txt files, a pattern; or on the hub: me/set
config = ""  # of the data set on the hub, if it has several
split = "train"  # of the data set on the hub
prompt = ""  # field of the prompt
response = ""  # field of the response
text = ""  # instead of both, the field of text without prompts
tokenizer = "bytes"  # bytes, or a file: .tiktoken ranks, tokenizer.json; or a folder with one
# -- what to write
out = "data/jsonl/tokens"  # folder
length = 256  # 2..65535 tokens of a row
val = 0.05  # 0..1 share of the prompts, or of the documents, held out
workers = None  # 1.. processes; None = one per core


def main():
    if not source or bool(prompt) != bool(response) or bool(prompt) == bool(text):
        raise ValueError("expected --source, and --prompt and --response, or --text alone")
    fields = [text] if text else [prompt, response]
    coder = rows.tokenizer(tokenizer)
    folder = rows.Folder(out, coder, length, {"rows": source, "fields": fields, "val": val})
    examples = rows.load(source, fields, config or None, split)
    form = rows.document if text else rows.plain
    folder.add(examples, val, form=form, workers=workers)
    folder.finish(joined=bool(text))


if __name__ == "__main__":
    configure(globals())
    start(main)
