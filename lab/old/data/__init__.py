"""The package `data` of the repository's root; the folder itself keeps generated puzzles."""

from pathlib import Path

__path__ = [str(Path(__file__).resolve().parents[3] / "data")]
