"""Progressive Unmasking with a model and a training loop of your own, in plain PyTorch.

    python examples/own_trainer.py

A row is 8 random tokens and the same 8 again; the first half is given, the second is predicted.
For data of your own write another class like `Copying`.
Exact resume: save the states of chains, queue and generator, too.
"""

import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from engine.queue import ExampleQueue
from losses import Objective
from model import Logits
from puma import ProgressiveUnmasking
from sample import Sampler, generate

WORDS, HALF, LENGTH, MASK = 12, 8, 16, 12  # words are 0 to 11; the mask is never predicted


class Copying:
    """n examples: data[indices] -> x0 (n, L) tokens, prompt (n, L) bool: what is given."""

    def __init__(self, n, seed):
        half = np.random.default_rng(seed).integers(WORDS, size=(n, HALF))
        self.x0 = np.tile(half, 2)
        self.prompt = np.tile(np.arange(LENGTH) < HALF, (n, 1))

    def __len__(self):
        return len(self.x0)

    def __getitem__(self, indices):
        return self.x0[indices], self.prompt[indices]


class Net(nn.Module):  # any function from tokens to logits that looks both ways
    def __init__(self, dim=64):
        super().__init__()
        self.token = nn.Embedding(WORDS + 1, dim)
        self.place = nn.Embedding(LENGTH, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, nn.LayerNorm(dim), enable_nested_tensor=False)
        self.head = nn.Linear(dim, WORDS + 1)

    def forward(self, x):
        return self.head(self.layers(self.token(x) + self.place.weight))  # (B, L) -> (B, L, V)


def share_solved(model, device="cpu"):
    """The share of 200 held-out rows that our sampler fills in without a mistake."""
    x0, prompt = (torch.as_tensor(part, device=device) for part in Copying(200, seed=1)[:])
    tokens, _, _ = generate(model.eval(), x0, ~prompt, Sampler())  # x0 is seen where prompt is True
    return (tokens == x0).all(1).float().mean().item()


def main(steps=200):
    torch.manual_seed(0)
    model = Logits(Net(), MASK)
    objective = Objective(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    queue = ExampleQueue(Copying(20_000, seed=0), rows=64)  # batches of 64; all once per epoch
    chains = ProgressiveUnmasking(queue, MASK, torch.Generator().manual_seed(0), k_schedule=4)
    for step in range(steps):
        batch = chains.batch(step)  # partially hidden rows
        loss, score, confidence = objective(*batch)  # of hidden positions, in one forward pass
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        chains.advance(score, confidence)  # reveal true tokens, the most confident first
        if (step + 1) % 50 == 0:
            visits = (step + 1) * 64 / (int(queue.taken) - chains.number.numel())  # of an example
            print(f"step {step + 1}: loss {loss.item():.4f}, visits {visits:.1f}")
    print(f"{share_solved(model):.1%} of held-out rows solved")


if __name__ == "__main__":
    main()
