# Word problems of 4 short templates with a small model: for experiments with many runs.
#
#     python train.py config/gsm_tiny.py                  # PUMA
#     python train.py config/gsm_tiny.py --method=mdm     # random masks, the same budget
#
# 0.3M parameters, one laptop core, five minutes, no download. From scratch it hardly learns.
from config.gsm_mini import *  # noqa: F403

name = "gsm_tiny"
templates = ["ratio", "average", "laps", "crew"]
text_length = 128
train_examples = 100_000

k_schedule = [(0, 12)]  # 11 stages
chains_from = 0

dim, layers, heads, mlp = 64, 4, 4, 192
max_iters = 1000
warmup = 100

eval_interval = 250
