# Generated word problems with programs: the text task on a laptop.
#
#     python train.py config/gsm_mini.py               # PUMA
#     python train.py config/gsm_mini.py --method=mdm  # random masks, the same budget
#
# 1.05M parameters, 2 laptop cores, 28 minutes, no download. PUMA, after random masks, solves
# 77 % of unseen problems of the seen templates, random masks 42 (eight pairs). With chains from the
# start, or AdamW, it does not learn to copy in this time (results/exploration.md).
name = "gsm_mini"
device = "cpu"
dataset = "text"
train_examples = 200_000
test_examples = 200

k_schedule = [(0, 16)]  # 11 stages
tau = 0.9
buffer = 32
chains_from = 2000  # random masks until then: they teach copying, which chains take for granted

dim, layers, heads, mlp = 128, 4, 4, 384
theta = 1000.0
tied = True
batch_size = 16
max_iters = 5000
muon = True
lr = 4e-3
min_lr = 1e-4
warmup = 200

eval_interval = 1000
eval_policies = ["top_k"]
eval_batch_size = 16  # fits into a processor's cache
eval_tau = 0.9
