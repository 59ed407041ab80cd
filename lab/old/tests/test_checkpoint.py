"""Damaged and foreign checkpoints, full disks, folders in use, runs that continue with changes."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from conftest import ONE_THREAD, ROOT, Script, metrics, same, train, training
from toys import contents, flipped

from engine.checkpoint import FORMAT, load, save
from engine.files import Lock
from engine.processes import Place
from engine.queue import examples_at
from runs.saved import load_task, open_run
from runs.start import find

HERE = Place(1, 0, torch.device("cpu"), False)


# -- reading ---------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A file of 60 kB in a checkpoint's form."""
    path = tmp_path_factory.mktemp("small") / "checkpoint.pt"
    weights = {f"weight.{n}": torch.randn(100, 15) for n in range(10)}
    save({"iteration": 3, "config": {"lr": 0.1}, "model_args": {}, "model": weights}, path)
    return path


def test_damage_is_named_or_changes_nothing(small, tmp_path):
    """A bit that has changed, an end that is missing."""
    data, whole = small.read_bytes(), load(small)
    chance, noticed = random.Random(0), 0
    changed = [flipped(data, chance.randrange(len(data))) for _ in range(150)]
    torn = [data[: int(share * len(data))] for share in (0, 0.1, 0.9, 0.999)]
    message = r"one.pt is damaged or not a checkpoint \(.+\): use a copy, or start a new run$"
    for damaged in changed + torn:
        (tmp_path / "one.pt").write_bytes(damaged)
        try:
            assert same(load(tmp_path / "one.pt"), whole)
        except ValueError as error:
            assert re.search(message, str(error))
            noticed += 1
    assert noticed > 100


def test_half_a_checkpoint_of_a_killed_process_goes_with_the_next_one(tmp_path):
    half = tmp_path / "checkpoint.pt.elsewhere-123.tmp"
    half.write_bytes(b"half")
    save({"iteration": 3}, tmp_path / "checkpoint.pt")
    assert not half.exists()
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert saved == {"iteration": 3, "format": FORMAT}


FORMS = {
    "no iteration": (lambda state: state.pop("iteration"), ""),
    "no weights": (lambda state: (state.pop("ema"), state.pop("model")), ""),
    "other shapes": (lambda state: state["model_args"].update(mlp=96), "size mismatch for model.l"),
    "one less": (lambda state: state["ema"].pop("lm_head.weight"), 'Missing key.*"lm_head.weight"'),
    "format": (lambda state: state.update(format=99), "has format 99, expected 2"),
    "no arguments": (lambda state: state.update(model_args={}), "'length'"),
    "iteration": (lambda state: state.update(iteration="\x1b]0;"), ""),
    "heads": (lambda state: state["model_args"].update(heads=0), "heads 0: expected 1 to 1024"),
    "block": (lambda state: state.update(block="x"), "block 'x': expected 0 to 1048576"),
    "NaN": (lambda state: state["ema"]["lm_head.weight"].fill_(torch.nan), "not finite"),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_checkpoint_of_another_form_is_named(name, trained, tmp_path):
    change, message = FORMS[name]
    state = load(trained / "checkpoint.pt")
    change(state)
    torch.save(state, tmp_path / "a.pt")
    with pytest.raises(ValueError, match=message or "a.pt is not a checkpoint of this program"):
        open_run(tmp_path / "a.pt")


def test_a_saved_configuration_that_no_run_has_is_named(trained):
    config = load(trained / "checkpoint.pt")["config"]
    for wrong, message in (
        ({"box": [3, "x"]}, "saved box: expected an int from 1 to 32, got 'x'"),
        ({"test_examples": 1 << 30}, "test_examples 1073741824: expected 1 to 1048576"),
        ({"test_examples": None}, "the configuration in the checkpoint is not valid: TypeError"),
    ):
        with pytest.raises(ValueError, match=message):
            load_task(config | wrong)


RESUMED = {
    "optimizer": (lambda state: state.update(optimizer={}), "parts of the wrong form"),
    "chains": (lambda state: state["ranks"][0]["stream"].pop("turn"), "parts of the wrong form"),
    "only weights": (lambda state: state.pop("optimizer"), "has no optimizer: it holds only weigh"),
    "data": (lambda state: state["data"]["training"].append(7), "must keep its data: the train"),
}


@pytest.mark.parametrize("name", RESUMED)
def test_a_run_is_not_resumed_from_parts_of_another_form(name, trained, tmp_path, refused):
    change, message = RESUMED[name]
    state = load(trained / "checkpoint.pt")
    change(state)
    torch.save(state, tmp_path / "checkpoint.pt")
    assert message in refused(train, tmp_path, "--init_from=resume", "--max_iters=22")
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint.pt"]


# -- not finite ------------------------------------------------------------------------------------
EXPLODE = ["--lr=1e9", "--warmup=0", "--max_iters=40", "--log_interval=1000"]


def test_nothing_is_saved_that_is_not_finite(tmp_path, refused):
    said = refused(train, tmp_path, *EXPLODE, "--keep_every=1")
    assert "at iteration" in said and "is intact: start anew, or continue" in said
    for state in map(load, tmp_path.rglob("*.pt")):
        weights = [*state.get("model", {}).values(), *state["ema"].values()]
        assert all(weight.isfinite().all() for weight in weights)
    saved = load(tmp_path / "checkpoint.pt")["iteration"]
    assert saved < 40 and f"checkpoint.pt of iteration {saved} is intact" in said


def test_an_explosion_leaves_a_checkpoint_to_continue_from(trained, tmp_path, refused):
    """Weights that are finite, but whose norm is not, do not replace it."""
    shutil.copytree(trained, tmp_path / "run")
    flags = ["--init_from=continue", "--checkpoint_interval=1", "--max_iters=24"]
    said = refused(train, tmp_path / "run", *flags, "--lr=1e30")
    assert "the norm of the weights is inf at iteration 21; " in said
    assert "checkpoint.pt of iteration 20 is intact" in said
    train(tmp_path / "run", *flags, "--lr=1e-4")
    assert load(tmp_path / "run/checkpoint.pt")["iteration"] == 24


def test_a_loss_that_is_not_finite_stops_all_processes(tmp_path):
    with Script(*training(tmp_path, *EXPLODE, "--checkpoint_interval=1"), processes=2) as script:
        with pytest.raises(AssertionError):
            script.wait(60)
        for rank, process in enumerate(script.processes):
            process.join(20)
            saved, said = load(tmp_path / "checkpoint.pt")["iteration"], script.errors(rank)
            assert f"checkpoint.pt of iteration {saved} is intact" in said
            assert "at iteration" in said and "Traceback" not in said


# -- writing ---------------------------------------------------------------------------------------
SAVES = ["--checkpoint_interval=4", "--log_interval=2", "--eval_interval=100"]
FULL = """
import errno, itertools, os, runpy, sys, torch
calls, save = itertools.count(), torch.save

def torch_save(state, file, **options):
    if hasattr(file, "name") and next(calls) in {calls}:  # not where processes exchange tensors
        file.write(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    save(state, file, **options)

torch.save = torch_save
from engine import saver
saver.PATIENCE = 2
runpy.run_path("train.py", run_name="__main__")
"""


def train_on_a_full_disk(tmp_path, calls):
    """Two processes without room for these checkpoints, {numbers from 0}: (messages, status)."""
    (tmp_path / "script.py").write_text(FULL.format(calls=calls))
    _, *flags = training(tmp_path / "full", *SAVES)
    with Script(tmp_path / "script.py", *flags, processes=2) as script:
        for process in script.processes:
            process.join(60)
        assert "Traceback" not in script.errors()
        return script.errors(), [process.exitcode for process in script.processes]


def test_a_full_disk_costs_one_line_if_room_is_made(tmp_path):
    said, status = train_on_a_full_disk(tmp_path, {2, 3, 4})
    assert not any(status) and said.count("No space left on device") == 1
    assert "checkpoint.pt of iteration 4 is intact, the run continues" in said
    train(tmp_path / "whole", *SAVES, processes=2)
    assert same(*(load(tmp_path / run / "checkpoint.pt") for run in ("whole", "full")))


@pytest.mark.slow
def test_a_disk_that_stays_full_leaves_the_last_checkpoint(tmp_path):
    said, status = train_on_a_full_disk(tmp_path, {*range(3, 99)})
    assert all(status) and "the weights of iteration 20 are lost; " in said
    assert "checkpoint.pt of iteration 8 is intact" in said.splitlines()[-1]
    assert load(tmp_path / "full/checkpoint.pt")["iteration"] == 8
    left = {file.name for file in (tmp_path / "full").iterdir()}
    assert left == {"checkpoint.pt", "metrics.jsonl"}


def test_a_disk_that_is_full_at_the_start_is_one_line(tmp_path):
    said, status = train_on_a_full_disk(tmp_path, {0})
    assert all(status) and "OSError: the first checkpoint could not be written: use" in said
    assert not (tmp_path / "full").exists()


# -- one run per folder ----------------------------------------------------------------------------
def test_a_folder_in_use_is_refused_and_left_alone(trained, tmp_path, refused):
    shutil.copytree(trained, tmp_path / "run")
    with Lock(tmp_path / "run"):
        said = refused(train, tmp_path / "run", "--init_from=continue", "--max_iters=22")
    assert f"run is in use by process {os.getpid()} on " in said and "\n" not in said
    assert contents(tmp_path / "run") == contents(trained)


# -- continuing with changes -----------------------------------------------------------------------
REFUSED = [
    ("resume", {"tau": 0.5}, "tau 0.9 -> 0.5; --init_from=continue allows it$"),
    ("resume", {"dim": 64, "box": [3, 3]}, r"dim 32 -> 64, box .* -> \[3, 3\]$"),
    ("continue", {"train_examples": 50, "tau": None}, "configuration: train_examples 200 -> 50$"),
    ("continue", {"seed": 2, "tau": None}, "must keep its configuration: seed 1 -> 2$"),
    ("continue", {"dim": 64, "muon": True}, "dim 32 -> 64, muon False -> True$"),
    ("continue", {"method": "ar"}, "method puma -> ar$"),
    ("resume", {"max_iters": 10}, "max_iters 10: the run is at 20"),
]


@pytest.mark.parametrize("word, changes, message", REFUSED)
def test_settings_that_may_not_change_are_named(word, changes, message, trained):
    config = load(trained / "checkpoint.pt")["config"] | {"init_from": word, "max_iters": 30}
    saved, none, origin = find(trained, config, HERE)
    assert saved["iteration"] == 20 and none == {} and origin == "scratch"
    with pytest.raises(ValueError, match=message):
        find(trained, config | changes, HERE)


def test_continue_without_a_checkpoint_starts_a_run(trained, tmp_path):
    assert "yet: starting a new run from scratch" in train(tmp_path / "a", "--init_from=continue")
    assert same(*(load(run / "checkpoint.pt") for run in (trained, tmp_path / "a")))
    start = f"--init_from=continue:{trained}/checkpoint.pt"
    train(tmp_path / "b", start, "--max_iters=0")
    assert same(load(tmp_path / "b/checkpoint.pt")["model"], load(trained / "checkpoint.pt")["ema"])
    train(tmp_path / "b", start, "--max_iters=2")
    assert load(tmp_path / "b/checkpoint.pt")["iteration"] == 2


def chains(saved):
    """What each example that is in a chain still hides, {number: (L,)}."""
    streams = [rank["stream"] for rank in saved["ranks"]]
    pairs = [(stream["number"].flatten(), stream["hidden"].flatten(0, 1)) for stream in streams]
    return {int(n): hidden for pair in pairs for n, hidden in zip(*pair, strict=True)}


def to_come(saved):
    """The numbers of the examples that no process has taken, in the epoch of 200 of a tiny run."""
    queues = [rank["queue"] for rank in saved["ranks"]]
    ahead = queues[0]["ahead"].numpy()
    base = queues[0]["base"]
    taken = [queue["taken"] * len(queues) + rank for rank, queue in enumerate(queues)]
    places = [np.arange(first, len(ahead) + 200 - base, len(queues)) for first in taken]
    return examples_at(np.concatenate(places), ahead, base, 200, seed=1).tolist()


def test_changes_are_recorded_and_the_rest_continues(tmp_path):
    """From two processes to one and back; at rate 0 to see the moments and averages go on."""
    train(tmp_path, "--max_iters=6", processes=2)
    before = load(tmp_path / "checkpoint.pt")
    flags = ["--init_from=continue", "--lr=0", "--min_lr=0"]
    printed = train(tmp_path, "--max_iters=7", *flags, "--batch_size=8", "--k_schedule=[(0,2)]")
    assert "continuing at iteration 6 with changes: " in printed
    after = load(tmp_path / "checkpoint.pt")
    assert after["iteration"] == 7 and same(before["model"], after["model"])
    there = chains(before)
    waited = [n for n, hidden in chains(after).items() if n in there and hidden.equal(there[n])]
    assert len(there) == 32 and len(waited) >= 8  # there is room for 16, and 8 had their turn
    rest = [*chains(after), *to_come(after)]  # no example is lost or comes twice
    gone = {*there, *to_come(before)} - {*rest}
    assert len({*rest}) == len(rest) and gone <= {*there} and len(gone) <= 8
    decay = (1 + 6) / (10 + 6)
    for name, average in before["ema"].items():
        expected = decay * average + (1 - decay) * before["model"][name]
        torch.testing.assert_close(after["ema"][name], expected)
    for number, moments in before["optimizer"]["state"].items():
        now = after["optimizer"]["state"][number]
        assert now["step"] == 7
        assert (now["exp_avg_sq"] >= 0.99 * moments["exp_avg_sq"] - 1e-9).all()  # beta2

    flags = ["--init_from=continue", "--tau=None", "--ema=0", "--weight_decay=0.5", "--lr=1e-3"]
    train(tmp_path, "--max_iters=12", *flags, processes=2)
    last = load(tmp_path / "checkpoint.pt")
    assert last["optimizer"]["param_groups"][0]["weight_decay"] == 0.5
    assert len(last["ranks"]) == 2 and not same(last["model"], after["model"])
    changes = [line.get("changes") for line in metrics(tmp_path) if line["type"] == "config"]
    assert changes[0] is None and changes[1]["k_schedule"] == [[[0, 4]], [[0, 2]]]
    assert changes[2]["tau"] == [0.9, None]
    assert [change["processes"] for change in changes[1:]] == [[2, 1], [1, 2]]
    iterations = [line["iter"] for line in metrics(tmp_path) if line["type"] == "train"]
    assert iterations == [*range(1, 13)]


# -- torchrun --------------------------------------------------------------------------------------
@pytest.mark.slow
def test_torchrun_restarts_a_run_that_lost_a_process(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1:4", "--max_restarts=2"]
    command += ["--rdzv_conf=last_call_timeout=1"]  # seconds to wait for more machines, not 30
    command += ["--nproc_per_node=2", "--standalone"]
    flags = ["--init_from=continue", "--max_iters=100", "--eval_interval=1000"]
    command += training(tmp_path / "run", *flags, "--checkpoint_interval=1", "--compile=False")
    environment = os.environ | ONE_THREAD | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    file = tmp_path / "run/metrics.jsonl"
    with open(tmp_path / "said", "w") as said:
        torchrun = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=said, stderr=said)
        try:
            deadline = time.monotonic() + 60
            while not file.exists() or len(metrics(file.parent)) <= 5:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            os.kill(int((tmp_path / "run/lock").read_text().split()[1]), signal.SIGKILL)
            assert torchrun.wait(120) == 0, (tmp_path / "said").read_text()
        finally:
            torchrun.terminate()
            torchrun.wait()
    assert load(tmp_path / "run/checkpoint.pt")["iteration"] == 100
    assert sum(line["type"] == "config" for line in metrics(tmp_path / "run")) == 2
