# Text without prompts: the generated word problems as characters, on a laptop.
#
#     python train.py config/text_mini.py                          # PUMA
#     python eval.py --out_dir=out/text_mini_puma_1 --nelbo        # bits per character
#
# 0.16M parameters, a laptop core, a minute, no download. Bits per character at most, three seeds:
# 2.21 to 2.26, by random masks: the model is never sure enough for chains to begin. With
# --chains_from=0 2.83 to 2.93 (results/nelbo.md); n-grams 4.05 (n = 1) to 1.09 (5).
name = "text_mini"
device = "cpu"
dataset = "own_text"
train_examples = 20_000  # problems, 3 million characters
text_length = 128
test_examples = 512

k_schedule = [(0, 12)]  # 11 stages
tau = 0.9
buffer = 8

dim, layers, heads, mlp = 64, 3, 4, 192
theta = 1000.0
batch_size = 16
max_iters = 1000
muon = True
lr = 4e-3
min_lr = 1e-4
warmup = 100
ema = 0.999

eval_interval = 250
