"""Continuing a run with other processes, batch sizes or buffers: no example is lost or repeated.

What was in use when the run stopped comes first again: the examples in rows (of the chains),
then those that a slower process had not reached, then the rest of the sequence (queue.py).
"""

import numpy as np
import torch

from engine.queue import examples_at


def redistribute(states, world, size, seed):
    """[(queue, rows)] of each of `world` new processes, from the saved states of the old ones.

    states: [{"queue": its state_dict, "stream": its state_dict}]. Tensors of a stream that begin
    with (buffer, B) belong to rows, and `number` is the example in each row; a stream without
    `number` holds none. size, seed: of the data, and of its order. queue is the state_dict of the
    new queue; rows are the old ones of the examples that it gives first, {name: (n, ...)}.
    """
    streams, queues = ([state[name] for state in states] for name in ("stream", "queue"))
    rows = rows_of(streams)
    held = rows["number"].numpy() if rows else np.zeros(0, np.int64)
    skipped, base = left_over(queues, size, seed)
    ahead = torch.from_numpy(np.concatenate([held, skipped]))
    queue = {"taken": 0, "ahead": ahead, "base": base}
    return [(queue, {n: part[rank::world] for n, part in rows.items()}) for rank in range(world)]


def take_over(queue, states):
    """An ExampleQueue continues from other processes; the rows of the examples it gives first."""
    state, rows = redistribute(states, queue.world, len(queue.data), queue.seed)[queue.rank]
    queue.load_state_dict(state)
    return rows


def rows_of(streams):
    if "number" not in streams[0]:
        return {}
    names = [name for name, part in streams[0].items() if getattr(part, "ndim", 0) >= 2]
    return {name: torch.cat([s[name].flatten(0, 1) for s in streams]) for name in names}


def left_over(queues, size, seed):
    """Examples (n,) that others have overtaken, and where the sequence of epochs continues.

    Process r of W takes places r, r + W, ... of `ahead` and then the epochs. Two of them:

        place       0 1 2 3 4 5 | 6 7
        rank 0 (3)  x   x   x   |       reached = 6: from there on, nothing was taken
        rank 1 (1)    x   -   - |       left over: places 3 and 5
    """
    world = len(queues)
    taken = np.array([queue["taken"] for queue in queues])
    ahead, base = queues[0]["ahead"].numpy(), queues[0]["base"]
    reached = taken.max() * world
    place = np.arange(max(reached, len(ahead)))
    place = place[place // world >= taken[place % world]]
    return examples_at(place, ahead, base, size, seed), base + max(0, int(reached) - len(ahead))
