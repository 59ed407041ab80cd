# Addition of two 32-digit numbers as in "The Confidence Shortcut" (arXiv 2605.29123), for a GPU.
#
#     python train.py config/addition_32.py                                # PUMA
#     python train.py config/addition_32.py --method=mdm                   # random masks
#     python train.py config/addition_32.py --method=mdm --papl=1          # PAPL
#
# 0.4M parameters; time not measured. That paper gives: 20,000 sums, 2 layers of 128, 300,000
# updates of 256 rows, AdamW at 1e-3, float32, EMA 0.9999, tau 0.9, a chain per row of the batch,
# and 3 to 16 stages, rising over the first third. It does not give the steps in between, the form
# of a row, warm-up and decay, the heads. It evaluates the weights with the least loss on fully
# masked rows; this run evaluates the last. Other settings are those of config/addition.py.
from config.addition import *  # noqa: F403

name = "addition_32"
device = ""
dtype = "float32"
digits = 32
train_examples = 20_000  # each is trained on for thousands of epochs; 1e9: never twice
test_examples = 2560  # 512 of each stratum: 0-1, 2-3, 4-7, 8-15, 16-32

k_schedule = [(0, 32), (25_000, 16), (50_000, 12), (75_000, 8), (100_000, 6)]  # 3 to 16 stages
buffer = 1  # config/addition.py: 32
random_share = 0.0  # config/addition.py: 0.5

dim, layers, heads, mlp = 128, 2, 4, 384
batch_size = 256
max_iters = 300_000
muon = False
lr = 1e-3
min_lr = 1e-3
warmup = 1000

eval_interval = 10_000
eval_batch_size = 2560
log_interval = 500
checkpoint_interval = 10_000
