# Word problems of 12 short templates, for experiments on the text task that take minutes.
#
#     python train.py config/gsm_tiny.py                  # PUMA
#     python train.py config/gsm_tiny.py --method=mdm     # random masks, the same budget
#
# 0.6M parameters, laptop processor, no download. For runs/ar.sh and runs/block.sh; not run to its
# end yet. What is not said here is as in config/gsm_mini.py.
from config.gsm_mini import *  # noqa: F403

name = "gsm_tiny"
templates = [
    "sum_of_ages", "ratio", "average", "laps", "recipe", "savings", "crew", "practice",
    "future_age", "profit", "two_goods", "coupon",
]  # fmt: skip
text_length = 128
train_examples = 100_000

k_schedule = [(0, 12)]  # 11 stages
chains_from = 0

dim, layers, heads, mlp = 96, 4, 3, 288
max_iters = 2000

eval_interval = 500
