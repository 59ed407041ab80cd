# Word problems of 12 short templates, for experiments on the text task that take minutes.
#
#     python train.py config/gsm_tiny.py                  # PUMA
#     python train.py config/gsm_tiny.py --method=mdm     # random masks, the same budget
#
# 0.6M parameters, laptop processor, no download. For runs/ar.sh and runs/block.sh; not run to its
# end yet.
name = "gsm_tiny"
device = "cpu"
dataset = "text"
templates = [
    "sum_of_ages", "ratio", "average", "laps", "recipe", "savings", "crew", "practice",
    "future_age", "profit", "two_goods", "coupon",
]  # fmt: skip
text_length = 128
train_examples = 100_000
test_examples = 200

k_schedule = [(0, 12)]  # 11 stages
tau = 0.9
buffer = 32

dim, layers, heads, mlp = 96, 4, 3, 288
theta = 1000.0
tied = True
batch_size = 16
max_iters = 2000
muon = True
lr = 4e-3
min_lr = 1e-4
warmup = 200

eval_interval = 500
eval_policies = ["top_k"]
eval_batch_size = 16  # what fits into the cache of a processor
eval_tau = 0.9
