"""What the tests of data/ share: small files, a vocabulary, a script run in this process."""

import json
from pathlib import Path

import pytest

from data import prepare_rows, vocabularies

ROOT = Path(__file__).parents[2]


def first_ranks(n):
    """The first n ranks of the word problems' tokens, whose merges do not need the others."""
    ranks = vocabularies.open_kept(ROOT / "data/wordproblems/vocabulary.tiktoken").ranks
    return {token: rank for token, rank in ranks.items() if rank < n}


def write_lines(path, rows):
    """Write JSON lines; a row that is text is written as it is. Returns the path."""
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("".join(line + "\n" for line in lines))
    return path


def contents(folder):
    """{name: bytes} of its files."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def run_main(module, out, **settings):
    """main() of a prepare.py with these settings, in pieces of 96 rows; the folder it wrote."""
    settings = {"out": str(out), "length": 64, "val": 0.1, "workers": 1} | settings
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare_rows, "PIECE", 96)
        patch.setattr(prepare_rows, "CHUNK", 32)
        for name, value in settings.items():
            patch.setattr(module, name, value)
        module.main()
    return Path(out)
