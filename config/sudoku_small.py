# 9x9 Sudoku with about 33 clues, generated here.
#
#     python train.py config/sudoku_small.py                 # PUMA
#     python train.py config/sudoku_small.py --method=mdm    # random masks, the same budget
#
# 1.3M parameters, 2 laptop cores, 22 minutes, no download. Expect 91 % of unseen puzzles (PUMA, one
# seed; another run gave 93). Random masks were not run at these settings.
name = "sudoku_small"
device = "cpu"
box = (3, 3)
clues = 33
train_examples = 200_000
test_examples = 512

k_schedule = [(0, 10)]  # 8 stages
tau = 0.9
buffer = 32  # chains of 32 batches

dim, layers, heads, mlp = 128, 6, 4, 384
# Frequencies near 2 pi / 9 and 2 pi / 27, the periods of columns and of bands of boxes
theta = 20.0
batch_size = 32
max_iters = 4000
lr = 1.5e-3
min_lr = 1e-4
warmup = 200

eval_interval = 1000
eval_policies = ["top_k"]
eval_batch_size = 32  # fits into a processor's cache
