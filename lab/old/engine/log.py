"""What a run reports while it trains: metrics.jsonl, one JSON object per line, and a progress bar.

    {"type": "config", "config": {...}, "versions": {...}, "commit": ...}    at start and resumes
    {"type": "train", "iter", "loss", "grad_norm", "epoch", "lr", "visits", "hidden", "tenths",
     "seconds", "examples_per_second"}
    {"type": "eval", "iter", "accuracy": {name: share}, "val_loss", "examples"}

`iter` counts finished updates, `epoch` the passes over the data started so far. grad_norm is taken
before clipping; accuracy and val_loss use the averaged weights; `seconds` counts training since
iteration 0, without evaluations. Of what the first process has trained on since the previous line:
`sure`, until chains begin: the share of hidden tokens where the confidence is above 0.9; `visits`,
how many updates an example stayed in training, on average (null if none left); `hidden`,
the mean share of a row's non-prompt positions that are hidden; `tenths`, rows by that share.
"""

import json
import math
import platform
import subprocess
import time
import zlib
from importlib import metadata
from pathlib import Path

from engine.files import progress_bar, read_lines, say

PROJECT = Path(__file__).parents[1]
SOURCES = ".", "../../data", "../../data/sudoku", "engine", "pretrained", "runs", "sandbox", "tasks"


class Log:
    """Reports on the first process; on the others `folder` is None, and nothing is written.

    A run resumed at iteration `start` first drops later lines. identity(config): what is the same
    in all lines of a run. changes: of settings at the resume, {name: (before, now)}. taken:
    examples used up so far. tracker(line) is told each line, too. If the file cannot be written,
    lines wait for the next attempt. Raises ValueError if it is damaged, or another run's.
    """

    def __init__(self, folder, config, identity, start, total, changes, taken=0, tracker=None):
        self.path = folder and Path(folder, "metrics.jsonl")
        self.tracker = tracker
        self.updates, self.taken, self.seconds = [], taken, 0.0
        self.written, self.waiting, self.failed = 0, [], False  # bytes; lines
        how = {"show": folder is not None, "unit": "it", "smoothing": 0.05}
        self.bar = progress_bar(total=total, initial=start, **how)
        rows = read_metrics(self.path) if folder and start else []
        if rows and identity(rows[0].get("config", {})) != identity(config):
            raise ValueError(f"{self.path} is the record of another run: move it away")
        kept = [row for row in rows if row.get("iter", 0) <= start]
        self.seconds = max((row.get("seconds", 0.0) for row in kept), default=0.0)
        evaluations = [row for row in kept if row["type"] == "eval" and row["iter"] == start]
        self.last_evaluation = evaluations[-1] if evaluations else None  # at `start`
        self.waiting = [json.dumps(row) + "\n" for row in kept]
        changed = {"changes": changes} if changes else {}
        self.write({"type": "config", "config": config} | changed | origin())
        self.since = time.perf_counter()

    def add(self, loss, norm, hidden):
        """Record one update: loss (), gradient norm (), share hidden of each row (rows,)."""
        self.updates.append((loss, norm, hidden))
        self.bar.update()

    def fault(self, iteration):
        """Names the first loss or norm since the last report that is not finite; or ""."""
        import torch  # not at the top: plotting does without it

        fault = ""
        losses, norms, _ = zip(*reversed(self.updates), strict=True)
        read = torch.stack(losses).tolist(), torch.stack(norms).tolist()  # the host waits
        for back, (loss, norm) in enumerate(zip(*read, strict=True)):
            if not math.isfinite(loss + norm):
                fault = f"the loss is {loss}, the gradient's norm {norm}"
                fault += f" at iteration {iteration - back}"
        return fault

    def report_training(self, iteration, values, world, taken):
        """Report the mean loss since the last report, what was trained on, examples per second.

        taken (): the examples that this process has used up. Returns the line.
        """
        import torch  # not at the top: plotting does without it

        losses, norms, hidden = zip(*self.updates, strict=True)
        hidden = torch.cat(hidden)
        seconds = time.perf_counter() - self.since
        self.seconds += seconds
        rate = world * len(hidden) / seconds
        used, self.taken = int(taken) - self.taken, int(taken)
        loss = torch.stack(losses).mean().item()
        line = {"iter": iteration, "loss": loss, "grad_norm": norms[-1].item()} | values
        line |= context_stats(hidden, used)
        line |= {"seconds": round(self.seconds, 3), "examples_per_second": rate}
        self.write({"type": "train"} | line)
        visits = "-" if line["visits"] is None else f"{line['visits']:.1f}"
        stage = f"sure {line['sure']:.2f}" if "sure" in line else f"visits {visits}"
        shown = f"loss {loss:.3f}, {stage}, hidden {line['hidden']:.2f}"
        self.bar.set_postfix_str(shown, refresh=False)  # at the next update
        self.updates, self.since = [], time.perf_counter()
        return line

    def report_evaluation(self, iteration, result, seconds):
        """A result of an evaluation, also on a line; its seconds do not count as training."""
        self.write({"type": "eval", "iter": iteration} | result)
        accuracy, words = result["accuracy"], f"validation loss {result['val_loss']:.3f}"
        if accuracy:  # own text may lack it
            best = max(accuracy, key=accuracy.get)
            words += f", {accuracy[best]:.1%} solved ({best})"
        if self.path:
            say(f"iteration {iteration}: {words}")
        self.since += seconds

    def write(self, line):
        if not self.path:
            return
        self.waiting.append(json.dumps(line, allow_nan=False) + "\n")
        try:
            with open(self.path, "r+b" if self.written else "wb") as file:
                file.seek(self.written)
                file.truncate()  # what a failed attempt has left
                file.write("".join(self.waiting).encode())
                file.flush()
                self.written = file.tell()
                self.waiting = []
                self.failed = False
        except OSError as error:
            if not self.failed:
                say(f"cannot write {self.path}: {error.strerror}; will retry at the next line")
            self.failed = True
        if self.tracker:
            self.tracker(line)

    def close(self):
        self.bar.close()
        if self.waiting:
            raise SystemExit(f"{self.path} could not be written: the run's record is lost")


def context_stats(hidden, used):
    """What was trained on. hidden (rows,): share hidden in each row; used: examples used up."""
    return {
        "visits": round(len(hidden) / used, 4) if used else None,
        "hidden": round(hidden.mean().item(), 4),
        "tenths": hidden.float().histc(10, 0, 1).int().tolist(),
    }


def read_metrics(path):
    """The lines of metrics.jsonl. Raises ValueError naming a line out of order."""
    rows, last = read_lines(path), 0
    for number, row in enumerate(rows, start=1):
        iteration = row.get("iter", last)
        known = row.get("type") in ("config", "train", "eval")
        if not known or not isinstance(iteration, int) or iteration < last:
            raise ValueError(
                f"{path}, line {number}: not a line of this run, or not in its order: "
                f"{ascii(row)[:60]}; remove it, or move the file away"
            )
        last = iteration
    return rows


def origin():
    """Where a result comes from: versions of the software, and the commit."""
    versions = {"python": platform.python_version()}
    versions |= {name: metadata.version(name) for name in ("torch", "numpy")}
    versions |= {"platform": f"{platform.system()} {platform.machine()}"}
    return {"versions": versions, "commit": commit()}


def code():
    """CRC-32 of the project's source files."""
    files = [path for folder in SOURCES for path in sorted((PROJECT / folder).glob("*.py"))]
    return zlib.crc32(b"".join(path.read_bytes() for path in files))


def commit():
    """The commit of the code, with + if files differ from it; None outside its repository."""
    if not (PROJECT.parents[1] / ".git").exists():  # an installed copy may lie inside another one
        return None
    command = ["git", "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True)
        return done.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
