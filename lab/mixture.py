"""A study's arms: chains mixed with random masks, --variant=lab.mixture --options="{'mix': 'every2'}".

`everyN`: every N-th update is of random masks, the others of chains without the second visit.
`rows`: every other row of a batch is of random masks. A start of the chains is kept as it is.
"""

import torch

import puma
from model import Transformer


def make_model(mix, **args):
    model = Transformer(**args)
    model.mix = mix
    return model


class Mixed:
    """Random masks at every n-th update, chains at the others."""

    def __init__(self, masks, chains, n):
        self.masks = masks
        self.chains = chains
        self.n = n

    def batch(self, iteration):
        self.now = self.chains if iteration % self.n else self.masks
        return self.now.batch(iteration)

    def advance(self, score, confidence):
        self.now.advance(score, confidence)

    def state_dict(self):
        return self.chains.state_dict()

    def load_state_dict(self, state):
        self.chains.load_state_dict(state)


class HalfOfRows(puma.ProgressiveUnmasking):
    """Every other row of a batch is no chain: it has a new example at each visit, randomly masked."""

    def __init__(self, masks, *how):
        super().__init__(*how)
        self.masks = masks
        self.odd = torch.arange(self.queue.rows, device=self.x0.device) % 2 == 1
        for turn in range(len(self.x0)):
            self.mask(turn)

    def mask(self, turn):
        masked = self.masks.hide(self.prompt[turn])
        self.hidden[turn] = torch.where(self.odd[:, None], masked, self.hidden[turn])

    def refill(self, hidden, stage, ended):
        super().refill(hidden, stage, ended | self.odd)
        self.mask(self.turn)


def make_streams(model, queue, method, **how):
    masks, chains, begin = puma.make_streams(model, queue, method, **how)
    chains.second_visit = False
    if model.mix == "rows":
        setting = how["k_schedule"], how["tau"], len(chains.x0), False
        return masks, HalfOfRows(masks, queue, model.mask_token, *setting), begin
    return masks, Mixed(masks, chains, int(model.mix.removeprefix("every"))), begin
