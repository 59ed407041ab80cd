# The puzzles of sudoku_mini with a smaller model and fewer updates: for experiments with many runs.
#
#     python train.py config/sudoku_tiny.py                  # PUMA
#     python train.py config/sudoku_tiny.py --method=mdm     # random masks, the same budget
#
# 0.3M parameters, one laptop core, two minutes, no download. The base of most studies.
from config.sudoku_mini import *  # noqa: F403

name = "sudoku_tiny"
test_examples = 256

dim, layers, heads, mlp = 64, 6, 4, 192
max_iters = 1000
lr = 8e-3

eval_interval = 100
