"""How many puzzles of other people's Sudoku lists a run solves: a table by list.

    python -m studies.lists --out_dir=weights/sudoku_nine --folder=FOLDER
    python -m studies.lists --out_dir=... --folder=FOLDER --flags="--reveal=2 --batch_size=100"

Of each list `count` puzzles, always the same ones. eval.py solves them and keeps the results in
out_dir, so a repeated command finds them. --trained_on=FILE.npy also counts those that are, up to
symmetry, in a file of puzzles to train on (data/sudoku).
"""

import hashlib
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np

import sudoku
from configurator import configure, errors_as_messages
from data.files import open_kept
from data.sudoku.hard import BOX
from data.sudoku.symmetries import copies
from engine.files import read_json, write
from engine.log import code
from runs.results import how, scores, table
from runs.saved import checksum, open_run

LISTS = {
    "kaggle_1m_sample": "c134a6e1387ec0f66e9bc05e4460b5de45c6fddb8215b86648fcca489b354259",
    "clues17": "4937f9ee9a2d33d8f166d06f0e37e05bb2eb45b9661b52fe890198178cf001dd",
    "exchange_bank": "6d7e6bd624cd1c01f60c5ff8f709a3a9c736d1bb3c6969c6e3e8b46174185d7d",
    "radcliffe_sample": "82d687e09aee5e2f0a4483d2670597d40878201bc5e36e02728a1780cfd854ec",
    "classic_lists": "66b551053f65e12830d0e47896b392f73db4d7cc1ee6b53b687ac296e6e86edf",
    "forum_hardest_11plus": "77f6f97ebb9796634070162b46476befde1372ca1cc863ec08f2a8a3d885f7ca",
}  # of NAME.csv
EVAL = Path(__file__).parents[1] / "eval.py"

out_dir = "weights/sudoku_nine"  # the run
folder = "lists"  # of the lists, NAME.csv with a column `puzzle`
lists = []  # their names; [] = all
count = 1000  # 1..: puzzles of each list
flags = ""  # of eval.py: a sampler, batch_size, device
trained_on = ""  # a file of puzzles to train on; "" = not compared


def main():
    train = open_kept(trained_on)[0][:, 0] if trained_on else np.empty((0, 81), np.uint8)
    weights = checksum(open_run(out_dir).model)
    rows = []
    for name in lists or LISTS:
        puzzles = chosen(name)
        same = str(len(copies(puzzles, train, BOX)) if trained_on else "not compared")
        rows += [[name, *row, same] for row in solved(name, puzzles, weights)]
    head = ["list", "sampler", "solved [95 %]", "passes per puzzle", "% within tries", "trained on"]
    print(table(head, rows))


def chosen(name):
    """Puzzles of a list, uint8 (<= count, 81). Raises ValueError for a file not in LISTS."""
    path = Path(folder, f"{name}.csv")
    if hashlib.sha256(path.read_bytes()).hexdigest() != LISTS.get(name):
        raise ValueError(f"{path}: expected the sha256 {LISTS.get(name)}")
    puzzles = sudoku.read_puzzles(path, BOX)
    return puzzles[np.sort(np.random.default_rng(0).permutation(len(puzzles))[:count])]


def solved(name, puzzles, weights):
    """The results of eval.py, weights by their checksum: rows of the table, one for a sampler."""
    path = Path(f"out/lists/{name}_{count}.csv")
    write(path, "\n".join(["puzzle", *map(sudoku.to_text, puzzles), ""]))
    command = [sys.executable, str(EVAL), f"--out_dir={out_dir}", f"--file={path}"]
    subprocess.run([*command, *shlex.split(flags)], check=True)
    now = {"file": str(path), "code": code(), "weights": weights}
    rows = [row for row in read_json(Path(out_dir, "eval.json")) if now.items() <= row.items()]
    blanks = (puzzles == 0).sum(1).mean()
    for row in rows:
        (_, score, (low, high)), *_ = scores(row)
        passes = f"{blanks / row['tokens_per_step']:.1f}"
        tries = ", ".join(f"{n}: {100 * share:.1f}" for n, share in row.get("within", {}).items())
        yield [how(row), f"{score:.1%} [{low:.1%}, {high:.1%}]", passes, tries or "-"]


if __name__ == "__main__":
    configure(globals())
    with errors_as_messages():
        main()
