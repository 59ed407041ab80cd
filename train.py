"""Train a masked diffusion model, with Progressive Unmasking (puma) or random masks (mdm).

Or train an autoregressive model (ar), from which such a run can start.

    python train.py config/sudoku_mini.py --seed=2
    torchrun --nproc_per_node=8 train.py config/sudoku.py
    python train.py config/sudoku_mini.py --init_from=resume      resume where it stopped
    python train.py config/sudoku_mini.py --init_from=continue --lr=5e-4       with changes
    python train.py config/gsm_tiny.py --init_from=out/gsm_tiny_ar_1/checkpoint.pt

Writes metrics.jsonl and checkpoint.pt to out_dir; a resumed run ends with the same weights as an
uninterrupted one. Read it from the top: settings, `main`, `set_up`, the loop, the parts. A data
set's own settings are in its file in tasks/; how a run is kept alive is in engine/.
"""

import contextlib
import copy
import math
import time
from pathlib import Path
from typing import NamedTuple

import torch

import policies
import tasks
from block import BlockMasking, BlockUnmasking, NextToken
from configurator import configure, errors_as_messages
from engine import checkpoint, processes
from engine.elastic import redistribute
from engine.files import Lock
from engine.log import Log
from engine.machine import autocast, compiles, precision
from engine.muon import Muon
from engine.queue import ExampleQueue, fingerprint
from engine.saver import Saver
from engine.shard import split_up, unsharded, whole
from eval import evaluate
from losses import DENSE, ChunkedObjective, Objective
from model import Transformer
from puma import ProgressiveUnmasking, RandomMasking, check_schedule, value_at
from sample import Sampler, generate
from studies.papl import papl_weights

# -- run -------------------------------------------------------------------------------------
name = "default"
out_dir = ""  # where metrics and checkpoint go; "" = out/<name>_<method>_<seed>
seed = 1  # 0..4294967295
init_from = "scratch"  # scratch, resume, continue; FILE.pt, hf:FOLDER, hf:NAME; continue:hf:NAME
# -- data (a data set's own settings are in its file in tasks/) --------------------------------
dataset = "sudoku"  # sudoku, addition, own_text, text (questions with programs), instructions
data_dir = ""  # a folder written by a data/*/prepare.py; "" = generated examples
train_examples = 200_000  # 1..: to generate; data from files is used whole
test_examples = 512  # 1..: held out
# -- method ----------------------------------------------------------------------------------
method = "puma"  # puma; mdm (random masks); ar (next token); variants in studies/ablations.py
policy = "top_k"  # which tokens a chain reveals first: top_k, margin, entropy, random, ...
k_schedule = [(0, 9)]  # (iteration, K): from then on reveal K tokens per stage (at full length)
tau: float | None = 0.9  # 0..1: a chain also reveals all with confidence above this; None = off
buffer = 8  # 1..: batches of chains held (of batch_size rows each), visited in turn
random_share = 0.0  # 0..1: share of rows with random masks instead of chains; 0 = as in the paper
chains_from = 0  # 0..: first iteration with chains; random masks before it
papl = 0.0  # 0..: alpha of PAPL's loss weights 1 + alpha * w (studies/papl.py); 0 = off
block_schedule = []  # block diffusion: (iteration, size) pairs, sizes divide the length; [] = off
# -- model (not used with a pretrained one, which has its own shape) --------------------------
dim = 128  # 1..: width; a head has dim / heads, an even number
layers = 4  # 1..
heads = 8  # 1..
kv_heads: int | None = None  # 1..: fewer than heads = grouped-query attention; None = as many
mlp = 384  # 1..: inner width
theta = 10000.0  # 1..: base of the rotary frequencies
tied = False  # output head = embedding
lora_rank = 0  # 0..: rank of LoRA adapters of a pretrained model (pretrained/lora.py); 0 = none
lora_alpha = 16  # 1..: adapter output is scaled by alpha / rank
# -- optimisation ----------------------------------------------------------------------------
batch_size = 128  # 1..: rows per update, over all processes
micro_batch: int | None = None  # 1..: most rows per process and forward pass; None = no limit
max_iters = 3000  # 0..: updates
lr = 1e-3  # 0..
min_lr = 1e-4  # 0..: at the end of the cosine
warmup = 200  # 0..: updates
muon = False  # Muon instead of AdamW for the weight matrices of the layers (engine/muon.py)
weight_decay = 0.01  # 0..: not on norms and biases
betas = (0.9, 0.99)  # 0..1
grad_clip = 1.0  # 0..: clip the gradient's norm at this; 0 = off
ema = 0.9999  # 0..1: decay of averaged weights, for evaluation; (1 + n)/(10 + n) at first; 0 = off
# -- evaluation ------------------------------------------------------------------------------
eval_interval = 300  # 1..
eval_policies = ["top_k", "margin", "entropy"]
eval_reveal = 2  # 1..: tokens revealed per step
eval_tau: float | None = None  # 0..1: instead reveal all with confidence above this; None = off
eval_batch_size = 512  # 1..
watch = False  # after each evaluation, show how a held-out example fills in (studies/watch.py)
# -- system ----------------------------------------------------------------------------------
log_interval = 10  # 1..
track = ""  # also send the lines of metrics.jsonl to tensorboard, trackio or wandb
checkpoint_interval = 500  # 1..
keep_every = 0  # 0..: also save averaged weights every so many updates, in out_dir/weights; 0 = off
shard = False  # split weights and moments over the processes: for models larger than one device
patience = 600  # 1..: seconds that processes wait for each other before they consider one lost
device = ""  # cpu, cuda, mps; "" = the best there is
dtype = ""  # bfloat16 or float32, for matrix products; "" = bfloat16 if the hardware supports it
deterministic = False  # bit-identical repeated runs on CUDA, at a cost; always so on a CPU
gradient_checkpointing = False  # save memory: recompute activations in the backward pass
compile: bool | None = None  # None = if there is a compiler and the run is long enough

SEED_STRIDE = 1_000_003  # per iteration, added to the seeds of a run that continues with changes


class Run(NamedTuple):
    """What a run is made of."""

    task: object
    model: Transformer
    averaged: Transformer  # with averaged weights, for evaluation; without EMA, its own
    optimizer: Muon
    objective: torch.nn.Module  # the model with its loss
    masks: RandomMasking  # contexts before chains_from
    chains: object  # contexts from then on (puma.py)
    queue: ExampleQueue
    saver: Saver
    start: int  # the first iteration to run
    changes: dict  # {setting: (saved, now)} if it continues with changes
    passes: int  # forward and backward passes per update
    casts: object  # autocast
    place: processes.Place


def main(config):
    with contextlib.ExitStack() as until_the_end:
        with errors_as_messages():
            check()
            place = processes.start(device, patience, deterministic, shard)
            folder = Path(out_dir or f"out/{name}_{method}_{seed}")
            first = place.rank == 0
            if first:
                until_the_end.enter_context(Lock(folder))
            run = set_up(config, folder, place)
            log = Log(folder if first else None, config, run.start, max_iters, run.changes,
                      int(run.queue.taken))  # fmt: skip
            if track and first:
                from examples.track import Tracker

                log.follow(until_the_end.enter_context(Tracker(track, folder)))
        result = train(run, log)
        log.close()
    del run  # DDP must go before the process group does, or it may wait for ever
    processes.leave()
    if first:
        print(f"{result['val_loss']:.4f} validation loss")
        for sampler, share in zip(samplers(), result["accuracy"].values(), strict=False):
            print(f"{share:7.2%} of {result['examples']} held-out problems solved ({sampler})")


def set_up(config, folder, place):
    """Everything before the first iteration, as a Run. Raises ValueError for invalid settings."""
    world, rank, where = place[:3]
    saved, changes, origin = checkpoint.find(folder, config, place)
    begin = saved["iteration"] if saved else 0
    with processes.main_process_first():
        task = tasks.get(dataset).load(config)
        len(task.test)  # so that a broken judge is reported before training
        torch.manual_seed(seed)
        model, weights, model_args = make_model(task, saved, origin, place)
    averaged = make_average(model, place)
    optimizer = make_optimizer(model)
    rows, passes = rows_and_passes(batch_size, world)
    queue, old_rows = ExampleQueue(task.train, rows, where, seed, rank, world), {}
    if changes:
        state, old_rows = redistribute(saved["ranks"], world, len(task.train), seed)[rank]
        queue.load_state_dict(state)
    stride = SEED_STRIDE * begin if changes else 0
    generator = torch.Generator(where).manual_seed(seed * world + rank + stride)
    masks, chains = make_streams(queue, model.mask_token, generator, passes)
    if old_rows:
        chains.adopt(old_rows)
    about = {"config": config | {"init_from": origin}, "model_args": model_args}
    about |= {"data": fingerprint(task.train), "device": where.type}
    shared = {"model": weights, "optimizer": optimizer} | ({"ema": averaged} if ema else {})
    own = {"queue": queue, "generator": generator, "stream": chains}
    saver = Saver(folder, about, shared, own, rank)
    torch.manual_seed(seed + rank + stride)
    saver.restore(saved, changes) if saved else saver.begin(values_at(0), keep_every)
    casts = autocast(where, dtype, keep=not place.shards)
    return Run(task, model, averaged, optimizer, make_objective(model, place), masks, chains, queue,
               saver, begin, changes, passes, casts, place)  # fmt: skip


# -- the loop --------------------------------------------------------------------------------------
def train(run, log):
    """From run.start to max_iters; returns the last evaluation."""
    result = None
    if processes.any_process(log.lacks_evaluation and evaluates_at(run.start)):
        result = report(run, log, run.start)  # the run was killed during this evaluation
    elif watch:
        show(run, run.start, log)
    with processes.StopSign() as stop:
        for iteration in range(run.start, max_iters):
            log.add(*update(run, iteration))
            done, stopping = iteration + 1, stop()
            keep_record(run, log, done, stopping)
            if stopping:
                raise SystemExit(f"stopped at iteration {done}; --init_from=resume continues there")
            if evaluates_at(done):
                result = report(run, log, done)
    return result or evaluation(run, max_iters)


def update(run, iteration):
    """One step of the optimizer: mean loss, the gradient's norm before clipping, share hidden."""
    if block_at(iteration) != block_at(max(iteration - 1, 0)):
        torch.compiler.reset()  # it gives up after a few versions of a function; now compiles anew
    stream = run.masks if iteration < chains_from else run.chains
    losses, hidden = [], []
    for micro in range(run.passes):
        batch = stream.batch(iteration)  # x, x0, hidden (B, L), block
        with processes.synchronised(run.objective, micro == run.passes - 1):
            with run.casts:
                loss, score, confidence = run.objective(*batch)  # one forward pass
            (loss / run.passes).backward()
        hidden.append(batch.hidden.sum(1) / stream.effective)  # (B,)
        stream.advance(score, confidence)  # PUMA: reveal true tokens; baseline: nothing
        losses.append(loss.detach())
    norm = torch.nn.utils.clip_grad_norm_(run.model.parameters(), grad_clip or math.inf)
    run.optimizer.param_groups[0]["lr"].fill_(lr_at(iteration))  # one tensor, of all groups
    run.optimizer.step()
    run.optimizer.zero_grad()
    if ema:
        update_average(run.averaged, run.model, decay_at(iteration))
    return torch.stack(losses).mean(), whole(norm), torch.cat(hidden)


def keep_record(run, log, done, stopping):
    """Write the lines and files that are due; before an evaluation, where a run may be killed."""
    last = stopping or done == max_iters
    saves = last or evaluates_at(done) or done % checkpoint_interval == 0 or run.saver.unsaved
    logs, keeps = done % log_interval == 0, keep_every and done % keep_every == 0
    if logs or keeps or saves:
        run.saver.stop_if_not_finite(log.fault(done), done, run.model, run.averaged)
    if logs:
        values = {"epoch": run.queue.passes(), "lr": lr_at(done - 1)}
        line = log.report_training(done, values, run.place.world, run.queue.taken)
        warn_of_collapse(line, log)
    if keeps:
        run.saver.save_weights(values_at(done))
    if saves:
        run.saver.save(values_at(done), last)


def warn_of_collapse(line, log):
    """If chains end as soon as they start; line: of metrics.jsonl."""
    at_once = line["visits"] and line["visits"] < 1.5 and line["hidden"] > 0.9
    has_chains = method not in ("mdm", "ar") and block_at(line["iter"] - 1) != 1
    if at_once and tau is not None and has_chains:
        log.warn(
            f"chains end after {line['visits']:.2f} visits: confidence is above tau {tau} nearly "
            "everywhere. The model sees only fully masked rows and may forget everything else "
            "(results/when.md): see --random_share, --tau=None"
        )


def evaluation(run, done):
    """eval.evaluate of the averaged weights after `done` updates."""
    with run.casts, unsharded(run.averaged):
        return evaluate(
            run.task, run.averaged, values_at(done)["block"], samplers(), test_examples,
            eval_batch_size, run.place.rank, run.place.world,
        )  # fmt: skip


def report(run, log, done):
    begin = time.perf_counter()
    result = evaluation(run, done)
    if not math.isfinite(result["val_loss"]):
        raise SystemExit(f"the validation loss is {result['val_loss']} at iteration {done}")
    log.report_evaluation(done, result, time.perf_counter() - begin)
    if watch:
        show(run, done, log)
    return result


def show(run, done, log):
    """How the averaged weights fill in the first held-out example; all processes gather them."""
    from studies.watch import watch_example

    with run.casts, unsharded(run.averaged):
        if run.place.rank == 0:
            log.bar.clear()
            print(f"iteration {done}")
            watch_example(run.task, run.averaged, samplers()[0], block_at(done - 1), generate)


# -- settings --------------------------------------------------------------------------------------
def check():
    """Raise ValueError for invalid settings before anything is loaded or generated."""
    tasks.get(dataset)
    policies.get(policy)
    check_schedule(k_schedule)
    for sampler in samplers():
        sampler.check()
    if method not in ("puma", "mdm", "ar"):
        from studies import ablations

        ablations.get(method)
    for good, text in (
        (min_lr <= lr, f"min_lr {min_lr}: expected at most lr {lr}; equal for a constant rate"),
        (chains_from < max(max_iters, 1), f"chains_from {chains_from}: expected before the end"),
        (method != "ar" or not block_schedule, "block_schedule: ar is the case of blocks of 1"),
        (not (shard and (muon or lora_rank)), "shard: expected --muon=False and --lora_rank=0"),
    ):
        if not good:
            raise ValueError(text)


def samplers():
    """The samplers that evaluate a run while it trains; a causal model has one order."""
    if method == "ar":
        return [Sampler("left_to_right", 1)]
    if not eval_policies:
        raise ValueError("eval_policies is empty: expected names of policies, like ['top_k']")
    return [Sampler(name, eval_reveal, eval_tau) for name in dict.fromkeys(eval_policies)]


def evaluates_at(iteration):
    return iteration > 0 and (iteration % eval_interval == 0 or iteration == max_iters)


def values_at(done):
    """What a checkpoint says of the run after `done` updates."""
    return {"iteration": done, "block": block_at(max(done - 1, 0))}


def block_at(iteration):
    """The size of blocks filled in one after the other; 0 = the whole row at once."""
    if method == "ar":
        return 1
    return value_at(block_schedule, iteration) if block_schedule else 0


def lr_at(iteration):
    """Linear warm-up, then a cosine from lr to min_lr."""
    if iteration < warmup:
        return lr * (iteration + 1) / warmup
    share = (iteration - warmup) / max(1, max_iters - warmup)
    return min_lr + (lr - min_lr) * 0.5 * (1 + math.cos(math.pi * share))


def decay_at(iteration):
    """Decay of the averaged weights: smaller at first, to forget the initial ones soon."""
    return min(ema, (1 + iteration) / (10 + iteration))


def rows_and_passes(rows, world):
    """Rows of an update -> rows per process and forward pass, and forward passes per update."""
    own, rest = divmod(rows, world)
    if rest or not own:
        raise ValueError(f"batch_size {rows}: expected a multiple of the {world} processes")
    most = min(own, micro_batch or own)
    passes = next(n for n in range(1, own + 1) if own % n == 0 and own // n <= most)
    return own // passes, passes


# -- the parts of a run ----------------------------------------------------------------------------
def make_model(task, saved, origin, place):
    """The model, the part of it that is saved (itself, or its adapters), and its arguments.

    saved: a checkpoint to resume, whose weights are loaded later, or None; origin: what a new run
    starts from, as in init_from. Raises ValueError if it does not fit.
    """
    where = torch.device("cpu") if place.shards else place.device  # holds the whole model
    model_args = dict(
        vocab_size=task.vocab_size, mask_token=task.mask, length=task.length, dim=dim,
        layers=layers, heads=heads, kv_heads=kv_heads, mlp=mlp, theta=theta, tied=tied,
        causal=method == "ar", shifted=method == "ar",
    )  # fmt: skip
    if origin == "scratch" and not lora_rank:
        model_args = saved["model_args"] if saved else model_args
        model = weights = Transformer(**model_args).to(where)
    else:
        from pretrained.start import make_model as start_from

        adapters = lora_rank, lora_alpha, precision(where, dtype)
        model, weights, model_args = start_from(origin, task, saved, model_args, adapters, where)
    model.model.gradient_checkpointing = gradient_checkpointing
    return model, weights, model_args


def make_average(model, place):
    """The averaged weights, for evaluation; shards them, and the model's, if asked.

    Without EMA, a shallow copy: the model's own weights, but never compiled. Averages, too, require
    gradients, although none are computed: autocast caches the casts of such weights only.
    """
    averaged = copy.deepcopy(model) if ema else copy.copy(model)
    if place.shards:
        averaged = averaged if ema else model  # a shallow copy would share the hooks of sharding
        for part in dict.fromkeys((model, averaged)):
            split_up(part, part.model.layers, place.device)
    return averaged


def make_objective(model, place):
    kind = Objective if model.vocab_size <= DENSE else ChunkedObjective
    objective = kind(model, policies.get(policy), papl_weights(papl))
    if not place.shards and compiles(place.device, compile, max_iters):
        objective.compile()
    alone = place.world == 1 or place.shards
    return objective if alone else processes.distributed(objective)


def make_optimizer(model):
    """AdamW, or Muon for the matrices of the layers; weight decay on matrices only."""
    layers = [p for p in model.model.layers.parameters() if p.dim() > 1]
    ends = [*dict.fromkeys([model.model.embed_tokens.weight, model.lm_head.weight])]  # may be one
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    where = vectors[0].device
    return Muon(
        layers, ends, vectors, orthogonal=muon, precision=precision(where, dtype), betas=betas,
        weight_decay=weight_decay, fused=where.type != "mps", capturable=where.type == "cuda",
    )  # fmt: skip


@torch.no_grad()
def update_average(averaged, model, decay):
    """Move the averaged weights towards the model's."""
    for average, weight in zip(averaged.parameters(), model.parameters(), strict=True):
        average.lerp_(weight, 1 - decay)


def make_streams(queue, mask_token, generator, passes):
    """Random masks, and what follows them from chains_from on (puma.py, block.py)."""
    args, chains = (queue, mask_token, generator), (k_schedule, tau, buffer * passes)
    masks = BlockMasking(*args, block_schedule) if block_schedule else RandomMasking(*args)
    if method == "ar":
        return masks, NextToken(*args)
    if method == "mdm":
        return masks, masks
    if block_schedule:
        return masks, BlockUnmasking(*args, block_schedule, *chains)
    if method == "puma" and not random_share:
        return masks, ProgressiveUnmasking(*args, *chains)
    from studies import ablations

    return masks, ablations.make(method, random_share, *args, *chains)


if __name__ == "__main__":
    main(configure(globals(), fields=lambda values: tasks.settings(values["dataset"])))
