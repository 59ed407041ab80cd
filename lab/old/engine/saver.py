"""Saving and restoring a run: what goes into a checkpoint, and what if it cannot be written.

A part is any object with state_dict and load_state_dict, or a torch.Generator. Shared parts are the
same on every process (weights, averages, optimizer) and saved once, own parts for each process.
"""

import shutil
import time

import torch
from torch.utils._pytree import tree_map

from engine import sharding
from engine.checkpoint import archive, save
from engine.files import say
from engine.machine import random_states, set_random_states
from engine.processes import any_process, gather

PATIENCE = 30  # seconds in which room may be made for the last checkpoint


class Saver:
    """folder: the run's; copies: files to keep there; about: {config, model_args, data, device}.

    `saved` is the iteration of the latest checkpoint, `unsaved` whether a later one failed.
    """

    def __init__(self, folder, about, shared, own, rank, copies=()):
        self.folder = folder
        self.path = folder / "checkpoint.pt"
        self.about = about
        self.shared, self.own, self.rank, self.copies = shared, own, rank, copies
        self.saved, self.unsaved = 0, False

    def begin(self, block, keep, saved, changes, new_data=()):
        """Restore a run, or write the first checkpoint of a new one; an earlier run moves aside.

        keep: also the first weights. changes, new_data: see `restore`.
        """
        if saved:
            self.restore(saved, changes, new_data)
            return
        if self.rank == 0 and self.path.exists():
            print(f"a new run: the earlier one in {self.folder} is now in {archive(self.folder)}")
        if keep:
            self.save_weights(0, block)
        self.save(0, block)
        for file in self.copies if self.rank == 0 else ():
            shutil.copy(file, self.folder)
        if self.unsaved:
            raise OSError("the first checkpoint could not be written: use another folder")

    def save(self, iteration, block, last=False):
        """Write checkpoint.pt. If that fails, the run continues.

        Raises SystemExit if it was the last one, and no room is made for it in half a minute.
        """
        state, seconds = self.collect(iteration, block), 0
        self.write(state)
        while last and self.unsaved and seconds < PATIENCE:
            time.sleep(1)
            seconds += 1
            self.write(state)
        if last and self.unsaved:
            raise SystemExit(f"the weights of iteration {iteration} are lost; {self.resume_hint()}")

    def collect(self, iteration, block):
        """Everything that checkpoint.pt holds; all processes must call this."""
        own = {name: state_of(part) for name, part in self.own.items()}
        ranks = gather(own | {"random": random_states()})
        state = {
            name: tree_map(sharding.whole, state_of(part)) for name, part in self.shared.items()
        }
        return state | self.about | {"iteration": iteration, "block": block, "ranks": ranks}

    def write(self, state):
        """Write checkpoint.pt, or say, once, why that failed; all processes call this."""
        failed = False
        try:
            if self.rank == 0:
                save(state, self.path)
        except OSError as error:
            failed = True
            if not self.unsaved:
                say(f"{error}; {self.resume_hint()}, the run continues and tries again")
        self.unsaved = any_process(failed)
        self.saved = self.saved if self.unsaved else state["iteration"]

    def stop_if_not_finite(self, fault, iteration, *models):
        """Raise SystemExit on every process if a loss, a norm or a weight is not finite.

        fault: what is wrong with a loss, or "". The norm of all weights overflows long before one
        of them does, so an explosion is not saved either.
        """
        for model in models:
            norm = sharding.whole(torch.nn.utils.get_total_norm(model.parameters()))
            if not fault and not norm.isfinite():
                fault = f"the norm of the weights is {norm} at iteration {iteration}"
        if any_process(fault):
            fault = fault or f"a loss of another process is not finite by iteration {iteration}"
            remedy = "start anew, or continue from there, with a smaller learning rate"
            raise SystemExit(f"{fault}; {self.resume_hint()}: {remedy}")

    def resume_hint(self):
        there = self.path.exists()
        return f"{self.path} of iteration {self.saved} is intact" if there else f"no {self.path}"

    def save_weights(self, iteration, block):
        """Write weights/<iteration>.pt: the averaged weights alone."""
        part = self.shared.get("ema", self.shared["model"])
        state = {
            "ema": tree_map(sharding.whole, part.state_dict()),
            "iteration": iteration,
            "block": block,
        }
        if self.rank == 0:
            try:
                save(state | self.about, self.folder / "weights" / f"{iteration:06d}.pt")
            except OSError as error:
                say(f"{error}; the run continues without these weights")

    def restore(self, saved, changes, new_data):
        """Load everything from a checkpoint; with changes, the shared parts alone.

        Raises ValueError if data differs, but for the splits in new_data, or a part does not fit.
        """
        for split, data in self.about["data"].items():
            if data != saved["data"][split] and split not in new_data:
                raise ValueError(f"a resumed run must keep its data: the {split} examples differ")
        try:
            for name, part in self.shared.items():
                is_new = name == "ema" and name not in saved  # turned on by `continue`
                set_state(part, saved["model" if is_new else name])
            if not changes:
                own = saved["ranks"][self.rank]
                for name, part in self.own.items():
                    set_state(part, own[name])
                set_random_states(own["random"])
        except (LookupError, TypeError, AttributeError, RuntimeError) as error:
            reason = f"{type(error).__name__}: {str(error).splitlines()[0]:.200}"
            raise ValueError(f"{self.path} has parts of the wrong form ({reason})") from None
        self.saved = saved["iteration"]


def state_of(part):
    return part.get_state() if isinstance(part, torch.Generator) else part.state_dict()


def set_state(part, state):
    """Load a saved state, cut up as the part is; of an optimizer the moments, not the settings."""
    if isinstance(part, torch.Generator):
        part.set_state(state.cpu())
    elif isinstance(part, torch.optim.Optimizer):
        parameters = [p for group in part.param_groups for p in group["params"]]
        moments = {
            n: {name: sharding.like(value, parameters[n]) for name, value in values.items()}
            for n, values in state["state"].items()
        }
        part.load_state_dict(part.state_dict() | {"state": moments})
    else:
        own = part.state_dict() if isinstance(part, torch.nn.Module) else {}
        part.load_state_dict({key: sharding.like(state[key], own.get(key)) for key in state})
