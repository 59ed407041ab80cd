"""Rows of data sets, from files or from the hub: a row is a tuple of the requested fields.

`datasets` streams from the hub. Local files are read here, because it stops at the first damaged
line of JSON, which a prepare.py counts as an unusable row, and calls its server even for a file.
"""

import contextlib
import glob
import itertools
from collections import Counter
from pathlib import Path

from data.files import brief, lines, parse_json, regular

FIRST = 1000  # lines in which the fields of a file are looked for
BATCH = 2048  # rows read at once from the hub


# -- files ---------------------------------------------------------------------------------------
def files(source):
    """The files that match comma-separated patterns. Raises ValueError for none or other kinds."""
    found = itertools.chain.from_iterable(map(matching, source.split(",")))
    found = list(dict.fromkeys(found))
    if other := [str(file) for file in found if file.suffix not in (".jsonl", ".parquet")]:
        raise ValueError(f"expected .jsonl or .parquet files, found {', '.join(other)}")
    return found


def matching(pattern):
    """The file of that name, or those that the pattern matches. Raises ValueError for none."""
    pattern = pattern.strip()
    found = [pattern] if pattern and Path(pattern).exists() else sorted(glob.glob(pattern))
    if not found:
        raise ValueError(f"source {pattern!r}: no such file; expected .jsonl or .parquet files")
    return map(Path, found)


def origin(found):
    """What a header records of files."""
    return [{"file": file.name, "bytes": file.stat().st_size} for file in found]


def read_file(file, fields):
    """Rows of a .jsonl or .parquet file; a field that is absent, or in a damaged line, is None.

    Raises ValueError if a .parquet file is damaged or lacks a field.
    """
    if file.suffix == ".jsonl":
        with open(regular(file), encoding="utf-8-sig", errors="surrogateescape") as rows:
            rows = (parse(line) for line in rows if line.strip())
            yield from (tuple(row.get(field) for field in fields) for row in rows)
        return
    require(fields, fields_of(file), file)
    import pyarrow.parquet

    with named(file):
        for batch in pyarrow.parquet.ParquetFile(file).iter_batches(columns=list(fields)):
            yield from zip(*(batch[field].to_pylist() for field in fields), strict=True)


def fields_of(file):
    """The names of a file's fields: for JSON lines, those of the first FIRST lines."""
    if file.suffix == ".jsonl":
        with open(regular(file), encoding="utf-8-sig", errors="replace") as rows:
            objects = map(parse, itertools.islice(rows, FIRST))
            return list(dict.fromkeys(itertools.chain.from_iterable(objects)))
    try:
        import pyarrow.parquet
    except ImportError:
        raise ValueError(f"{file}: a .parquet file needs `pip install pyarrow`") from None

    with named(file):
        return pyarrow.parquet.read_schema(regular(file)).names


@contextlib.contextmanager
def named(file):
    """Turn pyarrow's errors for a damaged file into one line that names it."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{file}: not a complete .parquet file: {reason}") from None


def parse(line):
    """The object in a line of JSON, {} if there is none."""
    try:
        row = parse_json(line)
    except ValueError:
        row = None
    return row if isinstance(row, dict) else {}


def require(fields, present, where):
    """Raise ValueError that names the first missing field, and those present."""
    if missing := [field for field in fields if field not in present]:
        raise ValueError(
            f"{where} has no field {missing[0]!r}, but {', '.join(sorted(present)) or 'none'}"
        )


# -- the hub -------------------------------------------------------------------------------------
def hub(name, fields, config=None, split="train", flag="--source=FILES"):
    """What a header records of a data set on the hub, and its rows, streamed.

    Raises OSError that says how to do without the hub, ValueError if a field is missing.
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
    with by_hand(name, f"{flag}, or resume later with the same command"):
        for batch in stream.iter(batch_size=BATCH):
            yield from zip(*(batch[field] for field in fields), strict=True)


@contextlib.contextmanager
def by_hand(name, flag):
    """Turn any error of the hub into one that says how to do without it."""
    try:
        yield
    except Exception as error:  # the hub's clients raise errors of many kinds
        message = f"cannot read {name} from the hub ({error!r}): supply it with {flag}"
        raise OSError(message) from error


def read_small(file, kinds, name, config=None, splits=("test",)):
    """All rows of a file of JSON lines, or, if file is "", of splits of a data set on the hub.

    kinds {field: str, int, or list, of str}. Raises ValueError that names the line and the field
    that is missing or has another type, and ValueError if there is no row.
    """
    rows = small_file(file, kinds) if file else small_set(name, kinds, config, splits)
    found = []
    for where, row in rows:
        for (field, kind), value in zip(kinds.items(), row, strict=True):
            if not is_of(kind, value):
                expected = (
                    "a list of texts" if kind is list else "text" if kind is str else "a number"
                )
                raise ValueError(f"{where}: {field} is {brief(value)}, expected {expected}")
        found.append(row)
    if not found:
        raise ValueError(f"{file or name} is empty: expected lines with {', '.join(kinds)}")
    return found


def small_file(file, fields):
    for number, line in enumerate(lines(file), start=1):
        if line.strip():
            row, where = parse(line), f"{file}, line {number}"
            require(fields, row, where)
            yield where, tuple(row[field] for field in fields)


def small_set(name, fields, config, splits):
    for split in splits:
        _, rows = hub(name, tuple(fields), config, split, "a file (see --help)")
        for number, row in enumerate(rows, start=1):
            yield f"{name}, {split}, row {number}", row


def is_of(kind, value):
    if kind is list:
        return isinstance(value, list) and all(map(is_text, value))
    return is_text(value) if kind is str else type(value) is kind


def is_text(value):
    """Whether it is a string that UTF-8 can encode: JSON may have halves of characters."""
    return isinstance(value, str) and value == value.encode(errors="replace").decode()


def unique(names, file):
    """Raise ValueError if a name occurs twice."""
    for name, times in Counter(names).items():
        if times > 1:
            raise ValueError(f"{file}: problem {brief(name)} occurs {times} times")
