# The paper's Sudoku run: 9x9, 6.83M parameters, 1.8M minimal puzzles that singles solve.
#
#     torchrun --nproc_per_node=2 train.py config/sudoku.py                  # as in the paper
#     python train.py config/sudoku.py --batch_size=64                       # one GPU
#     python train.py config/sudoku.py --data_file=sudoku-3m.csv --max_rating=0   # its own data
#
# Paper: about 1 hour on two H100, 90.1 % of unseen puzzles solved (top_k, 2 per step). Not yet run
# in full here.
name = "sudoku"
box = (3, 3)
train_examples = 1_800_000
test_examples = 1000
k_schedule = [(0, 10)]  # 8 stages
dim, layers, heads, mlp = 256, 8, 8, 768
