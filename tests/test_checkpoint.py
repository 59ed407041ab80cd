"""Damaged and foreign checkpoints, full disks, folders in use, runs that go on elsewhere."""

import copy
import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import zipfile

import pytest
import torch
from conftest import ONE_THREAD, ROOT, Script, evaluate, metrics, same, train, training

from engine.checkpoint import load
from engine.files import Lock
from engine.log import Log


# -- reading ---------------------------------------------------------------------------------------
def test_a_changed_byte_is_noticed_or_changes_nothing(trained, tmp_path):
    data, whole = (trained / "checkpoint.pt").read_bytes(), load(trained / "checkpoint.pt")
    chance, noticed = random.Random(0), 0
    for _ in range(150):
        place = chance.randrange(len(data))
        changed = bytes([data[place] ^ 1 << chance.randrange(8)])
        (tmp_path / "one.pt").write_bytes(data[:place] + changed + data[place + 1 :])
        try:
            assert same(load(tmp_path / "one.pt"), whole), f"byte {place}"
        except ValueError as error:
            assert "one.pt is damaged or not a checkpoint" in str(error)
            noticed += 1
    assert noticed > 100


@pytest.mark.parametrize("share", [0, 0.1, 0.9, 0.999])
def test_a_torn_checkpoint_is_named(share, trained, tmp_path):
    data = (trained / "checkpoint.pt").read_bytes()
    (tmp_path / "torn.pt").write_bytes(data[: int(share * len(data))])
    with pytest.raises(
        ValueError, match=r"torn.pt is damaged or not a checkpoint \(\w+\): use a copy"
    ):
        load(tmp_path / "torn.pt")


def test_an_archive_that_unpacks_to_more_than_it_is_is_not_unpacked(tmp_path):
    with zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(1 << 24))
    with pytest.raises(ValueError, match="it is compressed"):
        load(tmp_path / "bomb.pt")


def change_weight(change):
    def apply(state):
        for weights in state["model"], state["ema"]:
            weights["lm_head.weight"] = change(weights["lm_head.weight"].clone())

    return apply


def with_nan(weight):
    weight[1, 2] = torch.nan
    return weight


FORMS = {
    "a list": (lambda state: [1], "expected a dictionary, got list"),
    "no iteration": (lambda state: state.pop("iteration"), "iteration is None, expected int"),
    "a text as configuration": (lambda state: state.update(config="x"), "config is 'x'"),
    "no weights": (lambda state: (state.pop("ema"), state.pop("model")), "no weights"),
    "not finite": (change_weight(with_nan), "weights are not finite"),
    "misshapen": (
        change_weight(lambda w: w[:, :5].contiguous()),
        "size mismatch for lm_head.weight",
    ),
    "integers": (change_weight(lambda w: w.long()), "weights must be float32"),
    "half": (change_weight(lambda w: w.half()), "weights must be float32"),
    "negative": (lambda state: state.update(iteration=-1), "must not be negative"),
    "expanded": (
        change_weight(lambda w: w[:1, :1].expand(99999, 99999)),
        "share memory within a tensor",
    ),
    "one more": (lambda state: state["ema"].update(x=torch.zeros(1)), 'Unexpected key.*"x"'),
    "one less": (lambda state: state["ema"].pop("lm_head.weight"), 'Missing key.*"lm_head.weight"'),
    "a million layers": (lambda state: state["model_args"].update(layers=10**6), "not those of"),
    "a huge width": (lambda state: state["model_args"].update(dim=1 << 40), "whole numbers"),
    "unknown arguments": (lambda state: state["model_args"].update(x=1), "unexpected keyword"),
    "no arguments": (lambda state: state.update(model_args={}), "vocab_size"),
    "theta 0": (lambda state: state["model_args"].update(theta=0.0), "theta and eps"),
    "no such mask": (lambda state: state["model_args"].update(mask_token=77), "mask_token 77"),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_checkpoint_of_another_form_is_one_line(name, trained, tmp_path):
    change, message = FORMS[name]
    state = torch.load(trained / "checkpoint.pt", weights_only=True)
    changed = change(state)
    torch.save(changed if isinstance(changed, list) and name == "a list" else state,
               tmp_path / "checkpoint.pt")  # fmt: skip
    with pytest.raises(SystemExit, match=f"is not a checkpoint of this program: .*{message}"):
        evaluate(tmp_path)


SAVED = {
    "box": ([3, "x"], "the saved box: expected"),
    "dataset": ("texts", "dataset"),
    "test_examples": (-4, "test_examples -4: expected 1 <= test_examples"),
    "train_examples": ("many", "the saved train_examples: expected an int"),
}


@pytest.mark.parametrize("name", SAVED)
def test_a_saved_configuration_that_no_run_has_is_one_line(name, trained, tmp_path):
    value, message = SAVED[name]
    state = torch.load(trained / "checkpoint.pt", weights_only=True)
    state["config"][name] = value
    torch.save(state, tmp_path / "checkpoint.pt")
    with pytest.raises(SystemExit, match=message):
        evaluate(tmp_path)


RESUMED = {
    "optimizer": (lambda state: state.update(optimizer={}), "parts of the wrong form"),
    "no ranks": (lambda state: state.update(ranks=3), "ranks or init_from"),
    "ranks": (lambda state: state.update(ranks=[{}]), "parts of the wrong form"),
    "stream": (lambda state: state["ranks"][0]["stream"].pop("turn"), "parts of the wrong form"),
    "nothing but weights": (
        lambda state: state.pop("optimizer"),
        "has no optimizer: it holds only weights",
    ),
    "moments": (
        lambda state: state["optimizer"]["state"][0].update(exp_avg=torch.zeros(3)),
        "parts of the wrong form",
    ),
    "setting": (lambda state: state["config"].pop("tau"), "tau None -> 0.9"),
}


@pytest.mark.parametrize("name", RESUMED)
def test_a_run_is_not_resumed_from_parts_of_another_form(name, trained, tmp_path):
    change, message = RESUMED[name]
    state = torch.load(trained / "checkpoint.pt", weights_only=True)
    change(state)
    torch.save(state, tmp_path / "checkpoint.pt")
    with pytest.raises(SystemExit, match=message):
        train(tmp_path, "--init_from=resume", "--max_iters=22")
    assert not (tmp_path / "lock").exists() and len(list(tmp_path.iterdir())) == 1


# -- not finite ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "flags",
    [
        ["--checkpoint_interval=3"],
        ["--checkpoint_interval=3", "--log_interval=1000"],
        ["--checkpoint_interval=1", "--log_interval=1000", "--grad_clip=0"],
        ["--log_interval=1000", "--eval_interval=40"],
        ["--keep_every=1", "--log_interval=1000"],
    ],
)
def test_nothing_is_saved_that_is_not_finite(flags, tmp_path):
    with pytest.raises(SystemExit, match=r"(nan|not finite).* at iteration .* is intact: .*--lr"):
        train(tmp_path, "--lr=1e9", "--warmup=0", "--max_iters=40", *flags)
    for file in tmp_path.rglob("*.pt"):
        load(file)
    assert load(tmp_path / "checkpoint.pt")["iteration"] < 40


def test_a_process_whose_loss_is_not_finite_stops_all(tmp_path):
    flags = ["--lr=1e9", "--warmup=0", "--log_interval=1000", "--checkpoint_interval=5"]
    with Script(*training(tmp_path, *flags), processes=2) as script:
        with pytest.raises(AssertionError):
            script.wait(60)
        for rank, process in enumerate(script.processes):
            process.join(20)
            assert "at iteration" in script.errors(rank) and "Traceback" not in script.errors(rank)


# -- writing ---------------------------------------------------------------------------------------
def failing(calls, spoil=lambda: None):
    """A torch.save that has no room at these calls (numbers from 0), after it wrote a little."""
    save, count = torch.save, iter(range(10**6))

    def torch_save(state, file):
        if next(count) in calls:
            file.write(b"half")
            spoil()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(state, file)

    return torch_save


SAVES = ["--checkpoint_interval=4", "--log_interval=2", "--eval_interval=100"]


def test_a_full_disk_costs_one_line_if_room_is_made(tmp_path, monkeypatch, capsys):
    train(tmp_path / "whole", *SAVES)
    monkeypatch.setattr(torch, "save", failing({2, 3, 4}))
    train(tmp_path / "full", *SAVES)
    said = capsys.readouterr().err
    assert said.count("No space left on device") == 1
    assert "checkpoint.pt of iteration 4 is intact, the run continues" in said
    assert same(*(load(tmp_path / run / "checkpoint.pt") for run in ("whole", "full")))
    assert len(list((tmp_path / "full").iterdir())) == 2


def test_a_disk_that_stays_full_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "save", failing(range(3, 99)))
    monkeypatch.setattr(checkpoint.Keeper, "TRIES", 1)
    with pytest.raises(SystemExit, match=r"iteration 20 are lost; .*pt of iteration 8 is intact"):
        train(tmp_path, *SAVES)
    assert load(tmp_path / "checkpoint.pt")["iteration"] == 8
    assert {file.name for file in tmp_path.iterdir()} == {"checkpoint.pt", "metrics.jsonl"}


def test_a_disk_that_is_full_at_the_start_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "save", failing({0}))
    with pytest.raises(SystemExit, match=r"OSError: cannot write .*checkpoint.pt: No space left"):
        train(tmp_path / "run", *SAVES)
    assert not (tmp_path / "run").exists()


def test_a_folder_that_is_deleted_is_written_again(tmp_path, monkeypatch):
    train(tmp_path / "whole", *SAVES)
    monkeypatch.setattr(torch, "save", failing({3}, lambda: shutil.rmtree(tmp_path / "run")))
    train(tmp_path / "run", *SAVES)
    assert same(*(load(tmp_path / run / "checkpoint.pt") for run in ("whole", "run")))
    iterations = [line["iter"] for line in metrics(tmp_path / "run") if line["type"] == "train"]
    assert iterations == [*range(2, 21, 2)]


def test_metrics_wait_for_room(tmp_path, monkeypatch, capsys):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Lock(tmp_path) as lock:
        log = Log(lock, {}, 0, 3, {})
        log.write({"iter": 1})
        whole = (tmp_path / "metrics.jsonl").read_text()
        with monkeypatch.context() as patch:
            patch.setattr("builtins.open", full)
            log.write({"iter": 2})
            with pytest.raises(SystemExit, match="the run's record is lost"):
                log.close()
        assert (tmp_path / "metrics.jsonl").read_text() == whole
        log.write({"iter": 3})
        log.close()
    assert [line.get("iter") for line in metrics(tmp_path)] == [None, 1, 2, 3]
    assert "will retry at the next line" in capsys.readouterr().err


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    """Updates are logged meanwhile, and do not change what is written."""
    save, wrote, copies = torch.save, [], []

    def slow(state, file):
        if state["iteration"] == 8:
            copies.append(copy.deepcopy(state))
            path = tmp_path / "run/metrics.jsonl"
            limit = time.monotonic() + 60
            while time.monotonic() < limit:
                wrote.append(metrics(path.parent)[-1].get("iter", 0))
                if wrote[-1] > 10:
                    break
                time.sleep(0.01)
            shutil.copy(tmp_path / "run/checkpoint.pt", tmp_path / "before.pt")
            copies.append(state)
        save(state, file)

    monkeypatch.setattr(torch, "save", slow)
    train(tmp_path / "run", *SAVES, "--max_iters=12")
    assert wrote[-1] > 10 and load(tmp_path / "before.pt")["iteration"] == 4
    assert same(*copies)


# -- one run per folder ----------------------------------------------------------------------------
@pytest.mark.parametrize("flag", ["--seed=2", "--init_from=resume", "--init_from=continue"])
def test_a_folder_in_use_is_refused_and_left_alone(flag, trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    before = {file.name: file.read_bytes() for file in trained.iterdir()}
    with (
        Lock(tmp_path / "run"),
        pytest.raises(SystemExit, match=f"in use by process {os.getpid()} on "),
    ):
        train(tmp_path / "run", flag, "--max_iters=22")
    after = {file.name: file.read_bytes() for file in (tmp_path / "run").iterdir()}
    assert after == before


def test_a_killed_run_leaves_its_folder_free(tmp_path):
    with Script(*training(tmp_path, "--max_iters=1000", "--checkpoint_interval=1")) as script:
        wait_for(lambda: (tmp_path / "metrics.jsonl").exists())
        script.processes[0].kill()
        script.processes[0].join()
    assert (tmp_path / "lock").exists()
    train(tmp_path, "--max_iters=1")
    assert not (tmp_path / "lock").exists()


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# -- elsewhere -------------------------------------------------------------------------------------
def test_continue_is_resume_where_nothing_has_changed(trained, tmp_path):
    for run, start in ("resumed", "resume"), ("continued", "continue"):
        shutil.copytree(trained, tmp_path / run)
        train(tmp_path / run, f"--init_from={start}", "--max_iters=30")
    assert same(*(load(tmp_path / run / "checkpoint.pt") for run in ("resumed", "continued")))


def test_continue_without_a_checkpoint_starts_a_run(trained, tmp_path):
    assert "yet: starting a new run" in train(tmp_path, "--init_from=continue")
    assert same(*(load(run / "checkpoint.pt") for run in (trained, tmp_path)))


@pytest.mark.parametrize("method", ["puma", "mdm"])
def test_other_processes_continue_with_other_settings(method, tmp_path):
    flags = [f"--method={method}", "--eval_interval=100", "--checkpoint_interval=100"]
    weights = []
    for processes, iterations, more in (
        (2, 6, []),
        (1, 9, ["--batch_size=8", "--lr=2e-3", "--k_schedule=[(0,2)]", "--tau=None", "--ema=0"]),
        (3, 12, ["--buffer=1", "--ema=0.9", "--batch_size=6"]),
    ):
        before = load(tmp_path / "checkpoint.pt") if weights else None
        flags_now = [*flags, "--init_from=continue", f"--max_iters={iterations}", *more]
        said = train(tmp_path, *flags_now, processes=processes)
        saved = load(tmp_path / "checkpoint.pt")
        assert saved["iteration"] == iterations and len(saved["ranks"]) == processes
        assert saved["optimizer"]["state"][0]["step"] == iterations
        if before:
            assert f"continuing at iteration {before['iteration']} with changes: " in said
            last = metrics(tmp_path)[-1]
            assert not same(saved["model"], weights[-1])
        weights.append(saved["model"])
    configs = [line for line in metrics(tmp_path) if line["type"] == "config"]
    assert "changes" not in configs[0]
    assert configs[1]["changes"]["processes"] == [2, 1]
    assert configs[1]["changes"]["tau"] == [0.9, None]
    assert configs[2]["changes"]["processes"] == [1, 3] and "lr" in configs[2]["changes"]
    losses = [line["loss"] for line in metrics(tmp_path) if line["type"] == "train"]
    assert len(losses) == 12 and last["type"] == "eval"


def test_weights_averages_and_moments_are_kept(tmp_path):
    """One more update at rate 0: the model stays, moments and average go on from what they were."""
    train(tmp_path, "--max_iters=6", processes=2)
    before = load(tmp_path / "checkpoint.pt")
    flags = ["--init_from=continue", "--batch_size=8", "--lr=0", "--min_lr=0"]
    train(tmp_path, "--max_iters=7", *flags)
    after = load(tmp_path / "checkpoint.pt")
    assert after["iteration"] == 7 and same(before["model"], after["model"])
    decay = (1 + 6) / (10 + 6)
    for name, average in before["ema"].items():
        expected = decay * average + (1 - decay) * before["model"][name]
        torch.testing.assert_close(after["ema"][name], expected)
    for number, moments in before["optimizer"]["state"].items():
        square = after["optimizer"]["state"][number]["exp_avg_sq"]
        assert (square >= 0.99 * moments["exp_avg_sq"] - 1e-9).all()  # beta2; a new square is added


def test_a_rate_that_explodes_leaves_a_checkpoint_to_go_on_from(trained, tmp_path):
    """Weights that are finite, but whose loss is not, do not replace it."""
    shutil.copytree(trained, tmp_path / "run")
    flags = ["--init_from=continue", "--checkpoint_interval=1"]
    with pytest.raises(SystemExit, match="of iteration 20 is intact"):
        train(tmp_path / "run", *flags, "--max_iters=1000", "--compile=False", "--lr=1e30")
    train(tmp_path / "run", *flags, "--max_iters=24", "--lr=1e-4")
    assert load(tmp_path / "run/checkpoint.pt")["iteration"] == 24


def test_a_folder_that_another_run_has_used_is_not_written(tmp_path, monkeypatch):
    def take_over():
        (tmp_path / "run").rename(tmp_path / "away")
        with Script(*training(tmp_path / "run", "--max_iters=3", "--seed=7")) as other:
            other.wait(60)

    monkeypatch.setattr(torch, "save", failing({5}, take_over))  # the last, which is waited for
    with pytest.raises(SystemExit, match="has been used by another run"):
        train(tmp_path / "run", *SAVES)
    assert load(tmp_path / "run/checkpoint.pt")["config"]["seed"] == 7
    assert metrics(tmp_path / "run")[0]["config"]["seed"] == 7


def test_a_lock_that_leads_elsewhere_is_not_followed(tmp_path):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "run").mkdir()
    for make in (
        lambda path: path.symlink_to(tmp_path / "precious"),
        lambda path: path.mkdir(),
        os.mkfifo,
    ):
        make(tmp_path / "run/lock")
        with pytest.raises(SystemExit, match=r"cannot write .*lock: .*; give another out_dir"):
            train(tmp_path / "run", "--max_iters=1")
        shutil.move(tmp_path / "run/lock", tmp_path / f"moved{time.monotonic_ns()}")
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_record_that_cannot_be_written_at_all_is_an_error(tmp_path):
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(SystemExit, match="the run's record is lost"):
        train(tmp_path, "--max_iters=2")


def test_a_start_can_be_given_for_the_case_that_there_is_no_checkpoint(trained, tmp_path):
    start = f"--init_from=continue:{trained}/checkpoint.pt"
    train(tmp_path, start, "--max_iters=0", "--eval_interval=100")
    assert same(load(tmp_path / "checkpoint.pt")["model"], load(trained / "checkpoint.pt")["ema"])
    train(tmp_path, start, "--max_iters=2", "--eval_interval=100")
    assert load(tmp_path / "checkpoint.pt")["iteration"] == 2
    with pytest.raises(SystemExit, match="lora_rank 4: expected init_from continue:hf:FOLDER"):
        train(tmp_path / "new", "--init_from=continue", "--lora_rank=4", "--ema=0")


@pytest.mark.parametrize("flag", ["--seed=2", "--dim=64", "--muon=True", "--method=ar"])
def test_what_the_data_order_and_the_optimizer_need_cannot_change(flag, trained):
    with pytest.raises(SystemExit, match=f"must keep its configuration: {flag[2:].split('=')[0]}"):
        train(trained, "--init_from=continue", "--max_iters=30", flag)


# -- lost processes --------------------------------------------------------------------------------
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_that_dies_or_hangs_stops_the_other(number, tmp_path):
    command = training(tmp_path, "--max_iters=100000", "--patience=4", "--compile=False")
    with Script(*command, processes=2) as script:
        wait_for(lambda: len(metrics(tmp_path)) > 5 if (tmp_path / "metrics.jsonl").exists() else 0)
        os.kill(script.processes[1].pid, number)
        script.processes[0].join(40)
        assert script.processes[0].exitcode == 1
        assert "another process was lost" in script.errors(0)
        assert "checkpoint.pt of iteration" in script.errors(0)
        assert "--init_from=continue" in script.errors(0)
        script.processes[1].kill()
    load(tmp_path / "checkpoint.pt")


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
            wait_for(lambda: file.exists() and len(metrics(file.parent)) > 5)
            os.kill(int((tmp_path / "run/lock").read_text().split()[1]), signal.SIGKILL)
            assert torchrun.wait(120) == 0, (tmp_path / "said").read_text()
        finally:
            torchrun.terminate()
            torchrun.wait()
    assert load(tmp_path / "run/checkpoint.pt")["iteration"] == 100
    assert sum(line["type"] == "config" for line in metrics(tmp_path / "run")) == 2
