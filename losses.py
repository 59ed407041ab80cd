"""The objective: masked cross-entropy, averaged over the hidden positions of each row.

The paper's loss is E[1/t * sum over hidden i of -log f_i(x0_i | x_t)] (eq. 1). With
t = hidden / L_eff the weight 1/t is L_eff / hidden, so up to the constant L_eff the loss is the
mean over hidden positions. For random masks, the count of hidden tokens is drawn uniformly from
1..L_eff and the weight is 1/count: in expectation every mask weighs as much, up to the same L_eff,
as with t ~ U(0, 1), i.i.d. masks and weight 1/t, and the variance is lower.

In block diffusion each block is such a row: the loss is the mean over its hidden positions, then
over the blocks that have any. A sum over blocks would differ by a factor, their number, which is
the same for all rows without prompts. The mean keeps the gradient's scale independent of the block
size, so learning rate and clipping carry over; with blocks of one token it is the next-token loss.

Loss (), score (B, L) and confidence (B, L) come from one pass over the logits, so the chain needs
no forward pass of its own. With a small vocabulary that pass covers all positions (`Objective`):
static shapes are worth more than the logits saved. With a large one it covers the hidden positions
only, a chunk at a time, and computes the gradient on the way (`ChunkedObjective`).
"""

import math

import torch
import torch.nn as nn
from torch.nn.functional import cross_entropy

import policies

DENSE = 64  # the largest vocabulary that is scored at all positions
CHUNK = {"cpu": 1 << 25, "cuda": 1 << 29}  # logits held at once with a larger one, by device
WIDTH = 64  # rows of logits are padded to a multiple of this: matrix products need alignment
PIECE = 4096  # rows of a product that a CPU's cache holds while they are added


def predictions(log_probs, x0, position, policy):
    """log_probs (..., V) -> cross-entropy of x0, the policy's score and the confidence, (...) each.

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
    """The weight of each position in `row_mean`: hidden (B, L) -> (B, L), summing to 1.

    A row with nothing hidden has weight 0; only a variant (studies/ablations.py) has such rows.
    """
    blocks = hidden.unflatten(1, (-1, block or hidden.shape[1]))  # (B, blocks, block)
    count = blocks.sum(2, keepdim=True).clamp(min=1)
    taking_part = blocks.any(2).sum(1)[:, None, None].clamp(min=1)
    return (blocks.to(dtype) / (count * taking_part * len(hidden))).flatten(1)


def row_mean(nll, hidden, block=0):
    """Mean over each row's hidden positions, then over all rows; (B, L) each -> ().

    With blocks: first over each block's, then over the blocks of a row that have any.
    """
    return (nll.masked_fill(~hidden, 0) * row_shares(hidden, nll.dtype, block)).sum()


def check_papl(alpha):
    """Raise ValueError unless alpha is a finite number, at least 0."""
    if not 0 <= alpha < math.inf:
        raise ValueError(f"papl {alpha}: expected a finite number, at least 0")


def papl_weights(nll, hidden, alpha, block=0):
    """PAPL's weight of each position in the loss, 1 + alpha w^i; (B, L).

    w^i = f_i(x0^i) / sum over hidden j of f_j(x0^j), detached (PAPL; paper, appendix "Empirical
    comparison to PAPL"); each block counts as a row. Computed as a softmax of log f, it is finite
    even if all f are tiny. It depends on hidden tokens, so it moves the minimiser (Proposition 2
    does not hold), towards overconfidence.
    """
    lowest = torch.finfo(nll.dtype).min
    score = nll.detach().neg().masked_fill(~hidden, lowest)
    return 1 + alpha * score.unflatten(1, (-1, block or nll.shape[1])).softmax(2).flatten(1)


def states(model, x, x0, block=0):
    """The model's states of x, (B, L, dim); with blocks, they also see x0 in earlier blocks."""
    return model(x, x0, block) if block else model(x)


class Objective(nn.Module):
    """The loss, and the score and confidence that the chain needs, in one forward pass.

    model   model.Transformer, or any other model wrapped in model.Logits
    policy  a function of policies.py, or its name
    papl    the alpha of `papl_weights`; 0 = off
    Raises ValueError for an unsuitable model, an unknown policy or an invalid alpha.
    """

    needs = "logits"  # of the model

    def __init__(self, model, policy=policies.top_k, papl=0.0):
        super().__init__()
        check_papl(papl)
        if not hasattr(model, self.needs):
            raise ValueError(
                f"{type(model).__name__} has no {self.needs}: {type(self).__name__} takes a model "
                "like model.Transformer; wrap others for Objective: model.Logits(yours, mask_token)"
            )
        self.model, self.policy, self.papl = model, policies.get(policy), papl

    def forward(self, x, x0, hidden, block=0, size=None):
        """(B, L) each -> loss (), score (B, L), confidence (B, L); arbitrary where not hidden.

        size: the number of hidden positions, or more; used only with a large vocabulary.
        """
        nll, score, confidence = score_all(self.model, x, x0, self.policy, block)
        if self.papl:
            nll = nll * papl_weights(nll, hidden, self.papl, block)
        return row_mean(nll, hidden, block), score, confidence


class ChunkedObjective(Objective):
    """The same for a large vocabulary: logits at hidden positions only, one chunk at a time."""

    needs = "lm_head"

    def __init__(self, model, policy=policies.top_k, papl=0.0):
        super().__init__(model, policy, papl)
        self.finish = finish

    def compile(self):
        self.model.compile()
        # The rest of the head is matrix products. Dynamic: code specialised to the first size may
        # round differently, and a resumed run has another first size.
        self.finish = torch.compile(finish, dynamic=True)

    def forward(self, x, x0, hidden, block=0, size=None):
        """Like Objective's. Without a size, the host waits for the device."""
        h = states(self.model, x, x0, block)
        n = hidden.numel()
        where = places(hidden.flatten(), size)  # n where there are fewer hidden than `size`
        at = where.clamp(max=n - 1)
        weight = self.model.lm_head.weight
        dtype = torch.promote_types(weight.dtype, torch.float32)
        share = row_shares(hidden, dtype, block)
        if self.papl:  # needs its own pass over the logits: a weight depends on its whole row
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
    """Indices where hidden (n,) is True, padded with n to `size`; None: no padding."""
    if size is None:
        return hidden.nonzero()[:, 0]
    return torch.nonzero_static(hidden, size=size, fill_value=len(hidden))[:, 0]


class HeadLoss(torch.autograd.Function):
    """Output head and loss at n positions: values and gradients in one pass, chunk by chunk.

    h (n, dim), weight (V, dim), x0, share, position (n,) -> loss (), score (n,), confidence (n,).
    While a chunk's logits exist, their gradient is turned into that of h and, summed in float32, of
    weight; backward only scales these.
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
        # Reused by each chunk. If products come out in float32, their gradient has its own buffer;
        # otherwise it overwrites them. Columns past the vocabulary are zero and stay so.
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
            one_less = torch.expm1(-results[-1][0])  # exact even for probabilities near 1
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
    """`predictions` of logits (n, V); writes their softmax into `softmax`, or over the logits.

    Compiled, it takes a few passes over the logits and no further tensor of their size.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True)
    log_probs = torch.log_softmax(wide, -1, out=wide)
    found = predictions(log_probs, x0, position, policy)
    (logits if softmax is None else softmax).copy_(log_probs.exp_())
    return found


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


def chunks(n, vocab_size, device):
    """Slices of n positions with at most CHUNK logits each; at least one slice, even if empty."""
    size = max(1, CHUNK.get(device.type, CHUNK["cpu"]) // vocab_size)
    return [slice(start, min(start + size, n)) for start in range(0, max(n, 1), size)]


def aligned(weight, dtype):
    """weight (V, dim) in that dtype; if this makes a copy, padded with rows of zeros."""
    if weight.dtype == dtype:
        return weight
    V, dim = weight.shape
    filled = weight.new_empty(V + -V % WIDTH, dim, dtype=dtype)
    filled[:V], filled[V:] = weight, 0
    return filled


def of_products(dtype, kind):
    """The dtype of `product` for factors of `dtype`: on CUDA the sums stay in float32."""
    return torch.promote_types(dtype, torch.float32) if kind == "cuda" else dtype


def product(a, b, out=None):
    """a @ b, into `out` if given."""
    if (dtype := of_products(a.dtype, a.device.type)) == a.dtype:
        return torch.mm(a, b, out=out)
    return torch.mm(a, b, out_dtype=dtype, out=out)


def add_product(total, a, b, first):
    """total += a @ b, or total = a @ b if first; without a temporary of its size."""
    beta = 0 if first else 1
    if a.dtype == total.dtype:
        torch.addmm(total, a, b, beta=beta, out=total)
    elif total.is_cuda:
        torch.addmm(total, a, b, beta=beta, out_dtype=total.dtype, out=total)
    else:
        for rows, piece in zip(total.split(PIECE), a.split(PIECE), strict=True):
            rows.copy_(piece @ b) if first else rows.add_((piece @ b).to(total.dtype))
