"""Trackers get the lines of metrics.jsonl, and can neither stop nor change a run."""

import json
import sys
from importlib.util import find_spec
from unittest.mock import Mock

import pytest
from conftest import metrics, same, train

from engine import checkpoint


@pytest.fixture
def fake(monkeypatch):
    """In place of the package wandb."""
    fake = Mock()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def expected(out):
    """(iteration, numbers) of the lines that a run wrote."""
    for line in metrics(out)[1:]:
        flat = {"train/" + key: value for key, value in line.items()}
        if line["type"] == "eval":
            flat = {"eval/accuracy/" + key: value for key, value in line["accuracy"].items()}
            flat |= {"eval/val_loss": line["val_loss"], "eval/examples": line["examples"]}
        unwanted = "train/type", "train/iter", "train/tenths"
        numbers = {k: v for k, v in flat.items() if k not in unwanted and v is not None}
        yield line["iter"], numbers


def test_a_tracker_gets_every_line_and_changes_nothing(fake, trained, tmp_path):
    train(tmp_path / "run", "--track=wandb")
    logged = [(call.kwargs["step"], call.args[0]) for call in fake.log.call_args_list]
    assert logged == list(expected(tmp_path / "run"))
    begun = fake.init.call_args.kwargs
    assert fake.init.call_count == fake.finish.call_count == 1 and begun["name"] == "run"
    assert json.loads(json.dumps(begun["config"])) == metrics(tmp_path / "run")[0]["config"]
    a, b = (checkpoint.load(out / "checkpoint.pt") for out in (trained, tmp_path / "run"))
    b["config"]["track"] = ""
    assert same(a, b)


@pytest.mark.parametrize("where", ["init", "log", "finish"])
def test_a_failure_is_said_once_and_the_run_goes_on(where, fake, tmp_path, capsys):
    getattr(fake, where).side_effect = SystemExit("no network\nat all")
    train(tmp_path, "--track=wandb", "--max_iters=5")
    errors = capsys.readouterr().err
    assert errors.count("no more is sent to wandb: SystemExit: no network at all") == 1
    assert metrics(tmp_path)[-1]["type"] == "eval"


def test_what_is_missing_is_named_before_the_run(refused, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "trackio", None)
    assert "pip install trackio" in refused(train, tmp_path / "a", "--track=trackio")
    assert "expected tensorboard, trackio, wandb" in refused(train, tmp_path, "--track=mlflow")
    assert not (tmp_path / "a").exists()


@pytest.mark.skipif(not find_spec("tensorboard"), reason="needs tensorboard")
def test_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(tmp_path, "--track=tensorboard", "--max_iters=5")
    found = EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    for step, numbers in expected(tmp_path):
        for name, value in numbers.items():
            (there,) = [each.value for each in found.Scalars(name) if each.step == step]
            assert there == pytest.approx(value, rel=1e-6)
