# The paper's Sudoku on a laptop: 9x9, minimal puzzles of about 24 clues.
#
#     python data/sudoku/prepare.py --box="(3,3)" --out=data/sudoku/minimal_9x9   # 4 minutes, once
#     python train.py config/sudoku_nine.py
#     python train.py config/sudoku_nine.py --method=mdm        # random masks
#
# 1.3M parameters, an hour of a laptop core.
out_dir = "out/sudoku_nine"
data = "data/sudoku/minimal_9x9"
test_examples = 200

method = "puma_plus"
k_schedule = [(0, 10)]  # 8 stages
tau = 0.9

dim = 128
layers = 6
heads = 4
mlp = 384
theta = 20.0  # frequencies near the periods of columns and of bands of boxes
batch_size = 32
max_iters = 11_000
lr = 3e-3
warmup = 200

eval_interval = 500
