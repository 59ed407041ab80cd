"""Send the lines of a run's metrics.jsonl to TensorBoard, Trackio or Weights & Biases.

    python train.py config/sudoku_mini.py --track=tensorboard     then: tensorboard --logdir=out

A tracker runs in its own thread, so that a slow network or a login delays no update. At its first
failure it says so and stops; metrics.jsonl has every line in any case. A resumed run is a new one
of the same name, which begins where the run resumes.
"""

import importlib
import json
import queue
import threading

from configurator import message_of
from engine.files import say

PATIENCE = 30  # seconds that a run waits at its end for lines still to be sent


class Tracker:
    """tracker(line) takes a line of metrics.jsonl, a dictionary, and returns immediately."""

    def __init__(self, name, folder):
        check(name)
        self.lines = queue.SimpleQueue()
        arguments = name, folder.resolve(), self.lines
        self.thread = threading.Thread(target=pass_on, args=arguments, daemon=True)
        self.thread.start()

    def __call__(self, line):
        self.lines.put(line)

    def close(self):
        self.lines.put(None)
        self.thread.join(PATIENCE)


def pass_on(name, folder, lines):
    """Send lines until None; the first is of type config."""
    try:
        log, finish = TRACKERS[name](name, folder, lines.get()["config"])
        for line in iter(lines.get, None):
            log(numbers(line, f"{line['type']}/"), line["iter"])
        finish()
    except BaseException as error:  # of a third-party package, which may also exit
        say(f"no more is sent to {name}: {message_of(error)}")


def numbers(line, prefix):
    """{name: number} of a line, without lists; `/` joins the names of nested ones."""
    flat = {}
    for name, value in line.items():
        if isinstance(value, dict):
            flat |= numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and name != "iter":
            flat[prefix + name] = value
    return flat


def by_steps(name, folder, config):
    """Trackio, and Weights & Biases, which it imitates."""
    run = importlib.import_module(name)
    run.init(project="puma", name=folder.name, config=config)
    return lambda values, step: run.log(values, step=step), run.finish


def tensorboard(name, folder, config):
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(folder / "tensorboard")
    writer.add_text("config", f"```\n{json.dumps(config, indent=1)}\n```")

    def log(values, step):
        for key, value in values.items():
            writer.add_scalar(key, value, step)

    return log, writer.close


TRACKERS = {"tensorboard": tensorboard, "trackio": by_steps, "wandb": by_steps}


def check(name):
    """Raise ValueError for a tracker that is unknown, or not installed."""
    if name not in TRACKERS:
        raise ValueError(f"track {name!r}: expected {', '.join(TRACKERS)}")
    try:
        importlib.import_module(name)
    except ImportError:
        raise ValueError(f"track {name}: this needs a package: pip install {name}") from None
