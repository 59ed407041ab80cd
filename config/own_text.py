# Prompts and responses of your own as bytes, 0.9M parameters, on a laptop.
#
#     python data/jsonl/prepare.py --source=FILE.jsonl --prompt=question --response=answer
#     python train.py config/own_text.py
#     python sample.py --out_dir=out/own_text --prompt="..."
out_dir = "out/own_text"
task = "lab.own_text"
data = "data/jsonl/tokens"
test_examples = 64

method = "puma_plus"
k_schedule = [(0, 8)]  # 4 to 12 stages for rows of 32 to 96 tokens; for longer ones a larger K
tau = 0.9
chains_from = 500  # random masks until then: they teach copying, which chains take for granted

dim = 128
layers = 4
heads = 4
mlp = 384
theta = 1000.0
tied = True
batch_size = 16
max_iters = 1500
lr = 4e-3
ema = 0.999

eval_interval = 100
