"""Train a masked diffusion model, with Progressive Unmasking (puma) or random masks (mdm).

Or an autoregressive one (ar), from which such a run can start.

    python train.py config/sudoku_mini.py --seed=2
    torchrun --nproc_per_node=8 train.py config/sudoku.py
    python train.py config/sudoku_mini.py --init_from=resume      go on where the run stopped
    python train.py config/gsm_tiny.py --init_from=out/gsm_tiny_ar_1/checkpoint.pt

Writes metrics.jsonl and checkpoint.pt to out_dir. A resumed run ends in the same weights as an
uninterrupted one: the checkpoint holds the chains, the data order and the random states too.
"""

import contextlib
import copy
import math
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

import backend
import block
import checkpoint
import policies
from configurator import configure
from evaluation import Sampler, on_device, solve
from example_queue import ExampleQueue, fingerprint
from losses import DENSE, ChunkedObjective, Objective, masked_nll, row_mean, states
from model import Transformer
from muon import Muon
from pretrained import hf, lora, memory
from puma import NextToken, RandomFirst, RandomMasking, check_schedule, value_at
from record import Metrics
from studies import ablations
from tasks import TASKS

# -- run -------------------------------------------------------------------------------------
name = "default"
out_dir = ""  # where metrics and checkpoint go; "" = out/<name>_<method>_<seed>
seed = 1
init_from = "scratch"  # scratch; resume: go on in out_dir; FILE.pt of a run, or hf:FOLDER, hf:NAME
eval_only = False  # evaluate the checkpoint in out_dir and stop
# -- data ------------------------------------------------------------------------------------
dataset = "sudoku"  # sudoku; text: questions, each followed by a program; humaneval: instructions
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
# -- method ----------------------------------------------------------------------------------
method = "puma"  # puma (variants of it: ablations.py), mdm: random masks, ar: next token
policy = "top_k"  # which tokens a chain reveals first: top_k, margin, entropy, random, ...
k_schedule = [(0, 9)]  # (iteration, K): from then on reveal K tokens per stage (at full length)
tau: float | None = 0.9  # a chain also reveals what the model is surer of than this; None = off
buffer = 8  # chains held, in batches; they are visited in turn
chains_from = 0  # the iteration from which there are chains; before it, random masks
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
lora_rank = 0  # of trainable matrices beside the frozen weights (lora.py); 0 = all are trained
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
eval_tau: float | None = None  # reveal all that is surer than this instead; None = off
eval_batch_size = 512
# -- system ----------------------------------------------------------------------------------
log_interval = 10
checkpoint_interval = 500
keep_every = 0  # also keep the averaged weights at multiples of this, in out_dir/weights; 0 = off
device = ""  # cpu, cuda, mps; "" = the best there is
dtype = ""  # bfloat16 or float32, of matrix products; "" = bfloat16 where the hardware has it
gradient_checkpointing = False  # keep less for backward and compute it twice
compile: bool | None = None  # None = where there is a compiler and the run is long enough

_MAY_CHANGE = "name", "max_iters", "log_interval", "checkpoint_interval", "keep_every", "out_dir"
_MACHINE = "device", "dtype", "compile"


def main(config):
    # -- data, model, optimizer, stream of contexts --
    with backend.mistakes_named():
        check(config)
        world, rank, device = backend.start(config["device"])
        autocast = backend.autocast(device, dtype)
        out = Path(out_dir or f"out/{name}_{method}_{seed}")
        resuming = init_from == "resume"
        saved = checkpoint.load(out / "checkpoint.pt") if resuming or eval_only else None
        if saved:
            config["init_from"] = saved["config"]["init_from"]  # adapters need their base again
            check_saved(saved, config, resuming, world, device)
        with backend.first_process_first(rank):
            task = TASKS[dataset].load(config)
            torch.manual_seed(seed)
            model, weights, model_args = make_model(task, saved, config["init_from"], device)
        model.model.gradient_checkpointing = gradient_checkpointing
        # The EMA weights. Where there are none: the model's own, never compiled.
        averaged = copy.deepcopy(model).requires_grad_(False) if ema else copy.copy(model)
        optimizer = make_optimizer(model)
        stream = make_stream(task.train, model.mask_token, device, rank, world)
        objective = make_objective(model, policies.get(policy), papl)
        parts = {"model": weights, "optimizer": optimizer} | ({"ema": averaged} if ema else {})
        torch.manual_seed(seed + rank)
        start = 0
        if resuming:
            if saved["data"] != fingerprint(task.train):
                raise ValueError("a resumed run must keep its data: the training examples differ")
            start = restore(saved, parts, stream, rank)
        if eval_only:
            averaged = checkpoint.build(saved, device)
    if backend.compiles(device, compile, max_iters):
        objective.compile()
    if world > 1:
        objective = DistributedDataParallel(objective, broadcast_buffers=False)

    def save(iteration):
        ranks = backend.gather({"stream": stream.state_dict(), **checkpoint.random_states()})
        if rank == 0:
            state = {part: value.state_dict() for part, value in parts.items()}
            state |= {"iteration": iteration, "config": config}
            state |= {"model_args": model_args | {"block": model.block}}  # as it is now
            state |= {"ranks": ranks, "device": device.type, "data": fingerprint(task.train)}
            checkpoint.save(state, out / "checkpoint.pt")

    def keep(iteration):
        if rank == 0 and keep_every and iteration % keep_every == 0:
            state = {"ema": averaged.state_dict(), "iteration": iteration}
            state |= {"config": config, "model_args": model_args | {"block": model.block}}
            checkpoint.save(state, out / "weights" / f"{iteration:06d}.pt")

    def measure():
        return evaluate(task, averaged, autocast, rank, world)

    def report(iteration):
        result = measure()
        if rank == 0:
            log.write(type="eval", iter=iteration, **result)
        shown["val_loss"] = f"{result['val_loss']:.3f}"
        shown["accuracy"] = f"{next(iter(result['accuracy'].values())):.3f}"
        return result

    if eval_only:
        result = measure()
        del objective  # DDP must go before the process group does, or it may wait for ever
        finish(result, rank)
        return

    # -- loop --
    if rank == 0:
        print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters", flush=True)
        if lora_rank:
            print(memory_table(model_args, device, world), flush=True)
    if rank == 0 and not resuming and (out / "checkpoint.pt").exists():
        print(f"kept in {checkpoint.set_aside(out)}: the run that was in {out}")
    with backend.mistakes_named():
        log = Metrics(out / "metrics.jsonl", config, start) if rank == 0 else None
    if not resuming:
        keep(0)
        save(0)
    stop = stop_on_signal()
    bar = tqdm(total=max_iters, initial=start, disable=rank > 0, unit="it", smoothing=0.05)
    losses, shown, result = [], {}, None
    if backend.any_process(rank == 0 and not log.evaluated and evaluates_at(start)):
        result = report(start)  # the run was killed in it
    since = time.perf_counter()
    for iteration in range(start, max_iters):
        if model.block != block_at(iteration) and not model.causal:
            model.block = averaged.block = block_at(iteration)
            torch.compiler.reset()  # it gives up after a few versions of the same code
        for group in optimizer.param_groups:
            group["lr"] = lr_at(iteration)
        for micro in range(accumulate):
            x0, x, hidden = stream.batch(iteration)
            with backend.synchronised(objective, micro == accumulate - 1):
                with autocast:
                    loss, score, confidence = objective(x, x0, hidden)
                (loss / accumulate).backward()
            stream.advance(score, confidence)
            losses.append(loss.detach())  # stays on the device until it is logged
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip or math.inf)
        optimizer.step()
        optimizer.zero_grad()
        if ema:
            update_average(averaged, model, iteration)

        done = iteration + 1
        keep(done)
        bar.update()
        if done % log_interval == 0:
            rate = batch_size * world * len(losses) / (time.perf_counter() - since)
            loss = torch.stack(losses).mean().item()
            if not math.isfinite(loss):
                raise SystemExit(f"the loss is {loss} at iteration {done}; try a smaller --lr")
            if rank == 0:
                epoch = stream.queue.known * world / len(task.train)
                log.write(type="train", iter=done, loss=loss, grad_norm=norm.item(), epoch=epoch,
                          lr=lr_at(iteration), examples_per_second=rate)  # fmt: skip
            shown |= {"loss": f"{loss:.3f}", "examples/s": f"{rate:,.0f}"}
            bar.set_postfix(shown)
            losses, since = [], time.perf_counter()
        stopping = backend.any_process(stop.is_set())
        if done % checkpoint_interval == 0 or evaluates_at(done) or stopping:
            save(done)  # before the evaluation, in which a run may be killed
        if stopping:
            raise SystemExit(f"stopped at iteration {done}; --init_from=resume goes on from there")
        if evaluates_at(done):
            pause = time.perf_counter()
            result = report(done)
            since += time.perf_counter() - pause
    bar.close()
    result = result or measure()
    del objective  # as above
    finish(result, rank)


def check(config):
    """Raise ValueError for values that no run can have."""
    for key in (
        "train_examples", "test_examples", "buffer", "dim", "layers", "heads", "mlp", "batch_size",
        "accumulate", "eval_interval", "eval_batch_size", "log_interval", "checkpoint_interval",
    ):  # fmt: skip
        if config[key] < 1:
            raise ValueError(f"{key} {config[key]}: expected at least 1")
    if chains_from < 0 or (chains_from >= max_iters > 0 and method not in ("mdm", "ar")):
        raise ValueError(
            f"chains_from {chains_from}: expected at least 0, and less than max_iters {max_iters}"
        )
    if dataset not in TASKS:
        raise ValueError(f"dataset {dataset!r}: expected {', '.join(TASKS)}")
    policies.threshold(tau, None)
    if not 0 <= papl < math.inf:
        raise ValueError(f"papl {papl}: expected a finite number, at least 0")
    if block_schedule:
        check_schedule(block_schedule, "block_schedule")
        if method == "ar":
            raise ValueError("block_schedule goes with mdm and puma: ar is the case of blocks of 1")
    pretrained = init_from.startswith("hf:")
    if init_from not in ("scratch", "resume") and not (pretrained or init_from.endswith(".pt")):
        raise ValueError(f"init_from {init_from!r}: expected scratch, resume, FILE.pt or hf:FOLDER")
    if pretrained and (dataset == "sudoku" or method == "ar"):
        raise ValueError(f"init_from {init_from}: goes with text, and not with method ar")
    without = not (pretrained or init_from == "resume" or eval_only)
    if lora_rank < 0 or (lora_rank and (ema or without or keep_every)):
        raise ValueError(
            f"lora_rank {lora_rank}: expected init_from hf:FOLDER, ema 0, keep_every 0"
        )
    if not eval_policies:
        raise ValueError("eval_policies is empty: expected names of policies, like ['top_k']")
    for each in eval_policies:
        Sampler(each, eval_reveal, eval_tau).check()


def make_model(task, saved, origin, device):
    """The model, what stands for it in a checkpoint, and the arguments that it is made from.

    The weights of a saved run are loaded later, into both; its adapters need their base here.
    Raises ValueError if a pretrained model, or that of another run, does not fit.
    """
    model_args = dict(
        vocab_size=task.vocab_size, mask_token=task.mask, length=task.length, dim=dim,
        layers=layers, heads=heads, kv_heads=kv_heads, mlp=mlp, theta=theta, tied=tied,
        causal=method == "ar", shifted=method == "ar", block=block_at(0),
    )  # fmt: skip
    base, state = origin.removeprefix("hf:"), None
    if saved:
        model_args = saved["model_args"]
    elif base != origin:
        form = task.length, task.vocab_size, task.encoding.end, task.mask
        model_args = hf.for_diffusion(hf.resolve(base), *form) | {"block": block_at(0)}
    elif origin != "scratch":
        state, model_args = checkpoint.starting_point(origin, model_args)
    if lora_rank:
        precision = backend.precision(device, dtype)
        model, adapters = lora.load(base, model_args, lora_rank, lora_alpha, device, precision)
        return model, adapters, model_args
    if base != origin and not saved:
        model = hf.load(hf.resolve(base), model_args, device)
    else:
        model = Transformer(**model_args).to(device)
    if state:
        model.load_state_dict(state)
    return model, model, model_args


def memory_table(model_args, device, world):
    precision = backend.precision(device, dtype)
    return memory.table(
        *memory.estimate(
            model_args, batch_size, lora_rank, gradient_checkpointing, precision, world
        )
    )


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


def make_objective(model, policy, papl=0.0):
    kind = Objective if model.vocab_size <= DENSE else ChunkedObjective
    return kind(model, policy, papl)


def make_stream(data, mask_token, device, rank, world):
    queue = ExampleQueue(data, batch_size, device, seed, rank, world)
    generator = torch.Generator(device).manual_seed(seed * world + rank)
    shared = queue, mask_token, generator
    if method == "ar":
        return NextToken(*shared)
    if block_schedule:
        masks = block.RandomMasking(*shared, block_schedule)
    else:
        masks = RandomMasking(*shared)
    if method == "mdm":
        return masks
    settings = k_schedule, tau, buffer
    if method in ablations.CHAINS and not block_schedule:
        chains = ablations.CHAINS[method](*shared, *settings)
    elif method == "puma":
        chains = block.ProgressiveUnmasking(*shared, block_schedule, *settings)
    else:
        others = ", ".join(list(ablations.CHAINS)[1:])
        raise ValueError(
            f"method {method!r}: expected puma, mdm or ar, or without blocks one of {others}"
        )
    return RandomFirst(masks, chains, chains_from) if chains_from else chains


def evaluates_at(iteration):
    return iteration > 0 and (iteration % eval_interval == 0 or iteration == max_iters)


def block_at(iteration):
    return value_at(block_schedule, iteration) if block_schedule else 0


def lr_at(iteration):
    """Linear warm-up, then a cosine from lr to min_lr."""
    if iteration < warmup:
        return lr * (iteration + 1) / warmup
    share = (iteration - warmup) / max(1, max_iters - warmup)
    return min_lr + (lr - min_lr) * 0.5 * (1 + math.cos(math.pi * share))


@torch.no_grad()
def update_average(averaged, model, n):
    decay = min(ema, (1 + n) / (10 + n))
    torch._foreach_lerp_(list(averaged.parameters()), list(model.parameters()), 1 - decay)


def evaluate(task, model, autocast, rank, world):
    """Accuracy per policy and validation loss on the held-out examples, shared out over ranks.

    Its random state is its own: the same at every call, and training's is left as it was.
    """
    device = next(model.parameters()).device
    mine = np.arange(rank, len(task.test), world)
    x0, prompt = on_device(task.test[mine], device)
    with torch.random.fork_rng([device] if device.type == "cuda" else []), autocast:
        solved = []
        names = ["left_to_right"] if model.causal else eval_policies
        for each in names:
            sampler = Sampler(each, eval_reveal, eval_tau)
            tokens, _ = solve(model, x0, prompt, sampler, 0, eval_batch_size, rank)
            solved.append(task.test.solved(tokens, mine).sum())
        loss, rows = validation_loss(task.validation, model, device, rank, world)
    *solved, n, loss, rows = backend.total([*solved, len(mine), loss, rows])
    accuracy = {key: count / n for key, count in zip(names, solved, strict=True)}
    return {"accuracy": accuracy, "val_loss": loss / rows, "examples": int(n)}


@torch.no_grad()
def validation_loss(examples, model, device, rank, world):
    """The baseline's loss summed over this process's rows of test_examples, and their number.

    The masks are the same for both methods and every number of processes. The loss of a model with
    blocks is that in blocks, a causal model's that of the next token: not to be compared.
    """
    count = min(len(examples), test_examples)
    x0, prompt = on_device(examples[np.arange(count)], device)
    hidden = block.random_masks(prompt, model.block, torch.Generator(device).manual_seed(0))
    x = x0 if model.causal else x0.masked_fill(hidden, model.mask_token)
    x0, x, hidden = (each[rank::world] for each in (x0, x, hidden))
    total = 0.0
    for row in range(0, len(x0), eval_batch_size):
        rows = slice(row, row + eval_batch_size)
        nll = masked_nll(model, states(model, x[rows], x0[rows]), x0[rows], hidden[rows])
        total += row_mean(nll, hidden[rows], model.block).item() * len(nll)
    return total, len(x0)


def check_saved(saved, config, resuming, world, device):
    """Raise ValueError where this run could not go on as the saved one would have.

    To be evaluated it must be the same run, on any machine.
    """
    may = _MAY_CHANGE if resuming else _MAY_CHANGE + _MACHINE
    differ = [key for key in config if config[key] != saved["config"].get(key)]
    differ = [key for key in differ if key not in may and not key.startswith("eval_")]
    if differ:
        was = ", ".join(f"{key} {saved['config'].get(key)} -> {config[key]}" for key in differ)
        raise ValueError(f"a saved run must keep its configuration: {was}")
    if not resuming:
        return
    if saved["iteration"] > config["max_iters"]:
        raise ValueError(f"max_iters {config['max_iters']}: the run is at {saved['iteration']}")
    there, here = (len(saved["ranks"]), saved["device"]), (world, device.type)
    if there != here:
        raise ValueError(f"a resumed run must keep its processes and device: {there} -> {here}")


def restore(saved, parts, stream, rank):
    """Put everything back as the checkpoint has it; returns its iteration."""
    for part, value in parts.items():
        value.load_state_dict(saved[part])
    stream.load_state_dict(saved["ranks"][rank]["stream"])
    checkpoint.set_random_states(saved["ranks"][rank])
    return saved["iteration"]


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


def finish(result, rank):
    if rank == 0:
        print(f"{result['val_loss']:.4f} validation loss")
        for key, share in result["accuracy"].items():
            sampler = Sampler(key, eval_reveal, eval_tau) if method != "ar" else Sampler(key, 1)
            print(f"{share:7.2%} of {result['examples']} held-out problems solved ({sampler})")
    backend.stop()


if __name__ == "__main__":
    main(configure(globals()))
