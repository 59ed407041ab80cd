"""The variants of the chain: what all keep of PUMA's, and a worked example of what each changes."""

import functools

import pytest
import torch
from conftest import train
from toys import assert_resumes, make_chains

from runs.notes import say_all
from runs.saved import open_run
from variants import STREAMS, Reverse


def published(kind):
    """As train.py makes a variant."""
    return functools.partial(kind, second_visit=False)


EVERY = pytest.mark.parametrize("kind", [*map(published, STREAMS.values())], ids=STREAMS)


def visits(stream, steps, sharpness=0.1):
    """Batches of a stream under noise in place of a model: (x0, hidden, stage)."""
    noise = torch.Generator().manual_seed(1)
    for iteration in range(steps):
        stage = stream.stage[stream.turn, :, 0].clone()
        _, x0, hidden, *_ = stream.batch(iteration)
        yield x0, hidden, stage
        score = torch.rand(hidden.shape, generator=noise)
        stream.advance(score, score**sharpness)


# -- all of them -----------------------------------------------------------------------------------
def sure_of(x):
    """Any function of the visible tokens, (B, L) in 0..1."""
    place = torch.arange(x.shape[1])
    return torch.sin(x.float() * 12.9898 + place * 78.233 + x.sum(1, keepdim=True)).abs()


@EVERY
def test_the_choice_sees_x_only(kind):
    """Other truth under the masks, same visible tokens: the same chains."""
    first, second = (make_chains(kind=kind, tau=0.95, k=[(0, 3), (1, 2)]) for _ in range(2))
    second.x0 = torch.where(first.hidden, (second.x0 + 1) % 9, second.x0)
    for stream in (first, second):
        x, *_ = stream.batch(0)
        stream.advance(sure_of(x), sure_of(x))
    assert first.hidden.equal(second.hidden) and first.stage.equal(second.stage)


@EVERY
def test_a_resumed_stream_goes_on_bit_for_bit(kind):
    settings = dict(effective=[24, 5], tau=0.9, buffer=3, k=[(0, 6), (30, 3)])
    assert_resumes(lambda: make_chains(kind=kind, **settings))


@EVERY
def test_each_example_of_an_epoch_is_used_once(kind):
    stream, begun = make_chains(kind=kind, tau=0.9, buffer=2, n=200), []
    begun += stream.number.flatten().tolist()
    take = stream.queue.take

    def spy(wanted):
        x0, prompt, number = take(wanted)
        begun.extend(number[wanted].tolist())
        return x0, prompt, number

    stream.queue.take = spy
    for _ in visits(stream, 100):
        pass
    assert len(begun) > 200 and sorted(begun[:200]) == [*range(200)]


# -- each of them ----------------------------------------------------------------------------------
def test_reverse_reveals_the_least_sure_first_whatever_tau_is():
    stream = make_chains(kind=published(Reverse), tau=0.5)
    hidden, stage = stream.batch(0).hidden.clone(), stream.stage[0, :, 0].clone()
    score = torch.rand(16, 24)
    stream.advance(score, torch.ones(16, 24))
    for b in (stage < 7).nonzero()[:, 0]:
        revealed = (hidden[b] & ~stream.hidden[0, b]).nonzero()[:, 0].tolist()
        lowest = sorted(hidden[b].nonzero()[:, 0].tolist(), key=lambda i: score[b, i].item())
        assert 0 < len(revealed) <= 6 and revealed == sorted(lowest[: len(revealed)])


def test_a_variant_trains(tmp_path):
    train(tmp_path, "--method=puma_reverse", "--tau=0.3", "--max_iters=5", "--eval_interval=5")
    saved = open_run(tmp_path / "checkpoint.pt")
    assert saved.iteration == 5 and saved.config["method"] == "puma_reverse"


def test_a_run_says_at_its_start_what_its_settings_imply(capsys):
    config = {"method": "puma_reverse", "second_visit": True, "window": 2, "carry": False}
    config |= {"block_schedule": [], "max_iters": 10}
    for schedule in [(0, 6), (9, 4)], [(0, 400)]:
        chains = make_chains(kind=published(Reverse), k=schedule)
        say_all(config | {"k_schedule": schedule}, chains, torch.nn.Linear(1, 1))
    both = ["--window=2 without --carry: 2 passes per update",
            "--method=puma_reverse has no second visit, as with --second_visit=False"]  # fmt: skip
    assert capsys.readouterr().err.splitlines() == [
        *both, "24 tokens, K = 4: 6 stages",
        *both, "24 tokens, K = 400: 2 stages",
        "a model may learn much less with 2 stages; --k_schedule=6 gives 4",
    ]  # fmt: skip
