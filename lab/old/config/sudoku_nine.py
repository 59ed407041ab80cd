# The paper's Sudoku on a laptop: 9x9 (3x3 boxes), minimal puzzles of about 24 clues.
#
#     python train.py config/sudoku_nine.py                                       # PUMA
#     python train.py config/sudoku_nine.py --method=mdm                          # random masks
#     python train.py config/sudoku_nine.py --carry --window=2 --max_iters=5500   # best, as long
#
# 1.3M parameters, a laptop core, an hour, no download. PUMA solves 92.5 to 94 % of unseen puzzles
# (three seeds), random masks 84 to 90.5, with a carry 98 (results/sudoku_nine.md).
name = "sudoku_nine"
device = "cpu"
box = (3, 3)
train_examples = 250_000
test_examples = 200

k_schedule = [(0, 10)]  # 8 stages
tau = 0.9
buffer = 32  # chains of 32 batches
chains_from = 0  # random masks first, train.py's default, cost points here (results/when.md)

dim, layers, heads, mlp = 128, 6, 4, 384
# Frequencies near 2 pi / 9 and 2 pi / 27, the periods of columns and of bands of boxes
theta = 20.0
batch_size = 32
max_iters = 11_000
muon = True
lr = 3e-3
min_lr = 1e-4
warmup = 200

eval_interval = 500
eval_policies = ["top_k"]
eval_batch_size = 32  # fits into a processor's cache
