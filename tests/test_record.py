"""record.appearing: a path is the old one or the whole new one, whatever happens to the writer."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from record import Log, appearing, contexts, read_lines, write

ROOT = Path(__file__).parent.parent
KILLED = """
import os, signal, sys
from record import appearing
with appearing(sys.argv[1]) as partial:
    partial.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_file_is_replaced_at_once_and_its_folder_is_made(tmp_path):
    path = tmp_path / "new" / "a.txt"
    for text in ("old", "new"):
        before = path.read_text() if path.exists() else None
        with appearing(path) as partial:
            partial.write_text(text)
            assert partial.parent == path.parent and path.exists() == (before is not None)
            assert before is None or path.read_text() == before
        assert path.read_text() == text and [*path.parent.iterdir()] == [path]


def test_what_fails_leaves_the_old_one_and_nothing_else(tmp_path):
    path = tmp_path / "a.txt"
    write(path, "old")
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error), appearing(path) as partial:
            partial.write_text("half")
            raise error
        with pytest.raises(error), appearing(tmp_path / "folder") as partial:
            (partial / "inner").mkdir(parents=True)
            (partial / "inner" / "b.txt").write_text("half")
            raise error
    assert [*tmp_path.iterdir()] == [path] and path.read_text() == "old"


def test_a_killed_writer_leaves_the_old_one(tmp_path):
    path = tmp_path / "a.txt"
    write(path, "old")
    code = subprocess.run([sys.executable, "-c", KILLED, str(path)], cwd=ROOT).returncode
    assert code == -signal.SIGKILL and path.read_text() == "old"


def test_everything_is_on_disk_before_the_name_is(tmp_path, monkeypatch):
    calls, fsync, replace = [], os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: calls.append(os.fstat(fd).st_ino) or fsync(fd))
    monkeypatch.setattr(os, "replace", lambda *paths: calls.append("renamed") or replace(*paths))
    with appearing(tmp_path / "folder") as partial:
        (partial / "inner").mkdir(parents=True)
        for name in ("a", "inner/b"):
            (partial / name).write_text(name)
    written = {(tmp_path / "folder" / name).stat().st_ino for name in ("a", "inner/b")}
    assert set(calls[:-1]) == written and calls[-1] == "renamed"


def test_a_folder_never_replaces_a_full_one(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "kept").touch()
    with pytest.raises(OSError), appearing(tmp_path / "folder") as partial:
        partial.mkdir()
    assert [path.name for path in tmp_path.rglob("*")] == ["folder", "kept"]


def test_processes_that_write_the_same_file_do_not_meet(tmp_path, monkeypatch):
    with appearing(tmp_path / "a") as one:
        one.write_text("one")
        monkeypatch.setattr(os, "getpid", lambda: -1)
        with appearing(tmp_path / "a") as two:
            two.write_text("two")
        assert (tmp_path / "a").read_text() == "two" and one.read_text() == "one"
    assert (tmp_path / "a").read_text() == "one"


def test_contexts_of_a_worked_example():
    hidden = torch.tensor([1.0, 1.0, 0.95, 0.5, 0.1, 0.05, 0.0, 0.4])
    assert contexts(hidden, used=5) == {
        "visits": 1.6, "hidden": 0.5, "tenths": [2, 1, 0, 0, 1, 1, 0, 0, 0, 3]
    }  # fmt: skip
    assert contexts(hidden, used=0)["visits"] is None  # JSON has no infinity


def test_each_report_is_of_what_came_since_the_one_before(tmp_path):
    log = Log(tmp_path / "metrics.jsonl", {}, 0, 10, rank=0)
    log.taken = 100  # the first chains
    for iteration, taken in enumerate([100, 104, 105], start=1):
        for _ in range(2):
            log.add(torch.tensor(1.0 * iteration), torch.full((4,), iteration / 4))
        log.report_training(iteration, 4, {}, torch.tensor(taken))
    log.bar.close()
    lines = read_lines(tmp_path / "metrics.jsonl")[1:]
    assert [line["visits"] for line in lines] == [None, 2, 8]
    assert [line["hidden"] for line in lines] == [0.25, 0.5, 0.75]
    assert [sum(line["tenths"]) for line in lines] == [8] * 3
