"""The weights of results/weights/ say what they said in the code that trained them (05286a5).

Folders that are damaged, of a stranger, or in use end in a sentence.
"""

import resource
import shutil

import numpy as np
import pytest
import torch
from conftest import ROOT, lines, run

import checkpoint
import sudoku
import text
from lab import evaluate

SAID = {  # logits of the first held-out row, three of each token; then with its state as a carry
    "sudoku_mini": [[-3.87911, 3.65221, -3.25238, -3.97244, -4.17534, 3.99096]],
    "sudoku_nine": [
        [-2.87628, -3.84078, -0.49262, -3.09051, -2.78964, -2.50657],
        [-2.47043, -3.27809, 0.61869, -2.73082, -1.24796, -3.30129],
    ],
    "gsm_mini": [[-3.98748, -0.87335, -0.39497, -1.33263, 0.04647, -1.62952]],
    "gsm_mini_mdm": [[-3.02092, -1.24648, -1.03585, -3.27577, -1.27769, -0.06811]],
}


@pytest.mark.parametrize("name", SAID)
@torch.no_grad()
def test_converted_weights(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    model, _, task, _ = evaluate.open_run(f"results/weights/{name}", 1, "cpu")
    x0, prompt = map(torch.as_tensor, task.test[:1])
    x = torch.where(prompt, x0, model.mask_token).long()
    carry = []
    for expected in SAID[name]:
        h = model(x, *carry)
        found = model.logits(h)[0, :, :3].flatten()[[0, 20, 40, 60, 80, 100]]
        torch.testing.assert_close(found, torch.tensor(expected), atol=2e-4, rtol=0)
        carry = [h]


MINI = ROOT / "results" / "weights" / "sudoku_mini"
DAMAGE = {
    "a billion layers": lambda saved: saved["args"].update(layers=10**9),
    "a width that no memory holds": lambda saved: saved["args"].update(mlp=10**6),
    "no weights": lambda saved: saved.update(averaged={}),
    "None for weights": lambda saved: saved.update(averaged=None),
    "weights of integers": lambda saved: saved.update(
        averaged={name: p.long() for name, p in saved["averaged"].items()}
    ),
    "no sizes": lambda saved: saved.pop("args"),
    "no task": lambda saved: saved["config"].pop("task"),
    "a task that is no name": lambda saved: saved["config"].update(task=["sudoku"]),
    "no settings": lambda saved: saved.update(config=None),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_refused(tmp_path, damage):
    saved = torch.load(MINI / "ckpt.pt", weights_only=True)
    DAMAGE[damage](saved)
    checkpoint.save(saved, tmp_path)
    with pytest.raises(SystemExit, match=r"fit: |no whole checkpoint"):
        checkpoint.load_model(tmp_path, "cpu")


@pytest.mark.parametrize("kind", [float, "digits", "shape", "one", "cut"])
def test_arrays_that_are_no_puzzles_are_refused(tmp_path, kind):
    pairs = np.load(MINI / "test.npy")
    file = tmp_path / "test.npy"
    wrong = {"digits": pairs + 1, "shape": pairs[:, :, 1:], "one": pairs[:, :1], "cut": pairs}
    if kind in wrong:
        np.save(file, wrong[kind])
        file.write_bytes(file.read_bytes()[: -8 if kind == "cut" else None])
    else:
        np.save(file, pairs.astype(kind))
    with pytest.raises(SystemExit, match=r"test.npy: no puzzles"):
        sudoku.load(tmp_path, 1)


@pytest.mark.parametrize("damage", [b"{", b"[]", b"{}"])
def test_a_header_that_is_none_is_refused(tmp_path, damage):
    (tmp_path / "header.json").write_bytes(damage)
    with pytest.raises(SystemExit, match=r"make it with: python .*prepare.py"):
        text.load(tmp_path, 1)


def test_other_data_are_refused(puzzles, tmp_path):
    shutil.copytree(puzzles, tmp_path / "data")
    assert run(tmp_path / "data", tmp_path / "a", "--max_iters=3")[0] == 0
    pairs = np.load(puzzles / "train.npy")
    for other in pairs[::-1], pairs[:-1]:
        np.save(tmp_path / "data" / "train.npy", other)
        code, said = run(tmp_path / "data", tmp_path / "a", "--resume")
        assert code == 1 and "ckpt.pt was made with 392 rows, checksum" in said
    np.save(tmp_path / "data" / "train.npy", pairs)
    assert run(tmp_path / "data", tmp_path / "a", "--resume")[0] == 0


def test_of_two_runs_in_one_folder_the_second_is_refused(puzzles, tmp_path):
    with checkpoint.claimed(tmp_path, "metrics.jsonl") as file:
        file.write('{"iter": 1}\n')
        file.flush()
        code, said = run(puzzles, tmp_path, "--max_iters=3")
        assert code == 1 and said.endswith("another run writes here\n")
        assert lines(tmp_path) == [{"iter": 1}]
    assert run(puzzles, tmp_path, "--max_iters=3")[0] == 0


def test_a_full_disk_leaves_the_old_checkpoint_alone(tmp_path):
    """A limit on the size of files fails as a full disk does."""
    checkpoint.save({"iteration": 1}, tmp_path)
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, most))
    try:
        with pytest.raises(SystemExit, match=r"ckpt.pt: not written"):
            checkpoint.save({"weights": torch.zeros(1 << 16)}, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    assert [path.name for path in tmp_path.iterdir()] == ["ckpt.pt"]
    assert torch.load(tmp_path / "ckpt.pt") == {"iteration": 1}
