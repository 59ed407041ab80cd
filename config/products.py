# Running products in S5: an answer of dependent steps, each easy once the last is written.
#
#     python train.py config/products.py                     # 5 moves, a minute or two of a core
#     python train.py config/products.py --data=7            # 7 moves
#
# No data to make. 0.15M parameters.
out_dir = "out/products"
task = "lab.products"
data = "5"  # moves
test_examples = 512

method = "puma_plus"
k_schedule = [(0, 4)]  # 8 stages of 30 tokens
tau = 0.9

dim = 64
layers = 3
heads = 4
mlp = 192
theta = 20.0
batch_size = 64
max_iters = 1500
lr = 4e-3
min_lr = 2.5e-3
