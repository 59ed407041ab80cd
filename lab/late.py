"""The arm `late`: random masks for 2,000 of 5,000 updates, then every fourth; 30 batches of chains."""

import puma


def make_streams(model, queue, method, k_schedule, tau, buffer, grad_accum):
    masks, streams = puma.make_streams(model, queue, method, k_schedule, tau, 30, grad_accum)
    chains = streams[1::2]
    cycle = [s for i in range(0, 30, 3) for s in (masks, *chains[i : i + 3])]
    return masks, [masks] * 2000 + cycle * 75
