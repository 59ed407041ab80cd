"""Checkpoints: the complete state of a run in one file, which a kill never leaves half-written.

A checkpoint is a dictionary of tensors and plain values: `iteration`, `config`, `model_args`,
`block` (the current size of block diffusion's blocks, 0 = none), `model`, `ema` if there is one,
`optimizer`, and one entry per process in `ranks` (its stream of contexts and its random states,
about 30 KB for 256 chains of 512 tokens). With LoRA, `model` holds the adapters alone, and the base
model is read from the source that `init_from` names. A run writes checkpoints in the background,
from a copy.

`torch.load(weights_only=True)` reads it, so opening one never runs code; the archive's checksums
are compared, and weights that are not finite are refused. But a stranger's configuration decides
which files sample.py and eval.py then read (`data_file`, `data_dir`, a pretrained model in
`init_from`) and how much data they generate (`train_examples`).
"""

import functools
import inspect
import itertools
import math
import mmap
import struct
import time
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch

import backend
from model import Transformer
from record import appearing, identity, say

# Settings that may differ when a run is resumed (as may all settings of evaluation).
MAY_CHANGE = (
    "name", "max_iters", "log_interval", "checkpoint_interval", "keep_every", "out_dir", "patience",
    "track", "watch",
)  # fmt: skip
# Settings that must stay the same even with --init_from=continue: the data order, and the shape of
# weights and optimizer state. (That the data is the same is checked on the data itself.)
MUST_KEEP = (
    "seed", "dataset", "dim", "layers", "heads", "kv_heads", "mlp", "theta", "tied", "muon",
    "lora_rank", "lora_alpha",
)  # fmt: skip
DAMAGED = "use a copy of it, or start a new run"  # what to do


def save(state, path):
    """Leave the old file or the new one, whatever happens. No other run may write to its folder.

    Raises OSError, with the reason, if it cannot be written.
    """
    try:
        for left in path.parent.glob(f"{path.name}.*.tmp"):
            left.unlink()  # left by a process that was killed while writing
        with appearing(path) as partial, open(partial, "wb") as file:
            torch.save(state, file)
    except (OSError, RuntimeError) as error:  # torch hides the first behind the second
        while error.__context__ is not None and not isinstance(error, OSError):
            error = error.__context__
        if not isinstance(error, OSError):
            raise
        raise OSError(f"cannot write {path}: {error.strerror}") from None


def load(path):
    """The state in a file, its tensors memory-mapped.

    Raises FileNotFoundError if the file is missing; ValueError if any byte of it is damaged, if it
    is not a checkpoint, or if weights are not finite.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"no checkpoint {path}: train first, or give a run's --out_dir")
    try:
        check_archive(path)
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # of many types: it may be any file
        reason = f"{error}" if type(error) is ValueError else type(error).__name__
        raise ValueError(f"{path} is damaged or not a checkpoint ({reason}): {DAMAGED}") from None
    try:
        check_form(state)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} is not a checkpoint of this program: {error}") from None
    return state


def check_archive(path):
    """Compare the archive's checksums, which torch.load does not. Raises ValueError."""
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        if any(each.compress_type != zipfile.ZIP_STORED for each in entries):
            raise ValueError("it is compressed, as torch.save never does")  # maybe a zip bomb
        if sum(each.file_size for each in entries) > Path(path).stat().st_size:
            raise ValueError("its entries claim to be larger than the file")
    with (
        open(path, "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ThreadPoolExecutor() as threads,
    ):  # zipfile's own testzip costs as much as loading, and so do threads for a small file
        spread = threads.map if len(data) > 1 << 26 else map
        whole = spread(functools.partial(has_its_checksum, data), entries)
        damaged = [each.filename for each, good in zip(entries, whole, strict=True) if not good]
    if damaged:
        raise ValueError(f"the checksum of {damaged[0]} does not match")


def has_its_checksum(data, entry):
    """Whether the bytes of an entry of a zip archive in memory match its checksum."""
    header = data[entry.header_offset : entry.header_offset + 30]
    start = entry.header_offset + len(header) + sum(struct.unpack("<HH", header[-4:]))
    with memoryview(data) as whole, whole[start : start + entry.file_size] as part:
        return zlib.crc32(part) == entry.CRC


def check_form(state):
    """Raise ValueError, TypeError or KeyError if a state is not that of a run."""
    if not isinstance(state, dict):
        raise ValueError(f"expected a dictionary, got {type(state).__name__}")
    for name, kind in dict(iteration=int, block=int, config=dict, model_args=dict).items():
        if type(state.get(name)) is not kind:
            raise ValueError(f"{name} is {state.get(name)!r:.60}, expected {kind.__name__}")
    if state["iteration"] < 0 or state["block"] < 0:
        raise ValueError("iteration and block must not be negative")
    found = {name: state[name] for name in ("model", "ema") if name in state}
    if not found:
        raise ValueError("it has no weights")
    if not is_finite(found):
        raise ValueError("weights are not finite, or share memory within a tensor")
    if not state["config"].get("lora_rank"):  # adapters are compared with their base model
        for weights in found.values():
            check_sizes(state["model_args"], weights.values())


def check_sizes(model_args, weights):
    """Raise ValueError or TypeError unless model_args describe a model with weights like these."""
    inspect.signature(Transformer).bind(**model_args)
    sizes = [model_args[name] for name in ("vocab_size", "dim", "layers", "heads", "mlp", "length")]
    if not all(type(size) is int and 0 < size < 1 << 24 for size in sizes):
        raise ValueError(f"sizes must be whole numbers: {model_args}")
    if not 0 <= model_args["mask_token"] < model_args["vocab_size"]:
        raise ValueError(f"mask_token {model_args['mask_token']} is not in the vocabulary")
    if not all(0 < model_args.get(name, 1.0) < math.inf for name in ("theta", "eps")):
        raise ValueError(f"theta and eps must be positive: {model_args}")
    if not all(weight.dtype is torch.float32 for weight in weights):
        raise ValueError("weights must be float32")
    there = {size for weight in weights for size in weight.shape}
    if model_args["layers"] > len(weights) or not there.issuperset(
        model_args[name] for name in ("vocab_size", "dim", "mlp")
    ):
        raise ValueError(f"the weights are not those of {model_args}")


def fill(model, weights):
    """Load the weights into the model. Raises ValueError if they are another model's."""
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        why = " ".join(str(error).split("\n\t")[1:])
        raise ValueError(f"the weights do not fit the model: {why:.200}") from None


def is_finite(state):
    """Whether all tensors in nested dictionaries and lists are finite, and none overlaps itself."""
    if isinstance(state, dict | list | tuple):
        return all(map(is_finite, state.values() if isinstance(state, dict) else state))
    if not isinstance(state, torch.Tensor) or not state.is_floating_point():
        return True
    state = state.to_local() if backend.is_sharded(state) else state
    # A sum is one pass; if it overflows, the slower test decides.
    one_pass = state.is_contiguous() and state.sum(dtype=torch.float32).isfinite()
    return bool(one_pass or (state.is_contiguous() and state.isfinite().all()))


def archive(folder):
    """Move a run, with its measurements, into a new folder inside its own, and return that.

    The new folder is a run's folder too: every script takes it as out_dir.
    """
    names = (folder / f"before.{number}" for number in itertools.count(1))
    kept = next(path for path in names if not path.exists())
    kept.mkdir()
    for pattern in ("weights", "*.jsonl", "*.json", "*.md", "checkpoint.pt"):
        for path in list(folder.glob(pattern)):
            path.rename(kept / path.name)
    return kept


class Configuration(dict):
    """The settings of a saved run; a missing one is an error in the file, not in the code."""

    def __missing__(self, key):
        raise ValueError(f"the configuration in the checkpoint lacks {key}")


class Saved(NamedTuple):
    """A model to evaluate: averaged (EMA) weights if the run has them."""

    model: Transformer
    config: dict  # of its run
    iteration: int
    block: int  # size of block diffusion's blocks, 0 = none


def load_model(path, device="cpu", length=0):
    """The Saved model of a checkpoint, or of weights that a run kept.

    length: the longest sequence, if longer than in training.
    """
    state = load(path)
    args = state["model_args"]
    args["length"] = max(length, args["length"])
    if state["config"].get("lora_rank"):
        from pretrained import lora

        model, _ = lora.restore(state, device)
    else:
        try:
            model = Transformer(**args)
            fill(model, final_weights(state))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path} is not a checkpoint of this program: {error}") from None
    config = Configuration(state["config"])
    return Saved(model.to(device).eval(), config, state["iteration"], state["block"])


def final_weights(state):
    return state["ema"] if "ema" in state else state["model"]


def checksum(model):
    """CRC-32 of the weights."""
    crc = 0
    for weight in model.state_dict().values():
        crc = zlib.crc32(weight.cpu().contiguous().view(torch.uint8).numpy(), crc)
    return crc


def weights(out_dir):
    """Files of averaged weights that a run kept, in order, or its checkpoint; and the first one.

    All are read, so that a damaged one is refused, with a ValueError, before work begins.
    """
    files = sorted(Path(out_dir, "weights").glob("*.pt")) or [Path(out_dir, "checkpoint.pt")]
    for file in reversed(files):
        saved = load_model(file)
    return files, saved


def starting_point(source, model_args):
    """Another run's averaged weights to start from, and the model_args for them.

    If that run was autoregressive, attention becomes bidirectional and logits stay `shifted`. Its
    mask embedding was never trained, so it is set to the mean of all others: "some unknown token".

    Raises ValueError if the architectures differ.
    """
    state = load(source)
    if state["config"].get("lora_rank"):
        raise ValueError(
            f"{source} has only adapters: start from the output of pretrained.export --merge"
        )
    theirs = state["model_args"]
    differ = [key for key in model_args if model_args[key] != theirs[key]]
    differ = [key for key in differ if key not in ("causal", "shifted")]
    if differ:
        which = ", ".join(f"{key} {theirs[key]} -> {model_args[key]}" for key in differ)
        raise ValueError(f"{source} has another architecture: {which}")
    weights = final_weights(state)
    if theirs["causal"]:
        embedding, mask = weights["model.embed_tokens.weight"], theirs["mask_token"]
        others = torch.arange(len(embedding)) != mask
        embedding[mask] = embedding[others].mean(0)
    return weights, model_args | {"shifted": theirs["shifted"]}


def random_states():
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
    return {"cpu": torch.get_rng_state(), "cuda": cuda}


def set_random_states(states):
    torch.set_rng_state(states["cpu"])
    if states["cuda"] is not None:
        torch.cuda.set_rng_state(states["cuda"])


# -- saving and resuming a run ---------------------------------------------------------------------
class Keeper:
    """Saves and restores a run. parts: {name: object with a state_dict}; data: a fingerprint.

    lock: the record.Lock on the run's folder, on the first process. `saved` is the iteration of the
    latest checkpoint; `pending`, that of the one being written, or None; `behind`, whether a
    checkpoint later than `saved` could not be written. All three are the same on every process.
    """

    TRIES = 30  # attempts to write the last one, a second apart

    def __init__(self, folder, lock, config, model_args, parts, stream, data, device, rank):
        self.folder, self.path = folder, folder / "checkpoint.pt"
        self.lock, self.config, self.model_args = lock, config, model_args
        self.parts, self.stream, self.data = parts, stream, data
        self.device, self.rank = device, rank
        self.saved, self.pending, self.behind = 0, None, False
        self.writer, self.written = ThreadPoolExecutor(1), None

    def save_checkpoint(self, iteration, block):
        """Write checkpoint.pt, with everything. Every process calls this, the first one writes.

        Raises OSError if it cannot write, ValueError if another run has taken the folder.
        """
        self.start_writing(iteration, block)
        if self.written:
            self.written.result()
        self.pending = self.written = None

    def start_writing(self, iteration, block):
        """Start writing checkpoint.pt, on the first process, from a copy of the present state."""
        of_rank = {"stream": self.stream.state_dict(), **random_states()}
        ranks, self.pending = backend.gather(of_rank, first_alone=True), iteration
        state = {name: part.state_dict() for name, part in self.parts.items()}
        state = copied(state, self.rank == 0)
        if self.rank == 0:
            state |= {"ranks": ranks, "device": self.device.type, "data": self.data}
            state |= self.about(iteration, block)
            self.written = self.writer.submit(self.write, state)

    def write(self, state):
        self.lock.renew()
        save(state, self.path)
        self.lock.ours = identity(self.path)

    def keep_checkpoint(self, iteration, block):
        """Write a checkpoint in the background, after the one before it; see `settle`."""
        self.settle()
        self.start_writing(iteration, block)

    def settle(self, wait=True):
        """Find out whether the pending checkpoint was written; if it failed, say why.

        Every process calls this. wait: until it is written; else leave that to a later call. Raises
        SystemExit if another run has taken the folder.
        """
        if self.pending is None:
            return
        if not wait and backend.any_process(self.written and not self.written.done()):
            return
        failed = ""
        try:
            if self.written:
                self.written.result()
        except ValueError as error:
            raise SystemExit(f"{error}; the weights of iteration {self.pending} are lost") from None
        except OSError as error:
            failed = str(error)
        if failed and not self.behind:
            say(f"{failed}; {self.latest()}, the run continues and tries again")
        self.behind = backend.any_process(failed, patient=True)  # the first may take long to write
        if not self.behind:
            self.saved = self.pending
        self.pending = self.written = None  # a failed write would keep its copy of the weights

    def finish(self, iteration, block):
        """Write the last checkpoint of a run. Raises SystemExit if it cannot in time."""
        self.settle()
        for _ in range(self.TRIES):
            if not self.behind:
                return
            time.sleep(1)
            self.keep_checkpoint(iteration, block)
            self.settle()
        if self.behind:
            raise SystemExit(f"the weights of iteration {iteration} are lost; {self.latest()}")

    def latest(self):
        """A message that says which checkpoint there is when a run ends early."""
        if not self.path.exists():
            return f"{self.path} is gone"
        done = self.written and not self.written.exception()  # waits for it
        saved = self.pending if done else self.saved
        return f"{self.path} of iteration {saved} is intact"

    def save_weights(self, iteration, block):
        """Write weights/<iteration>.pt: the averaged weights alone."""
        weights = copied(self.parts.get("ema", self.parts["model"]).state_dict(), self.rank == 0)
        if self.rank == 0:
            state = {"ema": weights} | self.about(iteration, block)
            try:
                save(state, self.folder / "weights" / f"{iteration:06d}.pt")
            except OSError as error:
                say(f"{error}; the run continues without these weights")

    def is_finite(self):
        """Whether everything to be saved is finite: weights, averages, optimizer state."""
        return all(is_finite(part.state_dict()) for part in self.parts.values())

    def about(self, iteration, block):
        about = {"iteration": iteration, "block": block, "config": self.config}
        return about | {"model_args": self.model_args}

    def restore(self, saved, changes):
        """Restore everything from the checkpoint.

        With changes, chains and data order are redistributed instead, with new random states.
        Raises ValueError if the training data differs, or parts do not fit.
        """
        if saved["data"] != self.data:
            raise ValueError("a resumed run must keep its data: the training examples differ")
        try:
            for name, part in self.parts.items():
                if name == "optimizer":
                    load_optimizer(part, saved[name])
                else:
                    is_new = name == "ema" and "ema" in changes and name not in saved
                    own, weights = part.state_dict(), saved["model" if is_new else name]
                    part.load_state_dict(
                        {key: backend.shared_out(weights[key], own.get(key)) for key in weights}
                    )
            streams = [rank["stream"] for rank in saved["ranks"]]
            if not changes:
                self.stream.load_state_dict(streams[self.rank])
                set_random_states(saved["ranks"][self.rank])
        except (LookupError, TypeError, AttributeError, RuntimeError) as error:
            reason = f"{type(error).__name__}: {str(error).splitlines()[0]:.200}"
            raise ValueError(
                f"{self.path} has parts of the wrong form ({reason}): {DAMAGED}"
            ) from None
        if changes:
            self.stream.share_out(streams)
        self.saved = saved["iteration"]
        if self.lock:
            self.lock.ours = identity(self.path)


def copied(state, here=True, copies=None):
    """Nested dictionaries and lists with tensors copied to the CPU; shared tensors stay shared.

    Sharded tensors are gathered whole, one at a time, so every process calls this. here: False = no
    copies on this process.
    """
    copies = {} if copies is None else copies
    if isinstance(state, dict):
        return {key: copied(value, here, copies) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(copied(value, here, copies) for value in state)
    if not isinstance(state, torch.Tensor):
        return state
    if backend.is_sharded(state):
        whole = state.detach().full_tensor()
        return whole.cpu() if here else None
    if not here:
        return None
    place = state.data_ptr(), state.shape, state.stride()
    if place not in copies:
        copies[place] = state.detach().to("cpu", copy=True)
    return copies[place]


def load_optimizer(optimizer, state):
    """Load its moments; learning rate and the like stay those of this run. Raises IndexError."""
    own = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    moments = {
        i: {name: backend.shared_out(value, parameters[i]) for name, value in values.items()}
        for i, values in state["state"].items()
    }
    optimizer.load_state_dict(state | {"state": moments})
    for group, settings in zip(optimizer.param_groups, own, strict=True):
        group.update(settings)
    for parameter, moments in optimizer.state.items():
        for name, value in moments.items():
            if value.dim() and value.shape != parameter.shape:
                raise IndexError(f"{name} is {tuple(value.shape)}, not {tuple(parameter.shape)}")
            if not is_finite(value):
                raise IndexError(f"{name} is not finite")


def differences(saved, config, world, device):
    """{setting: (saved, now)} of training settings that differ; also processes and device."""
    known = dict.fromkeys([*config, *saved["config"]])  # also settings that no longer exist
    names = [key for key in known if key not in MAY_CHANGE and not key.startswith("eval_")]
    now = {key: config.get(key) for key in names} | {"processes": world, "device": device.type}
    was = dict(saved["config"]) | {"processes": len(saved["ranks"]), "device": saved["device"]}
    return {key: (was.get(key), now[key]) for key in now if was.get(key) != now[key]}


def load_whole(path):
    """The state in a checkpoint. Raises ValueError if it holds only weights."""
    state = load(path)
    whole = {"model", "optimizer", "ranks", "device", "data"}
    if missing := whole - state.keys():
        raise ValueError(f"{path} has no {', '.join(sorted(missing))}: it holds only weights")
    if type(state["ranks"]) is not list or type(state["config"].get("init_from", "")) is not str:
        raise ValueError(f"{path} is not a checkpoint of this program: ranks or init_from")
    return state


def check_resumable(saved, config, changes, anywhere):
    """Raise ValueError if a run cannot be resumed with these changes.

    anywhere: most settings may change, and the run continues nearly as the saved one would have.
    """
    if saved["iteration"] > config["max_iters"]:
        raise ValueError(f"max_iters {config['max_iters']}: the run is at {saved['iteration']}")
    refused = [key for key in changes if not anywhere or key in MUST_KEEP]
    if "ar" in changes.get("method", ()):
        refused.append("method")
    if refused:
        remedy = "" if anywhere else "; --init_from=continue allows changes"
        raise ValueError(
            f"a saved run must keep its configuration: {in_words(changes, refused)}{remedy}"
        )


def in_words(changes, names):
    return ", ".join(f"{name} {changes[name][0]} -> {changes[name][1]}" for name in names)
