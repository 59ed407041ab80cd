"""Rows of data sets, from files or the hub, and tasks on them over processes.

Nothing here knows what a row means: it is a tuple of the values of the fields that are asked for.
"""

import contextlib
import functools
import glob
import itertools
import json
import multiprocessing
import os
import signal
import threading
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from data import tokenizer

load_once = functools.cache(tokenizer.load)  # of a worker
BATCH = 2048  # rows that are read at once from the hub


# -- rows ----------------------------------------------------------------------------------------
def files(source):
    """The files that the patterns, with commas between, stand for. Raises ValueError if none do."""
    found = [Path(file) for pattern in source.split(",") for file in sorted(glob.glob(pattern))]
    if not found or {file.suffix for file in found} - {".jsonl", ".parquet"}:
        raise ValueError(f"source={source}: expected .jsonl or .parquet files, found {found}")
    return found


def origin(found):
    """What a header says of files."""
    return [{"file": file.name, "bytes": file.stat().st_size} for file in found]


def read_file(file, fields):
    """Rows of a .jsonl or .parquet file; what is absent or no JSON is None.

    Raises ValueError where a .parquet file lacks a field.
    """
    if file.suffix == ".jsonl":
        with open(file, encoding="utf-8", errors="replace") as lines:
            rows = (parse(line) for line in lines if line.strip())
            yield from (tuple(row.get(field) for field in fields) for row in rows)
        return
    import pyarrow.parquet

    table = pyarrow.parquet.ParquetFile(file)
    require(fields, table.schema_arrow.names, file)
    for batch in table.iter_batches(columns=list(fields)):
        yield from zip(*(batch[field].to_pylist() for field in fields), strict=True)


def fields_of(file):
    """The names of a file's fields: of its first object, if it has JSON lines."""
    if file.suffix == ".jsonl":
        with open(file, encoding="utf-8", errors="replace") as lines:
            return list(next(filter(None, map(parse, lines)), {}))
    import pyarrow.parquet

    return pyarrow.parquet.ParquetFile(file).schema_arrow.names


def parse(line):
    """The object that a line spells, {} where it spells none."""
    try:
        row = json.loads(line)
    except ValueError:
        row = None
    return row if isinstance(row, dict) else {}


def hub(name, fields, config=None, split="train", by_hand_with="--source=FILES"):
    """What a header says of a data set on the hub, and its rows, as they are streamed.

    Raises OSError that says how to do without the hub, ValueError where a field is missing.
    """
    with by_hand(name, by_hand_with):
        import datasets
        import huggingface_hub

        revision = huggingface_hub.HfApi().dataset_info(name).sha
        names = (name,) if config is None else (name, config)
        stream = datasets.load_dataset(*names, split=split, streaming=True, revision=revision)
        present = stream.column_names or list(next(iter(stream)))
    require(fields, present, name)
    return {"hub": name, "revision": revision}, stream_rows(stream, fields, name, by_hand_with)


def stream_rows(stream, fields, name, by_hand_with):
    with by_hand(name, f"{by_hand_with}, or go on later with the same command"):
        for batch in stream.iter(batch_size=BATCH):
            yield from zip(*(batch[field] for field in fields), strict=True)


def read_small(file, fields, name, config=None, splits=("test",)):
    """All rows of a file of JSON lines, or of splits of a data set on the hub where file is "".

    Raises ValueError that names the line and the field that is missing.
    """
    if not file:
        hubs = (hub(name, fields, config, split, "a file (see --help)") for split in splits)
        return [row for _, rows in hubs for row in rows]
    found = []
    with open(file, encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            row = parse(line)
            require(fields, row, f"{file}, line {number}")
            found.append(tuple(row[field] for field in fields))
    return found


def require(fields, present, where):
    """Raise ValueError that names a field that is missing, and those that are there."""
    if missing := [field for field in fields if field not in present]:
        raise ValueError(
            f"{where} has no field {missing[0]!r}, but {', '.join(sorted(present)) or 'none'}"
        )


@contextlib.contextmanager
def by_hand(name, flag):
    """Whatever goes wrong with the hub, say how to do without."""
    try:
        yield
    except Exception as error:  # the hub's clients raise errors of many kinds
        message = f"cannot read {name} from the hub ({error!r}): supply it with {flag}"
        raise OSError(message) from error


# -- processes -----------------------------------------------------------------------------------
def chunks(rows, size):
    rows = iter(rows)
    while chunk := list(itertools.islice(rows, size)):
        yield chunk


def in_order(executor, task, items, ahead):
    """Results of task(item) in order; no more than `ahead` wait: a source may have no end."""
    waiting = deque()
    for item in items:
        waiting.append(executor.submit(task, item))
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    yield from (future.result() for future in waiting)


def pool(workers):
    """Processes that start afresh: the hub's client has threads, which a fork would break."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, context, initializer=follow_parent)


def cores():
    available = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count()))(0)
    return len(available)


def follow_parent():
    """In a worker: leave Ctrl-C to the parent, and end with it, however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch():
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def report(header, folder):
    for name, split in header["splits"].items():
        repeated = split["examples"] - split["questions"]
        print(
            f"{name}: {split['examples']:,} examples, {split['tokens']:,} tokens, the longest has "
            f"{split['longest']}; {repeated:,} repeat a question"
        )
    print("dropped:", ", ".join(f"{count:,} {why}" for why, count in header["dropped"].items()))
    print(f"written to {folder}")


def start(main):
    """Run a prepare.py: mistakes and interruptions are shown as messages."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit("prepare.py: interrupted; the same command goes on from here") from None
    except (ValueError, OSError) as error:
        raise SystemExit(f"prepare.py: {error}") from None
