"""The loss, and what a chain needs of the same forward pass: score and confidence by a policy."""

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
    from text import LargeHead  # skip it at first: it gives what a small head gives

    where = hidden.nonzero(as_tuple=True)
    parts = h[where], model.lm_head.weight, x0[where], weight[where]
    loss, *seen = LargeHead.apply(*parts, model.mask_token, policy)
    score, confidence = (part.new_zeros(hidden.shape).index_put(where, part) for part in seen)
    return loss, score, confidence


def read(log_probs, x0, policy, confidence=None):
    """log_probs (..., V) -> cross-entropy of x0, score, confidence (...); the last two detached."""
    nll = -log_probs.gather(-1, x0[..., None])[..., 0]
    log_probs = log_probs.detach()
    confidence = log_probs.amax(-1).exp() if confidence is None else confidence
    score = policy(log_probs, confidence).clone()  # as it may be a view
    if score.shape != confidence.shape:
        raise SystemExit(f"a policy's scores are {[*score.shape]}, not {[*confidence.shape]}")
    return nll, score, confidence


def chunks(n, V):
    """Slices of n positions, 64 million logits each at most."""
    size = max(1, (1 << 26) // V)
    return [slice(at, at + size) for at in range(0, n, size)]
