"""Text of your own as a task: text.py with the tokenizer, so that prompts are typed, answers read.

    python data/jsonl/prepare.py --source=FILE.jsonl --prompt=question --response=answer
    python train.py config/own_text.py
    python sample.py --out_dir=out/own_text --prompt="..."

Any tokenizer that data/rows.py knows will do.
"""

from pathlib import Path

from data import rows
from text import Text


def load(folder, test_examples):
    problem = Text(Path(folder))
    problem.tokenizer = rows.kept(folder)
    return problem
