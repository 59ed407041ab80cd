"""train.py: what a run records, that a kill costs nothing, and what an update computes."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from conftest import Script, evaluate, losses, metrics, run_script, same, train, training
from torch._inductor.exc import InductorError
from toys import contents

import policies
import train as trainer
from engine import machine
from engine.checkpoint import load
from engine.files import write_lines
from engine.processes import Place
from losses import ChunkedObjective, Objective
from model import Transformer


def end_after(out, iteration, send, *command, processes=1):
    """Start training and send(process 0) a signal once the iteration is recorded; the Script."""
    file, begin = out / "metrics.jsonl", time.time_ns()
    deadline = time.monotonic() + 90
    with Script(*command, processes=processes) as script:
        while time.monotonic() < deadline and script.processes[0].is_alive():
            fresh = file.exists() and file.stat().st_mtime_ns > begin
            if not iteration or (fresh and f'"iter": {iteration},' in file.read_text()):
                break
            time.sleep(0.002)
        time.sleep(random.uniform(0, 0.03 if iteration else 0.4))  # a run takes a second
        send(script.processes[0])
        for process in script.processes:
            process.join(60)
        return [(script.errors(rank), p.exitcode) for rank, p in enumerate(script.processes)]


# -- the record ------------------------------------------------------------------------------------
def test_the_rate_warms_up_and_then_follows_a_cosine(trained):
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1e-3)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=15, eta_min=1e-4)
    expected = [2e-4, 4e-4, 6e-4, 8e-4, 1e-3]
    for _ in range(15):
        expected += cosine.get_last_lr()
        optimizer.step()
        cosine.step()
    rates = [line["lr"] for line in metrics(trained) if line["type"] == "train"]
    assert rates == pytest.approx(expected)


# -- killed and stopped runs -----------------------------------------------------------------------
@pytest.mark.parametrize("method", ["puma", "blocks"])
def test_killed_runs_end_in_the_same_weights_and_record(method, tmp_path):
    """kill -9 at KILLS random moments, in set-up too."""
    flags = ["--checkpoint_interval=4", "--micro_batch=8", "--max_iters=40", "--eval_interval=20"]
    flags += ["--chains_from=10"]
    if method == "blocks":
        flags[-1] = "--block_schedule=[(0,1),(6,4),(14,8),(30,16)]"
        flags += ["--k_schedule=[(0,2),(25,1)]"]
    train(tmp_path / "whole", *flags)
    flags += ["--init_from=continue"]  # changes nothing: a resume, or a start
    command, saved = training(tmp_path / "killed", *flags), 0
    for at in sorted(random.choices(range(36), k=int(os.environ.get("KILLS", "1")))):
        at = at and max(at, saved + 1)
        ((_, code),) = end_after(tmp_path / "killed", at, lambda p: p.kill(), *command)
        assert code == -signal.SIGKILL, f"killed at {at} from {saved}"
        if (tmp_path / "killed/checkpoint.pt").exists():
            saved = load(tmp_path / "killed/checkpoint.pt")["iteration"]
        assert saved % 4 == 0
        print(f"killed at {at}, saved at {saved}")
    train(tmp_path / "killed", *flags)
    assert same(*(load(tmp_path / run / "checkpoint.pt") for run in ("whole", "killed")))
    whole, killed = (metrics(tmp_path / run) for run in ("whole", "killed"))
    for line in whole + killed:
        line.pop("seconds", None)
        line.pop("examples_per_second", None)
    assert [line for line in killed if line["type"] != "config"] == whole[1:]


@pytest.mark.slow
@pytest.mark.parametrize("processes, number", [(1, signal.SIGINT), (2, signal.SIGHUP)])
def test_a_stopped_run_writes_a_checkpoint_and_loses_nothing(processes, number, tmp_path):
    train(tmp_path / "whole", processes=processes)
    results = end_after(
        tmp_path / "stopped", 5, lambda p: os.kill(p.pid, number), *training(tmp_path / "stopped"),
        processes=processes,
    )  # fmt: skip
    saved = load(tmp_path / "stopped/checkpoint.pt")["iteration"]
    assert 5 <= saved < 20
    for errors, code in results:
        last = f"stopped at iteration {saved}; add --init_from=resume to go on there"
        assert code and errors.splitlines()[-1] == last and "Traceback" not in errors
    train(tmp_path / "stopped", "--init_from=resume", processes=processes)
    assert same(*(load(tmp_path / run / "checkpoint.pt") for run in ("whole", "stopped")))


def test_a_run_goes_on_with_its_own_settings_and_only_flags_change_them(tmp_path, capsys):
    train(tmp_path, "--tau=0.2", "--max_iters=2")
    file = tmp_path / "own.py"
    file.write_text(f"tau = 0.9; out_dir = {str(tmp_path)!r}; init_from = 'continue'")
    said = run_script("train.py", str(file), "--lr=5e-4", "--max_iters=3")
    assert "settings as in" in capsys.readouterr().err
    assert "at iteration 2 with changes: lr 0.001 -> 0.0005\n" in said
    saved = load(tmp_path / "checkpoint.pt")
    assert saved["config"]["tau"] == 0.2 and saved["iteration"] == 3


@pytest.mark.parametrize(
    "updates, ema, vocabulary, parts",
    [
        (machine.LONG - 1, 0.9, 5, ["Layer", "Layer"]),
        (machine.LONG, 0.9, 5, ["Objective"]),
        (machine.LONG - 1, 0, 5, ["Objective"]),  # whose layers are evaluated, too
        (machine.LONG - 1, 0.9, 500, ["ChunkedObjective"]),
    ],
)
def test_a_short_run_compiles_its_layers(updates, ema, vocabulary, parts, monkeypatch):
    compiled = []
    for kind in (torch.nn.Module, ChunkedObjective):
        monkeypatch.setattr(kind, "compile", lambda self: compiled.append(type(self).__name__))
    for name, value in {"max_iters": updates, "ema": ema, "compile": True}.items():
        monkeypatch.setattr(trainer, name, value)
    model = Transformer(vocabulary, 4, length=16, dim=32, layers=2, heads=2, mlp=64)
    trainer.make_objective(model, Place(1, 0, torch.device("cpu"), False))
    assert compiled == parts


@pytest.mark.parametrize("first", [True, False])
def test_ctrl_c_does_not_reach_a_compiler(first):
    with machine.compiling(first, False):
        compiler = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1)"])
        time.sleep(0.2)
        compiler.send_signal(signal.SIGINT)
        assert bool(compiler.wait()) != first


def test_a_cache_that_cannot_be_used_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    message = rf"file too short.*delete its cache, {tmp_path}"
    with pytest.raises(SystemExit, match=message), machine.compiling(True, False):
        raise InductorError(ImportError("main.so: file too short"), None)
    with pytest.raises(ValueError), machine.compiling(True, False):
        raise ValueError


def test_an_evaluation_in_which_a_run_was_killed_is_repeated(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "killed")
    *before, evaluation = metrics(trained)
    assert evaluation["type"] == "eval" and evaluation["iter"] == 20
    write_lines(tmp_path / "killed/metrics.jsonl", before)
    for times in (1, 2):
        said = train(tmp_path / "killed", "--init_from=resume")
        assert "all 20 updates are done: a larger --max_iters goes on" in said
        lines = metrics(tmp_path / "killed")
        assert [line for line in lines[1:] if line["type"] != "config"] == metrics(trained)[1:]
        assert sum(line["type"] == "config" for line in lines) == 1 + times


def test_a_process_that_differs_is_named(trained, tmp_path):
    """As if the command had been typed again on another machine, which has another disk."""
    shutil.copytree(trained, tmp_path / "run")
    flags = training(tmp_path / "run", "--init_from=continue", "--max_iters=22")
    last = [f"--out_dir={tmp_path}/own"]
    with Script(*flags, processes=2, last=last) as script, pytest.raises(AssertionError) as error:
        script.wait(60)
    assert "process 1 has start iteration 0, process" in str(error.value)
    assert str(error.value).count("ValueError") == 1  # the other waits until torchrun ends it


# -- updates ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("processes, micro_batch", [(1, 4), (2, 8), (2, 4)])
def test_the_gradient_is_that_of_one_pass_over_all_rows(processes, micro_batch, tmp_path):
    """However the 16 rows of an update are split over processes and passes."""
    flags = ["--grad_clip=0", f"--micro_batch={micro_batch}"]
    train(tmp_path, "--max_iters=0", *flags, processes=processes)
    before = load(tmp_path / "checkpoint.pt")
    train(tmp_path, "--max_iters=1", "--init_from=resume", *flags, processes=processes)
    after = load(tmp_path / "checkpoint.pt")

    passes = 16 // processes // micro_batch
    streams = [rank["stream"] for rank in before["ranks"]]
    x0, hidden = (torch.cat([s[name][:passes].flatten(0, 1) for s in streams])
                  for name in ("x0", "hidden"))  # fmt: skip
    assert x0.shape == (16, 16) and not any(stream["turn"] for stream in streams)
    model = Transformer(**before["model_args"])
    model.load_state_dict(before["model"])
    x = x0.masked_fill(hidden, model.mask_token)
    loss, *_ = Objective(model, policies.top_k)(x, x0, hidden)
    loss.backward()
    if processes == 1:  # the record is of the first process
        assert losses(tmp_path) == pytest.approx([loss.item()])
    # AdamW's first moment after one step is (1 - beta1) times the gradient that it was given.
    layers = [p for p in model.model.layers.parameters() if p.dim() > 1]
    ends = [model.model.embed_tokens.weight, model.lm_head.weight]
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    for i, p in enumerate(layers + ends + vectors):
        gradient = after["optimizer"]["state"][i]["exp_avg"] / (1 - 0.9)
        torch.testing.assert_close(gradient, p.grad, atol=1e-6, rtol=1e-4)


def test_evaluation_leaves_training_as_it_was(tmp_path):
    train(tmp_path / "often", "--eval_interval=3", "--eval_policies=['random']")
    train(tmp_path / "once", "--eval_interval=20")
    often, once = (load(tmp_path / run / "checkpoint.pt") for run in ("often", "once"))
    assert same(often["model"], once["model"]) and same(often["ranks"], once["ranks"])


# -- mistakes --------------------------------------------------------------------------------------
MISTAKES = [
    (dict(dataset="sudokus"), "dataset 'sudokus': expected sudoku, "),
    (dict(method="mdn"), "expected puma, mdm, ar or "),
    (dict(method="mdm", carry=True), "carry: expected False with method='mdm'"),
    (dict(min_lr=1.0), "min_lr 1.0: expected at most lr 0.001"),
    (dict(chains_from=3000), "chains_from 3000: expected 0, or less than max_iters=3000"),
    (dict(shard=True, muon=True), "shard: expected --muon=False"),
]


@pytest.mark.parametrize("settings, message", MISTAKES)
def test_mistakes_are_named(settings, message, monkeypatch):
    for name, value in settings.items():
        monkeypatch.setattr(trainer, name, value)
    with pytest.raises(ValueError) as error:
        trainer.check()
    assert message in str(error.value)


@pytest.mark.parametrize(
    "flag, message",
    [
        ("--lrr=1", "did you mean --lr"),
        ("--device=cpuu", "device cpuu: not on this machine; use device="),
        ("--policy=topk", "<block size>; did you mean top_k?"),
        ("--dim=33", "dim=33 must split into heads=2 of even width"),
        ("--init_from=resume", "no checkpoint"),
        ("--init_from=best", "expected scratch, resume, continue, a run or hf:FOLDER"),
        ("--block_schedule=[(0,3)]", "blocks of 3 do not divide rows of 16"),
    ],
)
def test_a_mistake_is_one_line_and_changes_no_file(flag, message, trained, refused, tmp_path):
    """Whether the configurator finds it, or a part of the run while it is set up."""
    assert message in refused(train, tmp_path / "run", flag)
    assert not (tmp_path / "run").exists()
    before = contents(trained)
    refused(train, trained, flag, "--layers=3")
    assert contents(trained) == before


def test_a_new_run_keeps_the_old_one_and_its_measurements(tmp_path):
    for seed in (1, 2, 3):
        train(tmp_path, f"--seed={seed}", "--max_iters=1", "--keep_every=1")
        (tmp_path / "nelbo.json").write_text(str(seed))
    for seed, folder in enumerate(["before.1", "before.2", "."], start=1):
        run = tmp_path / folder
        assert load(run / "checkpoint.pt")["config"]["seed"] == seed
        assert metrics(run)[0]["config"]["seed"] == seed
        assert (run / "weights/000001.pt").exists()
        assert (run / "nelbo.json").read_text() == str(seed)


# -- autoregression --------------------------------------------------------------------------------
def test_autoregression_is_evaluated_from_left_to_right(tmp_path):
    printed = train(tmp_path, "--method=ar", "--lr=3e-3", "--max_iters=60", "--eval_interval=60")
    assert "(left_to_right, 1 per step)" in printed
    assert load(tmp_path / "checkpoint.pt")["model_args"]["causal"]
    first, last = np.mean(losses(tmp_path)[:5]), np.mean(losses(tmp_path)[-5:])
    assert last < first <= np.log(4) + 0.01
    # the averaged weights lag behind; both are the same loss
    average = np.mean(losses(tmp_path)[-20:])
    assert metrics(tmp_path)[-1]["val_loss"] == pytest.approx(average, abs=0.1)


@pytest.mark.parametrize("tied", [False, True])
def test_masked_diffusion_starts_from_an_autoregressive_run(tied, tmp_path, refused):
    flags = [f"--tied={tied}", "--eval_interval=100", "--muon=True"]
    train(tmp_path / "ar", "--method=ar", *flags)
    first = load(tmp_path / "ar/checkpoint.pt")
    source = f"--init_from={tmp_path}/ar" + "/checkpoint.pt" * tied
    train(tmp_path / "start", source, "--max_iters=0", *flags)
    start = load(tmp_path / "start/checkpoint.pt")
    assert start["iteration"] == 0 and not start["optimizer"]["state"]
    assert start["model_args"]["shifted"] and not start["model_args"]["causal"]
    assert same(start["model"], start["ema"])
    for name, weight in first["ema"].items():
        if weight.shape[0] == 5 and (tied or "embed" in name):  # digits and mask
            weight = torch.cat((weight[:4], weight[:4].mean(0, keepdim=True)))
        assert start["model"][name].equal(weight), name

    said = refused(train, tmp_path / "other", source, "--dim=64", "--theta=100", *flags)
    assert "architecture: dim 32 -> 64, theta 10000.0 -> 100.0; leave out --dim, --theta" in said
    train(tmp_path / "whole", source, "--max_iters=8", *flags)
    train(tmp_path / "parts", source, "--max_iters=4", *flags)
    (tmp_path / "ar").rename(tmp_path / "gone")
    train(tmp_path / "parts", "--init_from=resume", "--max_iters=8", *flags)
    whole, parts = (load(tmp_path / run / "checkpoint.pt") for run in ("whole", "parts"))
    assert same(whole["ema"], parts["ema"]) and parts["model_args"]["shifted"]


@pytest.mark.parametrize("method", ["puma", "mdm"])
def test_blocks_grow_from_an_autoregressive_start(method, tmp_path):
    train(tmp_path / "ar", "--method=ar", "--max_iters=10")
    flags = [f"--method={method}", f"--init_from={tmp_path}/ar/checkpoint.pt", "--max_iters=12"]
    train(tmp_path / "run", *flags, "--block_schedule=[(0,1),(4,4),(8,8)]")
    assert np.isfinite(losses(tmp_path / "run")).all()
    saved = load(tmp_path / "run/checkpoint.pt")
    assert saved["model_args"]["shifted"] and saved["block"] == 8
    evaluate(tmp_path / "run")
    (row,) = json.loads((tmp_path / "run/eval.json").read_text())
    assert row["accuracy"] == metrics(tmp_path / "run")[-1]["accuracy"]["top_k"]
