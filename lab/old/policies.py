"""Which hidden positions are revealed next: one definition for training and sampling.

A policy turns a model's predictions into a `score`, larger = revealed sooner (paper, section 2):

    policy(log_probs (..., V), confidence (...), position (...)) -> score (...), floating point

It scores each position on its own, so it may be given any part of a batch. `log_probs` are the
model's own (untempered), `confidence` is the probability of the predicted token: the likeliest one,
or the one that was sampled. A policy never sees a hidden token of x0, so the minimiser of the loss
is unchanged (Proposition 2). Not here: how many tokens are revealed (puma.step, sample.choose).
"""

import math
import re

import torch


def top_k(log_probs, confidence, position):
    return confidence


def margin(log_probs, confidence, position):
    """Probability of the likeliest token minus the probability of the second."""
    first, second = log_probs.topk(2, -1).values.exp().unbind(-1)
    return first - second


def entropy(log_probs, confidence, position):
    """Negative entropy in nats: the most certain position first."""
    return torch.special.entr(log_probs.exp()).sum(-1).neg()


def random(log_probs, confidence, position):
    return torch.rand_like(confidence)


def left_to_right(log_probs, confidence, position):
    return -position.float()


def semi_autoregressive(block):
    """Blocks of `block` positions from left to right; within a block, highest confidence first."""

    def policy(log_probs, confidence, position):
        # In float32, confidences in late blocks would round to the same score.
        wide = torch.float32 if confidence.device.type == "mps" else torch.float64
        return confidence.to(wide) - 2.0 * (position // block)

    return policy


POLICIES = {f.__name__: f for f in (top_k, margin, entropy, random, left_to_right)}


def get(name):
    """The policy of that name, or a function of your own; `semi_ar_32`: blocks of 32.

    Raises ValueError for an unknown name.
    """
    if callable(name):
        return name
    prefix, _, block = str(name).rpartition("_")
    if prefix == "semi_ar" and re.fullmatch("[1-9][0-9]{0,8}", block):
        return semi_autoregressive(int(block))
    if name not in POLICIES:
        known = f"{', '.join(POLICIES)} or semi_ar_<block size>"
        raise ValueError(f"unknown policy {name!r}: expected {known}")
    return POLICIES[name]


def reveal(score, hidden, count):
    """The `count` (B,) hidden positions of the highest score in each row, (B, L) bool.

    Ties go to the leftmost. Rows with fewer hidden positions reveal them all.
    """
    # A hidden position outranks every visible one, whatever its score: only those get -inf.
    lowest = torch.finfo(score.dtype).min
    score = score.nan_to_num(lowest, neginf=lowest).masked_fill(~hidden, -torch.inf)
    # Not topk, as counts differ between rows. A stable sort breaks ties by position; ranking by
    # counting the larger scores takes (B, L, L) comparisons, 4 to 40 times as long on a CPU.
    order = score.argsort(dim=1, descending=True, stable=True)
    first = torch.arange(score.shape[1], device=score.device) < count[:, None]
    return hidden & torch.zeros_like(hidden).scatter(1, order, first)


def check_tau(tau):
    """tau, or inf for None, which no confidence exceeds. Raises ValueError if it is neither."""
    if tau is None:
        return math.inf
    if not (isinstance(tau, int | float) and 0 <= tau <= 1):
        raise ValueError(f"{tau=}: expected a probability, or None")
    return tau


def threshold(tau, tau_entropy):
    """A sampler's threshold as (policy, tau): reveal what that policy scores above tau; None = off.

    tau_entropy is an upper bound on the entropy (nats). Raises ValueError for both, or a bad value.
    """
    if None not in (tau, tau_entropy):
        raise ValueError(f"{tau=} and {tau_entropy=}: give one of them")
    check_tau(tau)
    if tau_entropy is not None and not (isinstance(tau_entropy, int | float) and tau_entropy >= 0):
        raise ValueError(f"{tau_entropy=}: expected nats, at least 0, or None")
    return (top_k, tau) if tau_entropy is None else (entropy, -tau_entropy)


def fast_forward(confidence, hidden, tau):
    """Hidden positions whose confidence exceeds tau, (B, L) bool (paper, section 3.2.1).

    Regardless of the policy: a confident position in a later block is revealed too.
    """
    return hidden & (confidence > tau)
