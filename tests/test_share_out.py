"""Other processes go on where earlier ones stopped, in mid-epoch."""

from collections import Counter

import numpy as np
import pytest
import torch
from toys import MASK, Arrays

from block import BlockUnmasking
from engine.queue import ExampleQueue, shuffled
from puma import ProgressiveUnmasking, RandomFirst, RandomMasking

N = 1500  # examples; row i holds the number i everywhere


def make_streams(method, world, B, batches):
    return [make_stream(method, rank, world, B, batches) for rank in range(world)]


def make_stream(method, rank, world, B, batches):
    data = Arrays(np.arange(N)[:, None].repeat(24, 1), np.zeros(24))
    queue = ExampleQueue(data, B, seed=0, rank=rank, world=world)
    generator = torch.Generator().manual_seed(world + rank)
    masks = RandomMasking(queue, MASK, generator)
    if method == "mdm":
        return masks
    if method == "blocks":
        return BlockUnmasking(queue, MASK, generator, [(0, 8)], [(0, 4)], 0.9, batches)
    chains = ProgressiveUnmasking(queue, MASK, generator, [(0, 6)], 0.9, batches)
    return RandomFirst(masks, chains, until=3) if method == "later" else chains


def chains_in(stream):
    """The numbers of the examples whose chains a stream holds (batches, B)."""
    chains = getattr(stream, "chains", stream)
    return chains.number.clone() if hasattr(chains, "number") else torch.zeros(0, dtype=torch.long)


def run(streams, iterations, used):
    """Train in step. used counts what is finished: a chain that ended, or a masked row."""
    noise = torch.Generator().manual_seed(iterations[0])
    for iteration in iterations:
        for stream in streams:
            x0, before = stream.batch(iteration).x0, chains_in(stream)
            chance = torch.rand(x0.shape, generator=noise)
            stream.advance(chance, chance)
            if isinstance(getattr(stream, "current", stream), RandomMasking):
                used.update(x0[:, 0].tolist())
            else:
                assert set(x0[:, 0].tolist()) <= set(before.flatten().tolist())
                used.update(before[chains_in(stream) != before].tolist())


@pytest.mark.parametrize("method", ["puma", "mdm", "later", "blocks"])
@pytest.mark.parametrize("worlds", [(2, 1), (1, 3), (3, 2), (2, 2, 3, 1)])
def test_no_example_of_the_epoch_is_lost_or_used_twice(method, worlds):
    """Each change of processes comes with other batch sizes and buffers, and in mid-epoch."""
    used, streams, iteration = Counter(), [], 0
    for number, world in enumerate(worlds):
        states = [stream.state_dict() for stream in streams]
        streams = make_streams(method, world, *[(8, 3), (4, 2), (16, 1), (8, 2)][number])
        for stream in streams if states else ():
            stream.share_out(states)
        run(streams, range(iteration, iteration + 15), used)
        iteration += 15
    assert 30 < used.total() < N, "the changes were not in mid-epoch"
    assert max(used.values()) == 1, "used twice"
    while streams[0].queue.passes() < 1.2:
        run(streams, range(iteration, iteration + 1), used)
        iteration += 1
    used.update(number for s in streams for number in chains_in(s).flatten().tolist())
    assert len(used) == N, "lost"
    twice = {number for number, times in used.items() if times > 1}
    assert max(used.values()) == 2 and twice <= set(shuffled(np.arange(N // 2), N, (0, 1)).tolist())


@pytest.mark.parametrize("world", [1, 3])
def test_chains_stay_where_they_were(world):
    """With room for all of them; their stages follow from what they have revealed."""
    old = make_streams("puma", 2, 8, 3)
    run(old, range(5), Counter())
    new = make_streams("puma", world, 8, 6 // world)
    for stream in new:
        stream.share_out([each.state_dict() for each in old])

    def chains(streams):
        rows = [(s.number, s.hidden, s.x0, s.prompt) for s in streams]
        columns = [
            torch.cat([t.flatten(0, 1).long() for t in part]) for part in zip(*rows, strict=True)
        ]
        return {int(row[0]): [c.tolist() for c in row[1:]] for row in zip(*columns, strict=True)}

    assert chains(old) == chains(new) and len(chains(new)) == 48
    for stream in new:
        revealed = 24 - stream.hidden.sum(-1)
        assert stream.stage.equal(revealed * stream.stages // 24)


def test_chains_without_room_begin_again_later():
    old = make_streams("puma", 2, 8, 3)
    run(old, range(5), Counter())
    (new,) = make_streams("puma", 1, 8, 2)
    new.share_out([stream.state_dict() for stream in old])
    kept = set(new.number.flatten().tolist())
    assert len(kept) == 16
    waiting = {number for stream in old for number in chains_in(stream).flatten().tolist()} - kept
    new.queue.top_up()
    following = set(new.queue.take(torch.ones(8, dtype=torch.bool))[2].tolist())
    assert len(waiting) == 32 and following < waiting


def test_random_masks_go_on_with_the_examples_of_chains():
    old = make_streams("puma", 2, 8, 3)
    (new,) = make_streams("mdm", 1, 8, 0)
    new.share_out([stream.state_dict() for stream in old])
    first = [number for i in range(6) for number in new.batch(i).x0[:, 0].tolist()]
    assert sorted(first) == sorted(n for s in old for n in chains_in(s).flatten().tolist())


@pytest.mark.parametrize("method", ["puma", "later", "blocks"])
def test_chains_begin_where_there_were_random_masks(method):
    (old,) = make_streams("mdm", 1, 8, 0)
    run([old], range(5), used := Counter())
    new = make_streams(method, 2, 8, 2)
    for stream in new:
        stream.share_out([old.state_dict()])
    numbers = [n for stream in new for n in chains_in(stream).flatten().tolist()]
    assert len(set(numbers)) == 32 and not set(numbers) & set(used)


def test_a_turn_that_no_buffer_has_is_refused():
    (stream,) = make_streams("puma", 1, 8, 3)
    state = stream.state_dict()
    with pytest.raises(ValueError, match="the saved buffer visits batch 77 of 3"):
        make_streams("puma", 1, 8, 3)[0].load_state_dict(state | {"turn": torch.tensor([77])})


def test_the_shared_out_order_resumes_exactly():
    (old,) = make_streams("puma", 1, 8, 3)
    run([old], range(7), Counter())
    pair = make_streams("puma", 2, 8, 1)
    for stream in pair:
        stream.share_out([old.state_dict()])
    run(pair, range(7, 12), Counter())
    again = make_streams("puma", 2, 8, 1)
    for stream, state in zip(again, [each.state_dict() for each in pair], strict=True):
        stream.load_state_dict(state)
    run(pair, range(12, 90), one := Counter())
    run(again, range(12, 90), two := Counter())
    assert one == two and one.total() > 100


def test_the_state_of_16_processes_is_small_and_whole(tmp_path):
    """Each with 256 chains of 512 tokens: 30 KB, most of it what is hidden, as bits."""
    world, batches, B, L = 16, 8, 32, 512
    data = Arrays(np.arange(40_000)[:, None] * np.ones(L, np.int64), np.arange(L) < 100)

    def stream(rank, world):
        queue = ExampleQueue(data, B, seed=0, rank=rank, world=world)
        return ProgressiveUnmasking(queue, MASK, torch.Generator(), [(0, 42)], 0.9, batches)

    states, chains = [], []
    for rank in range(world):
        made = stream(rank, world)
        states.append(made.state_dict())
        chains.append((made.number, made.hidden))
    torch.save(states, tmp_path / "states.pt")
    assert (tmp_path / "states.pt").stat().st_size < world * 30_000
    states = torch.load(tmp_path / "states.pt", weights_only=True, mmap=True)
    for rank in (0, 10):  # resumed as they were
        made = stream(rank, world)
        made.load_state_dict(states[rank])
        assert made.number.equal(chains[rank][0]) and made.hidden.equal(chains[rank][1])
        assert (made.x0 == made.number[..., None]).all()
    hidden = {
        int(n): h
        for number, rows in chains
        for n, h in zip(number.view(-1), rows.view(-1, L), strict=True)
    }
    for rank in (0, 11):  # and shared out to 12
        made = stream(rank, 12)
        made.share_out(states)
        assert all(
            h.equal(hidden[int(n)])
            for n, h in zip(made.number.view(-1), made.hidden.view(-1, L), strict=True)
        )


def test_chains_of_other_examples_are_refused():
    """Even if they differ in one token that is far from those whose checksum a run compares."""
    x0 = np.arange(N)[:, None].repeat(24, 1)
    made = ProgressiveUnmasking(
        ExampleQueue(Arrays(x0, np.zeros(24)), 4), MASK, torch.Generator(), 6, buffer=1
    )
    state, other = made.state_dict(), x0.copy()
    other[made.number[0, 2], 5] += 1
    data = Arrays(other, np.zeros(24))
    taker = ProgressiveUnmasking(ExampleQueue(data, 4), MASK, torch.Generator(), 6, buffer=1)
    for take in (taker.load_state_dict, lambda state: taker.share_out([state])):
        with pytest.raises(ValueError, match="are not from this training set: the rows differ"):
            take(state)
        with pytest.raises(ValueError, match=f"expected numbers of {N} training examples"):
            take(state | {"number": state["number"] + N})
        with pytest.raises(ValueError, match=r"bits \(1, 4, 2\) of rows \(1, 4, 24\)"):
            take(state | {"hidden": state["hidden"][..., :2]})
