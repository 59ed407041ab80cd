"""A large output head and its loss at n positions: values and gradients in one pass, by chunks.

Never are all logits (n, V) in memory. torch.nn.functional.linear_cross_entropy does the same for
the loss alone: score and confidence would take a second pass over the head.
"""

import torch

CHUNK = {"cpu": 1 << 25, "cuda": 1 << 29}  # logits held at once, by device
WIDTH = 64  # rows of logits are padded to a multiple of this: matrix products need alignment
PIECE = 4096  # rows of a product that a CPU's cache holds while they are added


class HeadLoss(torch.autograd.Function):
    """h (n, dim), weight (V, dim), x0, share, position (n,) -> loss (), score, confidence (n,).

    While a chunk's logits exist, their gradient is turned into that of h and, summed in float32, of
    weight; backward only scales these. never: the token that has probability zero; finish(logits,
    x0, position, policy) -> cross-entropy, score, confidence, as losses.finish.
    """

    @staticmethod
    def forward(ctx, h, weight, x0, share, position, policy, never, finish):
        kind = h.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else h.dtype
        inputs, head, share = h.to(dtype), aligned(weight, dtype), share[:, None]
        grad_h = torch.empty_like(h)
        grad_weight = weight.new_empty(head.shape) if ctx.needs_input_grad[1] else None
        parts, results = chunks(len(h), len(weight), h.device), []
        room = h.new_empty(parts[0].stop, len(head), dtype=dtype)  # reused by each chunk
        for part in parts:
            n, target = part.stop - part.start, x0[part]
            logits = torch.mm(inputs[part], head.T, out=room[:n])  # (n, V)
            logits[:, never] = -torch.inf
            results.append(finish(logits[:, : len(weight)], target, position[part], policy))
            # Softmax minus one-hot is the gradient of cross-entropy in the logits. `finish` has
            # overwritten these with the softmax; p - 1 = expm1(-nll) is exact even for p near 1.
            error = logits
            error[torch.arange(n, device=h.device), target] = torch.expm1(-results[-1][0]).to(dtype)
            grad_h[part] = share[part] * (error @ head)
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


def chunks(n, vocab_size, device):
    """Slices of n positions with at most CHUNK logits each; at least one, even if empty."""
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


def add_product(total, a, b, first):
    """total += a @ b, or total = a @ b if first; without a temporary of its size."""
    if a.dtype == total.dtype:
        torch.addmm(total, a, b, beta=0 if first else 1, out=total)
        return
    for rows, piece in zip(total.split(PIECE), a.split(PIECE), strict=True):
        rows.copy_(piece @ b) if first else rows.add_((piece @ b).to(total.dtype))
