"""The reference of bench.py against the method: it must do the same work."""

import json
import math

import pytest
import torch
from conftest import run_script

import puma
from losses import row_mean
from studies import conventional

SHAPE = conventional.Shape(11, 40, 8, 32, 48, 1, 2, True, 8, 4)


def test_the_loss_is_that_of_the_objective_on_the_same_logits():
    torch.manual_seed(0)
    logits, x0 = torch.randn(3, 5, 7, dtype=torch.float64), torch.randint(7, (3, 5))
    hidden = torch.rand(3, 5) < 0.5
    hidden[:, 0] = True
    log_probs = logits.log_softmax(-1)
    expected = row_mean(-log_probs.gather(-1, x0[..., None])[..., 0], hidden)
    torch.testing.assert_close(conventional.chain_loss(log_probs, x0, hidden), expected)


def test_chains_reveal_what_algorithm_1_does(monkeypatch):
    """Without tau, and where a stage's share is a whole number: the reference rounds down."""
    torch.manual_seed(0)
    stream = conventional.Chains(SHAPE, 8)
    stream.hidden = hidden = stream.x == stream.mask
    stream.log_probs = torch.randn(8, 40, 11).log_softmax(-1)
    stage, r, rand = stream.stage, torch.tensor([0, 1, 2, 3, 4, 5, 6, 7]) / 8, torch.rand
    monkeypatch.setattr(torch, "rand", lambda *size: r if size == (8,) else rand(*size))
    stream.advance()

    score, effective = stream.log_probs.amax(-1), torch.full((8,), 32)
    expected, next_stage, ended = puma.step(
        hidden, stage, effective, score, score.exp(), r, stages=4, tau=math.inf
    )
    assert ended.equal(stage == 3) and (stream.stage[ended] == 0).all()
    assert stream.stage[~ended].equal(next_stage[~ended])
    assert (stream.x == stream.mask)[~ended].equal(expected[~ended])
    assert expected.sum(1).tolist() != hidden.sum(1).tolist()


@pytest.mark.parametrize("what", ["step", "sample"])
def test_the_script_prints_what_the_comparison_reads(what):
    flags = f"--what={what}", "--batch=1", "--steps=3", "--puzzles=1", "--reveal=81"
    found = json.loads(run_script("studies/conventional.py", *flags))
    assert found["sequences_per_second"] == pytest.approx(1 / found["seconds"], rel=0.05)
    assert found["peak_gb"] > 0.1


def test_mistakes_are_named(refused):
    message = refused(run_script, "studies/conventional.py", "--what=train")
    assert "expected what in ['step', 'sample']" in message
