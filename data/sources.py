"""Rows of data sets, from files or from the hub, read by `datasets`.

Lines of JSON are parsed here, because its reader stops at the first damaged line.
"""

import glob
import itertools
import zlib
from contextlib import contextmanager, suppress
from pathlib import Path

from data.files import brief, lines, parse_json, regular

TYPES = {list: "a list of texts", str: "text", int: "a number"}  # of the fields of small sets
KINDS = ".jsonl, .parquet or .txt"
FIRST = 1000  # lines in which the fields of a file are looked for


# -- files ---------------------------------------------------------------------------------------
def local(source, fields):
    """What a header records of files, patterns or paths, and read(cache, limit) -> their rows.

    Raises ValueError if there are none, or if one lacks a field.
    """
    paths = files(source) if isinstance(source, str) else source
    for path in paths:
        require(fields, fields_of(path), path)
    origin = [{"file": path.name, "crc32": checksum(path)} for path in paths]
    key = f"{zlib.crc32(repr(origin).encode()):x}"  # other files are other rows in the cache
    return origin, lambda cache, limit=None: read_files(paths, fields, str(cache / key), limit)


def checksum(path):
    """CRC-32 of a file, which may be larger than memory."""
    crc = 0
    with open(regular(path), "rb") as file:
        while piece := file.read(1 << 24):
            crc = zlib.crc32(piece, crc)
    return crc


def files(source):
    """The files that match comma-separated patterns. Raises ValueError for none or other kinds."""
    found = []
    for pattern in map(str.strip, source.split(",")):
        matching = [pattern] if Path(pattern).is_file() else sorted(glob.glob(pattern))
        if not matching:
            raise ValueError(f"source {pattern!r}: no such file; expected {KINDS} files")
        found += map(Path, matching)
    if {file.suffix for file in found} not in ({".jsonl"}, {".parquet"}, {".txt"}):
        names = ", ".join(map(str, found))
        raise ValueError(f"expected {KINDS} files, all of one kind, found {names}")
    return [*dict.fromkeys(found)]


def read_files(paths, fields, cache, limit):
    """The first rows of files of one kind: a Dataset of the fields, kept in the folder `cache`."""
    from datasets import Dataset, Features, Value

    names = [str(path.resolve()) for path in paths]
    if paths[0].suffix == ".parquet":
        import pyarrow.parquet

        filled = [name for name in names if pyarrow.parquet.read_metadata(name).num_rows]
        paths = [*map(glob.escape, filled or names)]
        rows = Dataset.from_parquet(paths, cache_dir=cache, columns=[*fields])
        return rows.select_columns([*fields]).take(min(limit or len(rows), len(rows)))
    kwargs = {"names": tuple(names), "fields": tuple(fields), "limit": limit}
    features = Features({field: Value("string") for field in fields})
    return Dataset.from_generator(json_rows, features, cache, gen_kwargs=kwargs)


def json_rows(names, fields, limit):
    """Objects in files of JSON lines; what is no text, or in a damaged line, is None."""
    objects = itertools.chain.from_iterable(map(json_objects, names))
    for row in itertools.islice(objects, limit):
        yield {field: row.get(field) if is_text(row.get(field)) else None for field in fields}


def json_objects(name):
    """The objects of a file; of a .txt its paragraphs, as {"text": paragraph}."""
    rows = lines(name, errors="surrogateescape")
    if Path(name).suffix == ".txt":
        parts = itertools.groupby(rows, key=lambda line: bool(line.strip()))
        return ({"text": "".join(part)} for has_text, part in parts if has_text)
    return (parse(line) for line in rows if line.strip())


def fields_of(file):
    """The names of a file's fields; of JSON lines, only the first FIRST are read."""
    if file.suffix != ".parquet":
        return [*dict.fromkeys(itertools.chain(*itertools.islice(json_objects(file), FIRST)))]
    import pyarrow.parquet

    try:
        return pyarrow.parquet.read_schema(regular(file)).names
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{file}: not a whole .parquet file: {error}") from None


def parse(line):
    """The object in a line of JSON, {} if there is none."""
    with suppress(ValueError):
        if isinstance(row := parse_json(line), dict):
            return row
    return {}


def is_text(value):
    """Whether it is a string that UTF-8 can encode: JSON may have halves of characters."""
    return isinstance(value, str) and value == value.encode(errors="replace").decode()


def require(fields, present, where):
    """Raise ValueError that names the first missing field, and those present."""
    if missing := [field for field in fields if field not in present]:
        known = ", ".join(sorted(present))
        other = f"but {known}" if known else "nor any other: expected one JSON object a line"
        raise ValueError(f"{where} has no field {missing[0]!r}, {other}")


# -- the hub -------------------------------------------------------------------------------------
def hub(name, fields, config=None, split="train", revision=""):
    """What a header records of a data set on the hub, and read(cache, limit) -> its rows.

    revision: a commit, branch or tag; "" = the newest. The header records the commit.
    """
    with by_hand(name):
        import huggingface_hub

        revision = huggingface_hub.HfApi().dataset_info(name, revision=revision or None).sha
    options = {"name": config, "split": split, "revision": revision}

    def read(cache, limit=None):
        """Without a limit, all is downloaded to `cache`, where another start finds it."""
        with by_hand(name):
            from datasets import Dataset, load_dataset

            if limit is None:
                rows = load_dataset(name, cache_dir=str(cache), **options)
            else:
                some = load_dataset(name, streaming=True, **options).take(limit)
                rows = Dataset.from_list([*some])
        require(fields, rows.column_names, name)
        return rows.select_columns([*fields])

    return [{"hub": name, "revision": revision}], read


@contextmanager
def by_hand(name, flag="--source=FILES"):
    """Turn any error of the hub into one that says how to do without it."""
    try:
        yield
    except ModuleNotFoundError:
        raise
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
    for where, row in small_rows(file, name, config, splits):
        require(kinds, row, where)
        for field, kind in kinds.items():
            texts = row[field] if kind is list else [row[field]] if kind is str else []
            if not isinstance(row[field], kind) or not all(map(is_text, texts)):
                raise ValueError(f"{where}: {field} is {brief(row[field])}, expected {TYPES[kind]}")
        found.append(tuple(row[field] for field in kinds))
    if not found:
        raise ValueError(f"{file or name} is empty: expected lines with {', '.join(kinds)}")
    return found


def small_rows(file, name, config, splits):
    """The place and the object of each row."""
    for number, line in enumerate(lines(file) if file else (), start=1):
        if line.strip():
            yield f"{file}, line {number}", parse(line)
    for split in () if file else splits:
        with by_hand(name, "a file (see --help)"):
            import datasets

            rows = [*datasets.load_dataset(name, config, split=split)]
        yield from ((f"{name}, {split}, row {at}", row) for at, row in enumerate(rows, start=1))
