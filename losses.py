"""The objective: masked cross-entropy, averaged over the hidden positions of each row.

The paper's loss is E[1/t * sum over hidden i of -log f_i(x0_i | x_t)] (eq. 1). With
t = hidden / L_eff the weight 1/t is L_eff / hidden, so up to the constant L_eff the loss is the
mean over hidden positions. For random masking, drawing the count of hidden tokens uniformly from
1..L_eff and weighting by 1/count gives every mask the weight that drawing t ~ U(0, 1), masking
i.i.d. and weighting by 1/t gives it in expectation, up to the same L_eff, with less variance.

Loss and score come from the same pass over the logits: the chain needs no forward pass of its own.
With a small vocabulary that pass covers all positions (`Objective`), since static shapes are worth
more than the logits saved; with a large one only the hidden ones, a chunk at a time, and it
computes the gradient on the way (`ChunkedObjective`).
"""

import torch
import torch.nn as nn

DENSE = 64  # the largest vocabulary that is scored at all positions
CHUNK = 1 << 25  # logits held at once with a larger one: 128 MiB in float32


def predictions(log_probs, x0, position, policy):
    """What follows from log_probs (..., V): cross-entropy of x0, policy's score, confidence; (...).

    x0 and position (...). Score and confidence carry no gradient and depend on log_probs only, not
    on x0.
    """
    nll = -log_probs.gather(-1, x0[..., None])[..., 0]
    log_probs = log_probs.detach()
    confidence = log_probs.amax(-1).exp()
    return nll, policy(log_probs, confidence, position), confidence


def row_shares(hidden, dtype):
    """What each position weighs in `row_mean`: hidden (B, L) -> (B, L), summing to 1."""
    return hidden.to(dtype) / (hidden.sum(1, keepdim=True) * len(hidden))


def row_mean(nll, hidden):
    """Mean over each row's hidden positions, then over rows. Every row must have one; (B, L)."""
    return (nll.masked_fill(~hidden, 0) * row_shares(hidden, nll.dtype)).sum()


class Objective(nn.Module):
    """What one training step computes: the loss, and what the chain needs, in one forward pass."""

    def __init__(self, model, policy):
        super().__init__()
        self.model, self.policy = model, policy

    def forward(self, x, x0, hidden):
        """(B, L) each -> loss (), score (B, L), confidence (B, L); arbitrary where not hidden."""
        log_probs = self.model.logits(self.model(x)).log_softmax(-1)
        position = torch.arange(x.shape[1], device=x.device).expand_as(x)
        nll, score, confidence = predictions(log_probs, x0, position, self.policy)
        return row_mean(nll, hidden), score, confidence


class ChunkedObjective(Objective):
    """The same for a large vocabulary: logits at hidden positions only, CHUNK of them at once.

    Every row must have a hidden position.
    """

    def compile(self):
        self.model.compile()  # the head is products of matrices and few passes between them

    def forward(self, x, x0, hidden):
        h = self.model(x)
        where = hidden.nonzero(as_tuple=True)  # the host waits for this: after the model's launch
        weight = self.model.lm_head.weight
        share = row_shares(hidden, torch.promote_types(weight.dtype, torch.float32))
        loss, *found = HeadLoss.apply(
            h[where], weight, x0[where], share[where], where[1], self.policy, self.model.mask_token,
        )  # fmt: skip
        score, confidence = (f.new_zeros(x.shape).index_put_(where, f) for f in found)
        return loss, score, confidence


class HeadLoss(torch.autograd.Function):
    """Output head and loss at n positions: values and gradients in one pass, chunk by chunk.

    h (n, dim), weight (V, dim), x0, share, position (n,) -> loss (), score (n,), confidence (n,).
    While the logits of a chunk exist their gradient becomes that of h and, summed in float32, of
    weight: backward has nothing left to do but scale them.
    """

    @staticmethod
    def forward(ctx, h, weight, x0, share, position, policy, mask_token):
        kind = h.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else h.dtype
        states, head, share = h.to(dtype), weight.to(dtype), share[:, None]
        grad_h = torch.empty_like(h)
        grad_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        parts, results = chunks(len(h), len(weight)), []
        room = h.new_empty(parts[0].stop, len(weight), dtype=dtype)  # used again by each chunk
        for part in parts:
            logits = torch.mm(states[part], head.T, out=room[: len(states[part])])
            logits[:, mask_token] = -torch.inf
            log_probs = log_softmax_(logits)
            results.append(predictions(log_probs, x0[part], position[part], policy))
            error = log_probs.exp_()
            error.scatter_add_(1, x0[part, None], error.new_full((len(error), 1), -1))  # one-hot
            error = error.to(dtype)  # not before: the difference is small where the model is sure
            grad_h[part] = (share[part] * (error @ head)).to(h.dtype)
            if grad_weight is not None:
                add_product(grad_weight, error.T, (share[part] * h[part]).to(dtype))
        nll, score, confidence = map(torch.cat, zip(*results, strict=True))
        ctx.save_for_backward(grad_h, grad_weight)
        ctx.mark_non_differentiable(score, confidence)
        return (share[:, 0] * nll).sum(), score, confidence

    @staticmethod
    def backward(ctx, grad_loss, *_):
        grad_h, grad_weight = ctx.saved_tensors
        if grad_weight is not None:
            grad_weight = grad_weight.mul_(grad_loss)  # in place: it may be the largest tensor
        return grad_h * grad_loss, grad_weight, *[None] * 5


def chunks(n, vocab_size):
    """Slices of n positions, each of which has CHUNK logits at most."""
    size = max(1, CHUNK // vocab_size)
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def log_softmax_(logits):
    """In float32 at least, and in place where they are that."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return torch.log_softmax(wide, -1, out=wide)


def add_product(total, a, b):
    """total += a @ b, without a temporary of its size where the dtypes allow it."""
    if a.dtype == total.dtype:
        total.addmm_(a, b)
    else:
        total += a @ b
