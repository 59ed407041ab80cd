"""Train a masked diffusion model, with Progressive Unmasking (puma) or random masks (mdm).

Or an autoregressive one (ar), from which such a run can start.

    python train.py config/sudoku_mini.py --seed=2
    torchrun --nproc_per_node=8 train.py config/sudoku.py
    python train.py config/sudoku_mini.py --init_from=resume      resume where it stopped
    python train.py config/gsm_tiny.py --init_from=out/gsm_tiny_ar_1/checkpoint.pt

Writes metrics.jsonl and checkpoint.pt to out_dir. A resumed run ends in the same weights as an
uninterrupted one: the checkpoint holds the chains, the data order and the random states too.
Reads from the top: settings, `main`, `set_up`, the loop, then how each part is built.
"""

import contextlib
import copy
import math
import os
import signal
import threading
import time
from pathlib import Path
from typing import NamedTuple

import torch

import backend
import checkpoint
import policies
import tasks
from configurator import at_least, configure, errors_as_messages
from eval import evaluate
from example_queue import ExampleQueue, fingerprint
from losses import DENSE, ChunkedObjective, Objective, check_papl
from model import Transformer
from muon import Muon
from puma import (
    NextToken,
    ProgressiveUnmasking,
    RandomFirst,
    RandomMasking,
    check_schedule,
    value_at,
)
from record import Log
from sample import Sampler

# -- run -------------------------------------------------------------------------------------
name = "default"
out_dir = ""  # where metrics and checkpoint go; "" = out/<name>_<method>_<seed>
seed = 1
init_from = "scratch"  # scratch; resume: go on in out_dir; FILE.pt of a run, or hf:FOLDER, hf:NAME
# -- data ------------------------------------------------------------------------------------
dataset = "sudoku"  # sudoku; addition; text: questions, each followed by a program; instructions
train_examples = 200_000  # to generate; of files all are used
test_examples = 512
# -- data: text ------------------------------------------------------------------------------
data_dir = ""  # a folder that a data/*/prepare.py wrote; "" = generated word problems
templates = []  # of the generated problems, names in data/wordproblems/templates.py; [] = all
text_length = 176  # tokens of a generated problem; longer ones are dropped
# -- data: sudoku ----------------------------------------------------------------------------
box = (2, 3)  # rows and columns of a Sudoku box
clues: int | None = None  # clues per generated puzzle; None = minimal puzzles
data_file = ""  # real puzzles, a file from data/sudoku/prepare.py; "" = generate them
# -- data: addition --------------------------------------------------------------------------
digits = 16  # of each of the two numbers
digit_order = "highest"  # of a row's digits: highest first, or lowest
long_chains = False  # training sums have long carry chains as often as short ones
# -- method ----------------------------------------------------------------------------------
method = "puma"  # puma, mdm: random masks, ar: next token; others: studies/ablations.py
policy = "top_k"  # which tokens a chain reveals first: top_k, margin, entropy, random, ...
k_schedule = [(0, 9)]  # (iteration, K): from then on reveal K tokens per stage (at full length)
tau: float | None = 0.9  # a chain also reveals all with confidence above this; None = off
buffer = 8  # chains held, in batches; they are visited in turn
chains_from = 0  # the iteration from which there are chains; before it, random masks
chains_until = 0  # the iteration from which there are random masks again; 0 = never
papl = 0.0  # alpha: weigh the loss by 1 + alpha times the share of confidence in the truth; 0 = off
block_schedule = []  # block diffusion: (iteration, size) pairs, sizes divide the length; [] = off
# -- model (a pretrained one has its own shape: these are not used) ---------------------------
dim = 128
layers = 4
heads = 8
kv_heads: int | None = None  # fewer than heads = grouped-query attention; None = as many
mlp = 384
theta = 10000.0  # base of the rotary frequencies
tied = False  # output head = embedding
# -- adapters (of a pretrained model) ---------------------------------------------------------
lora_rank = 0  # of trainable matrices beside frozen weights (pretrained/lora.py); 0 = train all
lora_alpha = 16  # their output is scaled by alpha / rank
# -- optimisation ----------------------------------------------------------------------------
batch_size = 128  # rows per process and forward pass
accumulate = 1  # forward passes per update
max_iters = 3000  # updates
lr = 1e-3
min_lr = 1e-4  # at the end of the cosine
warmup = 200  # updates
muon = False  # orthogonal momentum, not AdamW, for the matrices of the layers (muon.py)
weight_decay = 0.01  # not on norms and biases
betas = (0.9, 0.99)
grad_clip = 1.0  # of the gradient's norm; 0 = off
ema = 0.9999  # decay of the averaged weights, for evaluation; (1 + n)/(10 + n) at first; 0 = off
# -- evaluation ------------------------------------------------------------------------------
eval_interval = 300
eval_policies = ["top_k", "margin", "entropy"]
eval_reveal = 2  # tokens revealed per step
eval_tau: float | None = None  # reveal all with confidence above this instead; None = off
eval_batch_size = 512
# -- system ----------------------------------------------------------------------------------
log_interval = 10
checkpoint_interval = 500
keep_every = 0  # also keep the averaged weights at multiples of this, in out_dir/weights; 0 = off
device = ""  # cpu, cuda, mps; "" = the best there is
dtype = ""  # bfloat16 or float32, of matrix products; "" = bfloat16 where the hardware has it
gradient_checkpointing = False  # keep less for backward and compute it twice
compile: bool | None = None  # None = where there is a compiler and the run is long enough


class Run(NamedTuple):
    """What a run is made of."""

    task: object
    model: Transformer
    averaged: Transformer  # its averaged weights, for evaluation; without EMA: its own
    optimizer: Muon
    stream: object  # of training contexts (puma.py)
    objective: torch.nn.Module  # the model with its loss
    keeper: checkpoint.Keeper
    start: int  # the iteration to go on from
    autocast: object
    world: int  # processes
    rank: int  # of this one


def main(config):
    with errors_as_messages():
        run = set_up(config)
        if run.rank == 0:
            print(f"{sum(p.numel() for p in run.model.parameters()) / 1e6:.2f}M parameters")
        log = Log(run.keeper.folder / "metrics.jsonl", config, run.start, max_iters, run.rank)
    log.taken = int(run.stream.queue.taken)
    result, rank = train(run, log), run.rank
    del run  # DDP must go before the process group does, or it may wait for ever
    backend.stop()
    if rank == 0:
        print(f"{result['val_loss']:.4f} validation loss")
        for sampler, share in zip(samplers(), result["accuracy"].values(), strict=True):
            print(f"{share:7.2%} of {result['examples']} held-out problems solved ({sampler})")


def set_up(config):
    """Everything before the first iteration, as a Run. Raises ValueError for settings that fail."""
    check()
    world, rank, where = backend.start(device)
    autocast = backend.autocast(where, dtype)
    folder = Path(out_dir or f"out/{name}_{method}_{seed}")
    saved = None
    if init_from == "resume":
        saved = checkpoint.load(folder / "checkpoint.pt")
        config["init_from"] = saved["config"]["init_from"]  # adapters need their base again
        checkpoint.check_resumable(saved, config, world, where)
    with backend.first_process_first(rank):
        task = tasks.get(dataset).load(config)
        torch.manual_seed(seed)
        model, weights, model_args = make_model(task, saved, config["init_from"], where)
    model.model.gradient_checkpointing = gradient_checkpointing
    # Without EMA a shallow copy: the model's own weights, but never compiled.
    averaged = copy.deepcopy(model).requires_grad_(False) if ema else copy.copy(model)
    optimizer = make_optimizer(model)
    stream = make_stream(task.train, model, where, rank, world)
    kind = Objective if model.vocab_size <= DENSE else ChunkedObjective
    objective = kind(model, policies.get(policy), papl)
    parts = {"model": weights, "optimizer": optimizer} | ({"ema": averaged} if ema else {})
    data = fingerprint(task.train)
    keeper = checkpoint.Keeper(folder, config, model_args, parts, stream, data, where, rank)
    torch.manual_seed(seed + rank)
    start = keeper.restore(saved) if saved else 0
    if backend.compiles(where, compile, max_iters):
        objective.compile()
    if world > 1:
        objective = backend.distributed(objective)
    if not saved:
        if rank == 0 and (folder / "checkpoint.pt").exists():
            print(f"kept in {checkpoint.archive(folder)}: the run that was in {folder}")
        if keep_every:
            keeper.save_weights(0, block_at(0))
        keeper.save_checkpoint(0, block_at(0))
    return Run(task, model, averaged, optimizer, stream, objective, keeper, start, autocast,
               world, rank)  # fmt: skip


def train(run, log):
    """The loop, from run.start to max_iters; the last evaluation."""
    stop, result = stop_on_signal(), None
    if backend.any_process(not log.evaluated and evaluates_at(run.start)):
        result = report(run, log, run.start)  # the run was killed during this evaluation
    for iteration in range(run.start, max_iters):
        if block_at(iteration) != block_at(max(iteration - 1, 0)):
            torch.compiler.reset()  # it gives up after a few versions of the same code
        for group in run.optimizer.param_groups:
            group["lr"] = lr_at(iteration)
        for micro in range(accumulate):
            batch = run.stream.batch(iteration)  # x, x0, hidden, block
            with backend.synchronised(run.objective, micro == accumulate - 1):
                with run.autocast:
                    loss, score, confidence = run.objective(*batch)  # one forward pass
                (loss / accumulate).backward()
            log.add(loss, batch.hidden.sum(1) / run.stream.effective)
            run.stream.advance(score, confidence)  # PUMA: reveal true tokens; baseline: nothing
        norm = torch.nn.utils.clip_grad_norm_(run.model.parameters(), grad_clip or math.inf)
        run.optimizer.step()
        run.optimizer.zero_grad()
        if ema:
            update_average(run.averaged, run.model, iteration)
        done = iteration + 1
        log.bar.update()
        if done % log_interval == 0:
            epoch = run.stream.queue.known * run.world / len(run.task.train)
            values = {"grad_norm": norm.item(), "epoch": epoch, "lr": lr_at(iteration)}
            log.report_training(done, batch_size * run.world, values, run.stream.queue.taken)
        if keep_every and done % keep_every == 0:
            run.keeper.save_weights(done, batch.block)
        stopping = backend.any_process(stop.is_set())
        if stopping or evaluates_at(done) or done % checkpoint_interval == 0:
            run.keeper.save_checkpoint(done, batch.block)  # a run may be killed in an evaluation
        if stopping:
            raise SystemExit(f"stopped at iteration {done}; --init_from=resume goes on from there")
        if evaluates_at(done):
            result = report(run, log, done)
    log.bar.close()
    return result or evaluation(run, max_iters)


def evaluation(run, done):
    """eval.evaluate of the averaged weights after `done` updates."""
    block = block_at(max(done - 1, 0))
    with run.autocast:
        return evaluate(
            run.task, run.averaged, block, samplers(), test_examples, eval_batch_size,
            run.rank, run.world,
        )  # fmt: skip


def report(run, log, done):
    begin = time.perf_counter()
    result = evaluation(run, done)
    log.report_evaluation(done, result, time.perf_counter() - begin)
    return result


# -- settings --------------------------------------------------------------------------------------
def check():
    """Raise ValueError for settings that no run can have, before anything is loaded or made.

    Values that depend on the data or the model are checked where these are made.
    """
    at_least(
        1, train_examples=train_examples, test_examples=test_examples, buffer=buffer, dim=dim,
        layers=layers, heads=heads, mlp=mlp, batch_size=batch_size, accumulate=accumulate,
        eval_interval=eval_interval, eval_batch_size=eval_batch_size, log_interval=log_interval,
        checkpoint_interval=checkpoint_interval,
    )  # fmt: skip
    at_least(0, chains_from=chains_from, chains_until=chains_until, lora_rank=lora_rank)
    if chains_from >= max_iters > 0 and method not in ("mdm", "ar"):
        raise ValueError(f"chains_from {chains_from}: expected less than max_iters {max_iters}")
    if chains_from and chains_until:
        raise ValueError("chains_from and chains_until: expected one of them")
    tasks.get(dataset)
    if method not in ("mdm", "ar"):
        chain_class()
    policies.get(policy)
    policies.check_tau(tau)
    check_papl(papl)
    check_schedule(k_schedule)
    if block_schedule:
        check_schedule(block_schedule, "block_schedule")
        if method == "ar":
            raise ValueError("block_schedule goes with mdm and puma: ar is the case of blocks of 1")
    if init_from not in ("scratch", "resume") and not init_from.endswith(".pt"):
        check_pretrained()
    elif lora_rank and init_from != "resume":
        raise ValueError(f"lora_rank {lora_rank}: expected init_from hf:FOLDER")
    if lora_rank and (ema or keep_every):
        raise ValueError(f"lora_rank {lora_rank}: expected ema 0, keep_every 0")
    if not eval_policies:
        raise ValueError("eval_policies is empty: expected names of policies, like ['top_k']")
    for sampler in samplers():
        sampler.check()


def check_pretrained():
    if not init_from.startswith("hf:"):
        raise ValueError(f"init_from {init_from!r}: expected scratch, resume, FILE.pt or hf:FOLDER")
    if dataset in ("sudoku", "addition") or method == "ar":
        raise ValueError(f"init_from {init_from}: goes with text, and not with method ar")


def samplers():
    """With which a run is evaluated while it trains; a causal model has one order."""
    if method == "ar":
        return [Sampler("left_to_right", 1)]
    return [Sampler(name, eval_reveal, eval_tau) for name in dict.fromkeys(eval_policies)]


def evaluates_at(iteration):
    return iteration > 0 and (iteration % eval_interval == 0 or iteration == max_iters)


def block_at(iteration):
    """The size of the blocks that are filled in one after the other; 0 = the row at once."""
    if method == "ar":
        return 1
    return value_at(block_schedule, iteration) if block_schedule else 0


def lr_at(iteration):
    """Linear warm-up, then a cosine from lr to min_lr."""
    if iteration < warmup:
        return lr * (iteration + 1) / warmup
    share = (iteration - warmup) / max(1, max_iters - warmup)
    return min_lr + (lr - min_lr) * 0.5 * (1 + math.cos(math.pi * share))


# -- the parts of a run ----------------------------------------------------------------------------
def make_model(task, saved, origin, where):
    """The model, what is saved in its place (itself, or its adapters), and its arguments.

    saved: a checkpoint to resume, whose weights are loaded later, or None; origin: as init_from.
    Raises ValueError if a pretrained model, or that of another run, does not fit.
    """
    if origin.startswith("hf:"):
        from pretrained import finetune

        frozen = backend.precision(where, dtype)
        base = origin.removeprefix("hf:")
        return finetune.make_model(base, task, saved, lora_rank, lora_alpha, where, frozen)
    model_args = dict(
        vocab_size=task.vocab_size, mask_token=task.mask, length=task.length, dim=dim,
        layers=layers, heads=heads, kv_heads=kv_heads, mlp=mlp, theta=theta, tied=tied,
        causal=method == "ar", shifted=method == "ar",
    )  # fmt: skip
    weights = None
    if saved:
        model_args = saved["model_args"]
    elif origin != "scratch":
        weights, model_args = checkpoint.starting_point(origin, model_args)
    model = Transformer(**model_args).to(where)
    if weights:
        model.load_state_dict(weights)
    return model, model, model_args


def make_optimizer(model):
    """AdamW, or Muon for the matrices of the layers; weight decay on matrices only."""
    layers = [p for p in model.model.layers.parameters() if p.dim() > 1]
    ends = dict.fromkeys([model.model.embed_tokens.weight, model.lm_head.weight])  # may be one
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    groups = [
        {"params": [p for p in params if p.requires_grad]} | settings
        for params, settings in (
            (layers, {"orthogonal": muon}), (ends, {}), (vectors, {"weight_decay": 0.0})
        )
    ]  # fmt: skip
    fused = next(model.parameters()).device.type != "mps"
    return Muon(groups, lr=lr, betas=betas, weight_decay=weight_decay, fused=fused)


@torch.no_grad()
def update_average(averaged, model, n):
    decay = min(ema, (1 + n) / (10 + n))
    torch._foreach_lerp_(list(averaged.parameters()), list(model.parameters()), 1 - decay)


def make_stream(data, model, where, rank, world):
    """Where the training contexts come from (puma.py)."""
    queue, mask_token = ExampleQueue(data, batch_size, where, seed, rank, world), model.mask_token
    generator = torch.Generator(where).manual_seed(seed * world + rank)
    if method == "ar":
        return NextToken(queue, mask_token, generator)
    masks = RandomMasking(queue, mask_token, generator, block_schedule)
    if method == "mdm":
        return masks
    if block_schedule:
        from block import BlockUnmasking

        chains = BlockUnmasking(
            queue, mask_token, generator, block_schedule, k_schedule, tau, buffer
        )
    else:
        chains = chain_class()(queue, mask_token, generator, k_schedule, tau, buffer)
        if hasattr(chains, "model"):  # a variant that asks it more than once
            chains.model = model
    if chains_until:
        from studies.ablations import RandomLast

        return RandomLast(masks, chains, chains_until)
    return RandomFirst(masks, chains, chains_from) if chains_from else chains


def chain_class():
    """PUMA's stream or another one. Raises ValueError for another method."""
    if method == "puma":
        return ProgressiveUnmasking
    from studies.ablations import STREAMS

    if method not in STREAMS or block_schedule:
        others = ", ".join(STREAMS)
        raise ValueError(
            f"method {method!r}: expected puma, mdm or ar, or without blocks one of {others}"
        )
    return STREAMS[method]


def stop_on_signal():
    """An event that SIGTERM or Ctrl-C sets; a second Ctrl-C stops at once."""
    stop = threading.Event()

    def on_signal(number, frame):
        stop.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with contextlib.suppress(OSError):  # no print: the signal may have come within one
            os.write(2, b"\nstopping after this update; Ctrl-C stops at once\n")

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    return stop


if __name__ == "__main__":
    main(configure(globals()))
