"""The objective: masked cross-entropy, averaged over the hidden positions of each row.

The paper's loss is E[1/t * sum over hidden i of -log f_i(x0_i | x_t)] (eq. 1). With
t = hidden / L_eff the weight 1/t is L_eff / hidden, so up to the constant L_eff the loss is the
mean over hidden positions. For random masking, drawing the count of hidden tokens uniformly from
1..L_eff and weighting by 1/count gives every mask the weight that drawing t ~ U(0, 1), masking
i.i.d. and weighting by 1/t gives it in expectation, up to the same L_eff, with less variance.

In block diffusion each block is such a row: the mean over its hidden positions, then over the
blocks that have any. A sum over them would differ by their number, which is the same for all rows
but for prompts. The mean makes no step larger for its smaller blocks, so that learning rate and
clipping hold for all sizes; with blocks of one it is the loss of the next token.

Loss and score come from the same pass over the logits: the chain needs no forward pass of its own.
With a small vocabulary that pass covers all positions (`Objective`), since static shapes are worth
more than the logits saved; with a large one only the hidden ones, a chunk at a time, and it
computes the gradient on the way (`ChunkedObjective`).
"""

import math

import torch
import torch.nn as nn
from torch.nn.functional import cross_entropy

import policies

DENSE = 64  # the largest vocabulary that is scored at all positions
CHUNK = {"cpu": 1 << 25, "cuda": 1 << 29}  # logits held at once with a larger one, by device
WIDTH = 64  # rows of logits are filled up to a multiple of this: products need them aligned
PIECE = 4096  # rows of a product that a CPU's cache holds while they are added


def predictions(log_probs, x0, position, policy):
    """What follows from log_probs (..., V): cross-entropy of x0, policy's score, confidence; (...).

    x0 and position (...). Score and confidence carry no gradient and depend on log_probs only, not
    on x0.
    """
    nll = -log_probs.gather(-1, x0[..., None])[..., 0]
    log_probs = log_probs.detach()
    confidence = log_probs.amax(-1).exp()
    return nll, policy(log_probs, confidence, position), confidence


def score_all(model, x, x0, policy, block=0):
    """`predictions` at all positions, (B, L) each: for a small vocabulary."""
    log_probs = model.logits(states(model, x, x0, block)).log_softmax(-1)
    position = torch.arange(x.shape[1], device=x.device).expand_as(x)
    return predictions(log_probs, x0, position, policy)


def row_shares(hidden, dtype, block=0):
    """What each position weighs in `row_mean`: hidden (B, L) -> (B, L), summing to 1.

    A row with nothing hidden weighs nothing; only a variant (studies/ablations.py) has such rows.
    """
    blocks = hidden.unflatten(1, (-1, block or hidden.shape[1]))  # (B, blocks, block)
    count = blocks.sum(2, keepdim=True).clamp(min=1)
    taking_part = blocks.any(2).sum(1)[:, None, None].clamp(min=1)
    return (blocks.to(dtype) / (count * taking_part * len(hidden))).flatten(1)


def row_mean(nll, hidden, block=0):
    """Mean over each row's hidden positions, then over all rows; (B, L) each -> ().

    With blocks: over each block's, then over the row's blocks that have any.
    """
    return (nll.masked_fill(~hidden, 0) * row_shares(hidden, nll.dtype, block)).sum()


def check_papl(alpha):
    """Raise ValueError unless alpha is a finite number, at least 0."""
    if not 0 <= alpha < math.inf:
        raise ValueError(f"papl {alpha}: expected a finite number, at least 0")


def papl_weights(nll, hidden, alpha, block=0):
    """1 + alpha w, with w the row's share of the probability of the true tokens; (B, L).

    w^i = f_i(x0^i) / sum over hidden j of f_j(x0^j), detached (PAPL; paper, appendix "Empirical
    comparison to PAPL"); a block is a row of its own. As a softmax of log f it is finite where all
    f are tiny. It depends on what is hidden, so it moves the minimiser (Proposition 2 does not
    hold): towards being too sure.
    """
    lowest = torch.finfo(nll.dtype).min
    score = nll.detach().neg().masked_fill(~hidden, lowest)
    return 1 + alpha * score.unflatten(1, (-1, block or nll.shape[1])).softmax(2).flatten(1)


def states(model, x, x0, block=0):
    """What the model makes of x, (B, L, dim): with blocks, of x0 in the blocks before, too."""
    return model(x, x0, block) if block else model(x)


class Objective(nn.Module):
    """What one training step computes: the loss, and what the chain needs, in one forward pass.

    model   model.Transformer, or any other in model.Logits
    policy  one of policies.py, or its name
    papl    the alpha of `papl_weights`; 0 = off
    Raises ValueError for another model, an unknown policy, an alpha that is none.
    """

    needs = "logits"  # of the model

    def __init__(self, model, policy=policies.top_k, papl=0.0):
        super().__init__()
        check_papl(papl)
        if not hasattr(model, self.needs):
            raise ValueError(
                f"{type(model).__name__} has no {self.needs}: {type(self).__name__} takes a model "
                "like model.Transformer; losses.Objective any other as model.Logits(it, mask_token)"
            )
        self.model, self.policy, self.papl = model, policies.get(policy), papl

    def forward(self, x, x0, hidden, block=0, size=None):
        """(B, L) each -> loss (), score (B, L), confidence (B, L); arbitrary where not hidden.

        size: how many positions are hidden, or more; only a large vocabulary has use for it.
        """
        nll, score, confidence = score_all(self.model, x, x0, self.policy, block)
        if self.papl:
            nll = nll * papl_weights(nll, hidden, self.papl, block)
        return row_mean(nll, hidden, block), score, confidence


class ChunkedObjective(Objective):
    """The same for a large vocabulary: logits at hidden positions only, a chunk of them at once."""

    needs = "lm_head"

    def __init__(self, model, policy=policies.top_k, papl=0.0):
        super().__init__(model, policy, papl)
        self.finish = finish

    def compile(self):
        self.model.compile()
        # The rest of the head is products of matrices. Dynamic: a code of its own for the first
        # size may round otherwise, and a resumed run has another first size.
        self.finish = torch.compile(finish, dynamic=True)

    def forward(self, x, x0, hidden, block=0, size=None):
        """As Objective's. Without a size the host waits for the model."""
        h = states(self.model, x, x0, block)
        n = hidden.numel()
        where = places(hidden.flatten(), size)  # those that are too many are n
        at = where.clamp(max=n - 1)
        weight = self.model.lm_head.weight
        dtype = torch.promote_types(weight.dtype, torch.float32)
        share = row_shares(hidden, dtype, block)
        if self.papl:  # a pass over the logits of its own: a weight needs its whole row
            nll = masked_nll(self.model, h, x0, hidden)
            share = share * papl_weights(nll, hidden, self.papl, block)
        loss, *found = HeadLoss.apply(
            h.flatten(0, 1).index_select(0, at), weight, x0.flatten()[at],
            share.flatten()[at] * (where < n), at % x.shape[1],
            self.policy, self.model.mask_token, self.finish,
        )  # fmt: skip
        score, confidence = (
            f.new_zeros(n + 1).index_copy_(0, where, f)[:n].view(x.shape) for f in found
        )
        return loss, score, confidence


def places(hidden, size):
    """Where hidden (n,) is True, filled up with n to `size`; None: as many as there are."""
    if size is None:
        return hidden.nonzero()[:, 0]
    return torch.nonzero_static(hidden, size=size, fill_value=len(hidden))[:, 0]


class HeadLoss(torch.autograd.Function):
    """Output head and loss at n positions: values and gradients in one pass, chunk by chunk.

    h (n, dim), weight (V, dim), x0, share, position (n,) -> loss (), score (n,), confidence (n,).
    While the logits of a chunk exist their gradient becomes that of h and, summed in float32, of
    weight: backward has nothing left to do but scale them.
    """

    @staticmethod
    def forward(ctx, h, weight, x0, share, position, policy, mask_token, finish):
        kind = h.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else h.dtype
        inputs, head, share = h.to(dtype), aligned(weight, dtype), share[:, None]
        grad_h, grad_weight = torch.empty_like(h), None
        if ctx.needs_input_grad[1]:
            grad_weight = weight.new_empty(head.shape)
        parts, results = chunks(len(h), len(weight), h.device), []
        # Used again by each chunk. Where products come in float32 their gradient has a room of its
        # own, else it is written over them. Columns past the vocabulary are zero and remain so.
        room = h.new_empty(parts[0].stop, len(head), dtype=of_products(dtype, kind))
        apart = torch.zeros_like(room, dtype=dtype) if room.dtype != dtype else None
        for part in parts:
            n = part.stop - part.start
            logits = product(inputs[part], head.T, room[:n])
            logits[:, mask_token] = -torch.inf
            error = logits if apart is None else apart[:n]
            softmax = None if apart is None else error[:, : len(weight)]
            given = x0[part], position[part], policy
            results.append(finish(logits[:, : len(weight)], *given, softmax))
            one_less = torch.expm1(-results[-1][0])  # exact where the model is sure
            error[torch.arange(n, device=h.device), x0[part]] = one_less.to(dtype)
            grad_h[part] = share[part] * product(error, head)
            if grad_weight is not None:
                scaled = (share[part] * h[part]).to(dtype)
                add_product(grad_weight, error.T, scaled, first=part.start == 0)
        nll, score, confidence = map(torch.cat, zip(*results, strict=True))
        if grad_weight is not None:  # not a view: autograd adds to a whole tensor in place
            grad_weight.resize_(weight.shape)
        ctx.save_for_backward(grad_h, grad_weight)
        ctx.mark_non_differentiable(score, confidence)
        return (share[:, 0] * nll).sum(), score, confidence

    @staticmethod
    def backward(ctx, grad_loss, *_):
        grad_h, grad_weight = ctx.saved_tensors
        if grad_weight is not None:
            grad_weight = grad_weight.mul_(grad_loss)  # in place: it may be the largest tensor
        return grad_h * grad_loss, grad_weight, *[None] * 6


def finish(logits, x0, position, policy, softmax=None):
    """`predictions` of logits (n, V), over which, or into `softmax`, their softmax is written.

    Compiled it is a few passes over the logits, without a tensor of their size.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True)
    log_probs = torch.log_softmax(wide, -1, out=wide)
    found = predictions(log_probs, x0, position, policy)
    (logits if softmax is None else softmax).copy_(log_probs.exp_())
    return found


@torch.no_grad()
def masked_nll(model, h, x0, hidden):
    """Cross-entropy of x0 where hidden, 0 elsewhere; h (B, L, dim), the others (B, L) -> (B, L).

    For numbers alone: no gradient, and CHUNK logits at once.
    """
    where = hidden.nonzero(as_tuple=True)
    rows, target = h[where], x0[where]  # (n, dim), (n,)
    nll = [
        cross_entropy(model.logits(rows[part]), target[part], reduction="none")
        for part in chunks(len(target), model.vocab_size, h.device)
    ]
    return nll[0].new_zeros(x0.shape).index_put_(where, torch.cat(nll))


def chunks(n, vocab_size, device):
    """Slices of n positions, each of which has CHUNK logits at most; one at least, if empty."""
    size = max(1, CHUNK.get(device.type, CHUNK["cpu"]) // vocab_size)
    return [slice(start, min(start + size, n)) for start in range(0, max(n, 1), size)]


def aligned(weight, dtype):
    """weight (V, dim) in that dtype; where this makes a copy, with rows of zeros to fill it up."""
    if weight.dtype == dtype:
        return weight
    V, dim = weight.shape
    filled = weight.new_empty(V + -V % WIDTH, dim, dtype=dtype)
    filled[:V], filled[V:] = weight, 0
    return filled


def of_products(dtype, kind):
    """The dtype that `product` has for factors of `dtype`: on CUDA the sums are not rounded."""
    return torch.promote_types(dtype, torch.float32) if kind == "cuda" else dtype


def product(a, b, out=None):
    """a @ b, into `out` where it is given."""
    if (dtype := of_products(a.dtype, a.device.type)) == a.dtype:
        return torch.mm(a, b, out=out)
    return torch.mm(a, b, out_dtype=dtype, out=out)


def add_product(total, a, b, first):
    """total += a @ b, or = where it is the first; no temporary of its size."""
    beta = 0 if first else 1
    if a.dtype == total.dtype:
        torch.addmm(total, a, b, beta=beta, out=total)
    elif total.is_cuda:
        torch.addmm(total, a, b, beta=beta, out_dtype=total.dtype, out=total)
    else:
        for rows, piece in zip(total.split(PIECE), a.split(PIECE), strict=True):
            rows.copy_(piece @ b) if first else rows.add_((piece @ b).to(total.dtype))
