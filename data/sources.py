"""Rows of data sets, from files or from the hub: a row is a tuple of the fields that are asked for.

`datasets` streams the hub. Local files are read here: it gives up at the first damaged line of
JSON, which a prepare.py counts as an unusable row, and even for a local file it calls its server.
"""

import contextlib
import glob
import json
from pathlib import Path

BATCH = 2048  # rows that are read at once from the hub


# -- files ---------------------------------------------------------------------------------------
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
    """Rows of a .jsonl or .parquet file; a field that is absent, or in a damaged line, is None.

    Raises ValueError if a .parquet file lacks a field.
    """
    if file.suffix == ".jsonl":
        with open(file, encoding="utf-8", errors="replace") as lines:
            rows = (parse(line) for line in lines if line.strip())
            yield from (tuple(row.get(field) for field in fields) for row in rows)
        return
    require(fields, fields_of(file), file)
    import pyarrow.parquet

    for batch in pyarrow.parquet.ParquetFile(file).iter_batches(columns=list(fields)):
        yield from zip(*(batch[field].to_pylist() for field in fields), strict=True)


def fields_of(file):
    """The names of a file's fields: of its first object, if it has JSON lines."""
    if file.suffix == ".jsonl":
        with open(file, encoding="utf-8", errors="replace") as lines:
            return list(next(filter(None, map(parse, lines)), {}))
    import pyarrow.parquet

    return pyarrow.parquet.read_schema(file).names


def parse(line):
    """The object that a line of JSON spells, {} if it spells none."""
    try:
        row = json.loads(line)
    except ValueError:
        row = None
    return row if isinstance(row, dict) else {}


def require(fields, present, where):
    """Raise ValueError that names a field that is missing, and those that are there."""
    if missing := [field for field in fields if field not in present]:
        raise ValueError(
            f"{where} has no field {missing[0]!r}, but {', '.join(sorted(present)) or 'none'}"
        )


# -- the hub -------------------------------------------------------------------------------------
def hub(name, fields, config=None, split="train", flag="--source=FILES"):
    """What a header says of a data set on the hub, and its rows, as they are streamed.

    Raises OSError that says how to do without the hub, ValueError where a field is missing.
    """
    with by_hand(name, flag):
        import datasets
        import huggingface_hub

        revision = huggingface_hub.HfApi().dataset_info(name).sha
        names = (name,) if config is None else (name, config)
        stream = datasets.load_dataset(*names, split=split, streaming=True, revision=revision)
        present = stream.column_names or list(next(iter(stream)))
    require(fields, present, name)
    return {"hub": name, "revision": revision}, stream_rows(stream, fields, name, flag)


def stream_rows(stream, fields, name, flag):
    with by_hand(name, f"{flag}, or go on later with the same command"):
        for batch in stream.iter(batch_size=BATCH):
            yield from zip(*(batch[field] for field in fields), strict=True)


@contextlib.contextmanager
def by_hand(name, flag):
    """Whatever goes wrong with the hub, say how to do without it."""
    try:
        yield
    except Exception as error:  # the hub's clients raise errors of many kinds
        message = f"cannot read {name} from the hub ({error!r}): supply it with {flag}"
        raise OSError(message) from error


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
            if line.strip():
                row = parse(line)
                require(fields, row, f"{file}, line {number}")
                found.append(tuple(row[field] for field in fields))
    return found
