"""train.py on an imitated GPU: no operator mixes devices, and the host waits where it is known to.

Not a measurement on a GPU: what is not seen stands in fake_cuda.py.
"""

import json
import runpy
import signal
import sys

import fake_cuda
import numpy as np
import pytest
import torch
from conftest import PLUS, ROOT, SMALL

import loss

RUN = ["--max_iters=6", "--log_interval=2", "--save_interval=2", "--eval_interval=6"]
ON_GPU = ["--device=cuda", "--dtype=bfloat16"]
METHODS = {
    "puma_plus": [*PLUS, "--chains_from=2"],
    "puma": ["--method=puma"],
    "mdm": ["--method=mdm"],
}


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


def run(monkeypatch, script, *flags):
    """{where the host waits: how often}, but for evaluation, which may wait."""
    monkeypatch.setattr(sys, "argv", ["", *flags])
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda precision: None)
    monkeypatch.syspath_prepend(ROOT)
    with fake_cuda.imitated(monkeypatch) as waits:
        runpy.run_path(str(script), run_name="__main__")
    asked = "sample.generate", "sample.predict", "__main__.evaluate"
    return {place: times for place, times in waits.items() if place not in asked}


def known(out):
    """The waits of a run of six updates."""
    saved = torch.load(out / "ckpt.pt")
    return {
        # the model moves; three lines are logged
        "__main__.<module>": len(saved["model"]) + 3 * 2,
        "puma.load_state_dict": 2,  # a queue begins, for training and for evaluation
        "puma.take": 2,  # and reads ahead, once in 16 batches
        "puma.fill": 2 * 3,
        "puma.state_dict": 3,  # three checkpoints
    }


@pytest.fixture
def where(puzzles, tmp_path):
    return [*SMALL, *RUN, f"--data={puzzles}", f"--out_dir={tmp_path}/out", *ON_GPU]


@pytest.fixture
def texts(tmp_path):
    """40 rows of 12 tokens of 100, the first 4 given."""
    about = {"vocab_size": 100, "mask": 99, "end": 98, "kind": "plain"}
    (tmp_path / "header.json").write_text(json.dumps({"length": 12, "tokenizer": about}))
    for split in "train", "val":
        np.save(tmp_path / f"{split}.tokens.npy", np.random.default_rng(0).integers(98, size=480))
        np.save(tmp_path / f"{split}.starts.npy", np.arange(0, 481, 12))
        np.save(tmp_path / f"{split}.prompts.npy", np.full(40, 4))
    return ["--task=text", f"--data={tmp_path}"]


@pytest.mark.parametrize("method", ["puma_plus", slow("puma"), slow("mdm")])
def test_an_update_of_sudoku_waits_for_nothing(where, tmp_path, monkeypatch, method):
    waits = run(monkeypatch, ROOT / "train.py", *where, *METHODS[method], "--policy=margin")
    assert waits == known(tmp_path / "out")


def test_a_large_head_waits_once_in_a_forward_pass(where, texts, tmp_path, monkeypatch):
    """To know how many positions are hidden: in 6 updates of 2 passes, in 2 of evaluation."""
    monkeypatch.setattr(loss, "chunks", lambda n, V: [slice(0, n // 2), slice(n // 2, n)])
    waits = run(monkeypatch, ROOT / "train.py", *where, *texts, "--grad_accum=2", "--muon=False")
    assert waits == known(tmp_path / "out") | {"loss.loss_and_scores": 6 * 2 + 2}


@pytest.mark.slow
def test_a_run_goes_on_and_is_sampled_from(where, tmp_path, monkeypatch, capsys):
    run(monkeypatch, ROOT / "train.py", *where, *METHODS["puma_plus"])
    run(monkeypatch, ROOT / "train.py", *where, *METHODS["puma_plus"], "--resume", "--max_iters=8")
    run(monkeypatch, ROOT / "sample.py", f"--out_dir={tmp_path}/out", "--device=cuda")
    assert "update 8: val_loss" in capsys.readouterr().out


# -- faults are noticed ----------------------------------------------------------------------------
def changed(folder, old, new):
    source = (ROOT / "train.py").read_text()
    assert source.count(old) == 1
    (folder / "train.py").write_text(source.replace(old, new))
    return folder / "train.py"


@pytest.mark.slow
def test_a_hidden_wait_is_noticed(where, tmp_path, monkeypatch):
    script = changed(tmp_path, "stream.advance(*seen)", "stream.advance(*seen), loss.item()")
    waits = run(monkeypatch, script, *where)
    assert waits == known(tmp_path / "out") | {"__main__.update": 6}
