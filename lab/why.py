"""Variants for one question: why may chains be behind random masks, and what takes that away?

    python train.py config/sudoku_tiny.py --method=puma --variant=lab.why --options="{'pool': 4}"

--options, each alone:
    pool: batches of chains that PUMA visits in turn; 1 in the paper
    share: PUMA+ follows tau on this share of the visits, by a coin for each chain and visit
    momentum: of Muon
"""

import torch

import puma
from model import Transformer


def make_model(pool=1, share=1.0, momentum=0.95, **args):
    made = Transformer(**args)
    made.pool = pool
    made.share = share
    made.momentum = momentum
    return made


def wrap_update(update, model, optimizer):
    for group in optimizer.param_groups:
        if group.get("momentum"):
            group["momentum"] = model.momentum
    return update


# -- the streams -----------------------------------------------------------------------------------
class Chains(puma.ProgressiveUnmasking):
    """PUMA's or PUMA+'s, with tau on a share of the visits."""

    def __init__(self, share, *how):
        self.share = share
        self.often = how[3]
        super().__init__(*how)

    def advance(self, score, confidence):
        if self.share < 1:
            off = puma.uniform(self.stage[self.turn]) >= self.share
            self.tau = torch.where(off, 1.0, self.often)[:, None]  # (B, 1)
        super().advance(score, confidence)


def make_streams(model, queue, method, k_schedule, tau, grad_accum, **rest):
    rest |= dict(method=method, k_schedule=k_schedule, tau=tau, grad_accum=grad_accum)
    masks, chains, begin = puma.make_streams(model, queue, **rest)
    queue.load_state_dict({"taken": 0})  # chains that were made are not used
    if chains is None:
        return masks, None, begin
    buffer = len(chains.x0) if chains.second_visit else model.pool * grad_accum
    how = queue, model.mask_token, k_schedule, tau, buffer, chains.second_visit
    return masks, Chains(model.share, *how), begin
