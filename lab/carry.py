"""The carried state of PUMBA (arXiv 2609.37974): each step receives what the last one computed.

    python train.py config/sudoku_nine.py --variant=lab.carry --options="{'window': 2}"

A chain hands on tokens alone: what the model has worked out about hidden positions is lost. Here
the next step also receives the states before the output head, one vector per position,

    h_t = model(x_t, h_(t-1))        h_0 = 0 at the start of every chain, at any stage

added to the token embeddings through a LayerNorm whose weight and bias start at zero. An update
trains on `window` consecutive visits of the same chains. Its loss is their mean; the gradient flows
back through the carry within the window, never through the choice of positions, nor into an earlier
window. Random masks have no carry. The carry comes from tokens that x still shows, so the minimiser
of the loss is unchanged (Proposition 2). `loops` passes go through the layers, each as another step
at the same x. The log's `hidden` is of the first visit of a window.
"""

from collections import namedtuple

import torch

import loss
import model as root
import puma
import sample

Batch = namedtuple("Batch", "x x0 hidden carry chains")


class CarryingTransformer(root.Transformer):
    def __init__(self, window=2, loops=1, **args):
        super().__init__(**args)
        if min(window, loops) < 1:
            raise SystemExit(f"{window=}, {loops=}: expected 1 or more")
        self.window = window
        self.loops = loops
        self.model.carry_norm = torch.nn.LayerNorm(args["dim"], root.EPS)
        torch.nn.init.zeros_(self.model.carry_norm.weight)

    def forward(self, x, carry=None):
        """x (B, L), carry (B, L, dim) or None for zeros -> (B, L, dim)."""
        body = self.model
        places = torch.arange(x.shape[1], device=x.device)
        cos, sin = root.rotary_table(places, body.width, body.theta)
        embedded = body.embed_tokens(x)  # (B, L, dim)
        carry = torch.zeros_like(embedded) if carry is None else carry
        for _ in range(self.loops):
            h = embedded + body.carry_norm(carry)
            for layer in body.layers:
                h = layer(h, cos, sin, None)
            carry = body.norm(h)
        return carry


make_model = CarryingTransformer


class CarryingChains(puma.ProgressiveUnmasking):
    """carry (buffer, B, L, dim): for the next visits; following (B, L, dim): with its graph."""

    STATE = (*puma.ProgressiveUnmasking.STATE, "carry")

    def __init__(self, chains, dim):  # chains: those of puma.make_streams, which go on here
        vars(self).update(vars(chains))
        self.carry = torch.zeros(*self.x0.shape, dim, device=self.x0.device)

    def batch(self, iteration):
        self.iteration = iteration
        return Batch(*super().batch(iteration), self.carry[self.turn].clone(), self)

    def again(self, score, confidence, h):
        """Advance within a window: the next visit of the same chains."""
        turn = self.turn
        self.advance(score, confidence, h)
        self.turn = turn
        return self.batch(self.iteration)._replace(carry=self.following)

    def advance(self, score, confidence, h):
        self.following = h
        super().advance(score, confidence)

    def refill(self, hidden, stage, ended):
        super().refill(hidden, stage, ended)
        self.following = self.following.masked_fill(ended[:, None, None], 0)
        self.carry[self.turn] = self.following.detach()


def make_streams(model, queue, **settings):
    masks, chains, begin = puma.make_streams(model, queue, **settings)
    return masks, chains and CarryingChains(chains, model.lm_head.in_features), begin


def objective(model, policy, x, x0, hidden, carry=None, chains=None):
    """The mean loss of the visits of a window; score, confidence and state h of the last one."""
    if chains is None:  # random masks
        return loss.objective(model, policy, x, x0, hidden)
    mean = 0
    for left in reversed(range(model.window)):
        h = model(x, carry)
        weight = hidden / (hidden.sum(1, keepdim=True) * len(hidden))
        one, *seen = loss.loss_and_scores(model, policy, h, x0, hidden, weight)
        mean = mean + one / model.window
        if left:
            x, x0, hidden, carry, _ = chains.again(*seen, h)
    return mean, *seen, h.detach()


@torch.no_grad()
def generate(model, x, hidden, policy, reveal=2, tau=1.0, temperature=0.0, show=None):
    """As in sample.py, but each step of a row receives the state of its last one."""

    class Bound:  # the model of the rows that are left; sample.generate drops finished ones
        mask_token = model.mask_token
        vocab_size = model.vocab_size
        logits = model.logits
        carry = model.lm_head.weight.new_zeros(*x.shape, model.lm_head.in_features)

        def watch(self, x):
            self.left = (x == self.mask_token).any(1)  # (N,)
            if show:
                show(x)

        def __call__(self, tokens):
            self.carry[self.left] = model(tokens, self.carry[self.left])
            return self.carry[self.left]

    bound = Bound()
    return sample.generate(bound, x, hidden, policy, reveal, tau, temperature, bound.watch)
