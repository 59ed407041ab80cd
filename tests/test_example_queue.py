import numpy as np
import pytest
import torch
from toys import Arrays

from engine.queue import ExampleQueue, shuffled


def numbers(n, given=(False, True)):
    """Example i is the row (i, 0), its second position given."""
    return Arrays(np.arange(n)[:, None] * [1, 0], given)


def drain(queue, takes, seed=0):
    """Ids taken when random rows want an example each time."""
    rng, taken = np.random.default_rng(seed), []
    for _ in range(takes):
        wanted = torch.from_numpy(rng.random(queue.rows) < 0.4)
        queue.top_up()
        x0, prompt, _ = queue.take(wanted)
        assert prompt[wanted].equal(torch.tensor([[False, True]]).expand(int(wanted.sum()), 2))
        taken += x0[wanted, 0].tolist()
    return taken


@pytest.mark.parametrize("n, world", [(1000, 1), (1000, 3), (37, 2), (5, 4)])
def test_every_example_once_per_epoch_over_all_ranks(n, world):
    ids = [drain(ExampleQueue(numbers(n), 16, rank=r, world=world), 700, r) for r in range(world)]
    shared = min(map(len, ids))
    sequence = np.array([part[:shared] for part in ids]).T.reshape(-1)  # as the ranks interleave
    epochs = len(sequence) // n
    assert epochs >= 2
    for epoch in sequence[: epochs * n].reshape(epochs, n):
        assert sorted(epoch) == list(range(n))
    assert list(sequence[:n]) != list(sequence[n : 2 * n])  # a new order each epoch


def test_state_resumes_at_the_same_example():
    queue = ExampleQueue(numbers(500), 8, seed=3)
    drain(queue, 333)
    state = queue.state_dict()
    rest = drain(queue, 300, seed=1)
    other = ExampleQueue(numbers(500), 8, seed=3)
    other.load_state_dict(state)
    assert drain(other, 300, seed=1) == rest


@pytest.mark.parametrize("takes", [3, 40])
def test_one_top_up_serves_several_takes(takes):
    """More than half a ring of the usual size holds, 32 takes; the examples are the same."""
    several, single = (ExampleQueue(numbers(5000), 32, takes=n) for n in (takes, 1))
    every_row, seen, expected = torch.ones(32, dtype=torch.bool), [], []
    for _ in range(6):
        several.top_up()
        for _ in range(takes):
            single.top_up()
            seen += several.take(every_row)[2].tolist()
            expected += single.take(every_row)[2].tolist()
    assert seen == expected


def test_seed_decides_the_order():
    orders = [drain(ExampleQueue(numbers(99), 4, seed=seed), 50) for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]


def test_an_example_without_anything_to_predict_is_named():
    with pytest.raises(ValueError, match=r"example \d+: the prompt leaves no position"):
        ExampleQueue(numbers(9, given=(True, True)), 4)
    with pytest.raises(ValueError, match="empty"):
        ExampleQueue(numbers(0), 4)


class FarBehind:
    """A device whose count arrives `lag` takes late, as CUDA's does at a host that hurries."""

    def __init__(self, queue, lag):
        self.queue, self.lag = queue, lag

    def observe(self):
        queue = self.queue
        if queue.copy is not None:
            count, waited, before = queue.copy
            if waited[0] < self.lag:
                waited[0] += 1
                return
            queue.known, queue.unseen = count, queue.unseen - before
        queue.copy = int(queue.taken), [0], queue.unseen


@pytest.mark.parametrize("lag", [0, 3, 8, 16, 40])
def test_a_late_count_never_lets_an_example_be_missed(lag, monkeypatch):
    queue = ExampleQueue(numbers(10**6), 64)
    monkeypatch.setattr(queue, "observe", FarBehind(queue, lag).observe)
    everything, ids = torch.ones(64, dtype=torch.bool), []
    for _ in range(400):
        queue.top_up()
        assert queue.filled - int(queue.taken) >= 64
        ids += queue.take(everything)[0][:, 0].tolist()
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 65, 1000, 4097])
def test_the_order_is_a_permutation_for_each_seed_and_epoch(size):
    orders = {tuple(shuffled(np.arange(size), size, key).tolist()) for key in np.ndindex(5, 5)}
    assert all(sorted(order) == [*range(size)] for order in orders)
    assert len(orders) == 25 or size < 7
    parts = [shuffled(part, size, (0, 0)) for part in np.array_split(np.arange(size), 3)]
    assert np.concatenate(parts).tolist() == shuffled(np.arange(size), size, (0, 0)).tolist()


def test_the_order_of_a_thousand_million_is_known_at_any_place():
    size, place = 10**9 + 7, np.array([0, 1, 10**9, 12345])
    there = shuffled(place, size, (3, 1))
    assert len(set(there)) == 4 and (there < size).all() and (np.abs(there - place) > 1000).all()


def test_orders_are_uniform():
    """Over 6,000 keys: where an index goes, and how far apart neighbours land (chi-square)."""
    size, keys = 12, 6000
    orders = np.array([shuffled(np.arange(size), size, (seed, 0)) for seed in range(keys)])
    for values in (*orders.T, *((orders[:, 1:] - orders[:, :-1]) % size).T):
        low = int(values.min())  # neighbours never land in one place
        counts = np.bincount(values - low, minlength=size - low)
        expected = keys / (size - low)
        statistic = ((counts - expected) ** 2 / expected).sum()
        assert statistic < 50  # p = 1e-6 at 11 degrees of freedom
