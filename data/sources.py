"""Rows of data sets, from files or from the hub, read by `datasets`.

It reads .parquet files and the hub. Lines of JSON are read here, row by row, because its reader
stops at the first damaged line, which a prepare.py counts as an unusable row, and guesses the type
of a field from the first lines. The rows are then stored in its cache like all others.
"""

import functools
import glob
import itertools
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

from data.files import brief, lines, parse_json, regular

FIRST = 1000  # lines in which the fields of a file are looked for


# -- files ---------------------------------------------------------------------------------------
def local(source, fields):
    """What a header records of the files of a source, and read(cache, limit) -> their rows.

    Raises ValueError if there are none, or if one lacks a field.
    """
    found = files(source)
    for file in found:
        require(fields, fields_of(file), file)
    return origin(found), functools.partial(read_files, found, fields)


def files(source):
    """The files that match comma-separated patterns. Raises ValueError for none or other kinds."""
    patterns = [pattern.strip() for pattern in source.split(",")]
    found = [*dict.fromkeys(itertools.chain.from_iterable(map(matching, patterns)))]
    if {file.suffix for file in found} not in ({".jsonl"}, {".parquet"}):
        names = ", ".join(str(file) for file in found)
        raise ValueError(f"expected .jsonl or .parquet files, all of one kind, found {names}")
    return found


def matching(pattern):
    """The file of that name, or those that the pattern matches. Raises ValueError for none."""
    found = [pattern] if Path(pattern).is_file() else sorted(glob.glob(pattern))
    if not found:
        raise ValueError(f"source {pattern!r}: no such file; expected .jsonl or .parquet files")
    return map(Path, found)


def origin(found):
    """What a header records of files."""
    return [{"file": file.name, "bytes": file.stat().st_size} for file in found]


def read_files(found, fields, cache, limit=None):
    """The first rows of files of one kind: a Dataset of the fields."""
    from datasets import Dataset, Features, Value

    names = [str(file.resolve()) for file in found]
    with readable(", ".join(names)):
        if found[0].suffix == ".parquet":
            names = [glob.escape(name) for name in names]
            rows = Dataset.from_parquet(names, columns=[*fields], cache_dir=str(cache))
            return rows.select_columns([*fields]).take(min(limit or len(rows), len(rows)))
        times = tuple(file.stat().st_mtime_ns for file in found)  # the cache is for these alone
        kwargs = {"names": tuple(names), "times": times, "fields": tuple(fields), "limit": limit}
        features = Features({field: Value("string") for field in fields})
        return Dataset.from_generator(json_rows, features, str(cache), gen_kwargs=kwargs)


def json_rows(names, times, fields, limit):
    """Objects in files of JSON lines; what is no text, or in a damaged line, is None."""
    objects = itertools.chain.from_iterable(map(json_objects, names))
    for row in itertools.islice(objects, limit):
        yield {field: row.get(field) if is_text(row.get(field)) else None for field in fields}


def json_objects(name):
    with open(regular(name), encoding="utf-8-sig", errors="surrogateescape") as rows:
        yield from (parse(line) for line in rows if line.strip())


def fields_of(file):
    """The names of a file's fields: for JSON lines, those of the first FIRST lines."""
    if file.suffix == ".jsonl":
        return [*dict.fromkeys(itertools.chain(*itertools.islice(json_objects(file), FIRST)))]
    import pyarrow.parquet

    with readable(file):
        return pyarrow.parquet.read_schema(regular(file)).names


@contextmanager
def readable(names):
    """Turn the libraries' errors for a damaged file into one line that names it."""
    import datasets
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, datasets.exceptions.DatasetsError) as error:
        reason = str(error.__cause__ or error).partition("\n")[0]
        raise ValueError(f"{names}: not readable: {reason}") from None


def parse(line):
    """The object in a line of JSON, {} if there is none."""
    try:
        row = parse_json(line)
    except ValueError:
        row = None
    return row if isinstance(row, dict) else {}


def is_text(value):
    """Whether it is a string that UTF-8 can encode: JSON may have halves of characters."""
    return isinstance(value, str) and value == value.encode(errors="replace").decode()


def require(fields, present, where):
    """Raise ValueError that names the first missing field, and those present."""
    if missing := [field for field in fields if field not in present]:
        raise ValueError(
            f"{where} has no field {missing[0]!r}, but {', '.join(sorted(present)) or 'none'}"
        )


# -- the hub -------------------------------------------------------------------------------------
def hub(name, fields, config=None, split="train", flag="--source=FILES"):
    """What a header records of a data set on the hub, and read(cache, limit) -> its rows.

    Raises OSError that says how to do without the hub.
    """
    with by_hand(name, flag):
        import huggingface_hub

        revision = huggingface_hub.HfApi().dataset_info(name).sha
    origin = {"hub": name, "revision": revision}
    return origin, functools.partial(read_hub, name, fields, config, split, revision, flag)


def read_hub(name, fields, config, split, revision, flag, cache, limit=None):
    """The first rows of a data set on the hub: a Dataset of the fields.

    All of it is downloaded, which the hub's client resumes; for a limit only what is needed.
    """
    with by_hand(name, flag):
        import datasets

        options = {"split": split, "revision": revision}
        if limit is None:
            rows = datasets.load_dataset(name, config, cache_dir=str(cache), **options)
        else:
            stream = datasets.load_dataset(name, config, streaming=True, **options)
            rows = datasets.Dataset.from_list([*stream.take(limit)])
    require(fields, rows.column_names, name)
    return rows.select_columns([*fields])


@contextmanager
def by_hand(name, flag):
    """Turn any error of the hub into one that says how to do without it."""
    try:
        yield
    except Exception as error:  # the hub's clients raise errors of many kinds
        message = f"cannot read {name} from the hub ({error!r}): supply it with {flag}"
        raise OSError(message) from error


# -- small sets ------------------------------------------------------------------------------------
def read_small(file, kinds, name, config=None, splits=("test",)):
    """All rows of a file of JSON lines, or, if file is "", of splits of a data set on the hub.

    kinds {field: str, int, or list, of str}. Raises ValueError that names the line and the field
    that is missing or has another type, and ValueError if there is no row.
    """
    found = []
    for where, row in small_file(file) if file else small_set(name, config, splits):
        require(kinds, row, where)
        for field, kind in kinds.items():
            if not is_of(kind, row[field]):
                expected = {list: "a list of texts", str: "text", int: "a number"}[kind]
                raise ValueError(f"{where}: {field} is {brief(row[field])}, expected {expected}")
        found.append(tuple(row[field] for field in kinds))
    if not found:
        raise ValueError(f"{file or name} is empty: expected lines with {', '.join(kinds)}")
    return found


def small_file(file):
    for number, line in enumerate(lines(file), start=1):
        if line.strip():
            yield f"{file}, line {number}", parse(line)


def small_set(name, config, splits):
    for split in splits:
        with by_hand(name, "a file (see --help)"):
            import datasets

            rows = [*datasets.load_dataset(name, config, split=split)]
        for number, row in enumerate(rows, start=1):
            yield f"{name}, {split}, row {number}", row


def is_of(kind, value):
    if kind is list:
        return isinstance(value, list) and all(map(is_text, value))
    return is_text(value) if kind is str else type(value) is kind


def unique(names, file):
    """Raise ValueError if a name occurs twice."""
    for name, times in Counter(names).items():
        if times > 1:
            raise ValueError(f"{file}: problem {brief(name)} occurs {times} times")
