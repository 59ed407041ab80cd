"""Evaluate a checkpoint: under a grid of samplers, or by its likelihood bound.

    python eval.py --out_dir=out/sudoku_mini_puma_1 --grid        all settings in the lists below
    python eval.py --out_dir=out/sudoku_mini_puma_1 --nelbo       nats per token, see likelihood.py
    torchrun --nproc_per_node=8 eval.py --out_dir=... --grid      examples shared out

Takes the run's averaged weights and its held-out problems (grid) or validation examples (nelbo).
Writes out_dir/grid.json and grid.md after each sampler, and does not run again what is there;
or out_dir/nelbo.json, with standard errors: the bound per example, per token (all but the prompt),
and per token without padding.
"""

import time
from pathlib import Path

import numpy as np
from tqdm import tqdm

import backend
import checkpoint
import evaluation
import likelihood
import record as metrics
from configurator import configure
from record import write_json
from tasks import TASKS

# -- what ----------------------------------------------------------------------------------------
out_dir = "out/sudoku_mini_puma_1"  # the run whose averaged weights are used
grid = False  # accuracy and cost of samplers
nelbo = False  # the bound on the negative log-likelihood
examples: int | None = None  # held-out ones at most; None = all
# -- grid ----------------------------------------------------------------------------------------
policies = ["top_k", "margin", "entropy"]  # also random, left_to_right, semi_ar_<block size>
reveals = [1, 2, 4]  # tokens revealed per step
taus = [None, 0.9]  # reveal all that is surer than this, else `reveal` tokens; None = off
tau_entropies = []  # reveal all of less entropy than this (nats), else `reveal` tokens
temperatures = [0.0]  # 0 = the likeliest token
# -- nelbo ---------------------------------------------------------------------------------------
masks = 16  # per example
# -- system --------------------------------------------------------------------------------------
seed = 1  # of the sampled tokens, the random policy and the masks
batch_size = 256  # rows in work at a time
device = ""  # cpu, cuda, mps; "" = the best there is
dtype = ""  # bfloat16 or float32; "" = chosen by the hardware


def main():
    with backend.mistakes_named():
        check()
        samplers = evaluation.grid(policies, reveals, taus, tau_entropies, temperatures)
        world, rank, where = backend.start(device)
        autocast = backend.autocast(where, dtype)
        model, config, iteration = checkpoint.load_model(Path(out_dir) / "checkpoint.pt", where)
        with backend.first_process_first(rank):
            task = TASKS[config["dataset"]].load(config)
        if nelbo and (model.causal or 0 < model.block < task.length):
            raise ValueError("--nelbo is of bidirectional models without blocks")
        if model.causal:  # it has one order
            samplers = evaluation.grid(["left_to_right"], [1], [None], [], temperatures)
    origin = {"iteration": iteration, "weights": checkpoint.checksum(model), "seed": seed}
    origin |= {"device": where.type, "dtype": dtype, "processes": world, "batch_size": batch_size}
    with autocast:
        if nelbo:
            measure_nelbo(model, task, origin, rank, world)
        if grid:
            measure_grid(model, task.test, samplers, origin, rank, world)
    backend.stop()


def check():
    """Raise ValueError for values that no evaluation can have."""
    for key in ("masks", "batch_size", *(("examples",) if examples is not None else ())):
        if globals()[key] < 1:
            raise ValueError(f"{key} {globals()[key]}: expected at least 1")
    if not (grid or nelbo):
        raise ValueError("nothing to do: give --grid, --nelbo or both")


def measure_grid(model, test, samplers, origin, rank, world):
    n = min(examples or len(test), len(test))
    mine = np.arange(rank, n, world)
    x0, prompt = evaluation.on_device(test[mine], model.lm_head.weight.device)
    with backend.mistakes_named():
        table = evaluation.Table(Path(out_dir) / "grid", origin | {"examples": n})
    missing = [sampler for sampler in samplers if not table.find(sampler)]
    for sampler in tqdm(missing, unit="sampler", disable=rank > 0):
        tokens, cost = evaluation.solve(model, x0, prompt, sampler, seed, batch_size, rank)
        (correct,) = backend.total([test.solved(tokens, mine).sum()])
        if rank == 0:
            result = evaluation.share(int(correct), n) | cost
            table.add(sampler, result | {"commit": metrics.commit()})
    if rank == 0:
        print(table.markdown(), end="")


def measure_nelbo(model, task, origin, rank, world):
    begin, n = time.perf_counter(), min(examples or len(task.validation), len(task.validation))
    nats, tokens = likelihood.nelbo(
        model, task.validation, n, task.padding, masks, batch_size, seed, rank, world
    )
    result = origin | {"commit": metrics.commit(), "examples": n, "masks": masks}
    for key, column, unit in (
        ("per_example", 0, tokens[:, 0].new_ones(n)),
        ("per_token", 0, tokens[:, 0]),
        ("per_token_without_padding", 1, tokens[:, 1]),
    ):
        value, error = likelihood.ratio(nats[:, column], unit)
        result |= {key: value, f"{key}_error": error}
        if rank == 0:
            error = f"+- {error:.3g} " if error is not None else ""
            print(f"{value:.5g} {error}nats {key.replace('_', ' ')}")
    if rank == 0:
        result |= {"seconds": time.perf_counter() - begin}
        write_json(Path(out_dir) / "nelbo.json", result)


if __name__ == "__main__":
    configure(globals())
    main()
