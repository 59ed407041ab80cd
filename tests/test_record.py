"""record: a path is the old one or the whole new one, whatever happens to the writer; what is read
from files of another hand has its form.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from record import hole_in

from engine.files import Lock, atomic_path, read_json, read_lines, write, write_lines
from engine.log import Log, context_stats, read_metrics

ROOT = Path(__file__).parent.parent
KILLED = """
import os, signal, sys
from engine.files import atomic_path
with atomic_path(sys.argv[1]) as partial:
    partial.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_file_is_replaced_at_once_and_its_folder_is_made(tmp_path):
    path = tmp_path / "new" / "a.txt"
    for text in ("old", "new"):
        before = path.read_text() if path.exists() else None
        with atomic_path(path) as partial:
            partial.write_text(text)
            assert partial.parent == path.parent and path.exists() == (before is not None)
            assert before is None or path.read_text() == before
        assert path.read_text() == text and [*path.parent.iterdir()] == [path]


def test_what_fails_leaves_the_old_one_and_nothing_else(tmp_path):
    path = tmp_path / "a.txt"
    write(path, "old")
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error), atomic_path(path) as partial:
            partial.write_text("half")
            raise error
        with pytest.raises(error), atomic_path(tmp_path / "folder") as partial:
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
    with atomic_path(tmp_path / "folder") as partial:
        (partial / "inner").mkdir(parents=True)
        for name in ("a", "inner/b"):
            (partial / name).write_text(name)
    written = {(tmp_path / "folder" / name).stat().st_ino for name in ("a", "inner/b")}
    assert set(calls[:-1]) == written and calls[-1] == "renamed"


def test_a_folder_never_replaces_a_full_one(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "kept").touch()
    with pytest.raises(OSError), atomic_path(tmp_path / "folder") as partial:
        partial.mkdir()
    assert [path.name for path in tmp_path.rglob("*")] == ["folder", "kept"]


def test_processes_that_write_the_same_file_do_not_meet(tmp_path, monkeypatch):
    with atomic_path(tmp_path / "a") as one:
        one.write_text("one")
        monkeypatch.setattr(os, "getpid", lambda: -1)
        with atomic_path(tmp_path / "a") as two:
            two.write_text("two")
        assert (tmp_path / "a").read_text() == "two" and one.read_text() == "one"
    assert (tmp_path / "a").read_text() == "one"


CONFIG = {"type": "config", "config": {"method": "mdm", "seed": 1, "log_interval": 10}}


def a_loss(iteration):
    return {"type": "train", "iter": iteration, "loss": 1.0}


@pytest.mark.parametrize(
    "line, wrong",
    [
        (b"{", "not JSON: '{'"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "expected an object, not []"),
        (b"{}", "it is empty"),
        (b'{"type": 3}', "type: expected a string, not 3"),
        (b'{"type": "x"}', "unknown type 'x'"),
        (b'{"type": "config", "config": []}', "config: expected an object, not []"),
        (b'{"type": "train", "loss": 1}', "no 'iter'"),
        (b'{"type": "train", "iter": true, "loss": 1}', "iter: expected a whole number, at least"),
        (b'{"type": "train", "iter": 19, "loss": 1}', "iteration 19 after 20, as if two runs"),
        (b'{"type": "eval", "iter": 20, "val_loss": 1, "accuracy": 3}', "accuracy: expected an ob"),
        (
            b'{"type": "eval", "iter": 20, "val_loss": 1, "accuracy": {"top_k": 2}}',
            "accuracy: top_k: expected a number from 0 to 1, not 2",
        ),
    ],
)
def test_a_line_that_no_run_writes_is_named(line, wrong, tmp_path):
    path = tmp_path / "metrics.jsonl"
    write_lines(path, [CONFIG, a_loss(10), a_loss(20)])
    assert len(read_metrics(path)) == 3
    path.write_bytes(path.read_bytes() + line + b"\n")
    with pytest.raises(ValueError) as error:
        read_metrics(path)
    assert str(error.value).startswith(f"{path}, line 4: {wrong}")
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


def test_a_line_that_is_cut_off_is_left_out(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"a": 1}\n{"a')
    assert read_lines(tmp_path / "a.jsonl") == [{"a": 1}]
    assert read_lines(tmp_path / "none.jsonl") == []


def test_lines_that_are_missing_are_noticed():
    every = [CONFIG, *map(a_loss, (10, 20, 30, 40))]
    assert hole_in(every, "train", 40) is hole_in(every, "train", 49) is None
    assert hole_in(every[:2] + every[3:], "train") == (10, 30)
    assert hole_in(every[:1] + every[2:], "train") == (0, 20)
    assert hole_in(every, "train", 50) == (40, 50)
    assert hole_in([], "train", 50) == (0, 50) and hole_in([], "eval") is None
    # resumed at 43, say, with another interval: 60 is the first line, and 40 + 10 + 30 the latest
    rarely = {"type": "config", "config": CONFIG["config"] | {"log_interval": 30}}
    assert hole_in([*every, rarely, a_loss(60), a_loss(90)], "train") is None
    assert hole_in([*every, rarely, a_loss(90)], "train") == (40, 90)
    assert hole_in([*every, rarely, a_loss(60), a_loss(120)], "train") == (60, 120)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": null}', '{"b": 1}', "[" * 100_000])
def test_a_damaged_file_is_named(text, tmp_path):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=r"a\.json is damaged"):
        read_json(tmp_path / "a.json", {"a": {}})


def test_contexts_of_a_worked_example():
    hidden = torch.tensor([1.0, 1.0, 0.95, 0.5, 0.1, 0.05, 0.0, 0.4])
    assert context_stats(hidden, used=5) == {
        "visits": 1.6, "hidden": 0.5, "tenths": [2, 1, 0, 0, 1, 1, 0, 0, 0, 3]
    }  # fmt: skip
    assert context_stats(hidden, used=0)["visits"] is None  # JSON has no infinity


def test_each_report_is_of_what_came_since_the_one_before(tmp_path):
    with Lock(tmp_path) as lock, (log := Log(lock, {}, 0, 10, {})).bar:
        log.taken = 100  # the first chains
        for iteration, taken in enumerate([100, 104, 105], start=1):
            for _ in range(2):
                loss, hidden = torch.tensor(1.0 * iteration), torch.full((4,), iteration / 4)
                log.add(loss, loss, hidden)
            log.report_training(iteration, {}, 1, torch.tensor(taken))
    lines = read_lines(tmp_path / "metrics.jsonl")[1:]
    assert [line["visits"] for line in lines] == [None, 2, 8]
    assert [line["hidden"] for line in lines] == [0.25, 0.5, 0.75]
    assert [sum(line["tenths"]) for line in lines] == [8] * 3
