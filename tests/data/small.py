"""What the tests of data/ share: small files, a script run in this process."""

import json
import os
import runpy
import sys
from pathlib import Path

import pytest

from data import tokenizer

ROOT = Path(__file__).parents[2]
RANKS = ROOT / "data/wordproblems/vocabulary.tiktoken"
VOCABULARY = tokenizer.named(RANKS)


def write_lines(path, rows):
    """Write JSON lines; returns the path."""
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text(lines, encoding="utf-8")
    return path


def contents(folder):
    """{name: bytes} of its files."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def prepare(name, **flags):
    """data/NAME/prepare.py as a user runs it, but in this process alone; the folder it wrote."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "cpu_count", lambda: None)
        script = str(ROOT / "data" / name / "prepare.py")
        patch.setattr(sys, "argv", [script, *(f"--{k}={v}" for k, v in flags.items())])
        runpy.run_path(script, run_name="__main__")
    return Path(flags["out"])
