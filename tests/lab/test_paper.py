"""The configurations of the paper's runs against its table 2, typed from the paper."""

import pytest
import torch
from conftest import ROOT

import configurator
import puma
from model import Transformer

OURS = dict(lr=3e-4, warmup=1000, ema=0.9999, grad_clip=1.0, optimizer="lab.adamw", heads=8)
TABLE = {  # two of its rows are per GPU: rows of a batch, GPUs
    "sudoku": dict(dim=256, mlp=768, layers=8, gpus=2) | OURS,
    "tinygsm": dict(dim=512, mlp=1536, layers=14, gpus=8) | OURS,
    "dream_coder": dict(lr=1e-5, warmup=3010, lora=128, K=15, gpus=8),  # K in its text; 6 here
}
EPOCHS = {"sudoku": (2, 1_800_000), "tinygsm": (20, 11_800_000), "dream_coder": (10, 700_000)}
SIZES = {"sudoku": (10, 81, 6.8e6), "tinygsm": (151_646, 512, 125e6)}  # the mask is a token more


def settings_of(name):
    if name == "dream_coder":  # more of it in test_dream.py
        pytest.importorskip("accelerate")
        from lab import hf

        return vars(hf) | dict(configurator.read(f"{ROOT}/config/{name}.py"))
    source = (ROOT / "train.py").read_text().partition("config = configure(globals())")[0]
    namespace = {}
    exec(source, namespace)
    return namespace | dict(configurator.read(str(ROOT / f"config/{name}.py")))


@pytest.mark.parametrize("name", TABLE)
def test_settings_are_those_of_the_paper(name):
    settings = settings_of(name)
    expected = dict(tau=0.9, weight_decay=0.01) | TABLE[name]
    expected["batch_size"] = 32 * expected.pop("gpus")
    assert {key: settings[key] for key in expected} == expected
    assert settings["method"] == "puma"
    epochs, examples = EPOCHS[name]
    seen = settings["max_iters"] * settings["batch_size"]  # TinyGSM: 900,000 updates in the text
    assert seen == pytest.approx(epochs * examples, rel=0.03)


def test_schedules_of_k():
    steps = {0: 42, 29_999: 42, 30_000: 39, 299_999: 15, 300_000: 12, 900_000: 12}
    schedule = settings_of("tinygsm")["k_schedule"]
    assert {iteration: puma.value_at(schedule, iteration) for iteration in steps} == steps
    assert settings_of("sudoku")["k_schedule"] == [(0, 10)]


@pytest.mark.parametrize("name", SIZES)
def test_sizes(name):
    vocab_size, length, expected = SIZES[name]
    settings = settings_of(name)
    args = {key: settings[key] for key in ("dim", "layers", "heads", "mlp", "theta", "tied")}
    with torch.device("meta"):
        model = Transformer(vocab_size, vocab_size - 1, length, **args)
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(expected, rel=0.01)
