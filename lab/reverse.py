"""The least confident first, and no fast-forward: the order that inference never takes.

    python train.py config/sudoku_tiny.py --variant=lab.reverse

A control for PUMA: any gain that survives here cannot come from matching inference. Chains are
PUMA's otherwise: one batch, from the first update on. Sampling is as always.
"""

import torch

import puma


class Reverse(puma.ProgressiveUnmasking):
    def advance(self, score, confidence):
        super().advance(-score, torch.zeros_like(confidence))


def make_streams(model, queue, k_schedule, tau, grad_accum, **rest):
    chains = Reverse(queue, model.mask_token, k_schedule, tau, grad_accum, False)
    return puma.RandomMasking(queue, model.mask_token), chains, 0
