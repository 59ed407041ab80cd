# text8, characters of Wikipedia: 12 layers of 768, rows of 256, 512 rows an update, 1M updates.
#
#     python data/text8/prepare.py --source=text8.zip        # once; --source=download fetches it
#     torchrun --nproc_per_node=8 train.py config/text8.py
#     torchrun --nproc_per_node=8 eval.py --out_dir=out/text8_puma_1 --nelbo --problems=test
#
# Rows of 256 and 12 layers of 768 are those of the runs that D3PM (arXiv 2107.03006) began; batch
# and updates are meant to be theirs, but were not compared with the papers. Learning rate, weight
# decay, EMA and the chain's settings are ours. Not run here: time and result are not known. Half of
# the rows have random masks, because the bound is over these; with --method=mdm all rows have them.
name = "text8"
dataset = "own_text"
data_dir = "data/text8/tokens"
test_examples = 4096  # rows of the validation loss

k_schedule = [(0, 16)]  # 16 stages
tau = 0.9
buffer = 8
random_share = 0.5

dim, layers, heads, mlp = 768, 12, 12, 2048  # gated: as many weights as 3072 without a gate
batch_size = 512
max_iters = 1_000_000
lr = 3e-4
min_lr = 3e-5
warmup = 2500
weight_decay = 0.03
ema = 0.9999

eval_interval = 20_000
eval_batch_size = 256
checkpoint_interval = 5000
