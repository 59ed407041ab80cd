"""Send the lines of a run's metrics.jsonl to TensorBoard, Trackio or Weights & Biases.

    python train.py config/sudoku_mini.py --track=tensorboard     then: tensorboard --logdir=out

At its first failure a tracker says so and stops; metrics.jsonl has every line in any case. A
resumed run is a new one of the same name, which begins where the run resumes.
"""

import importlib
import json

from configurator import message_of
from engine.files import say


class Tracker:
    """tracker(line) sends a line of metrics.jsonl, a dictionary; the first is of type config."""

    def __init__(self, name, folder):
        check(name)
        self.name, self.folder, self.log, self.finish = name, folder.resolve(), None, None
        self.failed = False

    def __call__(self, line):
        self.attempt(self.send, line)

    def send(self, line):
        if self.log is None:
            start = TRACKERS[self.name]
            self.log, self.finish = start(self.name, self.folder, line["config"])
        elif line["type"] != "config":
            self.log(numbers(line, f"{line['type']}/"), line["iter"])

    def close(self):
        self.attempt(lambda: self.finish and self.finish())

    def attempt(self, action, *args):
        try:
            if not self.failed:
                action(*args)
        except (Exception, SystemExit) as error:  # of a third-party package
            self.failed = True
            say(f"no more is sent to {self.name}: {message_of(error)}")


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
