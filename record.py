"""The record of a run: the files written beside its checkpoint, and how to write and read them.

metrics.jsonl, one JSON object per line:

    {"type": "config", "config": {...}, "versions": {...}, "commit": ...}    at start and resumes
    {"type": "train", "iter", "loss", "grad_norm", "epoch", "lr", "visits", "hidden", "tenths",
     "seconds", "examples_per_second"}
    {"type": "eval", "iter", "accuracy": {policy: share}, "strata", "val_loss", "examples"}

`iter` counts finished updates, `epoch` the passes over the data started so far (a chain stays in
use for several updates; a run continued with a smaller buffer returns examples, so `epoch` may
fall). grad_norm is taken before clipping; accuracy and val_loss use the averaged weights.
`seconds` counts training since iteration 0, without evaluations.
strata: {policy: {stratum: share}}, for a task that has them.

Three fields describe what the first process has trained on since the previous line: `visits`, the
rows trained per example used up, null if none was; `hidden`, the mean share of a row's non-prompt
positions that are hidden; `tenths`, the number of rows with 0 to 10 % hidden, 10 to 20 %, ...
Visits that fall to 1 mean that chains end at once and all positions are hidden: the model's
confidence is above tau everywhere.
"""

import contextlib
import fcntl
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
import zlib
from importlib import metadata
from pathlib import Path

from tqdm import tqdm


class Lock:
    """Reserves a folder for one run: `with Lock(folder)`, until the process ends, however it ends.

    Raises ValueError naming the process that holds it, OSError if the folder cannot be written.
    `ours`: the identity of the checkpoint that this run wrote last.
    """

    def __init__(self, folder, name="lock"):
        self.folder, self.path, self.ours = Path(folder), Path(folder, name), None
        self.renewing = threading.Lock()  # checkpoints and metrics are written by two threads

    def __enter__(self):
        self.is_new = not self.folder.exists()
        self.take()
        return self

    def __exit__(self, *_):
        with contextlib.suppress(OSError):
            if self.held():
                self.path.unlink()
            if self.is_new:
                self.folder.rmdir()  # if it is empty

    def take(self):
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK  # no link, no pipe
            self.file = open(os.open(self.path, flags, 0o666), "r+")  # noqa: SIM115 (open = held)
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = self.file.read(200).strip() or "another process"
            wait = "wait until it ends, or give another out_dir"
            raise ValueError(f"{self.folder} is in use by {holder}: {wait}") from None
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", error)
            raise OSError(f"cannot write {self.path}: {why}; give another out_dir") from None
        if not self.held():  # meanwhile another run released it and removed the file
            self.take()
        self.file.truncate(0)
        self.file.write(f"process {os.getpid()} on {platform.node()}\n")
        self.file.flush()

    def held(self):
        """Whether the lock file is still ours: the folder may have been moved or replaced."""
        here = os.fstat(self.file.fileno())
        return self.path.exists() and os.path.samestat(here, self.path.stat())

    def renew(self):
        """Take it again if it was lost. Raises ValueError if another run has used the folder."""
        with self.renewing:
            if self.held():
                return
            self.take()
        there = identity(self.folder / "checkpoint.pt")
        if there not in (None, self.ours):
            raise ValueError(f"{self.path.parent} has been used by another run")


def identity(path):
    """What distinguishes a file from a later one of the same name; None if there is no file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


class Log:
    """What a run reports while it trains, on its first process: metrics.jsonl and a progress bar.

    lock: on the run's folder; None on other processes. A run resumed at iteration `start` first
    drops later lines. changes: the settings changed at the resume, {name: (before, now)}.
    evaluated: whether the file already holds an evaluation at `start`. If the file cannot be
    written, lines wait for the next attempt. Raises ValueError for a damaged file.
    """

    def __init__(self, lock, config, start, total, changes, follow=()):
        self.lock, self.evaluated, self.follow = lock, True, follow
        self.updates, self.checked, self.shown = [], 0, {}
        self.taken, self.seconds, self.lines, self.size, self.failed = 0, 0.0, [], -1, False
        if lock:
            self.path = lock.folder / "metrics.jsonl"
            kept = read_until(self.path, start) if start else []
            self.lines = [json.dumps(line) + "\n" for line in kept]
            known = (row["seconds"] for row in reversed(kept) if number(row.get("seconds")))
            self.seconds = next(known, 0.0)
            more = {"changes": changes} if changes else {}
            self.write({"type": "config", "config": config} | more | origin())
            at_start = [line for line in kept if line["type"] == "eval" and line["iter"] == start]
            self.evaluated = bool(at_start)
        self.bar = progress_bar(
            total=total, initial=start, show=bool(lock), unit="it", smoothing=0.05
        )
        self.since = time.perf_counter()

    def add(self, loss, norm, hidden):
        """Record one update, on the device for now: loss and gradient norm, both ().

        hidden (rows,): the share of each row's non-prompt positions that was hidden.
        """
        self.updates.append((loss, norm, hidden))

    def fault(self, iteration):
        """A message naming the first loss or norm since the last call that is not finite, or ""."""
        import torch  # not at the top: plotting does without it

        new = self.updates[self.checked :]
        self.checked = len(self.updates)
        pairs = torch.stack([torch.stack(each[:2]) for each in new]).tolist() if new else []
        for at, (loss, norm) in enumerate(pairs, start=iteration - len(new) + 1):
            if not math.isfinite(loss + norm):
                return f"the loss is {loss}, the gradient's norm {norm} at iteration {at}"
        return ""

    def report_training(self, iteration, values, world, taken):
        """Report the mean loss since the last report, what was trained on, examples per second.

        world: processes; taken (): the examples that this one has used up. Returns the line.
        """
        import torch

        losses, norms, hidden = zip(*self.updates, strict=True)
        hidden = torch.cat(hidden)
        seconds = time.perf_counter() - self.since
        self.seconds += seconds
        rate = world * len(hidden) / seconds
        used, self.taken = int(taken) - self.taken, int(taken)
        loss = torch.stack(losses).mean().item()
        line = {"iter": iteration, "loss": loss, "grad_norm": norms[-1].item()} | values
        line |= contexts(hidden, used)
        line |= {"seconds": round(self.seconds, 3), "examples_per_second": rate}
        self.write({"type": "train"} | line)
        self.show(iteration, {"loss": f"{loss:.3f}", "examples/s": f"{rate:,.0f}"})
        self.updates, self.checked, self.since = [], 0, time.perf_counter()
        return line

    def report_evaluation(self, iteration, result, seconds):
        """Report a result of eval.evaluate; its seconds do not count as training."""
        self.write({"type": "eval", "iter": iteration} | result)
        new = {"val_loss": f"{result['val_loss']:.3f}"}
        for share in [*result["accuracy"].values()][:1]:  # own text may have none
            new["accuracy"] = f"{share:.3f}"
        self.show(iteration, new)
        self.since += seconds

    def show(self, iteration, new):
        """Show numbers {name: text} on the bar, or on their own line if there is no bar."""
        self.shown |= new
        self.bar.set_postfix(self.shown)
        if self.lock and self.bar.disable:
            words = ", ".join(f"{name} {text}" for name, text in new.items())
            say(f"iteration {iteration} of {self.bar.total}: {words}")

    def write(self, line):
        if self.lock:
            self.lines.append(json.dumps(line, allow_nan=False) + "\n")
            self.flush()
            for tell in self.follow:
                tell(line)

    def flush(self):
        """Bring the file up to date, or say why that failed."""
        try:
            if self.path.exists() and self.path.stat().st_size == self.size:
                with open(self.path, "a", encoding="utf-8") as file:
                    file.write(self.lines[-1])
            else:  # a new file, or it no longer holds what was written
                self.lock.renew()
                write(self.path, "".join(self.lines))
            self.size = self.path.stat().st_size
            self.failed = False
        except ValueError as error:  # from the lock
            raise SystemExit(f"{error}: this one stops") from None
        except OSError as error:
            with contextlib.suppress(OSError):
                os.truncate(self.path, self.size)  # no partial line
            self.size = -1
            if not self.failed:
                say(f"cannot write {self.path}: {error.strerror}; will retry at the next line")
            self.failed = True

    def close(self):
        """Finish the file at the end of a run. Raises SystemExit if it still cannot be written."""
        if self.failed:
            self.flush()
        if self.failed:
            raise SystemExit(f"{self.path} could not be written: the run's record is lost")


def progress_bar(*args, show=True, **options):
    """tqdm's bar; none unless standard error is a terminal: it would fill a log file."""
    return tqdm(*args, disable=None if show else True, **options)


def say(text):
    """Print a line on standard error without breaking a progress bar."""
    tqdm.write(text, file=sys.stderr)


def contexts(hidden, used):
    """What was trained on. hidden (rows,): share hidden in each row; used: examples used up."""
    return {
        "visits": round(len(hidden) / used, 4) if used else None,
        "hidden": round(hidden.mean().item(), 4),
        "tenths": hidden.float().histc(10, 0, 1).int().tolist(),
    }


def origin():
    """Where a result comes from: versions of the software, and the commit."""
    return {"versions": versions(), "commit": commit()}


def versions():
    found = {"python": platform.python_version(), "torch": metadata.version("torch")}
    found["numpy"] = metadata.version("numpy")
    return found | {"platform": f"{platform.system()} {platform.machine()}"}


def commit():
    """The commit of the code, with + if files differ from it; None outside a repository."""
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

    Every process reads them, only the first writes. Raises ValueError for a damaged file.
    """

    def __init__(self, folder, conditions, rank):
        self.folder, self.conditions, self.rank = folder, conditions, rank
        self.rows = {row["id"]: row for row in read_results(folder / "eval.json")}
        self.all = read_lines(folder / "eval.jsonl", RECORD)
        self.refuse_others(self.all, lambda record: True)
        if rank == 0 and self.all:
            write_lines(folder / "eval.jsonl", self.all)  # drops a line that a kill cut off

    def key(self, sampler):
        """The checksum of all settings that a result depends on."""
        text = json.dumps(self.conditions | sampler._asdict(), sort_keys=True)
        return f"{zlib.crc32(text.encode()):08x}"

    def row(self, sampler):
        return self.rows.get(self.key(sampler))

    def records(self, sampler):
        key = self.key(sampler)
        return [each for each in self.all if each["id"] == key]

    def refuse_others(self, records, belongs):
        """Raise ValueError naming a record that is there twice, or does not belong there."""
        seen = set()
        for each in records:
            place = each["id"], each["index"]
            if place in seen or not belongs(each):
                wrong = "occurs twice" if place in seen else "is not one of those evaluated"
                line = next(n for n, row in enumerate(self.all, start=1) if row is each)
                refuse(self.folder / "eval.jsonl", line, f"problem {each['index']} {wrong}")
            seen.add(place)

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
        """The rows for these conditions as a table, with a column for each stratum."""
        rows = [row for row in self.rows.values() if self.conditions.items() <= row.items()]
        strata = [*dict.fromkeys(name for row in rows for name in row.get("strata", {}))]
        lines = []
        for row in rows:
            (_, score, (low, high)), *_ = scores(row)
            parts = [f"{row['strata'][name]['accuracy']:.1%}" for name in strata]
            lines.append([row["sampler"], f"{score:.1%} [{low:.1%}, {high:.1%}]", *parts])
            lines[-1] += [f"{row['tokens_per_step']:.2f}"]
            lines[-1] += [str(row["forward_passes"]), str(row["seconds"])]
        cost = ["tokens per step", "forward passes", "seconds"]
        return table(["sampler", "solved [95 %]", *strata, *cost], lines)


def read_results(path):
    """The rows of eval.json; none without the file. Raises ValueError naming a damaged file."""
    rows = read_json(path, [ROW]) if path.exists() else []
    for place, row in enumerate(rows):
        if "accuracy" in row:
            form = {"accuracy": share, "interval": interval}
        else:
            names = [name for name in row if name.startswith("pass@")]
            form = {name: {"score": share, "interval": interval} for name in names}
        if wrong := fault(row, form) if form else "no score":
            raise ValueError(f"{path} is damaged, move it away: {place}: {wrong}")
    return rows


def scores(row):
    """[(name, score, interval)] of a summary: accuracy, or pass@k for each k."""
    if "accuracy" in row:
        return [("solved", row["accuracy"], row["interval"])]
    names = [name for name in row if name.startswith("pass@")]
    return [(name, row[name]["score"], row[name]["interval"]) for name in names]


def in_words(row):
    """A row of results as text."""
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

    A kill at any moment leaves the old `path` or the new one, never half of it: the data reaches
    the disk before the rename. The temporary name is this process's own, so several may write the
    same file; a failing body leaves nothing behind. Raises OSError if `path` is a folder that is
    not empty.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{platform.node()}-{os.getpid()}.tmp")
    remove(partial)  # a killed process may have had the same id
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
    """Delete a file or a folder, if it exists."""
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def write(path, text):
    with appearing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path, data):
    write(path, json.dumps(data, indent=1) + "\n")


def write_lines(path, rows):
    """Write rows as JSON lines."""
    write(path, "".join(json.dumps(row) + "\n" for row in rows))


def append_lines(path, rows):
    with open(path, "a", encoding="utf-8") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))


# -- reading: a file may be damaged, or made by someone else ---------------------------------------
def read_lines(path, form=None):
    """The objects of JSON lines; none without a file; a last line that a kill cut off is dropped.

    form: of every object, as `fault` takes it. Raises ValueError naming a damaged line.
    """
    path = Path(path)
    lines = path.read_bytes().split(b"\n")[:-1] if path.is_file() else []
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(json.loads(line.decode()))
        except (ValueError, RecursionError):
            raise ValueError(f"{path}, line {number}: not JSON: {ascii(line[:60])[1:]}") from None
        refuse(path, number, fault(rows[-1], form or {}))
    return rows


def refuse(path, number, wrong):
    """Raise ValueError naming a line, if `wrong` says what is wrong with it."""
    if wrong:
        raise ValueError(f"{path}, line {number}: {wrong}; remove the line, or move the file away")


def read_json(path, form):
    """The content of a JSON file. Raises ValueError naming the file and what is wrong with it."""
    try:
        data = json.loads(Path(path).read_bytes().decode())
        wrong = fault(data, form)
    except (ValueError, RecursionError) as error:
        wrong = f"{type(error).__name__}: {error}"
    if wrong:
        raise ValueError(f"{path} is damaged, move it away: {wrong}")
    return data


def fault(value, form):
    """What is wrong with a value read from JSON, in words, or None.

    form: {key: form} for an object with at least these keys, {str: form} for one with any keys or
    none, [form] for a list that is not empty, or one of the functions below.
    """
    if callable(form):
        return None if form(value) else f"expected {form.__doc__}, not {value!a:.60}"
    if type(value) is not type(form):
        kind = "a list" if isinstance(form, list) else "an object"
        return f"expected {kind}, not {value!a:.60}"
    if form and str not in form and not value:
        return "it is empty"
    if isinstance(form, list):
        pairs = [(place, each, form[0]) for place, each in enumerate(value)]
    else:
        forms = dict.fromkeys(value, form[str]) if str in form else form
        if missing := [key for key in forms if key not in value]:
            return f"no {missing[0]!r}"
        pairs = [(key, value[key], each) for key, each in forms.items()]
    found = ((key, fault(each, own)) for key, each, own in pairs)
    return next((f"{key}: {wrong}" for key, wrong in found if wrong), None)


def text(value):
    """a string"""
    return isinstance(value, str)


def whole(value):
    """a whole number, at least 0"""
    return type(value) is int and value >= 0


def number(value):
    """a number"""
    return type(value) in (int, float)


def number_or_null(value):
    """a number or null"""
    return value is None or number(value)


def share(value):
    """a number from 0 to 1"""
    return number(value) and 0 <= value <= 1


def interval(value):
    """two numbers from 0 to 1"""
    return isinstance(value, list) and len(value) == 2 and all(map(share, value))


LINES = {  # of metrics.jsonl, by type
    "config": {"config": {"method": text, "seed": whole}},
    "train": {"iter": whole, "loss": number},  # older lines lack seconds, visits, hidden
    "eval": {"iter": whole, "accuracy": {str: share}, "val_loss": number},
}
ROW = {"id": text, "sampler": text, "kinds": {str: whole}, "tokens_per_step": number}
RECORD = {"id": text, "index": whole, "kind": text, "tokens": whole, "steps": whole}


def read_metrics(path):
    """The lines of metrics.jsonl. Raises ValueError naming one that no run writes."""
    rows, last, seen = read_lines(path, {"type": text}), 0, set()
    for place, row in enumerate(rows, start=1):
        form = LINES.get(row["type"])
        refuse(path, place, fault(row, form) if form else f"unknown type {row['type']!a:.60}")
        if "iter" in row:
            if row["iter"] < last or (row["type"], row["iter"]) in seen:
                refuse(path, place, f"iteration {row['iter']} after {last}, as if two runs wrote")
            last = row["iter"]
            seen.add((row["type"], last))
    return rows


def read_until(path, start):
    """The lines of metrics.jsonl that a run resumed at iteration `start` keeps.

    Prints where lines are missing.
    """
    rows = [row for row in read_metrics(path) if row.get("iter", 0) <= start]
    for kind in ("train", "eval"):
        if hole := hole_in(rows, kind, start):
            say(f"{path} lacks {kind} lines between iterations {hole[0]} and {hole[1]}")
    return rows


def hole_in(rows, kind, end=0):
    """The iterations between which lines of a kind are missing, up to `end`, or None."""
    key = {"train": "log_interval", "eval": "eval_interval"}[kind]
    before, every, most = 0, 0, 0  # the previous line, the interval, the next line at the latest
    for row in rows:
        if row["type"] == "config":  # a resumed run may have another interval
            said = row["config"].get(key)
            before_it, every = every, said if whole(said) else math.inf
            most = max(most, before_it + every)
        elif row["type"] == kind:
            if row["iter"] - before > most:
                return before, row["iter"]
            before, most = row["iter"], every
    last = end - (kind == "eval")  # the evaluation at the end may be yet to come
    return (before, end) if end and last - before >= most else None


def table(head, rows):
    """A markdown table of lists of strings."""
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
