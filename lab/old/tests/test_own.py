"""A model of one's own in losses and sampler; what chains refuse, count and do by default."""

import inspect
from types import SimpleNamespace

import pytest
import torch
from toys import MASK, STREAMS, make_chains, make_model, make_problems

import policies
import train
from block import BlockUnmasking
from losses import ChunkedObjective, Objective
from model import Logits
from puma import ProgressiveUnmasking
from sample import Sampler, generate


def foreign(model):
    """The model as a stranger's: one function, whose logit of the mask token is the largest."""

    def function(x):
        logits = model.lm_head(model(x))
        return logits + 50.0 * (torch.arange(10) == MASK)

    return function


def of_hugging_face(model):
    function = foreign(model)
    return lambda x: SimpleNamespace(logits=function(x))


@pytest.mark.parametrize("kind", [foreign, of_hugging_face])
@pytest.mark.parametrize("policy", ["top_k", "margin", "entropy"])
def test_a_function_is_trained_and_sampled_as_our_model_is(kind, policy):
    model = make_model()
    own, (x, hidden) = Logits(kind(model), MASK), make_problems()
    x0, found = x.clone(), []
    for each in model, own:
        model.zero_grad()
        loss, score, confidence = Objective(each, policy)(x.masked_fill(hidden, MASK), x0, hidden)
        loss.backward()
        found.append([loss.detach(), score, confidence, *(p.grad for p in model.parameters())])
        found[-1] += generate(each, x, hidden, Sampler(policy, 3))[:2]
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(theirs, ours)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda x, h: Objective(torch.nn.Embedding(10, 10)), r"Embedding has no logits.*Logits"),
        (lambda x, h: ChunkedObjective(Logits(len, MASK)), "Logits has no lm_head"),
        (lambda x, h: generate(len, x, h, Sampler()), "no mask_token.*Logits"),
        (lambda x, h: Logits(lambda x: x, MASK)(x), r"logits \(7, 12\).*expected \(B, L, V\)"),
        (lambda x, h: Logits(torch.nn.Embedding(10, 9), MASK)(x % 9), "mask token in 0 to V - 1"),
        (lambda x, h: Logits(lambda x: (x, x), MASK)(x), r"logits \('tuple',\) for tokens"),
        (lambda x, h: generate(Logits(len, MASK), x, h, Sampler(), block=4), "block 4"),
    ],
)
def test_what_does_not_fit_is_named(call, words):
    with pytest.raises(ValueError, match=words):
        call(*make_problems())


# -- chains ----------------------------------------------------------------------------------------
def test_the_defaults_are_those_of_training():
    for kind in ProgressiveUnmasking, BlockUnmasking:
        given = {name: p.default for name, p in inspect.signature(kind).parameters.items()}
        assert (given["tau"], given["buffer"]) == (train.tau, train.buffer) == (0.9, 8)
    assert Objective(make_model()).policy is policies.get(train.policy) is policies.top_k


@pytest.mark.parametrize("kind", ["puma", "blocks"])
def test_a_forgotten_advance_is_an_error(kind):
    score, chains, twin = torch.rand(16, 24), *(make_chains(kind=STREAMS[kind]) for _ in range(2))
    with pytest.raises(RuntimeError, match="no batch to advance"):
        chains.advance(score, score)
    before = chains.state_dict()
    first = chains.batch(0)
    with pytest.raises(RuntimeError, match=r"call advance\(score, confidence\) after each batch"):
        chains.batch(1)
    trainable = torch.rand(16, 24, requires_grad=True)
    for pair in (trainable, score), (score, trainable):
        with pytest.raises(ValueError, match="pass detached scores"):
            chains.advance(*pair)
    for wrong in torch.rand(15, 24), torch.rand(16):
        with pytest.raises(ValueError, match=r"expected \(16, 24\)"):
            chains.advance(wrong, score)
    chains.advance(score, score)  # nothing was lost
    twin.batch(0)
    twin.advance(score, score)
    assert chains.batch(1).hidden.equal(twin.batch(1).hidden)
    chains.load_state_dict(before)  # between visit and advance
    assert chains.batch(0).hidden.equal(first.hidden)
