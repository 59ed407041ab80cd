"""Train a masked diffusion model, with Progressive Unmasking (puma) or random masks (mdm).

Or train an autoregressive model (ar), from which such a run can start.

    python train.py config/sudoku_mini.py --seed=2
    torchrun --nproc_per_node=8 train.py config/sudoku.py
    python train.py config/sudoku_mini.py --init_from=resume      resume where it stopped
    python train.py config/sudoku_mini.py --init_from=continue --lr=5e-4       with changes
    python train.py config/gsm_tiny.py --init_from=out/gsm_tiny_ar_1/checkpoint.pt

Writes metrics.jsonl and checkpoint.pt to out_dir. A resumed run ends with the same weights as an
uninterrupted one: the checkpoint also holds the chains, the data order and the random states.
`continue` allows changes: another number of processes, device, batch size, learning rate, K or tau;
chains and data order are then redistributed. Without a checkpoint it starts a new run, so that
torchrun can restart it automatically on the machines that are left (restarts need this variable,
see pytorch/pytorch, issue 135712):

    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
    torchrun --nnodes=1:4 --nproc_per_node=8 --max_restarts=3 ... train.py --init_from=continue

Read it from the top: settings, `main`, `set_up`, the loop, then how each part is built.
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
from configurator import configure, errors_as_messages
from eval import evaluate, validation_loss
from example_queue import ExampleQueue, fingerprint
from losses import DENSE, ChunkedObjective, Objective
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
from record import Lock, Log, say
from sample import Sampler

# -- run -------------------------------------------------------------------------------------
name = "default"
out_dir = ""  # where metrics and checkpoint go; "" = out/<name>_<method>_<seed>
seed = 1
init_from = "scratch"  # scratch, resume, continue; FILE.pt, hf:FOLDER, hf:NAME; continue:hf:NAME
# -- data ------------------------------------------------------------------------------------
dataset = "sudoku"  # sudoku, addition, own_text, text (questions with programs), instructions
train_examples = 200_000  # to generate; data from files is used whole
test_examples = 512
# -- data: text ------------------------------------------------------------------------------
data_dir = (
    ""  # a folder written by a data/*/prepare.py; "" = generated word problems, or their text
)
templates: list[str] = []  # names in data/wordproblems/templates.py; [] = all of them
text_length = 176  # tokens of a generated problem; longer ones are dropped
# -- data: sudoku ----------------------------------------------------------------------------
box = (2, 3)  # rows and columns of a Sudoku box
clues: int | None = None  # clues per generated puzzle; None = minimal puzzles
data_file = ""  # real puzzles, a file from data/sudoku/prepare.py; "" = generate them
# -- data: addition --------------------------------------------------------------------------
digits = 16  # of each of the two numbers
digit_order = "highest"  # which digit of a number comes first in a row: highest or lowest
long_chains = False  # make long carry chains as frequent as short ones in training sums
# -- method ----------------------------------------------------------------------------------
method = "puma"  # puma; mdm (random masks); ar (next token); variants in studies/ablations.py
policy = "top_k"  # which tokens a chain reveals first: top_k, margin, entropy, random, ...
k_schedule = [(0, 9)]  # (iteration, K): from then on reveal K tokens per stage (at full length)
tau: float | None = 0.9  # a chain also reveals all with confidence above this; None = off
buffer = 8  # batches of chains held (of batch_size rows each), visited in turn
random_share = 0.0  # share of rows with random masks instead of chains; 0 = as in the paper
chains_from = 0  # first iteration with chains; random masks before it
chains_until = 0  # iteration from which random masks replace the chains; 0 = never
papl = 0.0  # alpha of PAPL's loss weights 1 + alpha * w (losses.papl_weights); 0 = off
block_schedule = []  # block diffusion: (iteration, size) pairs, sizes divide the length; [] = off
# -- model (not used with a pretrained one, which has its own shape) --------------------------
dim = 128
layers = 4
heads = 8
kv_heads: int | None = None  # fewer than heads = grouped-query attention; None = as many
mlp = 384
theta = 10000.0  # base of the rotary frequencies
tied = False  # output head = embedding
# -- adapters (of a pretrained model) ---------------------------------------------------------
lora_rank = 0  # rank of LoRA adapters on frozen weights (pretrained/lora.py); 0 = train all weights
lora_alpha = 16  # adapter output is scaled by alpha / rank
# -- optimisation ----------------------------------------------------------------------------
batch_size = 128  # rows per update, over all processes
micro_batch: int | None = None  # most rows per process and forward pass; None = no limit
max_iters = 3000  # updates
lr = 1e-3
min_lr = 1e-4  # at the end of the cosine
warmup = 200  # updates
muon = False  # Muon instead of AdamW for the weight matrices of the layers (muon.py)
weight_decay = 0.01  # not on norms and biases
betas = (0.9, 0.99)
grad_clip = 1.0  # clip the gradient's norm at this; 0 = off
ema = 0.9999  # decay of averaged weights, for evaluation; (1 + n)/(10 + n) at first; 0 = off
# -- evaluation ------------------------------------------------------------------------------
eval_interval = 300
eval_policies = ["top_k", "margin", "entropy"]
eval_reveal = 2  # tokens revealed per step
eval_tau: float | None = None  # instead reveal all with confidence above this; None = off
eval_batch_size = 512
eval_judge = ""  # judge of own_text's responses: exact or FILE.py (tasks/own_text.py); "" = none
watch = False  # after each evaluation, show how a held-out example fills in (studies/watch.py)
# -- system ----------------------------------------------------------------------------------
log_interval = 10
track = ""  # also send the lines of metrics.jsonl to tensorboard, trackio or wandb
checkpoint_interval = 500
keep_every = 0  # also save the averaged weights every so many updates, in out_dir/weights; 0 = off
shard = False  # split weights and moments over the processes: for models larger than one device
patience = 600  # seconds that processes wait for each other before they consider one lost
device = ""  # cpu, cuda, mps; "" = the best there is
dtype = ""  # bfloat16 or float32, for matrix products; "" = bfloat16 if the hardware supports it
deterministic = False  # bit-identical repeated runs on CUDA, at a cost; always so on a CPU
cuda_graph = False  # record the step once and replay it: for small models; not run yet
gradient_checkpointing = False  # save memory: recompute activations in the backward pass
compile: bool | None = None  # None = if there is a compiler and the run is long enough

LIMITS = """
    0 <= seed < 2**32
    1 <= train_examples <= 10**8
    1 <= test_examples <= 10**7
    1 <= text_length <= 10**5
    1 <= box <= 32
    1 <= clues <= 1023
    0 <= tau <= 1    # a probability, or None
    1 <= buffer <= 10**4
    1 <= digits <= 1000
    0 <= random_share < 1
    0 <= chains_from <= 10**9
    0 <= chains_until <= 10**9
    chains_from * chains_until == 0    # random masks first or last, not both
    0 <= papl <= 1000
    1 <= dim <= 10**6
    1 <= layers <= 1000
    1 <= heads <= dim
    dim % (2 * heads) == 0    # a head has an even width
    1 <= kv_heads <= heads
    heads % kv_heads == 0
    1 <= mlp <= 10**7
    1 <= theta <= 10**12
    0 <= lora_rank <= 10**4
    1 <= lora_alpha <= 10**6
    1 <= batch_size <= 10**6
    1 <= micro_batch <= 10**6
    0 <= max_iters <= 10**9
    0 <= lr
    0 <= min_lr <= lr    # equal for a constant rate
    0 <= warmup <= 10**9
    0 <= weight_decay <= 1000
    0 <= betas < 1
    0 <= grad_clip    # 0 = off
    0 <= ema <= 1    # 0 = off
    1 <= eval_interval <= 10**9
    1 <= eval_reveal <= 10**6
    0 <= eval_tau <= 1    # a probability, or None
    1 <= eval_batch_size <= 10**6
    1 <= log_interval <= 10**9
    1 <= checkpoint_interval <= 10**9
    0 <= keep_every <= 10**9    # 0 = off
    1 <= patience <= 10**6
"""
CHANCE = 1_000_003  # per iteration, added to the seeds of a run that continues with changes


class Run(NamedTuple):
    """What a run is made of."""

    task: object
    model: Transformer
    averaged: Transformer  # with averaged weights, for evaluation; without EMA, its own
    optimizer: Muon
    stream: object  # of training contexts (puma.py)
    objective: torch.nn.Module  # the model with its loss
    share: torch.Tensor  # (): 1 - decay of the averaged weights, at this iteration
    recorded: backend.Recorded | None  # `step` as a CUDA graph
    keeper: checkpoint.Keeper
    start: int  # the first iteration to run
    changes: dict  # {setting: (saved, now)} if it continues with changes
    autocast: object
    world: int  # processes
    rank: int  # of this one


def main(config):
    with contextlib.ExitStack() as until_the_end:
        with errors_as_messages(), backend.lost_processes_as_messages(lambda: "see what it said"):
            check()
            machine = _, rank, _ = backend.start(device, patience, deterministic)
            folder = Path(out_dir or f"out/{name}_{method}_{seed}")
            lock = until_the_end.enter_context(Lock(folder)) if rank == 0 else None
            run = set_up(config, folder, lock, *machine)
            if rank == 0:
                print(f"{sum(p.numel() for p in run.model.parameters()) / 1e6:.2f}M parameters")
            follow = [trackers().Tracker(track, folder)] if track and rank == 0 else []
            for tracker in follow:
                until_the_end.callback(tracker.close)
            log = Log(lock, config, run.start, max_iters, run.changes, follow)
            log.taken, keeper = int(run.stream.queue.taken), run.keeper
            until_the_end.callback(keeper.writer.shutdown)  # before the lock is given back
        with backend.lost_processes_as_messages(lambda: what_is_left(keeper)), log.bar:
            result = train(run, log)
        log.close()
    del run  # DDP must go before the process group does, or it may wait for ever
    backend.stop()
    if rank == 0:
        print(f"{result['val_loss']:.4f} validation loss")
        for sampler, share in zip(samplers(), result["accuracy"].values(), strict=False):
            print(f"{share:7.2%} of {result['examples']} held-out problems solved ({sampler})")


def set_up(config, folder, lock, world, rank, where):
    """Everything before the first iteration, as a Run. Raises ValueError for invalid settings."""
    shards = shard and world > 1
    autocast = backend.autocast(where, dtype, keep=not shards)
    saved, changes = find_saved(config, folder, world, rank, where)
    with backend.first_process_first():
        task = tasks.get(dataset).load(config)
        len(task.test)  # so that a broken judge is reported before training
        torch.manual_seed(seed)
        room = torch.device("cpu") if shards else where  # holds the whole model
        model, weights, model_args = make_model(task, saved, config["init_from"], room)
    model.model.gradient_checkpointing = gradient_checkpointing
    averaged = make_average(model, where, shards)
    optimizer = make_optimizer(model)
    start = saved["iteration"] if saved else 0
    stream = make_stream(task.train, model, where, rank, world, start if changes else 0)
    kind = Objective if model.vocab_size <= DENSE else ChunkedObjective
    objective = kind(model, policies.get(policy), papl)
    check_together(model.vocab_size)
    if kind is ChunkedObjective:
        stream.count_hidden()
    parts = {"model": weights, "optimizer": optimizer} | ({"ema": averaged} if ema else {})
    data = fingerprint(task.train)
    keeper = checkpoint.Keeper(folder, lock, config, model_args, parts, stream, data, where, rank)
    torch.manual_seed(seed + rank + CHANCE * start)
    if saved:
        keeper.restore(saved, changes)
    if not shards and backend.compiles(where, compile, max_iters):
        objective.compile()
        if where.type == "cuda":  # on a CPU, compiling these takes longer than it saves
            stream.compile()
            optimizer.compile()
    if world > 1 and not shards:
        objective = backend.distributed(objective)
    if not saved:
        begin_files(keeper, folder, rank)
    share = torch.zeros((), device=where)
    recorded = backend.Recorded(stream.generator) if cuda_graph else None
    return Run(task, model, averaged, optimizer, stream, objective, share, recorded, keeper, start,
               changes, autocast, world, rank)  # fmt: skip


def find_saved(config, folder, world, rank, where):
    """The checkpoint to continue from, or None, and what has changed since, {setting: (was, now)}.

    Sets config["init_from"] to that of the saved run, since adapters need their base model again.
    """
    path = folder / "checkpoint.pt"
    word, config["init_from"] = asked_for()
    if word == "continue" and not path.exists():
        if rank == 0:
            print(f"no {path} yet: starting a new run from {config['init_from']}")
        return None, {}
    if not word:
        return None, {}
    saved = checkpoint.load_whole(path)
    config["init_from"] = saved["config"].get("init_from", "scratch")
    changes = checkpoint.differences(saved, config, world, where)
    checkpoint.check_resumable(saved, config, changes, anywhere=word == "continue")
    if changes and rank == 0:
        words = checkpoint.in_words(changes, changes)
        print(f"continuing at iteration {saved['iteration']} with changes: {words}")
    return saved, changes


def what_is_left(keeper):
    saved = f"{keeper.latest()}; " if keeper.rank == 0 else ""  # the first process has written it
    return f"{saved}--init_from=continue resumes with the processes that are left"


def begin_files(keeper, folder, rank):
    """The first checkpoint of a new run; an earlier run in the folder is moved aside."""
    if rank == 0 and (folder / "checkpoint.pt").exists():
        print(f"moved the earlier run in {folder} to {checkpoint.archive(folder)}")
    if keep_every:
        keeper.save_weights(0, block_at(0))
    keeper.save_checkpoint(0, block_at(0))


def train(run, log):
    """The loop, from run.start to max_iters; returns the last evaluation."""
    stop, result, collapsed = stop_on_signal(), None, False
    asked_to_stop = backend.StopSign(stop)
    if backend.any_process(not log.evaluated and evaluates_at(run.start)):
        result = report(run, log, run.start)  # the run was killed during this evaluation
    if watch and run.rank == 0:
        show_problem(run, log)
    for iteration in range(run.start, max_iters):
        if block_at(iteration) != block_at(max(iteration - 1, 0)):
            torch.compiler.reset()  # the compiler gives up after a few versions of the same code
        with backend.stop_as_message(stop, run.keeper.latest):
            log.add(*update(run, iteration))
        done, block = iteration + 1, block_at(iteration)
        log.bar.update()
        stopping = asked_to_stop()
        logs, keeps = done % log_interval == 0, keep_every and done % keep_every == 0
        if logs:
            run.keeper.settle(wait=False)
        saves = stopping or evaluates_at(done) or done % checkpoint_interval == 0
        saves = saves or (logs and run.keeper.behind)
        if logs or keeps or saves:
            stop_unless_sound(run, log, done, saves or keeps)
        if logs:
            values = {"epoch": run.stream.queue.passes(), "lr": lr_at(iteration)}
            line = log.report_training(done, values, run.world, run.stream.queue.taken)
            collapsed = collapsed or warn_of_collapse(line, run.rank)
        if keeps:
            run.keeper.save_weights(done, block)
        if saves:
            run.keeper.keep_checkpoint(done, block)  # a run may be killed in an evaluation
        if stopping or done == max_iters:
            run.keeper.finish(done, block)
        if stopping:
            raise SystemExit(f"stopped at iteration {done}; --init_from=resume continues there")
        if evaluates_at(done):
            result = report(run, log, done)
    return result or evaluation(run, max_iters)


def warn_of_collapse(line, rank):
    """Whether chains end as soon as they start, by a line of metrics.jsonl; then warn of it."""
    at_once = line["visits"] and line["visits"] < 1.5 and line["hidden"] > 0.9
    if not at_once or tau is None or method in ("mdm", "ar"):
        return False
    if rank == 0:
        say(
            f"iteration {line['iter']}: chains end after {line['visits']:.2f} visits, because the "
            f"model's confidence is above tau {tau} nearly everywhere. It trains on fully masked "
            "rows only and may forget the rest (results/when.md): see --random_share, --tau=None"
        )
    return True


def update(run, iteration):
    """One step of the optimizer; returns the arguments of record.Log.add (norm before clipping)."""
    run.stream.prepare(iteration)  # new examples, a switch of K
    run.optimizer.param_groups[0]["lr"].fill_(lr_at(iteration))  # one tensor, of all groups
    run.share.fill_(1 - decay_at(iteration))
    return run.recorded(lambda: step(run)) if run.recorded else step(run)


def step(run):
    """`update` on the device: it never makes the host wait, so it can be recorded and replayed.

    What changes between iterations is in tensors, or is the block size. With a large vocabulary the
    host needs the number of hidden positions (losses.ChunkedObjective): for chains, it was sent at
    the previous visit; for random masks, the host waits.
    """
    losses, hidden, passes = [], [], run.stream.queue.takes
    for micro in range(passes):
        batch = run.stream.visit()  # x, x0, hidden, block
        with backend.synchronised(run.objective, micro == passes - 1):
            with run.autocast:
                size = run.stream.size()
                loss, score, confidence = run.objective(*batch, size)  # one forward pass
            (loss / passes).backward()
        hidden.append(batch.hidden.sum(1) / run.stream.effective)
        run.stream.advance(score, confidence)  # PUMA: reveal true tokens; baseline: nothing
        losses.append(loss.detach())
    norm = torch.nn.utils.clip_grad_norm_(run.model.parameters(), grad_clip or math.inf)
    run.optimizer.step()
    run.optimizer.zero_grad()
    if ema:
        update_average(run.averaged, run.model, run.share)
    norm = norm.full_tensor() if backend.is_sharded(norm) else norm
    return torch.stack(losses).mean(), norm, torch.cat(hidden)


def stop_unless_sound(run, log, done, weights):
    """Raise SystemExit on every process if a loss or a gradient's norm is not finite.

    weights: also if a weight, or the loss of the current weights, is not finite. Saving these would
    be useless: the next step fails.
    """
    fault = log.fault(done)
    sound = not weights or (predicts(run, done) and run.keeper.is_finite())  # all must predict
    if not fault and not sound:
        fault = f"the weights or their loss are not finite at iteration {done}"
    if backend.any_process(bool(fault)):
        fault = fault or f"a loss of another process is not finite by iteration {done}"
        remedy = "start with a smaller --lr, or continue there with --init_from=continue --lr=..."
        raise SystemExit(f"{fault}; {run.keeper.latest()}: {remedy}")


def predicts(run, done):
    """Whether model and average have a finite loss on a few held-out examples."""
    data, block = run.task.validation, block_at(done - 1)
    losses = []
    for model in run.model, run.averaged:
        with run.autocast, backend.whole(model):
            losses.append(validation_loss(data, model, block, 8, 8, 0, 1)[0])
    return all(map(math.isfinite, losses))


def evaluation(run, done):
    """eval.evaluate of the averaged weights after `done` updates."""
    block = block_at(max(done - 1, 0))
    with run.autocast, backend.whole(run.averaged):
        return evaluate(
            run.task, run.averaged, block, samplers(), test_examples, eval_batch_size,
            run.rank, run.world,
        )  # fmt: skip


def report(run, log, done):
    begin = time.perf_counter()
    result = evaluation(run, done)
    if not math.isfinite(result["val_loss"]):
        raise SystemExit(f"the validation loss is {result['val_loss']} at iteration {done}")
    log.report_evaluation(done, result, time.perf_counter() - begin)
    if watch:
        show_example(run, log, done)
    return result


def show_problem(run, log):
    """The first held-out example as it is given, before the first update."""
    from studies.watch import first_problem

    log.bar.clear()
    print(f"iteration {run.start}")
    *_, screen = first_problem(run.task, run.share.device)
    screen.begin()


def show_example(run, log, done):
    """The first held-out example, and how the averaged weights fill it in, step by step.

    The first process shows it; all of them gather the weights.
    """
    from studies.watch import watch_example

    block = block_at(max(done - 1, 0))
    with run.autocast, backend.whole(run.averaged):
        if run.rank == 0:
            log.bar.clear()
            print(f"iteration {done}")
            watch_example(run.task, run.averaged, samplers()[0], block)


# -- settings --------------------------------------------------------------------------------------
def check():
    """Raise ValueError for invalid settings, before anything is loaded or generated.

    Values that depend on the data or the model are checked where these are made.
    """
    tasks.get(dataset)
    if track:
        trackers().check(track)
    if dataset == "instructions" and not data_dir:
        raise ValueError("data_dir is empty: expected a folder from data/dream_coder/prepare.py")
    if eval_judge and dataset != "own_text":
        raise ValueError(f"eval_judge {eval_judge!r}: needs dataset own_text, not {dataset}")
    check_method()
    check_together()
    word, start = asked_for()
    if init_from == "continue" and lora_rank:
        raise ValueError(f"lora_rank {lora_rank}: expected init_from continue:hf:FOLDER, or resume")
    if start != "scratch" and not start.endswith(".pt"):
        check_pretrained(start)
    elif lora_rank and not word:
        raise ValueError(f"lora_rank {lora_rank}: expected init_from hf:FOLDER, or --lora_rank=0")
    if lora_rank and (ema or keep_every):
        raise ValueError(f"lora_rank {lora_rank}: expected --ema=0 --keep_every=0")
    if not eval_policies:
        raise ValueError("eval_policies is empty: expected names of policies, like ['top_k']")
    for name in eval_policies:
        policies.get(name, "eval_policies")
    if not start.startswith("hf:"):
        check_memory()


def check_together(vocab_size=0):
    """Raise ValueError for settings that exclude each other; vocab_size: 0 until it is known."""
    with_graph = {
        "several processes": backend.processes() > 1,
        "a device that is not cuda": not (device or backend.best_device()).startswith("cuda"),
        "blocks": block_schedule,
        "random masks first or last": chains_from or chains_until,
        f"a vocabulary of {vocab_size}": vocab_size > DENSE,
    }
    with_shard = {
        "muon": muon,  # which needs whole matrices
        "lora_rank": lora_rank,  # its frozen weights fit a device
        "compile": compile,
        f"method {method}": method not in ("puma", "mdm", "ar"),
    }
    for key, asked, never in (
        ("cuda_graph", cuda_graph, with_graph), ("shard", shard, with_shard)
    ):  # fmt: skip
        for what, there in never.items():
            if asked and there:
                raise ValueError(f"{key} cannot be used with {what}: expected --{key}=False")


def check_method():
    if method not in ("mdm", "ar"):
        chain_class()
        if chains_from >= max_iters > 0:
            raise ValueError(
                f"chains_from {chains_from}: expected less than max_iters {max_iters}; "
                "--chains_from=0 uses chains from the start, --method=mdm never does"
            )
    if random_share and (block_schedule or method not in ("puma", "mdm", "ar")):
        with_it = "block_schedule" if block_schedule else f"method {method}"
        raise ValueError(
            f"random_share {random_share}: expected 0 with {with_it}; it needs method puma "
            "without blocks"
        )
    policies.get(policy)
    check_schedule(k_schedule)
    if block_schedule:
        check_schedule(block_schedule, "block_schedule")
        if method == "ar":
            raise ValueError(
                "block_schedule is for mdm and puma; ar is the case of blocks of 1: "
                "expected --block_schedule=[]"
            )


def check_memory():
    """Raise ValueError if a run on a CPU needs more memory than there is, by a low estimate."""
    known = {"sudoku": math.prod(box) ** 2, "text": text_length, "own_text": text_length}
    length = known.get(dataset, 1) if not data_dir else 1
    stored = dim if gradient_checkpointing else 6 * dim + 2 * mlp  # numbers a token and layer
    weights = layers * (2 * dim**2 + 3 * dim * mlp)
    rows, passes = split(batch_size, backend.processes())
    tokens, held = rows * length, 0 if method in ("mdm", "ar") else buffer * passes
    ring = max(32, 2 * passes)  # batches in the queue
    needed = {  # bytes: of weights and moments; of activations and the queue; of chains
        f"layers {layers}, dim {dim}, mlp {mlp}": 12 * weights,
        f"batch_size {batch_size}": tokens * (2 * layers * stored + 17 * ring),
        f"buffer {buffer}": tokens * held * 10,
    }
    memory = backend.memory(device)
    if sum(needed.values()) > memory:
        raise ValueError(
            f"{max(needed, key=needed.get)}: the run needs at least "
            f"{sum(needed.values()) / 1e9:,.0f} GB, the machine has {memory / 1e9:,.0f}: reduce it"
        )


def asked_for():
    """The parts of init_from: resume, continue or "", and what a new run starts from."""
    word, colon, start = init_from.partition(":")
    if word == "continue" or init_from == "resume":
        return word, start if colon else "scratch"
    return "", init_from


def check_pretrained(start):
    if not start.startswith("hf:"):
        raise ValueError(
            f"init_from {init_from!r}: expected scratch, resume, continue, FILE.pt or hf:FOLDER"
        )
    if dataset in ("sudoku", "addition") or method == "ar":
        raise ValueError(f"init_from {init_from}: needs a text dataset, and any method but ar")


def samplers():
    """The samplers that evaluate a run while it trains; a causal model has one order."""
    if method == "ar":
        return [Sampler("left_to_right", 1)]
    return [Sampler(name, eval_reveal, eval_tau) for name in dict.fromkeys(eval_policies)]


def evaluates_at(iteration):
    return iteration > 0 and (iteration % eval_interval == 0 or iteration == max_iters)


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


def split(rows, world):
    """Rows of an update -> rows per process and forward pass, and forward passes per update.

    As few passes of equal size as micro_batch allows. Raises ValueError if that is not possible, or
    processes would have different numbers of rows.
    """
    own, rest = divmod(rows, world)
    if rest or not own:
        raise ValueError(f"batch_size {rows}: expected a multiple of the {world} processes")
    most = min(own, micro_batch or own)
    passes = next(n for n in range(1, own + 1) if own % n == 0 and own // n <= most)
    if 2 * (own // passes) < most:
        raise ValueError(
            f"micro_batch {micro_batch}: {own} rows per process would take {passes} passes of "
            f"{own // passes}; expected a batch_size with more divisors"
        )
    return own // passes, passes


def decay_at(iteration):
    """Decay of the averaged weights: smaller at first, to forget the initial ones soon."""
    return min(ema, (1 + iteration) / (10 + iteration))


# -- the parts of a run ----------------------------------------------------------------------------
def make_model(task, saved, origin, where):
    """The model, the part of it that is saved (itself, or its adapters), and its arguments.

    saved: a checkpoint to resume, whose weights are loaded later, or None; origin: as init_from.
    Raises ValueError if a pretrained model, or another run's, does not fit.
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
        checkpoint.fill(model, weights)
    return model, model, model_args


def make_average(model, where, shards):
    """The averaged weights, for evaluation. shards: split these and the model's up, in place.

    Without EMA, a shallow copy: the model's own weights, but never compiled. Averages, too, require
    gradients, although none are computed: autocast caches the casts of such weights only.
    """
    averaged = copy.deepcopy(model) if ema else copy.copy(model)
    if shards:  # sharding needs hooks, which a shallow copy would share
        averaged = averaged if ema else model
        for each in dict.fromkeys((model, averaged)):
            backend.split_up(each, where)
    return averaged


def make_optimizer(model):
    """AdamW, or Muon for the matrices of the layers; weight decay on matrices only.

    The learning rate is a tensor, so that a recorded step can be replayed with another one. CUDA's
    fused kernel reads float32; on a CPU, float64 gives the same results as a plain number.
    """
    where = next(model.parameters()).device
    rate = torch.zeros((), device=where, dtype=torch.float64 if where.type == "cpu" else None)
    layers = [p for p in model.model.layers.parameters() if p.dim() > 1]
    ends = dict.fromkeys([model.model.embed_tokens.weight, model.lm_head.weight])  # may be one
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    groups = [
        {"params": [p for p in params if p.requires_grad]} | settings
        for params, settings in (
            (layers, {"orthogonal": muon}), (ends, {}), (vectors, {"weight_decay": 0.0})
        )
    ]  # fmt: skip
    return Muon(
        groups, precision=backend.precision(where, dtype), lr=rate, betas=betas,
        weight_decay=weight_decay, fused=where.type != "mps", capturable=where.type == "cuda",
    )  # fmt: skip


@torch.no_grad()
def update_average(averaged, model, share):
    """Move the averaged weights towards the model's by `share` () of the difference."""
    for average, weight in zip(averaged.parameters(), model.parameters(), strict=True):
        average.lerp_(weight, share)


def make_stream(data, model, where, rank, world, start):
    """The stream of training contexts (puma.py).

    start: the iteration of a run that continues with changes, for a new random seed; else 0.
    """
    rows, passes = split(batch_size, world)
    queue = ExampleQueue(data, rows, where, seed, rank, world, takes=passes)
    mask_token, held = model.mask_token, buffer * passes
    generator = torch.Generator(where).manual_seed(seed * world + rank + CHANCE * start)
    if method == "ar":
        return NextToken(queue, mask_token, generator)
    masks = RandomMasking(queue, mask_token, generator, block_schedule)
    if method == "mdm":
        return masks
    mixture = {"random_share": random_share} if method == "puma" else {}
    if block_schedule:
        from block import BlockUnmasking

        chains = BlockUnmasking(queue, mask_token, generator, block_schedule, k_schedule, tau, held)
    else:
        chains = chain_class()(queue, mask_token, generator, k_schedule, tau, held, **mixture)
        if hasattr(chains, "model"):  # a variant that calls it more than once
            chains.model = model
    if chains_until:
        from studies.ablations import RandomLast

        return RandomLast(masks, chains, chains_until)
    return RandomFirst(masks, chains, chains_from) if chains_from else chains


def chain_class():
    """The class of PUMA's chains, or of a variant. Raises ValueError for an unknown method."""
    if method == "puma":
        return ProgressiveUnmasking
    from studies.ablations import STREAMS

    if method not in STREAMS or block_schedule:
        others = ", ".join(STREAMS)
        raise ValueError(
            f"method {method!r}: expected puma, mdm or ar, or, without blocks, one of {others}"
        )
    return STREAMS[method]


def trackers():
    """The module that forwards lines, imported only on request."""
    from examples import track

    return track


def stop_on_signal():
    """An event that SIGTERM or Ctrl-C sets; a second Ctrl-C stops at once."""
    stop = threading.Event()

    def on_signal(number, frame):
        stop.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with contextlib.suppress(OSError):  # not print: the signal may interrupt one
            os.write(2, b"\nstopping with a checkpoint; Ctrl-C again stops at once\n")

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    return stop


if __name__ == "__main__":
    main(configure(globals()))
