# The paper's Sudoku on a laptop: 9x9 (3x3 boxes), minimal puzzles of about 24 clues.
#
#     python train.py config/sudoku_nine.py                  # PUMA
#     python train.py config/sudoku_nine.py --method=mdm     # random masks, the same budget
#
# 1.3M parameters, one laptop core, an hour, and three minutes to make the puzzles; no download.
# One seed, as 5,000 updates and 6,000 more: PUMA 90 % of unseen puzzles, random masks 82 %
# (results/sudoku_nine.md). Other settings are those of config/sudoku_small.py.
from config.sudoku_small import *  # noqa: F403

name = "sudoku_nine"
clues = None
train_examples = 250_000
test_examples = 200

max_iters = 11_000
muon = True
lr = 3e-3

eval_interval = 500
