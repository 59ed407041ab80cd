"""PUMA from the weights of a model that predicts the next token (paper, section 4.4).

    python train.py config/own_text.py --method=lab.ar --out_dir=out/ar
    python train.py config/own_text.py --method=lab.shifted --init=out/ar
    ... --options="{'base': 'mdm'}"                         # random masks from the same weights

Attention becomes bidirectional. The state at place i - 1, which has learned to predict token i,
goes on scoring it, for the loss, the chain and the sampler alike; at place 0, which has no
predecessor, its own state stands in. base: puma, puma_plus or mdm.
"""

import torch

import model
import puma


class Shifted(model.Transformer):
    def __init__(self, base="puma", **args):
        super().__init__(**args)
        self.base = base

    def forward(self, x):
        h = self.model(x)
        return torch.cat((h[:, :1], h[:, :-1]), 1)


def make_model(**args):
    return Shifted(**args)


def make_streams(model, queue, config):
    return puma.make_streams(model, queue, config | {"method": model.base})
