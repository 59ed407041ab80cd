"""The objective: masked cross-entropy, averaged over the hidden positions of each row.

The paper's loss is E[1/t * sum over hidden i of -log f_i(x0_i | x_t)] (eq. 1). With
t = hidden / L_eff the weight 1/t is L_eff / hidden, so up to the constant L_eff the loss is the
mean over hidden positions. For random masks, the count of hidden tokens is drawn uniformly from
1..L_eff and the weight is 1/count: in expectation every mask weighs as much, up to the same L_eff,
as with t ~ U(0, 1), i.i.d. masks and weight 1/t, and the variance is lower.

In block diffusion each block is such a row: the loss is the mean over its hidden positions, then
over the blocks that have any. The mean, not the sum of the paper, keeps the gradient's scale
independent of the block size; with blocks of one token it is the next-token loss.

Loss (), score (B, L) and confidence (B, L) come from one pass over the logits, so the chain needs
no forward pass of its own: over all positions with a small vocabulary (`Objective`: static shapes
are worth more than the logits saved), else over the hidden ones, a chunk at a time, with the
gradient computed on the way (`ChunkedObjective`).
"""

import torch
import torch.nn as nn
from torch.nn.functional import cross_entropy

import policies
from engine.head import HeadLoss, chunks

DENSE = 64  # the largest vocabulary that is scored at all positions


def predictions(log_probs, x0, position, policy):
    """log_probs (..., V) -> cross-entropy of x0, the policy's score and the confidence, (...) each.

    x0 and position (...). Score and confidence carry no gradient and depend on log_probs only, not
    on x0.
    """
    nll = -log_probs.gather(-1, x0[..., None])[..., 0]
    log_probs = log_probs.detach()
    confidence = log_probs.amax(-1).exp()
    return nll, policy(log_probs, confidence, position), confidence


def score_all(model, x, x0, policy, h=None):
    """`predictions` at all positions, (B, L) each: for a small vocabulary. h: the states of x."""
    log_probs = model.logits(model(x) if h is None else h).log_softmax(-1)
    position = torch.arange(x.shape[1], device=x.device).expand_as(x)
    return predictions(log_probs, x0, position, policy)


def row_shares(hidden, dtype, block=0):
    """The weight of each position in `row_mean`: hidden (B, L) -> (B, L), summing to 1."""
    blocks = hidden.unflatten(1, (-1, block or hidden.shape[1]))  # (B, blocks, block)
    count = blocks.sum(2, keepdim=True).clamp(min=1)
    taking_part = blocks.any(2).sum(1)[:, None, None].clamp(min=1)
    return (blocks.to(dtype) / (count * taking_part * len(hidden))).flatten(1)


def row_mean(nll, hidden, block=0):
    """Mean over each row's hidden positions, then over all rows; (B, L) each -> ().

    With blocks: first over each block's, then over the blocks of a row that have any.
    """
    return (nll.masked_fill(~hidden, 0) * row_shares(hidden, nll.dtype, block)).sum()


def hidden_states(model, x, x0, block=0, carry=None):
    """The model's states of x, (B, L, dim); with blocks, they also see x0 in earlier blocks."""
    if carry is not None:
        if not model.carries:
            raise ValueError("chains with a carry, but the model takes none: see carry.py")
        return model(x, x0, block, carry)
    return model(x, x0, block) if block else model(x)


class Objective(nn.Module):
    """The loss, and the score and confidence that the chain needs, in one forward pass.

    model   model.Transformer, or any other model wrapped in model.Logits
    policy  a function of policies.py, or its name
    Raises ValueError for an unsuitable model or an unknown policy.
    """

    needs = "logits"  # of the model

    def __init__(self, model, policy=policies.top_k):
        super().__init__()
        if not hasattr(model, self.needs):
            kind = type(model).__name__
            raise ValueError(
                f"{kind} has no {self.needs}: wrap it as model.Logits(yours, mask_token)"
            )
        self.model, self.policy = model, policies.get(policy)

    def forward(self, x, x0, hidden, block=0, carry=None):
        """(B, L) each -> loss (), score (B, L), confidence (B, L); arbitrary where not hidden.

        With a carry (B, L, width), the next one is the fourth.
        """
        h = hidden_states(self.model, x, x0, block, carry)
        nll, score, confidence = score_all(self.model, x, x0, self.policy, h)
        result = self.mean(nll, hidden, block), score, confidence
        return result if carry is None else (*result, h)

    def mean(self, nll, hidden, block):
        """The loss (); a subclass may weigh positions (variants.py)."""
        return row_mean(nll, hidden, block)


def objective_for(model):
    """The class that suits the size of the model's vocabulary."""
    return Objective if model.vocab_size <= DENSE else ChunkedObjective


class ChunkedObjective(Objective):
    """The same for a large vocabulary: logits at hidden positions only, one chunk at a time."""

    needs = "lm_head"

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self.score_then_softmax_ = score_then_softmax_

    def compile(self):
        self.model.compile()
        # The rest of the head is matrix products. Dynamic: code specialised to the first size may
        # round differently, and a resumed run has another first size.
        self.score_then_softmax_ = torch.compile(score_then_softmax_, dynamic=True)

    def forward(self, x, x0, hidden, block=0, carry=None):
        """Like Objective's. The host waits for the device: it needs to know how many are hidden."""
        h = hidden_states(self.model, x, x0, block, carry)
        where = hidden.flatten().nonzero()[:, 0]  # (n,) indices into (B * L,)
        weight = self.model.lm_head.weight
        weight_of_position = self.position_weights(h, x0, hidden, block)  # (B, L)
        loss, *values = HeadLoss.apply(
            h.flatten(0, 1).index_select(0, where), weight, x0.flatten()[where],
            weight_of_position.flatten()[where], where % x.shape[1],
            self.policy, self.model.mask_token, self.score_then_softmax_,
        )  # fmt: skip
        score, confidence = (
            value.new_zeros(hidden.numel()).index_copy_(0, where, value).view(x.shape)
            for value in values
        )
        return (loss, score, confidence) if carry is None else (loss, score, confidence, h)

    def position_weights(self, h, x0, hidden, block):
        """The weight of each position in the loss, (B, L)."""
        wide = torch.promote_types(self.model.lm_head.weight.dtype, torch.float32)
        return row_shares(hidden, wide, block)


def score_then_softmax_(logits, x0, position, policy):
    """Returns `predictions` of logits (n, V); afterwards `logits` holds the softmax.

    Compiled, it takes a few passes over the logits and no further tensor of their size.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True)
    log_probs = torch.log_softmax(wide, -1, out=wide)
    results = predictions(log_probs, x0, position, policy)
    logits.copy_(log_probs.exp_())
    return results


@torch.no_grad()
def masked_nll(model, h, x0, hidden):
    """Cross-entropy of x0 where hidden, 0 elsewhere; h (B, L, dim), the others (B, L) -> (B, L).

    For evaluation: no gradient, and at most CHUNK logits at once.
    """
    where = hidden.nonzero(as_tuple=True)
    rows, target = h[where], x0[where]  # (n, dim), (n,)
    nll = [
        cross_entropy(model.logits(rows[part]), target[part], reduction="none")
        for part in chunks(len(target), model.vocab_size, h.device)
    ]
    return nll[0].new_zeros(x0.shape).index_put_(where, torch.cat(nll))
