"""Results of eval.py: a row per sampler in eval.json, a record per problem in eval.jsonl."""

import json
import zlib

import numpy as np

from configurator import printable
from engine.files import read_json, read_lines, write_json, write_lines
from engine.log import origin

RECORD = {"id": str, "index": int, "kind": str, "tokens": int, "steps": int}


class Results:
    """Of a run under the same conditions {name: value}. Raises ValueError for a damaged file."""

    def __init__(self, folder, conditions, rank):
        self.folder, self.conditions, self.rank = folder, conditions, rank
        self.rows = {str(row["id"]): row for row in read_rows(folder / "eval.json")}
        self.all = read_lines(path := folder / "eval.jsonl")
        if not all(isinstance(each.get(key), RECORD[key]) for each in self.all for key in RECORD):
            raise ValueError(f"{path} is damaged, move it away")
        for left in folder.glob("eval.*.tmp") if rank == 0 else ():
            left.unlink()  # by a process that was killed while writing
        if rank == 0 and self.all:
            write_lines(folder / "eval.jsonl", self.all)  # drops a line that a kill cut off

    def share(self, gather):  # what the first process has read
        state = gather({"rows": self.rows, "records": self.all})[0]
        self.rows, self.all = state["rows"], state["records"]

    def key(self, sampler):
        text = json.dumps(self.conditions | sampler._asdict(), sort_keys=True)
        return f"{zlib.crc32(text.encode()):08x}"

    def row(self, sampler):
        """None also if an edit has parted row and records: the records are then counted anew."""
        row = self.rows.get(self.key(sampler), {})
        return row if row.get("checksum") == self.checksum(row) else None

    def checksum(self, row):
        """CRC-32 of a row and its records; it tells of a slip, not of an edit that changes it."""
        records = [record for record in self.all if record["id"] == row.get("id")]
        return zlib.crc32(json.dumps([row | {"checksum": 0}, records], sort_keys=True).encode())

    def comparable(self):
        """All rows under these conditions."""
        rows = [row for row in self.rows.values() if self.conditions.items() <= row.items()]
        return [row for row in rows if row.get("checksum") == self.checksum(row)]

    def records(self, sampler):
        key = self.key(sampler)
        return [record for record in self.all if record["id"] == key]

    def add(self, sampler, records):
        records = [{"id": self.key(sampler)} | record for record in records]
        self.all += records
        if self.rank == 0:
            with open(self.folder / "eval.jsonl", "a", encoding="utf-8") as file:
                file.write("".join(json.dumps(record) + "\n" for record in records))

    def finish(self, sampler, result):
        records = self.records(sampler)
        hidden, steps = (sum(record[key] for record in records) for key in ("tokens", "steps"))
        row = {"id": self.key(sampler), "sampler": str(sampler)} | self.conditions
        row |= sampler._asdict() | result
        row |= {"examples": len(records), "tokens_per_step": hidden / max(1, steps)}
        row |= origin()
        self.rows[row["id"]] = row | {"checksum": self.checksum(row)}
        if self.rank == 0:
            write_json(self.folder / "eval.json", [*self.rows.values()])


def within(records, tries):
    """The share solved within 1, 2, 4, ... tries."""
    counts = {1 << n for n in range(tries.bit_length())} | {tries}
    solved = [record["tries"] for record in records if record["kind"] == "correct" and tries > 1]
    shares = {str(n): sum(each <= n for each in solved) / len(records) for n in sorted(counts)}
    return {"within": shares} if tries > 1 else {}


def content(problems):
    """CRC-32 of the arrays and texts that a set of problems holds, answers included."""
    return zlib.crc32(repr({name: plain(value) for name, value in vars(problems).items()}).encode())


def plain(value):
    """Numbers, texts, arrays, lists of these, or a checksum, as a value with a `repr`; or None."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    known = isinstance(value, str | bytes | int | float)
    return value if known else getattr(value, "checksum", None)


def read_rows(path):
    """Of eval.json. Raises ValueError if it is damaged."""
    rows = read_json(path) if path.exists() else []
    if not all(isinstance(row, dict) and {"id", "sampler", "kinds"} <= row.keys() for row in rows):
        raise ValueError(f"{path} is damaged, move it away")
    return rows


# -- as text ---------------------------------------------------------------------------------------
def scores(row):
    """[(name, score, interval)] of a summary: accuracy, or pass@k for each k."""
    if "accuracy" in row:
        return [("solved", row["accuracy"], row["interval"])]
    kinds = [name for name in row if name.startswith("pass@")]
    return [(name, row[name]["score"], row[name]["interval"]) for name in kinds]


def table(head, rows):
    """A markdown table of lists of strings."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(printable, line))} |" for line in lines)


def how(row):
    """The sampler of a row, and its loops where they are not those of training."""
    return row["sampler"] + (f", {row['loops']} loops" if "loops" in row else "")


def results_table(rows):
    """Rows of eval.json as a markdown table."""
    lines = []
    for row in rows:
        (_, score, (low, high)), *_ = scores(row)
        cost = f"{row['tokens_per_step']:.2f}", str(row["forward_passes"]), str(row["seconds"])
        lines.append([how(row), f"{score:.1%} [{low:.1%}, {high:.1%}]", *cost])
    cost = ["tokens per step", "forward passes", "seconds"]
    return table(["sampler", "solved [95 %]", *cost], lines)


def summary_text(row):
    """A row of results as text."""
    total = row.get("problems", sum(row["kinds"].values()))
    lines = [
        f"{score:.1%} [{low:.1%}, {high:.1%}] {name}, of {total}"
        for name, score, (low, high) in scores(row)
    ]
    if "within" in row:
        shares = ", ".join(f"{n}: {share:.1%}" for n, share in row["within"].items())
        lines.append(f"solved by number of tries: {shares}")
    if "tokens_per_step" in row:
        lines.append(f"{row['tokens_per_step']:.2f} tokens per step ({how(row)})")
    if row.get("seconds") is not None:
        lines.append(f"{row['forward_passes']} forward passes, {row['seconds']} s")
    return "\n".join(lines + [f"{count:6d} {kind}" for kind, count in row["kinds"].items()])
