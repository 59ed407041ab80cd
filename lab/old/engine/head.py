"""A large output head and its loss at n positions: values and gradients in one pass, by chunks.

The full logits (n, V) are never in memory. torch.nn.functional.linear_cross_entropy does the same
for the loss alone: score and confidence would take a second pass over the head.
"""

import torch

CHUNK = {"cpu": 1 << 25, "cuda": 1 << 29}  # logits held at once, by device
WIDTH = 64  # rows of logits are padded to a multiple of this: matrix products need alignment
PIECE = 4096  # rows of a product that a CPU's cache holds while they are added


class HeadLoss(torch.autograd.Function):
    """h (n, dim), weight (V, dim), x0, weight_of_position, position (n,)
    -> loss (), score, confidence (n,).

    The forward pass already computes the gradients of h and weight, chunk by chunk, while the
    logits exist; backward only multiplies them by grad_loss. mask_token has probability zero.
    score(logits, x0, position, policy) -> cross-entropy, score, confidence; it leaves the softmax
    in logits, as losses.score_then_softmax_ does.
    """

    @staticmethod
    def forward(ctx, h, weight, x0, weight_of_position, position, policy, mask_token, score):
        device_type = h.device.type
        mixed = torch.is_autocast_enabled(device_type)
        dtype = torch.get_autocast_dtype(device_type) if mixed else h.dtype
        inputs, head = h.to(dtype), cast_and_pad(weight, dtype)
        weight_of_position = weight_of_position[:, None]
        grad_h = torch.empty_like(h)
        grad_weight = weight.new_empty(head.shape) if ctx.needs_input_grad[1] else None
        parts, results = chunks(len(h), len(weight), h.device), []
        buffer = h.new_empty(parts[0].stop, len(head), dtype=dtype)  # reused by each chunk
        for part in parts:
            n, target = part.stop - part.start, x0[part]
            logits = torch.mm(inputs[part], head.T, out=buffer[:n])  # (n, V)
            logits[:, mask_token] = -torch.inf
            results.append(score(logits[:, : len(weight)], target, position[part], policy))
            nll = results[-1][0]
            # Softmax minus one-hot is the gradient of cross-entropy in the logits, which now hold
            # the softmax; p - 1 = expm1(-nll) is exact even for p near 1.
            error = logits
            error[torch.arange(n, device=h.device), target] = torch.expm1(-nll).to(dtype)
            grad_h[part] = weight_of_position[part] * (error @ head)
            if grad_weight is not None:
                scaled = (weight_of_position[part] * h[part]).to(dtype)
                add_product(grad_weight, error.T, scaled, first=part.start == 0)
        nll, scores, confidence = map(torch.cat, zip(*results, strict=True))
        if grad_weight is not None:  # not a view: autograd adds to a whole tensor in place
            grad_weight.resize_(weight.shape)
        ctx.save_for_backward(grad_h, grad_weight)
        ctx.mark_non_differentiable(scores, confidence)
        return (weight_of_position[:, 0] * nll).sum(), scores, confidence

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


def cast_and_pad(weight, dtype):
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
