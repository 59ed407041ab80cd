"""Progressive Unmasking in one file, from the data to the answers: python lab/nano.py, one minute.

A row is six digits, which are given, and the six running totals of two digits each:

    583904 | 05 13 16 25 25 29

A transformer that sees both sides learns to fill in the totals, once on random masks and once on
chains, the method of PUMA (arXiv 2602.10314, Algorithm 1). The lines in which PUMA differs from
random masks are marked "# PUMA"; puma.py does the same for any data.
"""

import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

DIGITS = 6  # given; 11 at most, as totals have two digits
ANSWER = 2 * DIGITS  # tokens to fill in
L = DIGITS + ANSWER  # length of a row
MASK = 10  # a token of its own, after the ten digits
DIM, HEADS, LAYERS = 64, 4, 3
BATCH, UPDATES, RATE = 64, 1000, 2e-3
STAGES = 6  # of a chain: each reveals about two tokens
TAU = 0.9  # what the model is surer of is revealed at once


# -- data ------------------------------------------------------------------------------------------
def draw(rows):
    """Rows (rows, L): random digits and their running totals."""
    digits = torch.randint(10, (rows, DIGITS))
    total = digits.cumsum(1)
    return torch.cat((digits, torch.stack((total // 10, total % 10), 2).flatten(1)), 1)


def show(row):
    text = "".join("_" if token == MASK else str(token) for token in row.tolist())
    pairs = [text[at : at + 2] for at in range(DIGITS, L, 2)]
    return f"{text[:DIGITS]} | {' '.join(pairs)}"


# -- the model: a transformer in which every token sees every other --------------------------------
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.out = nn.Linear(DIM, DIM)
        self.mlp = nn.Sequential(
            nn.LayerNorm(DIM), nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM)
        )

    def forward(self, h):  # (B, L, DIM)
        heads = [
            t.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for t in self.qkv(self.norm(h)).chunk(3, -1)
        ]
        h = h + self.out(F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))
        return h + self.mlp(h)


class Net(nn.Module):
    """Tokens (B, L) -> log-probabilities of the ten digits (B, L, 10)."""

    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(11, DIM)
        self.place = nn.Parameter(torch.randn(L, DIM))
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)), nn.LayerNorm(DIM))
        self.head = nn.Linear(DIM, 10)

    def forward(self, x):
        return self.head(self.blocks(self.token(x) + self.place)).log_softmax(-1)


# -- which tokens ----------------------------------------------------------------------------------
def best(score, hidden, count):
    """In each row the `count` (B,) hidden positions of the highest score, (B, L) bool."""
    order = score.masked_fill(~hidden, -torch.inf).argsort(1, descending=True)
    rank = order.argsort(1)  # of each position in that order, from 0
    return hidden & (rank < count[:, None])


def random_masks(count):
    """`count` (B,) random tokens of each answer hidden, (B, L) bool."""
    answer = (torch.arange(L) >= DIGITS).expand(len(count), L)
    return best(torch.rand(len(count), L), answer, count)


def step(hidden, stage, confidence, r):
    """Reveal the next tokens of each chain; stage, r (B,), r ~ U(0, 1). Which chains have ended?"""
    target = ((stage + 1 + r) / STAGES * ANSWER).round().clamp(max=ANSWER - 1)  # PUMA
    count = (target - (ANSWER - hidden.sum(1))).clamp(min=1)  # PUMA: where the model is surest ...
    hidden = hidden & ~best(confidence, hidden, count) & (confidence <= TAU)  # PUMA: ... and sure
    revealed = ANSWER - hidden.sum(1)  # PUMA
    ended = (stage + 1 >= STAGES) | ~hidden.any(1)  # PUMA
    stage = torch.where(revealed > target, revealed * STAGES // ANSWER, stage + 1)  # PUMA
    return hidden, stage, ended


# -- training --------------------------------------------------------------------------------------
def train(method):
    torch.manual_seed(1)
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters())
    x0 = draw(BATCH)
    stage = torch.arange(BATCH) % STAGES  # PUMA: chains begin in all stages
    hidden = random_masks(ANSWER - stage * ANSWER // STAGES)  # PUMA
    for update in range(UPDATES):
        if method == "random masks":
            x0 = draw(BATCH)
            hidden = random_masks(torch.randint(1, ANSWER + 1, (BATCH,)))
        log_probs = net(x0.masked_fill(hidden, MASK))
        nll = -log_probs.gather(-1, x0[..., None])[..., 0]  # (B, L), of the true tokens
        loss = ((nll * hidden).sum(1) / hidden.sum(1)).mean()
        optimizer.param_groups[0]["lr"] = RATE * min(1, update / 100, 2 - 2 * update / UPDATES)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if method == "PUMA":
            confidence = log_probs.detach().amax(-1).exp()  # PUMA: of the same forward pass
            hidden, stage, ended = step(hidden, stage, confidence, torch.rand(BATCH))  # PUMA
            x0 = torch.where(ended[:, None], draw(BATCH), x0)  # PUMA: a new example, ...
            hidden |= ended[:, None] & (torch.arange(L) >= DIGITS)  # PUMA: ... all hidden
            stage = stage * ~ended  # PUMA
        if update % 200 == 199:
            print(f"{method}, update {update + 1}: loss {loss.item():.3f}", flush=True)
    return net


# -- sampling --------------------------------------------------------------------------------------
@torch.no_grad()
def fill(net, x0, say=lambda x: None):
    """All tokens above TAU at once, else the surest one -> tokens (N, L), passes of each row."""
    hidden = random_masks(torch.full((len(x0),), ANSWER))
    x = x0.masked_fill(hidden, MASK)
    passes = 0
    while hidden.any():
        say(x)
        confidence, token = net(x).exp().max(-1)
        chosen = best(confidence, hidden, torch.ones(len(x))) | hidden & (confidence > TAU)
        x = torch.where(chosen, token, x)
        passes = passes + hidden.any(1).float()
        hidden = hidden & ~chosen
    say(x)
    return x, passes


def main():
    nets = {method: train(method) for method in ("random masks", "PUMA")}
    torch.manual_seed(2)
    x0 = draw(1000)
    for method, net in nets.items():
        print(f"\n{method} on a new row:")
        fill(net, x0[:1], lambda x: print("   ", show(x[0])))
        x, passes = fill(net, x0)
        right = (x == x0).all(1).float().mean()
        print(f"{right:.1%} of 1,000 new rows right, {passes.mean():.1f} forward passes a row")


if __name__ == "__main__":
    if sys.argv[1:]:
        print(__doc__)
    else:
        main()
