"""Text of your own as a task, with its tokenizer: what text.py trains on is typed and shown as text.

python data/jsonl/prepare.py --source=FILE.jsonl --prompt=question --response=answer
python train.py config/own_text.py
python sample.py --out_dir=out/own_text --prompt="..."
"""

from pathlib import Path

from data import rows
from text import Text


def load(folder, test_examples):
    problem = Text(Path(folder))
    problem.tokenizer = rows.kept(folder)
    return problem
