"""Files that appear complete or not at all: written under another name, then renamed; tables."""

import json
import os
from pathlib import Path


def write(path, text):
    partial = Path(f"{path}.tmp")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def write_json(path, data):
    write(path, json.dumps(data, indent=1) + "\n")


def write_lines(path, rows):
    """JSON lines."""
    write(path, "".join(json.dumps(row) + "\n" for row in rows))


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
