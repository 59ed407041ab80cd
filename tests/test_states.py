"""What a model knows in the states of its sampler, against a loop over one example at a time."""

import json

import numpy as np
import pytest
import torch
from conftest import TINY, run_script

from model import Transformer
from studies import states
from tasks.arithmetic import Arithmetic

FLAGS = ["--dataset=arithmetic", "--digits=3", "--keep_every=10", "--log_interval=5"]
TAU = 0.3
CONFIG = {"policy": "top_k", "tau": TAU, "eval_reveal": 2, "eval_tau": None}


@pytest.fixture
def model():
    torch.manual_seed(0)
    model = Transformer(11, 10, 10, dim=8, layers=1, heads=2, mlp=8).eval()
    for p in model.parameters():  # so that it is surer here than there
        p.data *= 20 if p.dim() > 1 else 1
    return model


def walked(model, x0, prompt):
    """(tenth, right, next, hidden, sure, sure and right, their confidence) of each own state."""
    found, hidden = [], [i for i in range(len(x0)) if not prompt[i]]
    total = len(hidden)
    while hidden:
        x = x0.clone()
        x[hidden] = 10
        p = model.logits(model(x[None]))[0].softmax(-1)
        best = sorted(hidden, key=lambda i: -p[i].max())[:2]
        right = {i for i in hidden if p[i].argmax() == x0[i]}
        sure = [i for i in hidden if p[i].max() > TAU]
        numbers = [len(right) / len(hidden), len(right & {*best}) / len(best), len(hidden)]
        numbers += [len(sure), len(right & {*sure}), sum(float(p[i].max()) for i in sure)]
        found.append([min(9, 10 * len(hidden) // total), *numbers])
        hidden = [i for i in hidden if i not in best]
    return found


def starts(model, x0, prompt):
    """The probabilities where nothing but the prompt shows, of each example; it and its prompt."""
    for x, q in zip(x0, prompt, strict=True):
        start = torch.tensor(np.where(q, x, 10)).long()
        yield model.logits(model(start[None]))[0].softmax(-1).numpy(), x, q


def hidden(x, prompt):
    return [(i, int(token)) for i, token in enumerate(x) if not prompt[i]]


@torch.no_grad()
def test_the_sampler_s_states_against_a_loop(model, monkeypatch):
    data = Arithmetic("add", 3, "highest", 100, 16).validation
    monkeypatch.setattr(states, "examples", 6)
    monkeypatch.setattr(states, "batch_size", 4)  # 4 and 2
    seen = states.examine(model, data, CONFIG, torch.device("cpu"))
    x0, prompt = data[np.arange(6)]
    expected = [
        row for n in range(6) for row in walked(model, torch.tensor(x0[n]).long(), prompt[n])
    ]
    own = seen[1:, seen[0] == 0].T.tolist()
    np.testing.assert_allclose(sorted(own), sorted(expected), rtol=1e-5)
    assert 0 < sum(row[5] for row in own) < sum(row[4] for row in own)  # sure, and not always right
    nll = [-np.log(p[i, t]) for p, x, q in starts(model, x0, prompt) for i, t in hidden(x, q)]
    assert states.loss_at_start(model, data, torch.device("cpu")) == pytest.approx(np.mean(nll))
    random = seen[1:, seen[0] == 1]
    assert random[3].tolist() == seen[1:, seen[0] == 0][3].tolist()  # as many are hidden


def test_a_worked_summary():
    seen = torch.tensor([
        [0.0, 3, 0.5, 1.0, 4, 2, 1, 1.9],
        [0.0, 3, 1.0, 0.0, 4, 2, 2, 1.9],
        [1.0, 9, 0.25, 0.0, 8, 0, 0, 0.0],
    ]).T.double()  # fmt: skip
    own, random = states.summary(seen)
    assert own == {
        "states": "own", "tenth": 3, "met": 2, "right": 0.75, "next": 0.5, "sure": 0.5,
        "sure_right": 0.75, "confidence": pytest.approx(0.95),
    }  # fmt: skip
    assert random["met"] == 1 and random["sure"] == 0 and random["sure_right"] is None


def test_of_a_run_and_its_figure(tmp_path):
    tiny = [flag for flag in TINY if not flag.startswith("--box")]
    run_script("train.py", f"--out_dir={tmp_path}/run", *tiny, *FLAGS)
    printed = run_script("studies/states.py", f"--out_dir={tmp_path}/run", "--examples=8")
    assert printed.startswith("| states | tenth | met |")
    rows = json.loads((tmp_path / "run/states.json").read_text())["rows"]
    assert {row["iteration"] for row in rows} == {0, 10, 20}
    counted = {row["tenth"]: row["trained"] for row in rows if row["iteration"] == 20}
    assert all(n is not None for n in counted.values())
    flags = f"--runs={tmp_path}/run", "--figure=states", f"--out={tmp_path}/a.png"
    run_script("studies/plot.py", *flags)
    assert (tmp_path / "a.png").exists()
