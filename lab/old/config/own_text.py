# Text of your own, on a laptop: what data/jsonl/prepare.py wrote. 0.9M parameters with bytes.
#
#     python data/jsonl/prepare.py --source=FILE.jsonl --prompt=question --response=answer
#     python train.py config/own_text.py                           # PUMA
#     python train.py config/own_text.py --eval_judge=exact       # also counts right responses
#     python sample.py --out_dir=out/own_text_puma_1 --prompt="..." --watch
name = "own_text"
dataset = "own_text"
data_dir = "data/jsonl/tokens"
test_examples = 64

k_schedule = [(0, 8)]  # 32 stages of 256 tokens, 4 of 30: for longer rows, a larger K
tau = 0.9
buffer = 32
chains_from = 500  # random masks until then: they teach copying, which chains take for granted

dim, layers, heads, mlp = 128, 4, 4, 384
theta = 1000.0
tied = True
batch_size = 16
max_iters = 1500
muon = True
lr = 4e-3
min_lr = 1e-4
warmup = 100
ema = 0.999

eval_interval = 100
eval_policies = ["top_k"]
eval_batch_size = 16
eval_tau = 0.9
