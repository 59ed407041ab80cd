"""What each method of lab/ trains on, and what it is given."""

import math

import pytest
import torch
from conftest import same

import checkpoint
import lab.cap
import lab.near
import lab.papl
import policies
import puma
import sudoku

SHAPE = dict(vocab_size=5, mask_token=4, length=16, dim=8, layers=1, heads=2, mlp=8, theta=99.0)
CONFIG = {
    "k_schedule": [(0, 4)], "tau": 0.9, "grad_accum": 1, "batch_size": 8, "buffer": 3,
    "chains_from": 7,
}  # fmt: skip


def streams(variant, data, method="mdm", **options):
    model = checkpoint.make(variant, SHAPE | options)
    queue = puma.Queue(data, 8, "cpu", 1)
    make = checkpoint.of_variant(variant, "make_streams", puma.make_streams)
    return make(model, queue, **CONFIG, method=method)


@pytest.mark.parametrize(
    "variant", ["", "lab.papl", "lab.near", "lab.shifted", "lab.carry", "lab.block"]
)
@pytest.mark.parametrize(("method", "begins"), [("mdm", math.inf), ("puma", 0), ("puma_plus", 7)])
def test_a_variant_trains_on_the_contexts_of_the_method(puzzles, variant, method, begins):
    options = {"blocks": [(0, 4)]} if variant == "lab.block" else {}
    masks, chains, begin = streams(variant, sudoku.load(puzzles, 8).train, method, **options)
    assert begin == begins and isinstance(masks, puma.RandomMasking)
    assert (chains is None) == (method == "mdm")
    if chains:
        assert chains.second_visit == (method == "puma_plus" and not options)
        assert len(chains.x0) == (3 if method == "puma_plus" else 1)


def test_next_tokens_are_all_predicted_and_none_is_masked(puzzles):
    masks, chains, begin = streams("lab.ar", sudoku.load(puzzles, 8).train)
    x, x0, hidden = masks.batch(0)
    taken = puma.Queue(sudoku.load(puzzles, 8).train, 8, "cpu", 1)
    expected, prompt = taken.take(taken.all)
    assert (x == expected).all() and (x0 == expected).all() and (hidden == ~prompt).all()
    assert chains is None and begin == math.inf


def test_masked_diffusion_starts_from_autoregression(puzzles, tmp_path, train):
    train(puzzles, tmp_path / "ar", "--variant=lab.ar")
    still = ["--variant=lab.shifted", f"--init={tmp_path}/ar", "--lr=0.0", "--min_lr=0.0"]
    train(puzzles, tmp_path / "still", *still)
    start, now = (checkpoint.load_model(tmp_path / name, "cpu")[0] for name in ("ar", "still"))
    assert same(start.state_dict(), now.state_dict())


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["--variant=lab.block"], "missing 1 required.*blocks"),
        (["--variant=lab.block", "--options={'blocks': [(9, 4)]}"], "expected .update, value"),
        (["--variant=lab.block", "--options={'blocks': [(0, 5)]}"], "do not divide"),
        (["--variant=lab.papl", "--options={'alhpa': 1.0}"], "unexpected keyword argument 'alhpa'"),
        (["--dim=8"], "size mismatch"),
    ],
)
def test_options_and_weights_that_do_not_fit_are_refused(puzzles, tmp_path, train, flags, word):
    train(puzzles, tmp_path / "a", "--max_iters=1")
    with pytest.raises((SystemExit, TypeError, RuntimeError), match=word):
        train(puzzles, tmp_path / "b", f"--init={tmp_path}/a", *flags)


def papl(f, target, places, alpha=0.7):
    """The loss of a row, as the formula has it; f (L, V), places: hidden."""
    known = {j: f[j, target[j]].detach() for j in places}
    weight = {j: 1 + alpha * known[j] / sum(known.values()) for j in places}
    return sum(-weight[j] * f[j, target[j]].log() for j in places) / len(places)


def near(f, target, places, half=2):
    order = sorted(places, key=lambda j: -f[j].max().item())
    weight = {j: 0.5 ** (n / half) for n, j in enumerate(order)}
    return sum(-weight[j] * f[j, target[j]].log() for j in places) / sum(weight.values())


def usual(f, target, places):
    return sum(-f[j, target[j]].log() for j in places) / len(places)


FORMULAS = {
    "papl": (papl, dict(alpha=0.7)),
    "near": (near, dict(half=2)),
    "cap": (usual, dict(weight=0.3)),
}


@pytest.mark.parametrize("V", [9, 200])
@pytest.mark.parametrize("name", FORMULAS)
def test_a_variant_is_its_formula(name, V):
    torch.manual_seed(0)
    module = getattr(lab, name)
    formula, options = FORMULAS[name]
    shape = dict(length=7, dim=16, layers=1, heads=2, mlp=32, theta=100.0)
    model = module.make_model(vocab_size=V, mask_token=V - 1, **options, **shape)
    model.lm_head.weight.data *= 20  # far from uniform: no two confidences are nearly equal
    x0 = torch.randint(0, V - 1, (4, 7))
    hidden = torch.rand(4, 7) < 0.6
    hidden[:, 2] = True
    x = x0.masked_fill(hidden, V - 1)
    f = model.logits(model(x)).softmax(-1)
    x0[0] = torch.where(hidden[0], f[0].argmax(-1), x0[0])  # so that some are predicted right
    places = [row.nonzero()[:, 0].tolist() for row in hidden]
    total = sum(map(formula, f, x0, places)) / 4
    if name == "cap":
        right = [p[: V - 1] for p in f[hidden & (f.argmax(-1) == x0)]]
        total = total + 0.3 * sum(-(p * p.log()).sum() for p in right) / len(right)
    loss, score, _ = module.objective(model, policies.top_k, x, x0, hidden)
    torch.testing.assert_close(loss, total)
    expected = torch.autograd.grad(total, [*model.parameters()])
    torch.testing.assert_close(torch.autograd.grad(loss, [*model.parameters()]), expected)
    torch.testing.assert_close(score[hidden], f.amax(-1)[hidden])
