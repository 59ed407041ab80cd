"""The weights of results/weights/ say what they said when they were made.

Folders that are damaged, of a stranger, or in use end in a sentence.
"""

import os
import random
import resource
import shutil

import numpy as np
import pytest
import torch
from conftest import ROOT, lines, run

import checkpoint
import configurator
import sudoku
from lab import evaluate

SAID = {  # logits of the first held-out row, three of each token
    "sudoku_mini": [-3.0645, 5.09057, -5.08846, -7.75303, -3.18745, 3.28628],
    "gsm_mini": [-2.92221, -5.11275, -6.02729, -2.65182, -3.00076, -3.80025],
    "gsm_mini_mdm": [-3.02092, -1.24648, -1.03585, -3.27577, -1.27769, -0.06811],
}
MINI = ROOT / "results" / "weights" / "sudoku_mini"


@pytest.mark.parametrize("name", SAID)
@torch.no_grad()
def test_shipped_weights(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    model, _, task, _ = evaluate.open_run(f"results/weights/{name}", 1, "cpu")
    x0, prompt = map(torch.as_tensor, task.test[:1])
    x = torch.where(prompt, x0, model.mask_token).long()
    found = model.logits(model(x))[0, :, :3].flatten()[[0, 20, 40, 60, 80, 100]]
    torch.testing.assert_close(found, torch.tensor(SAID[name]), atol=2e-4, rtol=0)


def test_weights_are_those_that_the_library_reads_and_writes(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    torch.manual_seed(0)
    weights = {"a": torch.randn(3, 5), "b": torch.randn(()), "c": torch.arange(4)}
    about = {"config": {"task": "ä"}, "args": {}}
    checkpoint.save_weights(weights, about, tmp_path)
    kept, said = checkpoint.load_weights(tmp_path)
    for found in kept, safetensors.load_file(tmp_path / "model.safetensors"):
        assert found.keys() == weights.keys()
        assert all(torch.equal(found[name], t.float()) for name, t in weights.items())
    assert said == about


def test_a_flipped_bit_or_a_cut_file_is_refused(tmp_path):
    whole = (MINI / "model.safetensors").read_bytes()
    file = tmp_path / "model.safetensors"
    draw = random.Random(0)
    start = 8 + int.from_bytes(whole[:8], "little")
    for at in [0, 7, *draw.sample(range(start, len(whole)), 8)]:
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << draw.randrange(8)]) + whole[at + 1 :])
        with pytest.raises(SystemExit, match="no whole weights"):
            checkpoint.load_weights(tmp_path)
    for size in 0, 5, start - 1, len(whole) - 4:
        file.write_bytes(whole[:size])
        with pytest.raises(SystemExit, match="no whole weights"):
            checkpoint.load_weights(tmp_path)


DAMAGE = {
    "layers": lambda about: about["args"].update(layers=9),
    "a width": lambda about: about["args"].update(mlp=64),
    "no sizes": lambda about: about.pop("args"),
    "no task": lambda about: about["config"].pop("task"),
    "a task that is no name": lambda about: about["config"].update(task=["sudoku"]),
    "no settings": lambda about: about.update(config=None),
    "options": lambda about: about["config"].update(options=[1]),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_settings_that_do_not_fit_are_refused(tmp_path, damage):
    weights, about = checkpoint.load_weights(MINI)
    DAMAGE[damage](about)
    checkpoint.save_weights(weights, about, tmp_path)
    with pytest.raises(SystemExit, match=r"fit: |no whole weights|settings lack"):
        checkpoint.load_model(tmp_path, "cpu")


def test_a_pipe_is_not_waited_for(tmp_path):
    readers = {
        "model.safetensors": checkpoint.load_weights,
        "test.npy": lambda folder: sudoku.load(folder, 1),
        "ckpt.pt": lambda folder: checkpoint.resumed(folder, {"resume": True}),
        "metrics.jsonl": checkpoint.claimed,
    }
    for name, reader in readers.items():
        os.mkfifo(tmp_path / name)
        with pytest.raises((SystemExit, OSError), match=r"no such|no whole|not seek"):
            reader(tmp_path)


@pytest.mark.parametrize("kind", [bool, "digits", "flat", "blank", "one", "cut"])
def test_arrays_that_are_no_puzzles_are_refused(tmp_path, kind):
    pairs = np.load(MINI / "test.npy")
    file = tmp_path / "test.npy"
    blank = pairs.copy()
    blank[0, 1, 0] = 0
    wrong = {"digits": pairs + 1, "flat": pairs.reshape(len(pairs), -1), "blank": blank,
             "one": pairs[:, :1], "cut": pairs}  # fmt: skip
    np.save(file, wrong[kind] if kind in wrong else pairs.astype(kind))
    if kind == "cut":
        file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(SystemExit, match=r"test.npy: no puzzles"):
        sudoku.load(tmp_path, 1)


def test_other_data_are_refused(puzzles, tmp_path):
    """Whichever row it is that differs, or file."""
    shutil.copytree(puzzles, tmp_path / "data")
    assert run(tmp_path / "data", tmp_path / "a", "--max_iters=3")[0] == 0
    pairs = np.load(puzzles / "train.npy")
    other = pairs.copy()
    other[217, 0, 3] ^= 1
    for changed in other, pairs[:-1]:
        np.save(tmp_path / "data" / "train.npy", changed)
        code, said = run(tmp_path / "data", tmp_path / "a", "--resume")
        assert code == 1 and "made with another content of the data" in said
    np.save(tmp_path / "data" / "train.npy", pairs)
    (tmp_path / "data" / "train.z").write_text("more")
    assert run(tmp_path / "data", tmp_path / "a", "--resume")[0] == 1
    (tmp_path / "data" / "train.z").unlink()
    assert run(tmp_path / "data", tmp_path / "a", "--resume")[0] == 0


def test_of_two_runs_in_one_folder_the_second_is_refused(puzzles, tmp_path):
    with checkpoint.claimed(tmp_path) as file:
        file.write('{"iter": 1}\n')
        file.flush()
        code, said = run(puzzles, tmp_path, "--max_iters=3")
        assert code == 1 and said.endswith("another run writes here\n")
        assert lines(tmp_path) == [{"iter": 1}]
    assert run(puzzles, tmp_path, "--max_iters=3")[0] == 0


def test_a_full_disk_leaves_the_old_checkpoint_alone_and_ends_in_a_line(tmp_path, capsys):
    """A limit on the size of files fails as a full disk does."""
    checkpoint.save_weights({"a": torch.ones(1)}, {"config": {}, "args": {}}, tmp_path)
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, most))
    try:
        with pytest.raises(OSError, match="too large") as failed:
            checkpoint.save_weights({"a": torch.zeros(1 << 16)}, {}, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    assert checkpoint.load_weights(tmp_path)[0] == {"a": torch.ones(1)}
    configurator.without_traceback(failed.type, failed.value, failed.tb)
    assert capsys.readouterr().err == f"OSError: {failed.value}\n"
