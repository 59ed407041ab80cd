"""Chains that show the model's own tokens, right or wrong, and a sampler that mends them.

    python train.py config/sudoku_tiny.py --variant=lab.edit

A chain shows predictions, and the loss is over the whole answer. At the end the sampler predicts
all again until nothing changes, at most 8 times. Proposition 2 does not hold.
"""

import torch

import loss
import puma
import sample


class OwnTokens(puma.ProgressiveUnmasking):
    def __init__(self, *how):
        super().__init__(*how)
        self.shown = self.x0  # a chain that starts late shows true tokens at first

    def batch(self, iteration):
        super().batch(iteration)
        x = self.shown.masked_fill(self.hidden, self.mask_token)
        return puma.Batch(x, self.x0, ~self.prompt)

    def advance(self, score, confidence, predicted):
        self.shown = torch.where(self.hidden, predicted, self.shown)
        super().advance(score, confidence)
        self.shown = torch.where(self.prompt, self.x0, self.shown)


def make_streams(*how):
    return puma.make_streams(*how, kinds=(puma.RandomMasking, OwnTokens))


def objective(model, policy, x, x0, weighted):
    h = model(x)
    value, *seen = loss.loss_and_scores(model, policy, h, x0, weighted, loss.mean_of_rows(weighted))
    return value, *seen, model.logits(h.detach()).argmax(-1)


@torch.no_grad()
def generate(model, x, hidden, *how):
    x, steps = sample.generate(model, x, hidden, *how)
    going = hidden.any(1)
    for _ in range(8):
        if not going.any():
            break
        steps += going
        again = torch.where(hidden & going[:, None], model.logits(model(x)).argmax(-1), x)
        going = (again != x).any(1)
        x = again
    return x, steps
