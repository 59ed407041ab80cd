"""Send a run's metrics.jsonl on to TensorBoard or Weights & Biases, line by line.

    python lab/track.py --out_dir=out/sudoku_tiny                 # then: tensorboard --logdir=out
    python lab/track.py --out_dir=out/sudoku_tiny --to=wandb

Start it beside a run, or after it; it ends with the last evaluation, or with Ctrl-C.
"""

import atexit
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from configurator import configure, pick

out_dir = "out/sudoku_tiny"  # a run of train.py
to = "tensorboard"  # tensorboard, wandb


def tensorboard(config):
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(out_dir, flush_secs=2)
    atexit.register(writer.close)
    return writer.add_scalar


def wandb(config):
    import wandb

    run = wandb.init(project="puma", name=Path(out_dir).name, config=config)
    return lambda name, value, step: run.log({name: value}, step=step)


def main():
    start = {"tensorboard": tensorboard, "wandb": wandb}
    if not Path(out_dir, "metrics.jsonl").is_file():
        raise SystemExit(f"{out_dir} has no metrics.jsonl: name a run of train.py by --out_dir")
    with open(f"{out_dir}/metrics.jsonl") as file:
        config = json.loads(file.readline())["config"]
        send = start[pick("to", to, start)](config)
        for line in iter(file.readline, None):  # it has no end: "" is nothing new
            row = json.loads(line or "{}")
            for name in {*row} - {"iter"} if "iter" in row else ():
                send(name, row[name], row["iter"])
            if "val_loss" in row and row["iter"] == config["max_iters"]:
                break
            time.sleep(0 if line else 2)


if __name__ == "__main__":
    configure(globals())
    try:
        main()
    except ModuleNotFoundError as error:
        raise SystemExit(f"no package {error.name}: pip install {error.name}") from None
    except KeyboardInterrupt:
        raise SystemExit("stopped") from None
