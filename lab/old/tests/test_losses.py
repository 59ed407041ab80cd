import pytest
import torch

import losses
import policies
from engine import head
from engine.machine import compiles
from losses import ChunkedObjective, Objective
from model import Transformer
from variants import PAPL, papl_weights


def objective_of(kind, model, papl, policy=policies.top_k):
    return PAPL[kind](model, policy, alpha=papl) if papl else kind(model, policy)


@pytest.mark.parametrize("papl", [0.0, 1.0])
@pytest.mark.parametrize("kind", [Objective, ChunkedObjective])
def test_nothing_hidden_costs_nothing(kind, papl):
    """As in a small batch of chains that are refilled a step late."""
    model = Transformer(9, 8, 6, dim=16, layers=1, heads=2, mlp=16)
    x0 = torch.randint(8, (2, 6))
    objective = objective_of(kind, model, papl)
    loss, score, _ = objective(x0, x0, torch.zeros(2, 6, dtype=torch.bool))
    loss.backward()
    assert loss == 0 and score.shape == (2, 6)
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


@pytest.mark.parametrize("policy", ["top_k", "margin", "entropy", "left_to_right", "semi_ar_4"])
@pytest.mark.parametrize(
    "papl, lm_head, block",
    [
        (0, "own", 0),
        (0, "tied", 1),
        (0, "tied", 3),
        (3, "own", 2),
        (3, "tied", 0),
        (3, "frozen", 6),
    ],
)
@pytest.mark.parametrize("kind", [Objective, ChunkedObjective])
def test_loss_score_and_gradient_equal_a_slow_loop(kind, papl, lm_head, block, policy, monkeypatch):
    """Over rows and blocks; weights 1 + alpha w of PAPL's appendix, w a constant; in float64."""
    monkeypatch.setitem(head.CHUNK, "cpu", 9 * 4)  # rows end within chunks, and there is a rest
    torch.manual_seed(0)
    tied = lm_head == "tied"
    model = Transformer(9, 8, 6, dim=16, layers=1, heads=2, mlp=16, tied=tied).double()
    model.lm_head.weight.data *= 100  # far from uniform
    model.lm_head.weight.requires_grad_(lm_head != "frozen")  # as with adapters
    parameters = [p for p in model.parameters() if p.requires_grad]
    x0, hidden = torch.randint(8, (3, 6)), torch.rand(3, 6) < 0.6
    hidden[:, 2], hidden[1] = True, torch.arange(6) == 2  # one row with one hidden position
    x = x0.masked_fill(hidden, 8)

    loss, score, confidence = objective_of(kind, model, papl, policy)(x, x0, hidden, block)
    gradients = torch.autograd.grad(loss, parameters)

    probs = model.logits(model(x, x0, block)).softmax(-1)
    slow = 0.0
    for b in range(3):
        blocks = [range(start, start + (block or 6)) for start in range(0, 6, block or 6)]
        places = [[i for i in inside if hidden[b, i]] for inside in blocks]
        places = [inside for inside in places if inside]
        for inside in places:
            chance = [probs[b, i, x0[b, i]] for i in inside]
            total = sum(p.item() for p in chance)
            for p in chance:
                slow -= (1 + papl * p.item() / total) * p.log() / len(inside) / len(places) / 3
    torch.testing.assert_close(loss, slow)
    torch.testing.assert_close(confidence[hidden], probs.amax(-1)[hidden])
    wanted = policies.get(policy)(probs.log(), probs.amax(-1), torch.arange(6).expand(3, 6))
    torch.testing.assert_close(score[hidden], wanted.to(score)[hidden])
    expected = torch.autograd.grad(slow, parameters)
    torch.testing.assert_close(gradients, expected, rtol=1e-10, atol=1e-12)


def test_papl_weights_are_finite_whatever_the_row():
    nll = torch.tensor([[500.0, 501.0, 0.0]]).expand(2, 3)  # e^-500 is zero in float32
    hidden = torch.tensor([[True, True, False], [False, False, False]])
    found = papl_weights(nll, hidden, block=0, alpha=1.0)
    torch.testing.assert_close(found[0], torch.tensor([1.7310586, 1.2689414, 1.0]))
    assert found[1].isfinite().all()  # NaN times a gradient of zero would spread


@pytest.mark.parametrize("scale", [1, 4, 8])  # from unsure to sure of the true token
def test_in_bfloat16_the_head_is_as_exact_as_plain_autocast(scale):
    torch.manual_seed(0)
    weight, x0 = torch.randn(50, 64) / 8, torch.randint(49, (400,))
    h, share = scale * weight[x0] + torch.randn(400, 64) / 4, torch.full((400,), 1 / 400)

    def chunked(h, weight):
        rest = torch.zeros_like(x0), policies.top_k, 49, losses.score_then_softmax_
        return head.HeadLoss.apply(h, weight, x0, share.to(h.dtype), *rest)[0]

    def plain(h, weight):
        logits = torch.nn.functional.linear(h, weight)
        keep = torch.arange(50) != 49
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return torch.nn.functional.cross_entropy(wide.masked_fill(~keep, -torch.inf), x0)

    def gradients(loss, dtype):
        inputs = [t.to(dtype, copy=True).requires_grad_() for t in (h, weight)]
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.float32):
            value = loss(*inputs)
        assert value.dtype == dtype
        return torch.autograd.grad(value, inputs)

    exact = gradients(plain, torch.float64)
    torch.testing.assert_close(gradients(chunked, torch.float64), exact)
    ways = plain, chunked
    rounded = zip(exact, *(gradients(way, torch.float32) for way in ways), strict=True)
    for true, other, ours in rounded:
        assert (ours - true).norm() < 1.2 * (other - true).norm() < 0.1 * true.norm()


@pytest.mark.slow
@pytest.mark.skipif(not compiles(torch.device("cpu"), None, 500), reason="no C++ compiler")
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_what_is_compiled_equals_torch_in_float64(kind):
    """As ChunkedObjective compiles it: one code for all sizes."""
    torch.manual_seed(0)
    compiled = torch.compile(losses.score_then_softmax_, dynamic=True)
    for n in (5, 3, 4):
        logits = torch.zeros(n, 128, dtype=kind)[:, :101]  # rows with a gap between them
        logits.copy_(4 * torch.randn(n, 101))
        logits[:, 100] = -torch.inf
        exact, x0, position = logits.double(), torch.randint(100, (n,)), torch.arange(n)
        nll, score, confidence = compiled(logits, x0, position, policies.entropy)
        expected = torch.nn.functional.cross_entropy(exact, x0, reduction="none")
        torch.testing.assert_close(nll, expected.float(), rtol=1e-6, atol=1e-6)
        p = exact.softmax(-1)
        wanted = policies.entropy(exact.log_softmax(-1), p.amax(-1), position)
        torch.testing.assert_close(score, wanted.float(), rtol=2e-6, atol=1e-6)
        torch.testing.assert_close(confidence, p.amax(-1).float())
        tolerance = 2**-8 if kind is torch.bfloat16 else 4e-6
        torch.testing.assert_close(logits.double(), p, rtol=tolerance, atol=0)


def test_gradients_of_a_tied_head_are_added_in_place():
    """A sum of two tensors of the vocabulary's size would take a third: a tenth of a text step."""
    model = Transformer(300, 299, 8, dim=16, layers=1, heads=2, mlp=32, tied=True)
    x0 = torch.randint(299, (2, 8))
    hidden = torch.rand(2, 8) < 0.5
    with torch.autocast("cpu", torch.bfloat16):  # the head's copy then has rows more, to fill it up
        loss, *_ = ChunkedObjective(model)(x0.masked_fill(hidden, 299), x0, hidden)
    with torch.profiler.profile(record_shapes=True) as record:
        loss.backward()
    sums = [event for event in record.events() if event.input_shapes[:2] == [[300, 16]] * 2]
    assert [event.name for event in sums if event.name.startswith("aten::add")] == ["aten::add_"]
