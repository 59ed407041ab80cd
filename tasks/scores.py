"""Scores as text: their intervals, one row in words, several as a table."""

import math

from configurator import printable


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


def wilson_interval(correct, n):
    """95 % interval of a share, by Wilson's score; (0, 1) if n is 0."""
    if n == 0:
        return 0.0, 1.0
    z, share = 1.959964, correct / n
    centre = share + z * z / (2 * n)
    spread = z * math.sqrt(share * (1 - share) / n + (z / n / 2) ** 2)
    low, high = ((centre + sign * spread) / (1 + z * z / n) for sign in (-1, 1))
    return max(low, 0.0), min(high, 1.0)  # clips rounding errors


def results_table(rows):
    """Rows of eval.json as a markdown table."""
    lines = []
    for row in rows:
        (_, score, (low, high)), *_ = scores(row)
        cost = f"{row['tokens_per_step']:.2f}", str(row["forward_passes"]), str(row["seconds"])
        lines.append([row["sampler"], f"{score:.1%} [{low:.1%}, {high:.1%}]", *cost])
    cost = ["tokens per step", "forward passes", "seconds"]
    return table(["sampler", "solved [95 %]", *cost], lines)


def summary_text(row):
    """A row of results as text."""
    total = row.get("problems", sum(row["kinds"].values()))
    lines = [
        f"{score:.1%} [{low:.1%}, {high:.1%}] {name}, of {total}"
        for name, score, (low, high) in scores(row)
    ]
    if "tokens_per_step" in row:
        lines.append(f"{row['tokens_per_step']:.2f} tokens per step ({row['sampler']})")
    if row.get("seconds") is not None:
        lines.append(f"{row['forward_passes']} forward passes, {row['seconds']} s")
    return "\n".join(lines + [f"{count:6d} {kind}" for kind, count in row["kinds"].items()])
