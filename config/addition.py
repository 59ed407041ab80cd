# Addition of two 16-digit numbers, the highest digit first: each training sum is new.
#
#     python train.py config/addition.py                          # PUMA
#     python train.py config/addition.py --method=mdm             # random masks, the same budget
#     python train.py config/addition.py --tau=None               # PUMA without fast-forward
#
# 0.4M parameters, nine minutes of one core, no download. The answer is certain, yet its high digits
# wait for the carries of the low ones: arXiv 2605.29123 says that PUMA does harm here. One seed of
# each, 1,024 sums: `visits` of PUMA (metrics.jsonl) falls from 7 to 1.0, since it gets surer than
# 0.9 of all positions; it solves 98.1 % after 2,000 updates, 96.5 % at the end, random masks 100 %.
name = "addition"
device = "cpu"
dtype = "float32"  # in bfloat16, one seed, random masks lose a part of what they have learned
dataset = "addition"
digits = 16
digit_order = "highest"
train_examples = 1_000_000  # more than a run uses up
test_examples = 512  # 128 of each stratum of carry chains: 0-1, 2-3, 4-7, 8-16

k_schedule = [(0, 7)]  # of 49 tokens, the prompt included: 7 stages
tau = 0.9
buffer = 32

dim, layers, heads, mlp = 128, 2, 4, 384
theta = 100.0
batch_size = 64
max_iters = 4000
muon = True
lr = 4e-3
min_lr = 1e-4
warmup = 100

eval_interval = 500
eval_policies = ["top_k"]
eval_reveal = 1
eval_batch_size = 256
