import copy

import numpy as np
import pytest
import torch
from toys import Arrays, Waits

from engine import queue
from engine.queue import ExampleQueue, shuffled


def numbers(n, prompt=(False, True)):
    """Example i is the row (i, 0), whose second position is prompt."""
    return Arrays(np.arange(n)[:, None] * [1, 0], prompt)


def drain(queue, takes, seed=0):
    """Ids taken when random rows want an example each time."""
    rng, taken = np.random.default_rng(seed), []
    for _ in range(takes):
        wanted = torch.from_numpy(rng.random(queue.rows) < 0.4)
        x0, prompt, number = queue.take(wanted)
        assert prompt[wanted].equal(torch.tensor([[False, True]]).expand(int(wanted.sum()), 2))
        assert number[wanted].equal(x0[wanted, 0])
        taken += number[wanted].tolist()
    return taken


@pytest.mark.parametrize("n, world", [(1000, 1), (1000, 3), (37, 2), (13, 4)])
def test_every_example_once_per_epoch_over_all_ranks(n, world):
    queues = [ExampleQueue(numbers(n), 16, rank=rank, world=world) for rank in range(world)]
    ids = [drain(queue, 120 + n // 2, queue.rank) for queue in queues]
    shared = min(map(len, ids))
    sequence = np.array([part[:shared] for part in ids]).T.reshape(-1)  # as the ranks interleave
    epochs = len(sequence) // n
    assert epochs >= 2
    for epoch in sequence[: epochs * n].reshape(epochs, n):
        assert sorted(epoch) == list(range(n))
    assert list(sequence[:n]) != list(sequence[n : 2 * n])  # a new order each epoch


def test_state_resumes_at_the_same_example():
    queue = ExampleQueue(numbers(500), 8, seed=3)
    ahead = torch.randperm(500)[:400]  # as after a change of processes: before all others
    queue.load_state_dict({"taken": 0, "ahead": ahead, "base": 123})
    assert queue.passes() == (123 - 400) / 500
    begin = drain(queue, 250)
    state = copy.deepcopy(queue.state_dict())
    rest = drain(queue, 300, seed=1)
    other = ExampleQueue(numbers(500), 8, seed=3)
    drain(other, 17)
    other.load_state_dict(state)
    assert drain(other, 300, seed=1) == rest and (begin + rest)[:400] == ahead.tolist()
    assert queue.passes() == (123 - 400 + len(begin + rest)) / 500


def test_the_fingerprint_is_of_every_row_or_the_one_that_the_data_keeps(monkeypatch):
    monkeypatch.setattr(queue, "CHUNK", 7)
    before, rows = numbers(50), numbers(50).x0.copy()
    rows[48, 0] = 7
    found = [queue.fingerprint(data) for data in (before, Arrays(rows, (False, True)), before)]
    assert found[0] == found[2] != found[1] and found[0][0] == 50
    before.checksum = 5
    assert queue.fingerprint(before) == [50, 5]


def test_many_takes_in_a_row_miss_nothing_and_the_host_seldom_reads_the_count(monkeypatch):
    """Half a ring holds 16 takes of all rows."""
    queue, everything, taken = ExampleQueue(numbers(10**6), 64), torch.ones(64) > 0, []
    with Waits(monkeypatch) as waits:
        for _ in range(100):
            taken.append(queue.take(everything)[2])
            queue.take(~everything)
    ids = torch.cat(taken).tolist()
    assert len({*ids}) == len(ids) == int(queue.taken) and waits.count <= 200 / 15


def test_data_of_single_rows_is_refused_in_words():
    with pytest.raises(ValueError, match="stack the rows of a Dataset"):
        ExampleQueue([(torch.zeros(2), torch.zeros(2))] * 5, 4)

    class Data(list):  # rows, but one prompt
        def __getitem__(self, i):
            return torch.zeros(9, 6, dtype=torch.long)[i], torch.arange(6) < 3

    with pytest.raises(ValueError, match=r"expected x0 \(1, L\) and prompt \(1, L\)"):
        ExampleQueue(Data(range(9)), 4)


def test_an_example_without_anything_to_predict_is_named():
    with pytest.raises(ValueError, match=r"example \d+: the prompt leaves no position"):
        ExampleQueue(numbers(9, prompt=(True, True)), 4)
    with pytest.raises(ValueError, match="empty"):
        ExampleQueue(numbers(0), 4)


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
    """Over 2,400 keys: where an index goes, and how far apart neighbours land (chi-square)."""
    size, keys = 12, 2400
    orders = np.array([shuffled(np.arange(size), size, (seed, 0)) for seed in range(keys)])
    for values in (*orders.T, *((orders[:, 1:] - orders[:, :-1]) % size).T):
        low = int(values.min())  # neighbours never land in one place
        counts = np.bincount(values - low, minlength=size - low)
        expected = keys / (size - low)
        statistic = ((counts - expected) ** 2 / expected).sum()
        assert statistic < 50  # p = 1e-6 at 11 degrees of freedom
