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

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from configurator import configure, pick
from data import corpus, vocabularies
from data.files import progress_bar
from data.processes import positive, start
from data.wordproblems.generate import make_problems

train = 200_000  # problems to train on; those that do not fit in a row are dropped
test = 1000  # problems in val
held_out = "test"  # which these are: test, or transfer, of templates that are never trained on
out = ""  # folder; "" = `tokens` beside this script
if __name__ == "__main__":
    configure(globals())
    pick("held_out", held_out, ["test", "transfer"])

HERE = Path(__file__).resolve().parent
LENGTH = 176  # tokens of a row


def main():
    positive(train=train, test=test)
    encoding = vocabularies.open_kept(HERE / "vocabulary.tiktoken")
    about = {"wordproblems": train, "held_out": held_out}
    writer = corpus.Writer(out or HERE / "tokens", encoding, LENGTH, about)
    for split, kind, count in (("train", "train", train), ("val", held_out, test)):
        print(f"making {count:,} problems: {kind}", flush=True)
        pairs = [(problem.question, problem.code) for problem in make_problems(count, kind)]
        for at in progress_bar(range(0, count, 1000), total=-(-count // 1000), unit="k"):
            encoded, reasons = corpus.encode(encoding, pairs[at : at + 1000], LENGTH)
            writer.add(split, encoded)
            writer.dropped.update(filter(None, reasons))
    splits = writer.finish()["splits"]
    kept = ", ".join(f"{split} {splits[split]['examples']:,}" for split in splits)
    print(f"{kept} problems written to {writer.folder}")


if __name__ == "__main__":
    start(main)
