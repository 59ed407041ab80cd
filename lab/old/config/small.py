# Four small tasks (tasks/rules.py) with one, few and very many right answers.
#
#     python train.py config/small.py --k_schedule=7 --theta=20 --max_iters=1500    # permutations
#     python train.py config/small.py --dataset=sums --k_schedule=3 --lr=4e-3 --max_iters=4000
#     python train.py config/small.py --dataset=latin --k_schedule=4 --max_iters=600
#     python train.py config/small.py --dataset=brackets --k_schedule=4 --max_iters=1000
#
# 0.15M parameters, a minute on one core, no download.
name = "small"
device = "cpu"
dataset = "permutations"
test_examples = 512

tau = 0.9
buffer = 32

dim, layers, heads, mlp = 64, 3, 4, 192
theta = 100.0
batch_size = 64
muon = True
lr = 8e-3
min_lr = 1e-4
warmup = 100

eval_interval = 250
eval_policies = ["top_k"]
eval_reveal = 1
