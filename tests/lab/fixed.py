"""A method without chance, for tests of the hooks: every second token is hidden."""

import torch

import loss
import puma


class EverySecond(puma.RandomMasking):
    def hide(self, prompt):
        return ~prompt & ((~prompt).cumsum(1) % 2 == 1)


def make_streams(model, queue, k_schedule, tau, chains_from, **rest):
    """With a tau, chains too, and masks of a fixed sureness: 0.9, tau in the second process."""
    masks = EverySecond(queue, model.mask_token)
    if tau == 1:
        return masks, None, torch.inf
    masks.sure.fill_(tau if queue.rank else 0.9)
    masks.advance = lambda score, confidence: None
    chains = puma.ProgressiveUnmasking(queue, model.mask_token, k_schedule, 1, 1, False)
    return masks, chains, chains_from


def objective(model, *batch):
    assert model.training == torch.is_grad_enabled()  # no dropout where it is only measured
    return loss.objective(model, *batch)
