"""Train a masked diffusion model: PUMA (puma) or random masks (mdm); or an autoregressive one (ar).

    python train.py config/sudoku_mini.py --seed=2
    torchrun --nproc_per_node=8 train.py config/sudoku.py
    python train.py --out_dir=out/sudoku_mini_puma_1 --init_from=resume      resume where it stopped
    python train.py --out_dir=out/sudoku_mini_puma_1 --init_from=continue --lr=5e-4    with changes

Writes metrics.jsonl and checkpoint.pt; a resumed run ends with the weights of an uninterrupted one.
A data set's settings are in sudoku.py or its file in tasks/; what keeps a run alive is in engine/.
Bad settings raise ValueError before the loop; a run that must stop later raises SystemExit.
"""

from configurator import configure, errors_as_messages  # isort: skip (first, to say if torch is missing)
import contextlib
import copy
import math
import time

import torch

import policies
import tasks
import variants
from engine import files, log, machine, processes, queue, saver, sharding
from engine.muon import Muon, update_average
from losses import Objective, objective_for
from puma import MasksThenChains, ProgressiveUnmasking, RandomMasking, check_schedule, value_at
from runs import notes, start
from runs.validation import evaluate
from sample import Sampler

# -- run (a range that begins a comment, as in `1..`, is enforced) -----------------------------
name = "default"
out_dir = ""  # where metrics and checkpoint go; "" = out/<name>_<method>_<seed>
seed = 1  # 0..4294967295
init_from = "scratch"  # resume; continue[:START]; RUN or its FILE.pt; hf:FOLDER; hf:NAME@REVISION
# -- data (a data set's own settings are in sudoku.py or its file in tasks/) --------------------
dataset = "sudoku"  # sudoku, arithmetic, own_text, text (questions with programs), instructions
data_dir = ""  # a folder written by a data/*/prepare.py; "" = generated examples
train_examples = 200_000  # 1..: to generate; files are used whole
test_examples = 512  # 1..1048576: held out
# -- method ----------------------------------------------------------------------------------
method = "puma"  # puma; mdm (random masks); ar (next token); others in variants.py
policy = "top_k"  # which tokens a chain reveals first: top_k, margin, entropy, random, ...
k_schedule: list | int = [(0, 9)]  # K tokens per stage at full length; (iteration, K): from then on
tau: float | None = 0.9  # 0..1: also reveal all tokens with confidence above this; None = off
buffer = 8  # 1..: batches of chains in progress, trained on in turn
second_visit = True  # after a chain of one visit, start the next one partly revealed (puma.py)
chains_from: int | None = None  # 0..: random masks before; None = until the model is sure (puma.py)
papl = 0.0  # 0..: alpha of PAPL's loss weights 1 + alpha * w (variants.py); 0 = off
carry = False  # each step of a chain receives the states of the previous step (carry.py)
window = 1  # 1..: visits per update; with a carry, all of the same chains
block_schedule = []  # block diffusion: (iteration, size) pairs, sizes divide the length; [] = off
# -- model (not used with a pretrained one, which has its own shape) --------------------------
dim = 128  # 1..: width; a head has dim / heads, an even number
layers = 4  # 1..
loops = 1  # 1..: passes through the layers, each at the cost of one
heads = 8  # 1..
mlp = 384  # 1..: inner width
theta = 10000.0  # 1..: base of the rotary frequencies
tied = False  # output head = embedding
lora_rank = 0  # 0..: rank of LoRA adapters of a pretrained model (pretrained/lora.py); 0 = none
lora_alpha = 16  # 1..: adapter output is scaled by alpha / rank
# -- optimisation ----------------------------------------------------------------------------
batch_size = 128  # 1..: rows per visit, over all processes; an update has `window` visits
micro_batch: int | None = None  # 1..: most rows per process and forward pass; None = no limit
max_iters = 3000  # 0..: updates
lr = 1e-3  # 0..
min_lr = 1e-4  # 0..: at the end of the cosine
warmup = 200  # 0..: updates
muon = False  # Muon instead of AdamW for the weight matrices of the layers (engine/muon.py)
weight_decay = 0.01  # 0..: not on norms and biases
betas = (0.9, 0.99)  # 0..1
grad_clip = 1.0  # 0..: clip the gradient's norm at this; 0 = off
ema = 0.9999  # 0..1: decay of the averaged weights that are evaluated, less at first; 0 = off
# -- evaluation ------------------------------------------------------------------------------
eval_interval = 300  # 1..
eval_policies = ["top_k", "margin", "entropy"]  # [] = only the loss
eval_reveal = 2  # 1..: tokens revealed per step
eval_tau: float | None = None  # 0..1: instead reveal all with confidence above this; None = off
eval_batch_size = 512  # 1..
# -- system ----------------------------------------------------------------------------------
log_interval = 10  # 1..
track = ""  # also send the lines of metrics.jsonl to tensorboard, trackio or wandb
checkpoint_interval = 500  # 1..
keep_every = 0  # 0..: save averaged weights every so many updates in out_dir/weights; 0 = off
shard = False  # split weights and moments over the processes: for models larger than one device
device = ""  # cpu, cuda, mps; "" = the best there is
dtype = ""  # bfloat16 or float32, for matrix products; "" = bfloat16 if the hardware supports it
gradient_checkpointing = False  # save memory: recompute activations in the backward pass
compile: bool | None = None  # None = if there is a compiler and the run is long enough


def main(config):
    with contextlib.ExitStack() as until_the_end:
        with errors_as_messages():
            check()
            place = processes.start(device, shard)
            folder = start.folder_of(config)
            if place.rank == 0:
                until_the_end.enter_context(files.Lock(folder))
            tracker = None
            if track and place.rank == 0:
                from examples.track import Tracker

                tracker = until_the_end.enter_context(contextlib.closing(Tracker(track, folder)))
            run = Run(config | {"k_schedule": check_schedule(k_schedule)}, folder, place, tracker)
        with contextlib.closing(run.log):  # also the bar, before a message on why it stopped
            result = train(run)
    if place.rank == 0:
        print(f"{result['val_loss']:.4f} validation loss")
        for sampler, share in zip(samplers(), result["accuracy"].values(), strict=False):
            print(f"{share:7.2%} of {result['examples']} held-out problems solved ({sampler})")
    del run  # DDP must go before the process group does, or it may wait for ever
    processes.leave()


class Run:
    """What a run is made of. Raises ValueError for settings that do not fit data or checkpoint."""

    def __init__(self, config, folder, place, tracker):
        # The order counts: each part may use random numbers that the next one must not.
        # -- what it begins from
        world, rank, where, shards = self.place = place
        saved, changes, origin = start.find(folder, config, place)
        with processes.main_process_first():
            config = config | {"init_from": (origin := start.pinned(origin))}
        self.start = saved["iteration"] if saved else 0
        processes.agree(start.common(config) | {"start iteration": self.start, "code": log.code()})
        stride = 1_000_003 * self.start if changes else 0  # then it draws new random numbers
        # -- data and model
        matmuls = machine.precision(where, dtype)
        with processes.main_process_first():
            self.task = tasks.get(dataset).load(config)
            tasks.check(self.task)  # so that a broken one is reported before training
            torch.manual_seed(seed)
            self.model, weights, args = start.make_model(
                origin, self.task, saved, model_args(self.task), (lora_rank, lora_alpha, matmuls),
                "cpu" if shards else where,
            )  # fmt: skip
        # -- averages and optimizer
        self.averaged = make_average(self.model, place)
        decay = dict(betas=betas, weight_decay=weight_decay)
        self.optimizer = Muon(self.model, self.model.model.layers, muon, matmuls, **decay)
        # -- streams
        rows, self.passes = queue.rows_and_passes(batch_size, micro_batch, world)
        self.queue = queue.ExampleQueue(self.task.train, rows, where, seed, rank, world)
        before = start.take_over(self.queue, saved["ranks"]) if changes else None
        generator = torch.Generator(where).manual_seed(seed * world + rank + stride)
        self.stream = make_stream(self.queue, self.model.mask_token, generator, self.passes)
        if before:
            self.stream.adopt(before)  # the chains of other processes
        # -- saving and logging
        self.saver = self.make_saver(folder, config, args, weights, generator)
        torch.manual_seed(seed + rank + stride)
        self.begin(saved, changes, tracker)
        self.casts = machine.autocast(where, dtype, keep=not shards)
        self.objective = make_objective(self.model, place)  # the model with its loss

    def make_saver(self, folder, config, args, weights, generator):
        data = {"training": self.task.train, "validation": self.task.validation}
        processes.agree(data := {name: queue.fingerprint(part) for name, part in data.items()})
        about = dict(config=config, model_args=args, device=self.place.device.type, data=data)
        shared = dict(model=weights, optimizer=self.optimizer)
        shared |= dict(ema=self.averaged) if ema else {}
        own = dict(queue=self.queue, generator=generator, stream=self.stream)
        return saver.Saver(folder, about, shared, own, self.place.rank, self.task.files)

    def begin(self, saved, changes, tracker):
        """Restore what was saved, or write the first checkpoint; open the log."""
        new_data = {"validation"} if "test_examples" in changes else ()
        self.saver.begin(block_at(0), keep_every, saved, changes, new_data)
        folder = self.saver.folder if self.place.rank == 0 else None
        recorded = self.saver.about["config"] | {"data": self.saver.about["data"]}
        self.log = log.Log(folder, recorded, start.identity, self.start, max_iters, changes,
                           int(self.queue.taken), tracker)  # fmt: skip
        if folder:
            chains = getattr(self.stream, "chains", self.stream)
            notes.say_all(self.saver.about["config"], chains, self.model)


# -- the loop --------------------------------------------------------------------------------------
def train(run):
    """From the run's first iteration to max_iters; returns the last evaluation."""
    result = processes.gather(run.log.last_evaluation)[0]  # as the first process has read it
    if not result and evaluates_at(run.start):
        result = report(run, run.start)  # the run was killed during this evaluation
    stop = processes.StopSign()
    for iteration in range(run.start, max_iters):
        blocks_change = block_at(iteration) != block_at(iteration - 1)
        with machine.compiling(iteration == run.start, blocks_change):
            run.log.add(*update(run, iteration))
        if iteration == run.stream.begin and run.place.rank == 0:
            files.say(f"iteration {iteration}: the chains begin")
        done, stopping = iteration + 1, stop()
        keep_record(run, done, stopping)
        if stopping:
            raise SystemExit(f"stopped at iteration {done}; add --init_from=resume to go on there")
        if evaluates_at(done):
            result = report(run, done)
    return result or report(run, max_iters)


def update(run, iteration):
    """One step of the optimizer: mean loss, the gradient's norm before clipping, hidden shares."""
    stream, losses, hidden = run.stream, [], []
    for micro in range(run.passes):
        with processes.synchronised(run.objective, micro == run.passes - 1):
            for _ in range(window):
                batch = stream.batch(iteration)  # x, x0, hidden (B, L), block
                with run.casts:
                    loss, *seen = run.objective(*batch)  # score, confidence: one forward pass
                hidden.append(batch.hidden.sum(1) / stream.effective)  # (B,)
                stream.advance(*seen)  # PUMA: reveal true tokens
                losses.append(loss)
            (sum(losses[-window:]) / (run.passes * window)).backward()
    norm = torch.nn.utils.clip_grad_norm_(run.model.parameters(), grad_clip or math.inf)
    run.optimizer.param_groups[0]["lr"].fill_(lr_at(iteration))  # one tensor, of all groups
    run.optimizer.step()
    run.optimizer.zero_grad()
    if ema:
        decay = min(ema, (1 + iteration) / (10 + iteration))  # forget the initial weights soon
        update_average(run.averaged, run.model, decay)
    return torch.stack(losses).detach().mean(), sharding.whole(norm), torch.cat(hidden)


def keep_record(run, done, stopping):
    """Write the lines and files that are due: first, as a run may be killed while it evaluates."""
    last, block = stopping or done == max_iters, block_at(done - 1)
    saves = last or evaluates_at(done) or done % checkpoint_interval == 0
    logs = done % log_interval == 0
    keeps = keep_every and done % keep_every == 0
    if logs or keeps or saves:
        run.saver.stop_if_not_finite(run.log.fault(done), done, run.model, run.averaged)
    if logs:
        sure = run.stream.sure
        values = {"epoch": run.queue.passes(), "lr": lr_at(done - 1)}
        values |= {} if sure is None else {"sure": round(sure.item(), 4)}
        run.log.report_training(done, values, run.place.world, run.queue.taken)
    if keeps:
        run.saver.save_weights(done, block)
    if saves:
        run.saver.save(done, block, last)


def report(run, done):
    """Evaluate the averaged weights after `done` updates, on all processes; the result."""
    begin, block = time.perf_counter(), block_at(done - 1)
    with run.casts, sharding.unsharded(run.averaged):
        result = evaluate(run.task, run.averaged, block, samplers(), test_examples, eval_batch_size,
                          run.place)  # fmt: skip
        run.log.report_evaluation(done, result, time.perf_counter() - begin)
    return result


def check():
    """Raise ValueError for invalid settings before anything is loaded or generated."""
    tasks.get(dataset)
    policies.get(policy)
    check_schedule(k_schedule)
    for sampler in samplers():
        sampler.check()
    variants.get(method)
    if min_lr > lr:
        raise ValueError(f"min_lr {min_lr}: expected at most lr {lr}; equal for a constant rate")
    if block_schedule and method not in ("puma", "mdm"):
        raise ValueError(f"block_schedule: expected [] with {method=}")
    if carry and method != "puma":
        raise ValueError(f"carry: expected False with {method=}, which has no chains")
    if (chains_from or 0) >= max(max_iters, 1):
        raise ValueError(f"chains_from {chains_from}: expected 0, or less than {max_iters=}")
    if shard and (muon or lora_rank or carry):  # of the last, one graph holds several passes
        raise ValueError("shard: expected --muon=False, --lora_rank=0 and --carry=False")


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
    return value_at(block_schedule, max(iteration, 0)) if block_schedule else 0


def lr_at(iteration):
    """Linear warm-up, then a cosine from lr to min_lr."""
    if iteration < warmup:
        return lr * (iteration + 1) / warmup
    share = (iteration - warmup) / max(1, max_iters - warmup)
    return min_lr + (lr - min_lr) * 0.5 * (1 + math.cos(math.pi * share))


def model_args(task):
    """Arguments of model.Transformer for a run that starts from scratch."""
    return dict(
        vocab_size=task.vocab_size, mask_token=task.mask, length=task.length, dim=dim,
        layers=layers, heads=heads, mlp=mlp, theta=theta, tied=tied,
        causal=method == "ar", shifted=method == "ar", carry=carry, loops=loops,
    )  # fmt: skip


def make_average(model, place):
    """The averaged weights, for evaluation; without EMA a shallow copy, which is never compiled.

    Shards both if asked. They require gradients, as autocast caches no casts of other weights.
    """
    averaged = copy.deepcopy(model) if ema else model if place.shards else copy.copy(model)
    for part in dict.fromkeys((model, averaged)) if place.shards else ():
        sharding.split_up(part, part.model.layers, place.device)
    return averaged


def make_objective(model, place):
    """The model with its loss; compiled, and averaging gradients over processes, where asked."""
    model.model.gradient_checkpointing = gradient_checkpointing
    kind = objective_for(model)
    objective = variants.PAPL[kind](model, policy, alpha=papl) if papl else kind(model, policy)
    if not place.shards and machine.compiles(place.device, compile, max_iters):
        # The layers share their code: half the wait. Without ema, evaluation would compile it too.
        short = max_iters < machine.LONG and ema and kind is Objective
        for part in model.model.layers if short else [objective]:
            part.compile()
        if place.rank == 0:
            files.say("compiling, half a minute or more; --compile=False starts at once")
    return processes.distributed(objective, place)


def make_stream(queue, mask_token, generator, passes):
    """Random masks, and, with a method that has chains, those that follow."""
    data = dict(queue=queue, mask_token=mask_token, generator=generator)
    chains = dict(k_schedule=k_schedule, tau=tau, buffer=buffer * passes)
    chains |= {"second_visit": second_visit and method == "puma"}  # variants are as published
    masks = RandomMasking
    kind = variants.get(method) or ProgressiveUnmasking
    if block_schedule:
        from block import BlockMasking as masks
        from block import BlockUnmasking as kind

        data |= {"block_schedule": block_schedule}
    if method == "ar":
        from block import NextToken as masks
    if carry:
        from carry import CarryingBlocks, CarryingChains

        kind = CarryingBlocks if block_schedule else CarryingChains
        chains |= {"width": dim, "window": window}
    first = masks(**data)
    if method in ("mdm", "ar"):
        return first
    # Variants are as published; and random masks would not train a carry.
    begin = 0 if chains_from is None and (carry or method != "puma") else chains_from
    return MasksThenChains(first, kind(**data, **chains), begin, processes.mean)


if __name__ == "__main__":
    main(configure(globals(), fields=tasks.settings_of, kept=start.settings_of_run))
