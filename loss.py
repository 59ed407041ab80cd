"""The loss, and what a chain needs of the same forward pass: score and confidence by a policy."""

import torch

SMALL = 64  # up to this vocabulary all positions are scored: fixed shapes, and nothing waits


def objective(model, policy, x, x0, hidden):
    """(B, L) each -> loss (), score (B, L), confidence (B, L), in one forward pass.

    The mean over a row's hidden positions, then over rows: eq. 1 with each row divided by L_eff.
    """
    weight = hidden / (hidden.sum(1, keepdim=True) * len(hidden))  # sums to 1
    return loss_and_scores(model, policy, model(x), x0, hidden, weight)


def loss_and_scores(model, policy, h, x0, hidden, weight):
    """The same from states h (B, L, dim) and the weight (B, L) of each position in the loss.

    A large head sees the n hidden positions only; to know n the host waits for the device. So on a
    GPU all positions are scored if their logits make one chunk.
    """
    if model.vocab_size <= SMALL or (h.is_cuda and len(chunks(x0.numel(), model.vocab_size)) == 1):
        nll, score, confidence = read(model.logits(h).log_softmax(-1), x0, policy)
        return (nll.masked_fill(~hidden, 0) * weight).sum(), score, confidence
    where = hidden.nonzero(as_tuple=True)
    parts = h[where], model.lm_head.weight, x0[where], weight[where]
    loss, *seen = LargeHead.apply(*parts, model.mask_token, policy)
    score, confidence = (part.new_zeros(hidden.shape).index_put(where, part) for part in seen)
    return loss, score, confidence


def read(log_probs, x0, policy):
    """log_probs (..., V) -> cross-entropy of x0, score, confidence (...); the last two detached."""
    nll = -log_probs.gather(-1, x0[..., None])[..., 0]
    log_probs = log_probs.detach()
    confidence = log_probs.amax(-1).exp()
    return nll, score(policy, log_probs, confidence), confidence


def score(policy, log_probs, confidence):
    """What a policy says, copied, as it may be a view; SystemExit if it is not one for each."""
    found = policy(log_probs, confidence).clone()
    if found.shape != confidence.shape:
        raise SystemExit(f"a policy's scores are {[*found.shape]}, not {[*confidence.shape]}")
    return found


class LargeHead(torch.autograd.Function):
    """h (n, dim), head (V, dim), x0, weight (n,) -> loss (), score, confidence (n,), by chunks.

    Skip it at first: it gives what a small head gives, but all logits would not fit into memory.
    The gradient of a chunk, (softmax - one-hot) * weight, is taken at once; `backward` scales it.
    """

    @staticmethod
    def forward(ctx, h, head, x0, weight, mask_token, policy):
        device = h.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else h.dtype
        V = len(head)
        wide = head.to(dtype)
        if h.is_cuda:  # its matrix products want aligned rows
            wide = torch.nn.functional.pad(wide, (0, 0, 0, -V % 64))
        grad_h = torch.empty_like(h)
        grad_head = torch.zeros_like(head if ctx.needs_input_grad[1] else head[:0])  # or frozen
        seen = []
        for part in chunks(len(h), V):
            logits = h[part].to(dtype) @ wide.T  # (c, V padded)
            logits[:, V:] = -torch.inf
            logits[:, mask_token] = -torch.inf
            log_probs = logits.float()
            torch.log_softmax(log_probs, -1, out=log_probs)  # in place: a tenth faster
            seen.append(read(log_probs, x0[part], policy))
            error = log_probs.exp_()  # the softmax, in place
            error[torch.arange(len(error), device=h.device), x0[part]] -= 1
            error = logits.copy_(error)  # to `dtype`, in the memory of the logits
            grad_h[part] = weight[part, None] * (error @ wide)
            scaled = (weight[part, None] * h[part]).to(dtype)
            pieces = grad_head.split(4096), error[:, :V].T.split(4096)  # each fits into a cache
            for rows, columns in zip(*pieces, strict=True) if len(grad_head) else ():
                rows += columns @ scaled
        nll, score, confidence = (torch.cat(values) for values in zip(*seen, strict=True))
        ctx.save_for_backward(grad_h, grad_head)
        ctx.mark_non_differentiable(score, confidence)
        return (weight * nll).sum(), score, confidence

    @staticmethod
    def backward(ctx, grad_loss, *_):
        grad_h, grad_head = ctx.saved_tensors
        return grad_h * grad_loss, grad_head.mul_(grad_loss), None, None, None, None


def chunks(n, V):
    """Slices of n positions, 64 million logits each at most."""
    size = max(1, (1 << 26) // V)
    return [slice(at, at + size) for at in range(0, n, size)]
