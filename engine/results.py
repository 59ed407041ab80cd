"""Results of eval.py: a row per sampler in eval.json, a record per problem in eval.jsonl."""

import json
import math
import zlib

from engine.files import read_json, read_lines, write, write_json, write_lines
from engine.log import origin


class Results:
    """Of a run under the same conditions {name: value}. Raises ValueError for a damaged file."""

    def __init__(self, folder, conditions, rank):
        self.folder, self.conditions, self.rank = folder, conditions, rank
        self.rows = {row["id"]: row for row in read_rows(folder / "eval.json")}
        self.all = read_lines(folder / "eval.jsonl")
        if rank == 0 and self.all:
            write_lines(folder / "eval.jsonl", self.all)  # drops a line that a kill cut off

    def share(self, gather):  # what the first process has read
        state = gather({"rows": self.rows, "records": self.all})[0]
        self.rows, self.all = state["rows"], state["records"]

    def key(self, sampler):
        text = json.dumps(self.conditions | sampler._asdict(), sort_keys=True)
        return f"{zlib.crc32(text.encode()):08x}"

    def row(self, sampler):
        return self.rows.get(self.key(sampler))

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
            cost = [
                f"{row['tokens_per_step']:.2f}",
                str(row["forward_passes"]),
                str(row["seconds"]),
            ]
            lines.append([row["sampler"], f"{score:.1%} [{low:.1%}, {high:.1%}]", *parts, *cost])
        cost = ["tokens per step", "forward passes", "seconds"]
        return table(["sampler", "solved [95 %]", *strata, *cost], lines)


def read_rows(path):
    """Of eval.json. Raises ValueError if it is damaged."""
    rows = read_json(path) if path.exists() else []
    if not all(isinstance(row, dict) and {"id", "sampler", "kinds"} <= row.keys() for row in rows):
        raise ValueError(f"{path} is damaged, move it away")
    return rows


def scores(row):
    """[(name, score, interval)] of a summary: accuracy, or pass@k for each k."""
    if "accuracy" in row:
        return [("solved", row["accuracy"], row["interval"])]
    kinds = [name for name in row if name.startswith("pass@")]
    return [(name, row[name]["score"], row[name]["interval"]) for name in kinds]


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
