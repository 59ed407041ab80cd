"""The arm `fourth`: every fourth update on random masks, the rest on 30 batches of chains."""

import puma


def make_streams(model, queue, method, k_schedule, tau, buffer, grad_accum):
    masks, streams = puma.make_streams(model, queue, method, k_schedule, tau, 30, grad_accum)
    chains = streams[1::2]
    return masks, [s for i in range(0, 30, 3) for s in (masks, *chains[i : i + 3])]
