"""Weights split over processes (FSDP2); processes on two machines."""

import json
import zipfile
from importlib.util import find_spec

import pytest
import torch
from conftest import Script, evaluate, free_port, losses, metrics, same, train, training

from engine.checkpoint import load

FLAGS = [  # a rate that does not depend on max_iters; two passes, recomputed
    "--warmup=0", "--lr=1e-3", "--min_lr=1e-3", "--micro_batch=4", "--gradient_checkpointing=True",
    "--eval_interval=5", "--max_iters=10",
]  # fmt: skip
GRADIENTS = """
import torch
import policies
from engine import head, processes, sharding
from variants import ChunkedPapl
from model import Transformer

head.CHUNK["cpu"] = 2000
world, rank, where, _ = processes.start("cpu", shard=True)
for tied in False, True:
    torch.manual_seed(0)
    args = dict(vocab_size=301, mask_token=300, length=7, dim=24, layers=2, heads=2, mlp=33)
    one, model = (Transformer(**args, tied=tied) for _ in range(2))
    model.load_state_dict(one.state_dict())
    sharding.split_up(model, model.model.layers, where)
    model.model.gradient_checkpointing = True
    x0 = torch.randint(300, (6, 7))
    hidden = torch.rand(6, 7) < 0.6
    hidden[:, 0] = True
    x = x0.masked_fill(hidden, 300)
    def loss_of(model, rows):
        own = x[rows], x0[rows], hidden[rows]
        return ChunkedPapl(model, policies.top_k, alpha=1.0)(*own)[0]
    loss_of(one, slice(6)).backward()
    loss_of(model, slice(rank, 6, world)).backward()
    held = sum(p.to_local().numel() for p in model.parameters())
    assert held < 0.55 * sum(p.numel() for p in one.parameters())
    for (name, p), q in zip(one.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(q.grad.full_tensor(), p.grad, msg=lambda m: f"{name}: {m}")
    with torch.no_grad(), sharding.unsharded(model):
        for _ in range(rank):  # as often as a process likes
            torch.testing.assert_close(model.logits(model(x)), one.logits(one(x)))
    assert all(hasattr(p, 'full_tensor') for p in model.parameters())
processes.leave()
"""


@pytest.mark.slow
def test_gradients_with_a_large_vocabulary_are_those_of_one_process(tmp_path):
    (tmp_path / "script.py").write_text(GRADIENTS)
    with Script(tmp_path / "script.py", processes=2) as script:
        script.wait()


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    """The folder of a run whose weights were split."""
    out = tmp_path_factory.mktemp("sharded")
    train(out, *FLAGS, "--shard=True", "--keep_every=5", processes=2)
    return out


@pytest.mark.slow
def test_a_sharded_run_has_the_losses_and_the_checkpoint_of_one_that_is_not(sharded, tmp_path):
    train(tmp_path, *FLAGS, processes=2)
    assert losses(sharded) == pytest.approx(losses(tmp_path), rel=1e-5)
    split, plain = (load(out / "checkpoint.pt") for out in (sharded, tmp_path))
    assert split.keys() == plain.keys() and same(split["ranks"], plain["ranks"])
    for part in "model", "ema", "optimizer":
        torch.testing.assert_close(split[part], plain[part], atol=1e-5, rtol=1e-3)
    kept = load(sharded / "weights/000010.pt")
    assert same(kept["ema"], split["ema"])
    sizes = [sum(entry.file_size for entry in zipfile.ZipFile(out / "checkpoint.pt").infolist())
             for out in (sharded, tmp_path)]  # fmt: skip
    assert sizes[0] == pytest.approx(sizes[1], rel=0.01)


@pytest.mark.slow
def test_a_resumed_sharded_run_ends_in_the_same_weights(sharded, tmp_path):
    train(tmp_path, *FLAGS, "--shard=True", "--max_iters=5", processes=2)
    train(tmp_path, *FLAGS, "--shard=True", "--init_from=resume", processes=2)
    whole, resumed = (load(out / "checkpoint.pt") for out in (sharded, tmp_path))
    assert all(same(whole[part], resumed[part]) for part in ("model", "ema", "optimizer", "ranks"))
    assert losses(sharded) == losses(tmp_path)


@pytest.mark.slow
def test_one_process_evaluates_a_sharded_run_and_goes_on_with_it(sharded):
    final = metrics(sharded)[-1]
    evaluate(sharded)
    (row,) = json.loads((sharded / "eval.json").read_text())
    assert row["accuracy"] == final["accuracy"]["top_k"]
    train(sharded, *FLAGS, "--init_from=continue", "--max_iters=12")
    assert load(sharded / "checkpoint.pt")["iteration"] == 12


# -- machines --------------------------------------------------------------------------------------
@pytest.mark.slow
def test_two_machines_train_as_two_processes_of_one_do(tmp_path):
    """To the bit; files are written once, by the first process of all."""
    train(tmp_path / "one", "--max_iters=10", processes=2)
    torchrun = find_spec("torch.distributed.run").origin
    address = f"--rdzv_endpoint=127.0.0.1:{free_port()}"
    command = torchrun, "--nnodes=2", "--nproc_per_node=1", address
    script = training(tmp_path / "two", "--max_iters=10")
    with (
        Script(*command, "--node_rank=0", *script) as first,
        Script(*command, "--node_rank=1", *script) as second,
    ):
        first.wait(300)
        second.wait(60)
        assert "held-out problems solved" in first.output() and "held-out" not in second.output()
    assert losses(tmp_path / "two") == losses(tmp_path / "one")
    assert same(*(load(tmp_path / run / "checkpoint.pt") for run in ("one", "two")))
    kinds = [[line["type"] for line in metrics(tmp_path / run)] for run in ("one", "two")]
    files = [{file.name for file in (tmp_path / run).iterdir()} for run in ("one", "two")]
    assert kinds[0] == kinds[1] and files[0] == files[1]
