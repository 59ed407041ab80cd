"""PUMA from the weights of a model that predicts the next token (paper, section 4.4).

    python train.py config/own_text.py --variant=lab.ar --out_dir=out/ar
    python train.py config/own_text.py --variant=lab.shifted --init=out/ar
    ... --method=mdm                                          # random masks from the same weights

Attention becomes bidirectional. The state at place i - 1, which has learned to predict token i,
goes on scoring it, for the loss, the chain and the sampler alike; at place 0, which has no
predecessor, its own state stands in.
"""

import torch

import model


class Shifted(model.Transformer):
    def forward(self, x):
        h = self.model(x)
        return torch.cat((h[:, :1], h[:, :-1]), 1)


make_model = Shifted
