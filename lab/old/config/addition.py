# Addition of two 10-digit numbers, the highest digit first: each training sum is new.
#
#     python train.py config/addition.py                                         # PUMA
#     python train.py config/addition.py --method=mdm                            # random masks
#     python train.py config/addition.py --second_visit=False                    # as published
#     python train.py config/addition.py --operation=subtract                    # or sort
#
# 0.1M parameters, three minutes on one core, no download. arXiv 2605.29123 says that PUMA does harm
# here. As published it does: its chains collapse; with the second visit not (results/when.md).
name = "addition"
device = "cpu"
dtype = "float32"  # in bfloat16 (one seed), random masks forget part of what they have learned
dataset = "arithmetic"
digits = 10
train_examples = 1_000_000  # more than a run uses up
test_examples = 512  # 128 of each stratum of carry chains: 0-1, 2-3, 4-7, 8-10

k_schedule = [(0, 3)]  # of 31 tokens, the prompt included: 10 stages
tau = 0.9
buffer = 32

dim, layers, heads, mlp = 64, 2, 4, 192
theta = 100.0
batch_size = 64
max_iters = 3000
muon = True
lr = 4e-3
min_lr = 1e-4
warmup = 100

eval_interval = 250
eval_policies = ["top_k"]
eval_reveal = 1
eval_batch_size = 256
