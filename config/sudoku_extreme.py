# Sudoku-Extreme, 3.8 million 9x9 puzzles, most of them hard, on one GPU. Not run yet.
#
#     python data/sudoku/prepare.py --source=train.csv --test_source=test.csv --out=extreme.npy
#     python train.py config/sudoku_extreme.py                     # PUMA
#     python train.py config/sudoku_extreme.py --method=mdm        # random masks
#
# Both files: https://huggingface.co/datasets/sapientinc/sudoku-extreme (data/sudoku/README.md).
# Model, batch and schedule are those of config/sudoku.py, whose puzzles need no guesses. How well
# they suit harder ones, and what accuracy or time to expect, is not known.
from config.sudoku import *  # noqa: F403

name = "sudoku_extreme"
data_file = "extreme.npy"
test_examples = 5000  # of 423 thousand, chosen by a hash, so ratings occur as in all of them

batch_size = 64
max_iters = 120_000  # two epochs of the baseline

eval_interval = 5000
eval_policies = ["top_k"]
