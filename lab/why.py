"""Variants for one question: why may chains be behind random masks, and what takes that away?

    python train.py config/sudoku_tiny.py --method=puma --variant=lab.why --options="{'pool': 4}"

--options, each alone:
    pool: batches of chains that PUMA visits in turn; 1 in the paper
    visits: random masks, but each example stays for so many updates, as in one batch of chains
    share: PUMA+ follows tau on this share of the visits, by a coin for each chain and visit
    beta2, momentum: of AdamW, of Muon
"""

import torch

import puma
from model import Transformer


def make_model(pool=1, visits=1, share=1.0, beta2=0.999, momentum=0.95, **args):
    made = Transformer(**args)
    made.pool = pool
    made.visits = visits
    made.share = share
    made.beta2 = beta2
    made.momentum = momentum
    return made


def wrap_update(update, model, optimizer):
    layers = optimizer.param_groups[0]
    for group in optimizer.param_groups:
        group["betas"] = group["betas"][0], model.beta2
    if layers["momentum"]:
        layers["momentum"] = model.momentum
    return update


# -- the streams -----------------------------------------------------------------------------------
class Repeated(puma.RandomMasking):
    """Random masks, new ones each time, of examples that stay for `visits` updates."""

    def __init__(self, queue, mask_token, visits):
        super().__init__(queue, mask_token)
        self.visits = visits
        self.x0, self.prompt = (part.clone() for part in queue.take(queue.all))
        self.age = torch.arange(queue.rows, device=self.x0.device) % visits

    def batch(self, iteration):
        self.hidden = self.hide(self.prompt)
        x = self.x0.masked_fill(self.hidden, self.mask_token)
        return puma.Batch(x, self.x0.clone(), self.hidden)

    def advance(self, score, confidence):
        super().advance(score, confidence)
        self.age += 1
        ended = self.age >= self.visits
        x0, prompt = self.queue.take(ended)
        self.x0.copy_(torch.where(ended[:, None], x0, self.x0))
        self.prompt.copy_(torch.where(ended[:, None], prompt, self.prompt))
        self.age.masked_fill_(ended, 0)

    def state_dict(self):
        own = {"x0": self.x0, "prompt": self.prompt, "age": self.age}
        return super().state_dict() | own

    def load_state_dict(self, state):
        super().load_state_dict(state)
        for name in "x0", "prompt", "age":
            getattr(self, name).copy_(state[name])


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
    if model.visits > 1:
        return masks, Repeated(queue, model.mask_token, model.visits), 0
    if chains is None:
        return masks, None, begin
    buffer = len(chains.x0) if chains.second_visit else model.pool * grad_accum
    how = queue, model.mask_token, k_schedule, tau, buffer, chains.second_visit
    return masks, Chains(model.share, *how), begin
