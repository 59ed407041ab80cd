"""Generate word problems whose answers are programs, and tokenise them for train.py.

    python data/wordproblems/prepare.py                          # 200,000 problems, 20 seconds
    python data/wordproblems/prepare.py --held_out=transfer --out=data/wordproblems/transfer
    python train.py config/gsm_mini.py

The folder has the token files that text.py reads; no problem in val shares a template with its
numbers with one in train. vocabulary.tiktoken is a byte-pair encoding of 1,500 tokens, learned from
generated problems.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from configurator import configure, pick
from data import rows
from data.processes import start
from data.wordproblems.generate import make_problems

train = 200_000  # 1.. problems to train on; those that do not fit in a row are dropped
test = 1000  # 1.. problems in val
held_out = "test"  # which these are: test, or transfer, of templates that are never trained on
out = "data/wordproblems/tokens"  # folder
if __name__ == "__main__":
    configure(globals())

LENGTH = 176  # tokens of a row


def main():
    pick("held_out", held_out, ["test", "transfer"])
    coder = rows.tokenizer(Path(__file__).with_name("vocabulary.tiktoken"))
    folder = rows.Folder(out, coder, LENGTH, {"wordproblems": train, "held_out": held_out})
    for kind, count, val in (("train", train, 0.0), (held_out, test, 1.0)):  # val: the share of it
        print(f"making {count:,} problems: {kind}", flush=True)
        pairs = [(problem.question, problem.code) for problem in make_problems(count, kind)]
        folder.add(rows.of(pairs), val, workers=1)
    folder.finish()


if __name__ == "__main__":
    start(main)
