import json
import os
import random
import shutil
import signal
import time
from importlib.util import find_spec
from multiprocessing.process import BaseProcess

import numpy as np
import pytest
import torch
from conftest import Script, evaluate, metrics, same, train, training

import policies
from engine.checkpoint import load, save
from engine.files import write_lines
from engine.queue import ExampleQueue
from losses import Objective
from model import Transformer
from puma import saved_chains
from tasks import sudoku


def end_after(out, iteration, end, *command):
    """Start training and end(process) once it has recorded the iteration: (stderr, status)."""
    file, begin = out / "metrics.jsonl", time.time_ns()
    with Script(*command) as script:
        (process,) = script.processes
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline and process.is_alive():
            fresh = file.exists() and file.stat().st_mtime_ns > begin
            if fresh and f'"iter": {iteration},' in file.read_text():
                break
            time.sleep(0.005)
        end(process)
        process.join(60)
        return script.errors(), process.exitcode


@pytest.mark.parametrize(
    "program, seconds, message",
    [
        ("if rank == '1': raise KeyError('of rank 1')", 60, "KeyError: 'of rank 1'"),
        ("", 1, "exit status none: out of time"),
    ],
)
def test_what_fails_in_a_process_is_told_and_none_is_left(program, seconds, message, tmp_path):
    (tmp_path / "script.py").write_text(
        f"import os, time\nrank = os.environ['RANK']\n{program}\ntime.sleep(999)"
    )
    with Script(tmp_path / "script.py", processes=2) as script:
        with pytest.raises(AssertionError, match=message):
            script.wait(seconds)
        ids = [process.pid for process in script.processes]
    for number in ids:
        with pytest.raises(ProcessLookupError):
            os.kill(number, 0)


def test_record_and_report(trained):
    lines = metrics(trained)
    assert lines[0]["config"]["method"] == "puma" and lines[0]["config"]["box"] == [2, 2]
    assert lines[0]["versions"]["torch"] == torch.__version__
    assert [line["iter"] for line in lines if line["type"] == "train"] == list(range(1, 21))
    evals = [line for line in lines if line["type"] == "eval"]
    assert [line["iter"] for line in evals] == [10, 20]
    assert set(evals[0]["accuracy"]) == {"top_k", "margin", "entropy"}


def test_training_lowers_the_loss(tmp_path):
    """In 60 updates, by 0.08 or more over four seeds; in 20 it is a matter of the seed."""
    train(tmp_path, "--max_iters=60", "--eval_interval=60")
    losses = [line["loss"] for line in metrics(tmp_path) if line["type"] == "train"]
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.05


@pytest.mark.parametrize("method", ["puma", "mdm", "ar", "puma in blocks", "puma later"])
def test_killed_runs_end_in_the_same_weights(method, tmp_path):
    flags = [f"--method={method.split()[0]}", "--checkpoint_interval=4", "--micro_batch=8"]
    flags += ["--max_iters=40", "--eval_interval=20"]
    if "blocks" in method:
        flags += ["--block_schedule=[(0,1),(6,4),(14,8),(30,16)]", "--k_schedule=[(0,2),(25,1)]"]
    if "later" in method:
        flags += ["--chains_from=10"]
    train(tmp_path / "whole", *flags)
    start, saved = [], 0
    for at in sorted(random.choices(range(1, 36), k=int(os.environ.get("KILLS", "1")))):
        at = max(at, saved + 1)
        command = training(tmp_path / "killed", *flags, *start)
        _, code = end_after(tmp_path / "killed", at, BaseProcess.kill, *command)
        assert code == -signal.SIGKILL, f"killed at {at} from {saved}"
        saved = load(tmp_path / "killed/checkpoint.pt")["iteration"]
        assert saved % 4 == 0
        start = ["--init_from=resume"]
    train(tmp_path / "killed", *flags, *start)
    whole, killed = (load(tmp_path / run / "checkpoint.pt") for run in ("whole", "killed"))
    assert same(whole, killed)
    changed = [line for line in metrics(tmp_path / "killed") if line["type"] != "config"]
    expected = [line for line in metrics(tmp_path / "whole") if line["type"] != "config"]
    for line in changed + expected:
        line.pop("seconds", None)
        line.pop("examples_per_second", None)
    assert changed == expected


@pytest.mark.parametrize("processes", [1, 2])
def test_sigterm_writes_a_checkpoint_and_resuming_loses_nothing(processes, tmp_path):
    train(tmp_path / "whole", processes=processes)
    command = training(tmp_path / "stopped")
    if processes > 1:  # the real one, which passes the signal on
        torchrun = find_spec("torch.distributed.run").origin
        command = torchrun, f"--nproc_per_node={processes}", "--standalone", *command
    error, code = end_after(tmp_path / "stopped", 5, BaseProcess.terminate, *command)
    assert code != 0 and "--init_from=resume" in error
    assert 5 <= load(tmp_path / "stopped/checkpoint.pt")["iteration"] < 20
    train(tmp_path / "stopped", "--init_from=resume", processes=processes)
    assert same(*(load(tmp_path / run / "checkpoint.pt") for run in ("whole", "stopped")))


def test_an_evaluation_in_which_a_run_was_killed_is_made_up_for(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "killed")
    *before, evaluation = metrics(trained)
    assert evaluation["type"] == "eval" and evaluation["iter"] == 20
    write_lines(tmp_path / "killed/metrics.jsonl", before)
    for times in (1, 2):
        train(tmp_path / "killed", "--init_from=resume")
        written = metrics(tmp_path / "killed")
        assert [line for line in written[1:] if line["type"] != "config"] == metrics(trained)[1:]
        assert sum(line["type"] == "config" for line in written) == 1 + times


@pytest.mark.parametrize("method", ["puma", "mdm"])
def test_papl_weighs_the_loss_of_both_methods(method, tmp_path):
    """Before anything is learned all confidences are alike: weights 1 + 3 / hidden, up to 12."""
    flags = [f"--method={method}", "--max_iters=1"]
    train(tmp_path / "plain", *flags)
    train(tmp_path / "papl", *flags, "--papl=3")
    plain, papl = (metrics(tmp_path / run)[1] for run in ("plain", "papl"))
    assert 1.2 < papl["loss"] / plain["loss"] < 4


def test_gradient_of_two_processes_is_that_of_one_on_the_joined_batch(tmp_path):
    train(tmp_path, "--max_iters=0", "--grad_clip=0", processes=2)
    before = load(tmp_path / "checkpoint.pt")
    train(tmp_path, "--max_iters=1", "--init_from=resume", "--grad_clip=0", processes=2)
    after = load(tmp_path / "checkpoint.pt")

    model = Transformer(**before["model_args"])
    model.load_state_dict(before["model"])
    streams = [rank["stream"] for rank in before["ranks"]]
    queue = ExampleQueue(sudoku.load(before["config"]).train, 8)
    chains = [saved_chains(stream, queue) for stream in streams]
    turns = [int(stream["turn"]) for stream in streams]
    x0, hidden = (
        torch.cat([c[name][turn] for c, turn in zip(chains, turns, strict=True)])
        for name in ("x0", "hidden")
    )
    assert len(x0) == 16 and not chains[0]["x0"].equal(chains[1]["x0"])
    x = x0.masked_fill(hidden, model.mask_token)
    Objective(model, policies.top_k)(x, x0, hidden)[0].backward()
    # AdamW's first moment after one step is (1 - beta1) times the gradient that it was given.
    layers = [p for p in model.model.layers.parameters() if p.dim() > 1]
    ends = [model.model.embed_tokens.weight, model.lm_head.weight]
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    for i, p in enumerate(layers + ends + vectors):
        given = after["optimizer"]["state"][i]["exp_avg"] / (1 - 0.9)
        torch.testing.assert_close(given, p.grad, atol=1e-6, rtol=1e-4)


def test_chains_that_end_at_once_are_told_once(tmp_path, capsys):
    """With tau = 0 the first visit reveals all."""
    for flags, told in (("--tau=0",), 1), (("--tau=0", "--random_share=0.5"), 0), ((), 0):
        train(tmp_path, "--max_iters=12", "--log_interval=3", *flags)
        assert capsys.readouterr().err.count("and may forget the rest") == told


def test_two_passes_train_as_one_does(tmp_path):
    """Random masks in both, drawn for 8 rows twice or for 16 at once: the losses have one law."""
    for name, flags in {"one": (), "two": ("--micro_batch=8",)}.items():
        train(tmp_path / name, "--method=mdm", "--max_iters=40", "--log_interval=40", *flags)
    lines = [metrics(tmp_path / name) for name in ("one", "two")]
    one, two = (next(line for line in each if line["type"] == "train") for each in lines)
    assert one["epoch"] == two["epoch"] and abs(one["loss"] - two["loss"]) < 0.1 * one["loss"]


def test_evaluation_leaves_training_as_it_was(tmp_path):
    train(tmp_path / "often", "--eval_interval=3", "--eval_policies=['random']")
    train(tmp_path / "once", "--eval_interval=20")
    often, once = (load(tmp_path / run / "checkpoint.pt") for run in ("often", "once"))
    assert same(often["model"], once["model"]) and same(often["ranks"], once["ranks"])


def test_eval_repeats_the_final_evaluation(trained):
    before = {file.name: file.read_bytes() for file in trained.iterdir()}
    final = metrics(trained)[-1]
    assert final["type"] == "eval"
    policies = f"--policy={[*final['accuracy']]}"
    evaluate(trained, policies)
    rows = json.loads((trained / "eval.json").read_text())
    assert {row["policy"]: row["accuracy"] for row in rows} == final["accuracy"]
    for name in ("eval.json", "eval.jsonl", "eval.md"):
        (trained / name).unlink()
    assert before == {file.name: file.read_bytes() for file in trained.iterdir()}


def test_what_a_killed_process_left_of_a_checkpoint_goes_with_the_next_one(tmp_path):
    left = tmp_path / "checkpoint.pt.123.tmp"
    left.write_bytes(b"half")
    save({"iteration": 3}, tmp_path / "checkpoint.pt")
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert not left.exists() and saved == {"iteration": 3}


def test_ema_follows_its_definition():
    from train import decay_at, update_average

    model, averaged = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    expected = averaged.weight.item()
    for n in range(5):
        model.weight.data.fill_(n)
        update_average(averaged, model, torch.tensor(1 - decay_at(n)))
        decay = (1 + n) / (10 + n)
        expected = decay * expected + (1 - decay) * n
    assert averaged.weight.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--init_from=resume"], "no checkpoint"),
        (["--init_from=best"], "expected scratch, resume, continue, FILE.pt or hf:FOLDER"),
        (["--method=mdn"], "expected puma, mdm or ar"),
        (["--policy=sure"], "policy: unknown policy 'sure'"),
        (["--eval_policies=['sure']"], "eval_policies: unknown policy 'sure'"),
        (["--k_schedule=[(5,4)]"], "k_schedule"),
        (["--k_schedule=[(0,None)]"], "k_schedule"),
        (["--tau=90"], "tau 90.0: expected 0 <= tau <= 1 (a probability, or None)"),
        (["--dim=33"], "dim 33, heads 2: expected dim % (2 * heads) == 0"),
        (["--data_file=nowhere.csv"], "nowhere.csv"),
        (["--lrr=1"], "did you mean --lr"),
        (["--chains_from=-1"], "chains_from -1: expected 0 <= chains_from"),
        (["--chains_from=20"], "chains_from 20: expected less than max_iters 20"),
        (["--chains_from=5", "--chains_until=9"], "chains_from 5, chains_until 9"),
        (["--eval_interval=0"], "eval_interval 0: expected 1 <= eval_interval"),
        (["--papl=-1"], "papl -1.0: expected 0 <= papl"),
        (["--eval_policies=[]"], "eval_policies is empty"),
        (
            ["--data_file=README.md"],
            "make one with python data/sudoku/prepare.py --source=README.md",
        ),
        (["--block_schedule=[(0,3)]"], "blocks of 3 do not divide rows of 16"),
        (["--block_schedule=[(1,4)]"], "block_schedule"),
        (["--block_schedule=[(0,4.0)]"], "block_schedule"),
        (["--block_schedule=[(0,4)]", "--method=ar"], "ar is the case of blocks of 1"),
        (["--random_share=1"], "random_share 1.0: expected 0 <= random_share < 1"),
        (["--random_share=0.5", "--block_schedule=[(0,4)]"], "expected 0 with block_schedule"),
        (["--random_share=0.5", "--method=puma_bounded"], "expected 0 with method puma_bounded"),
        (["--batch_size=7", "--micro_batch=0"], "micro_batch 0: expected 1 <= micro_batch"),
        (["--device=cpuu"], "device cpuu"),
        (["--device=cuda:99"], "device cuda:99"),
        (["--dtype=float16"], "dtype 'float16'"),
        (["--eval_tau=high"], "expected a float or None"),
        (["--seed=-1"], "seed -1: expected 0 <= seed"),
        (["--ema=-1"], "ema -1.0: expected 0 <= ema <= 1"),
        (["--kv_heads=0"], "kv_heads 0"),
        (["--min_lr=1"], "min_lr 1.0, lr 0.001: expected 0 <= min_lr <= lr"),
        (["--box=(2,3,4)"], "expected a tuple of 2 int"),
        (["--dataset=instructions"], "data_dir is empty"),
        (
            ["--batch_size=1000000", "--layers=900", "--dim=6000"],
            "batch_size 1000000: the run needs",
        ),
        (["--batch_size=1000000", "--buffer=10000"], "buffer 10000: the run needs"),
        (["--dim=1000000"], "layers 2, dim 1000000, mlp 64: the run needs"),
        (["--device=meta"], "device meta"),
    ],
)
def test_mistakes_are_named_without_a_traceback(flags, message, tmp_path, refused):
    assert message in refused(train, tmp_path / "run", *flags)
    assert not (tmp_path / "run").exists()


def test_a_new_run_keeps_the_old_one_and_what_was_measured_of_it(tmp_path):
    for seed in (1, 2, 3):
        train(tmp_path, f"--seed={seed}", "--max_iters=1", "--keep_every=1")
        (tmp_path / "nelbo.json").write_text(str(seed))
    for seed, folder in enumerate(["before.1", "before.2", "."], start=1):
        run = tmp_path / folder
        assert load(run / "checkpoint.pt")["config"]["seed"] == seed
        assert metrics(run)[0]["config"]["seed"] == seed
        assert (run / "weights/000001.pt").exists()
        assert (run / "nelbo.json").read_text() == str(seed)


def test_a_run_that_is_refused_leaves_the_old_one_where_it_is(trained):
    before = {file.name: file.read_bytes() for file in trained.iterdir()}
    for flag in ("--dtype=float16", "--papl=-1", "--method=mdn", "--eval_reveal=0"):
        with pytest.raises(SystemExit):
            train(trained, flag)
    assert before == {file.name: file.read_bytes() for file in trained.iterdir()}


@pytest.mark.parametrize("flag", ["--seed=2", "--method=mdm", "--dim=64", "--weight_decay=0.5"])
def test_a_resumed_run_must_keep_its_configuration(flag, trained):
    with pytest.raises(SystemExit, match=f"must keep its configuration: {flag[2:].split('=')[0]}"):
        train(trained, "--init_from=resume", "--max_iters=30", flag)


def test_a_run_cannot_be_resumed_to_an_earlier_end_and_records_a_later_one(trained, tmp_path):
    with pytest.raises(SystemExit, match="max_iters 10: the run is at 20"):
        train(trained, "--init_from=resume", "--max_iters=10")
    shutil.copytree(trained, tmp_path / "longer")
    train(tmp_path / "longer", "--init_from=resume", "--max_iters=30")
    configs = [line["config"] for line in metrics(tmp_path / "longer") if "config" in line]
    assert [config["max_iters"] for config in configs] == [20, 30]


@pytest.mark.parametrize("tied", [False, True])
def test_masked_diffusion_starts_from_an_autoregressive_run(tied, tmp_path):
    flags = [f"--tied={tied}", "--eval_interval=100"]
    train(tmp_path / "ar", "--method=ar", *flags)
    first = load(tmp_path / "ar/checkpoint.pt")
    source = f"--init_from={tmp_path}/ar/checkpoint.pt"
    train(tmp_path / "start", source, "--max_iters=0", *flags)
    start = load(tmp_path / "start/checkpoint.pt")
    assert start["iteration"] == 0 and not start["optimizer"]["state"]
    assert start["model_args"]["shifted"] and not start["model_args"]["causal"]
    assert same(start["model"], start["ema"])
    for name, weight in first["ema"].items():
        if weight.shape[0] == 5 and (tied or "embed" in name):  # digits and mask
            weight = torch.cat((weight[:4], weight[:4].mean(0, keepdim=True)))
        assert start["model"][name].equal(weight), name

    train(tmp_path / "whole", source, "--max_iters=8", *flags)
    train(tmp_path / "parts", source, "--max_iters=4", *flags)
    (tmp_path / "ar").rename(tmp_path / "gone")
    train(tmp_path / "parts", "--init_from=resume", "--max_iters=8", *flags)
    whole, parts = (load(tmp_path / run / "checkpoint.pt") for run in ("whole", "parts"))
    assert same(whole["ema"], parts["ema"]) and parts["model_args"]["shifted"]


@pytest.mark.parametrize("method", ["puma", "mdm"])
def test_block_size_warm_up_from_an_autoregressive_run(method, tmp_path):
    train(tmp_path / "ar", "--method=ar", "--max_iters=10")
    flags = [f"--method={method}", f"--init_from={tmp_path}/ar/checkpoint.pt", "--max_iters=12"]
    flags += ["--block_schedule=[(0,1),(4,4),(8,8)]"]
    train(tmp_path / "run", *flags)
    lines = metrics(tmp_path / "run")
    assert all(np.isfinite(line["loss"]) for line in lines if line["type"] == "train")
    saved = load(tmp_path / "run/checkpoint.pt")
    assert saved["model_args"]["shifted"] and saved["block"] == 8
    evaluate(tmp_path / "run")
    (row,) = json.loads((tmp_path / "run/eval.json").read_text())
    assert row["accuracy"] == lines[-1]["accuracy"]["top_k"]


def test_another_architecture_to_start_from_is_named(trained, tmp_path):
    source = f"--init_from={trained}/checkpoint.pt"
    with pytest.raises(SystemExit, match="architecture: dim 32 -> 64, theta"):
        train(tmp_path, source, "--dim=64", "--theta=100")
    with pytest.raises(SystemExit, match="causal model must be shifted"):
        train(tmp_path, source, "--method=ar")


def test_autoregression_is_evaluated_from_left_to_right(tmp_path):
    out = train(tmp_path, "--method=ar", "--lr=3e-3", "--max_iters=60", "--eval_interval=60")
    assert "(left_to_right, 1 per step)" in out
    assert load(tmp_path / "checkpoint.pt")["model_args"]["causal"]
    losses = [line["loss"] for line in metrics(tmp_path) if line["type"] == "train"]
    evaluated = metrics(tmp_path)[-1]
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) <= np.log(4) + 0.01
    # the averaged weights lag behind; both are the same loss
    assert evaluated["val_loss"] == pytest.approx(np.mean(losses[-20:]), abs=0.1)
