"""What each method of lab/ trains on, and that other tools measure it as they say."""

import math
import shutil
from unittest.mock import patch

import numpy as np
import pytest
import torch
from conftest import PLUS, ROOT, lines, same, state

import checkpoint
import puma
import sudoku
from lab import curves, evaluate, likelihood

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


@pytest.mark.parametrize("variant", ["", "lab.papl", "lab.shifted", "lab.carry"])
@pytest.mark.parametrize(("method", "begins"), [("mdm", math.inf), ("puma", 0), ("puma_plus", 7)])
def test_a_variant_trains_on_the_contexts_of_the_method(puzzles, variant, method, begins):
    masks, chains, begin = streams(variant, sudoku.load(puzzles, 8).train, method)
    assert begin == begins and isinstance(masks, puma.RandomMasking)
    assert (chains is None) == (method == "mdm")
    if chains:
        assert chains.second_visit == (method == "puma_plus")
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
        (
            ["--variant=lab.block", "--options={'blocks': [(9, 4)]}"],
            "expected .update, value",
        ),
        (["--variant=lab.block", "--options={'blocks': [(0, 5)]}"], "do not divide"),
        (["--variant=lab.papl", "--options={'alhpa': 1.0}"], "unexpected keyword argument 'alhpa'"),
        (["--dim=8"], "size mismatch"),
    ],
)
def test_options_and_weights_that_do_not_fit_are_refused(puzzles, tmp_path, train, flags, word):
    train(puzzles, tmp_path / "a", "--max_iters=1")
    with pytest.raises((SystemExit, TypeError, RuntimeError), match=word):
        train(puzzles, tmp_path / "b", f"--init={tmp_path}/a", *flags)


def test_a_causal_model_has_one_sampler_for_each_temperature():
    with patch.multiple(evaluate, reveal=[1, 2], tau=[1.0, 0.9], temperature=[0.0, 1.0]):
        assert len(evaluate.grid({"variant": "lab.ar"})) == 2
        assert len(evaluate.grid({"variant": ""})) == 8


# -- curves ----------------------------------------------------------------------------------------
@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A run's folder with weights after 1 and 2 updates, those of sudoku_mini, then others."""
    monkeypatch.chdir(ROOT)
    saved = torch.load("results/weights/sudoku_mini/ckpt.pt", weights_only=True)
    for update, scale in (2, 1.0), (1, 0.7):
        folder = tmp_path / "mdm_1" / "at" / str(update)
        folder.mkdir(parents=True)
        weights = {name: scale * p for name, p in saved["averaged"].items()}
        torch.save(saved | {"averaged": weights}, folder / "ckpt.pt")
    own = dict(out=str(tmp_path), arms=["mdm"], examples=20)
    with patch.multiple(curves, **own):
        yield tmp_path / "mdm_1"


def test_curves_are_what_other_tools_measure(kept, monkeypatch):
    run = evaluate.open_run(kept / "at" / "2", 20, "cpu")
    x0, prompt = (torch.as_tensor(part) for part in run[2].test[:20])
    with patch.multiple(curves, what="nelbo"):
        torch.manual_seed(1)
        nats = likelihood.nelbo(run[0], x0.long(), prompt, 16)
        per_token = likelihood.estimates(run[2], x0, prompt, nats)["nats per token"][0]
        assert curves.curve(kept)[2] == pytest.approx(per_token, rel=1e-5)


def test_the_distance_is_that_of_a_slow_loop(kept):
    steps = {}
    for update in 1, 2:
        model, config, problem, _ = evaluate.open_run(kept / "at" / str(update), 20, "cpu")
        K = config["k_schedule"][-1][1]
        x0, prompt = problem.test[:20]
        steps[update] = np.zeros(x0.shape)
        for row in range(20):
            x = np.where(prompt[row], x0[row], problem.mask_token)
            for step in range(1, 99):
                hidden = np.flatnonzero(x == problem.mask_token)
                if not len(hidden):
                    break
                with torch.no_grad():
                    p = model.logits(model(torch.as_tensor(x)[None].long()))[0].softmax(-1).amax(-1)
                best = sorted(hidden, key=lambda i: -p[i].item())[:K]
                x[best] = x0[row][best]
                steps[update][row, best] = step
    with patch.multiple(curves, what="distance", policy="top_k"):
        found = curves.curve(kept)
    assert found[2] == 0 and found[1] == pytest.approx(np.abs(steps[1] - steps[2]).mean(), abs=1e-6)


def test_what_cannot_be_measured_is_refused(kept, capsys):
    saved = torch.load(kept / "at" / "1" / "ckpt.pt", weights_only=True)
    saved["config"] |= {"variant": "lab.carry"}
    saved["args"] |= {"window": 1}
    zeros = torch.zeros(saved["args"]["dim"])
    saved["averaged"] |= {f"model.carry_norm.{name}": zeros for name in ("weight", "bias")}
    torch.save(saved, kept / "at" / "1" / "ckpt.pt")
    for what in "nelbo", "distance":
        with patch.object(curves, "what", what), pytest.raises(SystemExit, match="of its own"):
            curves.main()
    shutil.rmtree(kept)
    with pytest.raises(SystemExit, match="--run --every=100"):
        curves.main()


@pytest.mark.parametrize("flags", [["--chains_from=8", *PLUS], ["--method=puma"], ["--method=mdm"]])
def test_recorded_updates_are_the_updates(puzzles, tmp_path, train, monkeypatch, flags):
    """Whose turn it is, when examples are read, a switch of K (9), over 40 updates."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", None)  # put back afterwards
    train(puzzles, tmp_path / "a", *flags, "--max_iters=40")
    train(puzzles, tmp_path / "b", *flags, "--max_iters=40", "--variant=tests.lab.graphed")
    assert lines(tmp_path / "a") == lines(tmp_path / "b")
    assert same(state(tmp_path / "a")["averaged"], state(tmp_path / "b")["averaged"])
