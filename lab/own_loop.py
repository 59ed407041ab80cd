"""Progressive Unmasking with a model, data and a loop of your own, for which three files will do.

    python lab/own_loop.py

A row is 8 random words and the same 8 again; the first half is given, the second is predicted.
The chains are those of PUMA; PUMA+ has buffer=32 and second_visit=True.
"""

import sys
from pathlib import Path

import torch
import torch.nn as nn
from torch.utils.data import TensorDataset

sys.path.append(str(Path(__file__).resolve().parents[1]))  # leave it out beside the files

import policies
import puma
from loss import read

WORDS, MASK = 12, 12  # words are 0..11; the mask is an input only
torch.manual_seed(0)

x0 = torch.randint(WORDS, (20_000, 8)).repeat(1, 2)  # (N, L)
prompt = (torch.arange(16) < 8).expand(x0.shape)  # what is given
data = TensorDataset(x0[200:], prompt[200:])  # anything with len and data[indices] -> x0, prompt

model = nn.Sequential(  # any model that sees both sides, (B, L) tokens -> (B, L, WORDS) logits
    nn.Embedding(WORDS + 1, 64), nn.Flatten(), nn.Linear(16 * 64, 256), nn.ReLU(),
    nn.Linear(256, 16 * WORDS), nn.Unflatten(1, (16, WORDS)),
)  # fmt: skip
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
queue = puma.Queue(data, rows=64, device="cpu", seed=0)
chains = puma.ProgressiveUnmasking(queue, MASK, [(0, 4)], tau=0.9, buffer=1, second_visit=False)
for update in range(200):
    batch = chains.batch(update)  # what the model sees, the truth, what is hidden; (B, L) each
    log_probs = model(batch.x).log_softmax(-1)
    nll, score, confidence = read(log_probs, batch.x0, policies.top_k)  # (B, L) each
    loss = ((nll * batch.hidden).sum(1) / batch.hidden.sum(1)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    chains.advance(score, confidence)  # reveal true tokens, the most confident first
    if update % 50 in (0, 49):
        print(f"update {update + 1}: loss {loss.item():.4f}")

# -- fill in rows that it has not seen, two tokens at a time
hidden = ~prompt[:200]
x = x0[:200].masked_fill(hidden, MASK)
while hidden.any():
    confidence, token = model(x).detach().softmax(-1).max(-1)
    chosen = policies.reveal(confidence, hidden, torch.full((200,), 2))
    x = torch.where(chosen, token, x)
    hidden &= ~chosen
print(f"{(x == x0[:200]).all(1).float().mean():.0%} of new rows solved")
