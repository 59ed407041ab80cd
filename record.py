"""The record of a run: files that a script writes beside the checkpoint, and how they are written.

metrics.jsonl, one JSON object per line:

    {"type": "config", "config": {...}, "versions": {...}, "commit": ...}    first, at each resume
    {"type": "train", "iter", "loss", "grad_norm", "epoch", "lr", "visits", "hidden", "tenths",
     "examples_per_second"}
    {"type": "eval", "iter", "accuracy": {policy: share}, "strata", "val_loss", "examples"}

`iter` counts finished updates, `epoch` the passes over the data started so far (a chain stays in
use for several updates). grad_norm is taken before clipping; accuracy and val_loss are those of the
averaged weights. strata: {policy: {stratum: share}}, of a task that has them.

Three numbers say what a run is trained on, since the line before (of the first process): `visits`,
the rows trained for each example used up, null where none was; `hidden`, the mean share of a row's
positions but the prompt that are hidden; `tenths`, how many rows have 0 to 10 % hidden, 10 to 20 %,
... Visits that fall to 1 say that chains end at once, and all is hidden: the model is surer than
tau of every position.
"""

import contextlib
import json
import math
import os
import platform
import shutil
import subprocess
import time
import zlib
from importlib import metadata
from pathlib import Path

from tqdm import tqdm


class Log:
    """What a run reports while it trains, on its first process: metrics.jsonl and a progress bar.

    A run resumed at iteration `start` first drops the lines beyond it. evaluated: whether the file
    holds an evaluation at `start` already. Raises ValueError for a damaged file.
    """

    def __init__(self, path, config, start, total, rank):
        self.path, self.rank, self.evaluated = path, rank, True
        self.losses, self.hidden, self.taken, self.shown = [], [], 0, {}
        if rank == 0:
            path.parent.mkdir(parents=True, exist_ok=True)
            old = read_lines(path) if start else []
            kept = [line for line in old if line.get("iter", 0) <= start]
            write_lines(path, [*kept, {"type": "config", "config": config} | origin()])
            at_start = [line for line in kept if line["type"] == "eval" and line["iter"] == start]
            self.evaluated = bool(at_start)
        self.bar = tqdm(total=total, initial=start, disable=rank > 0, unit="it", smoothing=0.05)
        self.since = time.perf_counter()

    def add(self, loss, hidden):
        """Of one forward pass: the loss (), and the share of each row that is hidden (B,)."""
        self.losses.append(loss.detach())  # they stay on the device until they are reported
        self.hidden.append(hidden)

    def report_training(self, iteration, rows, values, taken):
        """The mean loss since the last report, what was trained on, and examples per second.

        rows: of one forward pass; taken (): the examples that this process has used up.
        Raises SystemExit where the loss is not finite: on every process that has such a loss.
        """
        import torch  # not at the top: figures are drawn without it

        rate = rows * len(self.losses) / (time.perf_counter() - self.since)
        loss = torch.stack(self.losses).mean().item()
        if not math.isfinite(loss):
            raise SystemExit(f"the loss is {loss} at iteration {iteration}; try a smaller --lr")
        used, self.taken = int(taken) - self.taken, int(taken)
        values |= contexts(torch.cat(self.hidden), used) | {"examples_per_second": rate}
        values = {"iter": iteration, "loss": loss} | values
        self.write({"type": "train"} | values)
        self.shown |= {"loss": f"{loss:.3f}", "examples/s": f"{rate:,.0f}"}
        self.bar.set_postfix(self.shown)
        self.losses, self.hidden, self.since = [], [], time.perf_counter()

    def report_evaluation(self, iteration, result, seconds):
        """A result of eval.evaluate; the seconds that it took do not count as training."""
        self.write({"type": "eval", "iter": iteration} | result)
        self.shown["val_loss"] = f"{result['val_loss']:.3f}"
        self.shown["accuracy"] = f"{next(iter(result['accuracy'].values())):.3f}"
        self.since += seconds

    def write(self, line):
        if self.rank == 0:
            append_lines(self.path, [line])


def contexts(hidden, used):
    """What was trained on: hidden (rows,), the share of each row; used: examples used up."""
    return {
        "visits": round(len(hidden) / used, 4) if used else None,
        "hidden": round(hidden.mean().item(), 4),
        "tenths": hidden.float().histc(10, 0, 1).int().tolist(),
    }


def origin():
    """Where a result comes from: versions of what it was computed with, and the commit."""
    return {"versions": versions(), "commit": commit()}


def versions():
    found = {"python": platform.python_version(), "torch": metadata.version("torch")}
    return found | {"numpy": metadata.version("numpy"), "platform": platform.platform()}


def commit():
    """The commit of the code, with + when files differ from it; None outside a repository."""
    here = Path(__file__).parent
    command = ["git", "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(
            command, cwd=here, capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


class Results:
    """Rows of samplers in eval.json (and eval.md), records of problems in eval.jsonl.

    Every process reads them, the first one writes. Raises ValueError for a damaged file.
    """

    def __init__(self, folder, conditions, rank):
        self.folder, self.conditions, self.rank = folder, conditions, rank
        file = folder / "eval.json"
        try:
            rows = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
            self.rows = {row["id"]: row for row in rows}
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{file} is damaged, move it away: {error!r}") from None
        self.all = read_lines(folder / "eval.jsonl")
        if rank == 0 and self.all:
            write_lines(folder / "eval.jsonl", self.all)  # without a line that a kill cut off

    def key(self, sampler):
        """The checksum of all settings that a result depends on."""
        text = json.dumps(self.conditions | sampler._asdict(), sort_keys=True)
        return f"{zlib.crc32(text.encode()):08x}"

    def row(self, sampler):
        return self.rows.get(self.key(sampler))

    def records(self, sampler):
        key = self.key(sampler)
        return [each for each in self.all if each["id"] == key]

    def add(self, sampler, records):
        records = [{"id": self.key(sampler)} | each for each in records]
        self.all += records
        if self.rank == 0:
            append_lines(self.folder / "eval.jsonl", records)

    def finish(self, sampler, result):
        records = self.records(sampler)
        hidden, steps = (sum(each[key] for each in records) for key in ("tokens", "steps"))
        row = {"id": self.key(sampler), "sampler": str(sampler)} | self.conditions
        row |= sampler._asdict() | result
        row |= {"examples": len(records), "tokens_per_step": hidden / max(1, steps)}
        self.rows[row["id"]] = row | origin()
        if self.rank == 0:
            write_json(self.folder / "eval.json", [*self.rows.values()])
            write(self.folder / "eval.md", self.markdown() + "\n")

    def markdown(self):
        """The rows under these conditions as a table."""
        lines = []
        for row in self.rows.values():
            if self.conditions.items() <= row.items():
                (_, score, (low, high)), *_ = scores(row)
                share = f"{score:.1%} [{low:.1%}, {high:.1%}]"
                lines.append([row["sampler"], share, f"{row['tokens_per_step']:.2f}"])
                lines[-1] += [str(row["forward_passes"]), str(row["seconds"])]
        head = ["sampler", "solved [95 %]", "tokens per step", "forward passes", "seconds"]
        return table(head, lines)


def scores(row):
    """[(name, score, interval)] of a summary: accuracy, or pass@k for each k."""
    if "accuracy" in row:
        return [("solved", row["accuracy"], row["interval"])]
    names = [name for name in row if name.startswith("pass@")]
    return [(name, row[name]["score"], row[name]["interval"]) for name in names]


def in_words(row):
    """A row of results for a reader."""
    total = row.get("problems", sum(row["kinds"].values()))
    lines = [
        f"{score:.1%} [{low:.1%}, {high:.1%}] {name}, of {total}"
        for name, score, (low, high) in scores(row)
    ]
    for name, part in row.get("strata", {}).items():
        low, high = part["interval"]
        lines.append(f"{part['accuracy']:.1%} [{low:.1%}, {high:.1%}] of stratum {name}")
    if "tokens_per_step" in row:
        lines.append(f"{row['tokens_per_step']:.2f} tokens per step ({row['sampler']})")
    if row.get("seconds") is not None:
        lines.append(f"{row['forward_passes']} forward passes, {row['seconds']} s")
    return "\n".join(lines + [f"{count:6d} {kind}" for kind, count in row["kinds"].items()])


# -- files -----------------------------------------------------------------------------------------
@contextlib.contextmanager
def appearing(path):
    """A temporary path for a file or a folder, which becomes `path` once the body has written it.

    A kill at any moment leaves the old `path` or the new one, never half of it: the data reach the
    disk before the rename. The temporary name belongs to this process, so several may write the
    same file; what a failing body leaves is removed. Raises OSError where `path` is a folder with
    something in it.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    remove(partial)  # a killed process may have had the same number
    try:
        yield partial
        for each in (partial, *partial.rglob("*")):
            if each.is_file():
                with open(each, "rb") as file:
                    os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        remove(partial)


def remove(path):
    """A file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def write(path, text):
    with appearing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path, data):
    write(path, json.dumps(data, indent=1) + "\n")


def write_lines(path, rows):
    """JSON lines."""
    write(path, "".join(json.dumps(row) + "\n" for row in rows))


def append_lines(path, rows):
    with open(path, "a", encoding="utf-8") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))


def read_lines(path):
    """The objects of JSON lines, none without a file; an end that a kill cut off is left out.

    Raises ValueError that names a damaged line.
    """
    path = Path(path)
    texts = path.read_text(encoding="utf-8").split("\n")[:-1] if path.is_file() else []
    rows = []
    for number, text in enumerate(texts, start=1):
        try:
            rows.append(json.loads(text))
        except ValueError:
            raise ValueError(f"{path}, line {number}: not JSON: {text[:60]!r}") from None
    return rows


def table(head, rows):
    """Lists of strings as markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def wilson_interval(correct, n):
    """95 % interval of a share, by Wilson's score; (0, 1) if n is 0."""
    if n == 0:
        return 0.0, 1.0
    z, share = 1.959964, correct / n
    centre = share + z * z / (2 * n)
    spread = z * math.sqrt(share * (1 - share) / n + (z / n / 2) ** 2)
    low, high = ((centre + sign * spread) / (1 + z * z / n) for sign in (-1, 1))
    return max(low, 0.0), min(high, 1.0)  # clips rounding errors
