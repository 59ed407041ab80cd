"""Train a masked diffusion model, with Progressive Unmasking (puma) or random masks (mdm).

    python train.py config/sudoku_mini.py --seed=2
    torchrun --nproc_per_node=8 train.py config/sudoku.py
    python train.py config/sudoku_mini.py --init_from=resume      go on where the run stopped

Writes metrics.jsonl and checkpoint.pt to out_dir. A resumed run ends in the same weights as an
uninterrupted one: the checkpoint holds the chains, the data order and the random states too.
"""

import copy
import math
import signal
import threading
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

import backend
import checkpoint
import hf
import lora
import memory
import policies
import sudoku
import text
from configurator import configure
from examples import ExampleQueue, fingerprint
from losses import DENSE, ChunkedObjective, Objective
from metrics import Metrics
from model import Transformer
from puma import ProgressiveUnmasking, RandomMasking, random_masks
from sample import generate

# -- run -------------------------------------------------------------------------------------
name = "sudoku_mini"
out_dir = ""  # where metrics and checkpoint go; "" = out/<name>_<method>_<seed>
seed = 1
init_from = "scratch"  # scratch; resume: go on in out_dir; hf:FOLDER, hf:HUB/NAME: pretrained
eval_only = False  # evaluate the checkpoint in out_dir and stop
# -- data ------------------------------------------------------------------------------------
dataset = "sudoku"  # sudoku, or text: questions, each followed by a program
train_examples = 200_000  # to generate; of files all are used
test_examples = 512
# -- data: text ------------------------------------------------------------------------------
data_dir = ""  # a folder that data/tinygsm/prepare.py wrote; "" = generated word problems
# -- data: sudoku ----------------------------------------------------------------------------
box = (2, 3)  # rows and columns of a Sudoku box
clues: int | None = None  # clues per generated puzzle; None = minimal puzzles
data_file = ""  # a .csv or .npy of real puzzles (see sudoku.py); "" = generate them
test_file = ""  # another to hold out; "" = hold out test_examples of the same
max_rating: float | None = None  # of real puzzles, take those rated at most this; None = all
# -- method ----------------------------------------------------------------------------------
method = "puma"  # puma: teacher-forced chains; mdm: random masks (the baseline)
policy = "top_k"  # which tokens a chain reveals first: top_k, margin, entropy, random, ...
k_schedule = [(0, 9)]  # (iteration, K): from then on reveal K tokens per stage (at full length)
tau: float | None = 0.9  # a chain also reveals what the model is surer of than this; None = off
buffer = 8  # chains held, in batches; they are visited in turn
random_start = False  # chains start with a random reveal of stage 0's share, not fully masked
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
device = ""  # cpu, cuda, mps; "" = the best there is
dtype = ""  # bfloat16 or float32, of matrix products; "" = bfloat16 where the hardware has it
gradient_checkpointing = False  # keep less for backward and compute it twice
compile: bool | None = None  # None = where there is a compiler and the run is long enough

_MAY_CHANGE = ["name", "out_dir", "init_from", "max_iters", "log_interval", "checkpoint_interval"]


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
        with backend.first_process_first(rank):
            task = {"sudoku": sudoku, "text": text}[dataset].load(config)
            model_args = saved["model_args"] if saved else make_model_args(task)
        torch.manual_seed(seed)
        model, weights = make_model(model_args, config["init_from"], not saved, device)
        model.model.gradient_checkpointing = gradient_checkpointing
        # The EMA weights. Where there are none: the model's own, never compiled.
        averaged = copy.deepcopy(model).requires_grad_(False) if ema else copy.copy(model)
        optimizer = make_optimizer(model)
        stream = make_stream(task, device, rank, world)
        objective = make_objective(model, policies.get(policy))
        samplers = {each: policies.get(each) for each in eval_policies if len(task.test)}
        parts = {"model": weights, "optimizer": optimizer} | ({"ema": averaged} if ema else {})
        torch.manual_seed(seed + rank)
        start = 0
        if resuming:
            if saved["data"] != fingerprint(task.train):
                raise ValueError("a resumed run must keep its data: the training examples differ")
            start = restore(saved, config, parts, stream, rank, world, device)
        if eval_only:
            (averaged if ema else weights).load_state_dict(saved["ema" if ema else "model"])
    if backend.compiles(device, compile, max_iters):
        objective.compile()
    if world > 1:
        objective = DistributedDataParallel(objective, broadcast_buffers=False)

    def save(iteration):
        ranks = backend.gather({"stream": stream.state_dict(), **checkpoint.random_states()})
        if rank == 0:
            state = {part: value.state_dict() for part, value in parts.items()}
            state |= {"iteration": iteration, "config": config, "model_args": model_args}
            state |= {"ranks": ranks, "device": device.type, "data": fingerprint(task.train)}
            checkpoint.save(state, out / "checkpoint.pt")

    def measure():
        return evaluate(task, averaged, samplers, autocast, rank, world)

    if eval_only:
        finish(measure(), rank)
        return

    # -- loop --
    if rank == 0:
        print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters", flush=True)
        if lora_rank:
            print(memory_table(model_args, device, world), flush=True)
    if rank == 0 and not resuming and checkpoint.move_aside(out / "checkpoint.pt"):
        print(f"kept as {checkpoint.move_aside(out / 'metrics.jsonl')}: the run that was in {out}")
    log = Metrics(out / "metrics.jsonl", config, start) if rank == 0 else None
    if not resuming:
        save(0)
    stop = stop_on_signal()
    bar = tqdm(total=max_iters, initial=start, disable=rank > 0, unit="it", smoothing=0.05)
    losses, since, shown, result = [], time.perf_counter(), {}, None
    for iteration in range(start, max_iters):
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
        if done % eval_interval == 0 or done == max_iters:
            pause = time.perf_counter()
            result = measure()
            if rank == 0:
                log.write(type="eval", iter=done, **result)
            shown["val_loss"] = f"{result['val_loss']:.3f}"
            if samplers:
                shown["accuracy"] = f"{result['accuracy'][eval_policies[0]]:.3f}"
            since += time.perf_counter() - pause
        stopping = backend.any_process(stop.is_set())
        if done % checkpoint_interval == 0 or done == max_iters or stopping:
            save(done)
        if stopping:
            raise SystemExit(f"stopped at iteration {done}; --init_from=resume goes on from there")
    bar.close()
    finish(result or measure(), rank)


def check(config):
    """Raise ValueError for values that no run can have."""
    for key in (
        "train_examples", "test_examples", "buffer", "dim", "layers", "heads", "mlp", "batch_size",
        "accumulate", "eval_interval", "eval_reveal", "eval_batch_size", "log_interval",
        "checkpoint_interval",
    ):  # fmt: skip
        if config[key] < 1:
            raise ValueError(f"{key} {config[key]}: expected at least 1")
    if dataset not in ("sudoku", "text"):
        raise ValueError(f"dataset {dataset!r}: expected sudoku or text")
    pretrained = init_from.startswith("hf:")
    if init_from not in ("scratch", "resume") and not pretrained:
        raise ValueError(f"init_from {init_from!r}: expected scratch or resume, or hf:FOLDER")
    if pretrained and dataset != "text":
        raise ValueError(f"init_from {init_from}: for dataset text only")
    without = init_from == "scratch" and not eval_only
    if lora_rank < 0 or (lora_rank and (ema or without)):
        raise ValueError(f"lora_rank {lora_rank}: expected init_from hf:FOLDER, and ema 0")
    if not eval_policies:
        raise ValueError("eval_policies is empty: expected names of policies, like ['top_k']")


def make_model_args(task):
    """Raises ValueError if a pretrained model does not fit the data."""
    if not init_from.startswith("hf:"):
        return dict(
            vocab_size=task.vocab_size, mask_token=task.mask, length=task.length, dim=dim,
            layers=layers, heads=heads, kv_heads=kv_heads, mlp=mlp, theta=theta, tied=tied,
        )  # fmt: skip
    folder = hf.resolve(init_from.removeprefix("hf:"))
    return hf.for_diffusion(folder, task.length, task.vocab_size, task.encoding.end, task.mask)


def make_model(model_args, origin, fresh, device):
    """The model, and what stands for it in a checkpoint. A fresh one has the weights of origin."""
    name = origin.removeprefix("hf:")
    if lora_rank:
        precision = backend.precision(device, dtype)
        return lora.load(name, model_args, lora_rank, lora_alpha, device, precision)
    if fresh and name != origin:
        model = hf.load(hf.resolve(name), model_args, device)
    else:
        model = Transformer(**model_args).to(device)
    return model, model


def memory_table(model_args, device, world):
    precision = backend.precision(device, dtype)
    return memory.table(
        *memory.estimate(
            model_args, batch_size, lora_rank, gradient_checkpointing, precision, world
        )
    )


def make_optimizer(model):
    """AdamW; weight decay on matrices only."""
    trained = [p for p in model.parameters() if p.requires_grad]
    matrices = [p for p in trained if p.dim() > 1]
    vectors = [p for p in trained if p.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    fused = next(model.parameters()).device.type != "mps"
    return torch.optim.AdamW(groups, lr=lr, betas=betas, fused=fused)


def make_objective(model, policy):
    kind = Objective if model.vocab_size <= DENSE else ChunkedObjective
    return kind(model, policy)


def make_stream(task, device, rank, world):
    queue = ExampleQueue(task.train, batch_size, device, seed, rank, world)
    generator = torch.Generator(device).manual_seed(seed * world + rank)
    if method == "mdm":
        return RandomMasking(queue, task.mask, generator)
    if method == "puma":
        return ProgressiveUnmasking(
            queue, task.mask, generator, k_schedule, tau, buffer, random_start
        )
    raise ValueError(f"method {method!r}: expected puma or mdm")


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


def evaluate(task, model, samplers, autocast, rank, world):
    """Accuracy per policy and validation loss on the held-out examples, shared out over ranks.

    Its random state is its own: the same at every call, and training's is left as it was.
    """
    device = next(model.parameters()).device
    mine = np.arange(rank, len(task.test), world)
    x0, prompt = on_device(task.test[mine], device)
    with torch.random.fork_rng([device] if device.type == "cuda" else []), autocast:
        torch.manual_seed(0)
        solved = []
        for sampler in samplers.values():
            tokens, _, _ = generate(
                model, x0, ~prompt, sampler, eval_reveal, eval_tau, batch_size=eval_batch_size,
                progress=rank == 0,
            )  # fmt: skip
            solved.append(task.test.solved(tokens.cpu().numpy(), mine).sum())
        loss, rows = validation_loss(task.validation, model, device, rank, world)
    *solved, n, loss, rows = backend.total([*solved, len(mine), loss, rows])
    accuracy = {key: count / n for key, count in zip(samplers, solved, strict=True)}
    return {"accuracy": accuracy, "val_loss": loss / rows, "examples": int(n)}


@torch.no_grad()
def validation_loss(examples, model, device, rank, world):
    """The baseline's loss summed over this process's rows of test_examples, and their number.

    The masks are the same for both methods and every number of processes.
    """
    count = min(len(examples), test_examples)
    x0, prompt = on_device(examples[np.arange(count)], device)
    hidden = random_masks(prompt, torch.Generator(device).manual_seed(0))
    x0, hidden = x0[rank::world], hidden[rank::world]
    objective, total = make_objective(model, policies.top_k), 0.0
    for row in range(0, len(x0), eval_batch_size):
        rows = slice(row, row + eval_batch_size)
        x = x0[rows].masked_fill(hidden[rows], model.mask_token)
        total += objective(x, x0[rows], hidden[rows])[0].item() * len(x)
    return total, len(x0)


def on_device(example, device):
    """x0 and prompt (n, L), from numpy, as tensors of ids and bools."""
    x0, prompt = (torch.as_tensor(part).to(device) for part in example)
    return x0.long(), prompt


def restore(saved, config, parts, stream, rank, world, device):
    """Put everything back as the checkpoint has it; returns its iteration.

    Raises ValueError where this run could not go on as that one would have.
    """
    differ = [key for key in config if config[key] != saved["config"].get(key)]
    differ = [key for key in differ if key not in _MAY_CHANGE and not key.startswith("eval_")]
    if differ:
        was = ", ".join(f"{key} {saved['config'].get(key)} -> {config[key]}" for key in differ)
        raise ValueError(f"a resumed run must keep its configuration: {was}")
    there, here = (len(saved["ranks"]), saved["device"]), (world, device.type)
    if there != here:
        raise ValueError(f"a resumed run must keep its processes and device: {there} -> {here}")
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

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    return stop


def finish(result, rank):
    if rank == 0:
        how = f"surer than {eval_tau}" if eval_tau else f"{eval_reveal} per step"
        print(f"{result['val_loss']:.4f} validation loss")
        for key, share in result["accuracy"].items():
            print(f"{share:7.2%} of {result['examples']} held-out problems solved ({key}, {how})")
    backend.stop()


if __name__ == "__main__":
    main(configure(globals()))
