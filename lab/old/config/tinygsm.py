# The paper's text run: TinyGSM to GSM8K, 125.4M parameters, 900k updates of 256 rows of 512 tokens.
#
#     python data/tinygsm/prepare.py                             # once: downloads and tokenises
#     torchrun --nproc_per_node=8 train.py config/tinygsm.py     # PUMA
#     torchrun --nproc_per_node=8 eval.py --out_dir=out/tinygsm_puma_1
#
# To try a laptop: --device=cpu --batch_size=2 --max_iters=20 --test_examples=8 --eval_reveal=20.
# The method of this project instead: --second_visit=True --buffer=8 --chains_from=None.
# Chosen here, as the paper is silent: AdamW's betas, the cosine, theta, tied embeddings.
# Paper: 39.1 % of GSM8K's test questions (top_k, 2 per step) after three days on eight H100 at
# 3.41 updates a second; with --method=mdm 33.6 %. Up to 2.3 times fewer updates.
# Not yet run in full here.
name = "tinygsm"
dataset = "text"
data_dir = "data/tinygsm/tokens"
test_examples = 1319

method = "puma"
k_schedule = [(30_000 * i, 42 - 3 * i) for i in range(11)]  # 12 stages at first, 43 in the end
tau = 0.9
second_visit = False
chains_from = 0
buffer = 1

dim, layers, heads, mlp = 512, 14, 8, 1536
tied = True
batch_size = 256
max_iters = 900_000
lr = 3e-4
min_lr = 3e-5
warmup = 1000
ema = 0.9999

eval_interval = 5000
eval_policies = ["top_k"]
eval_batch_size = 64
checkpoint_interval = 5000
