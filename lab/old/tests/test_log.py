"""metrics.jsonl: what a line says, lines out of order, a disk without room."""

import errno
import io
import os
import subprocess

import pytest
import torch
from conftest import metrics

from engine import log
from engine.files import progress_bar, write_lines
from engine.log import Log, context_stats, read_metrics


def test_contexts_of_a_worked_example():
    hidden = torch.tensor([1.0, 1.0, 0.95, 0.5, 0.1, 0.05, 0.0, 0.4])
    assert context_stats(hidden, used=5) == {
        "visits": 1.6, "hidden": 0.5, "tenths": [2, 1, 0, 0, 1, 1, 0, 0, 0, 3]
    }  # fmt: skip
    assert context_stats(hidden, used=0)["visits"] is None  # JSON has no infinity


def test_each_line_is_of_the_updates_since_the_one_before(tmp_path):
    log = Log(tmp_path, {}, dict, 0, 10, {}, taken=100)  # the first chains
    for iteration, taken in enumerate([100, 104, 105], start=1):
        for _ in range(2):
            loss, hidden = torch.tensor(1.0 * iteration), torch.full((4,), iteration / 4)
            log.add(loss, loss, hidden)
        log.report_training(iteration, {}, 1, torch.tensor(taken))
    lines = metrics(tmp_path)[1:]
    assert [line["loss"] for line in lines] == [1, 2, 3]
    assert [line["visits"] for line in lines] == [None, 2, 8]
    assert [line["hidden"] for line in lines] == [0.25, 0.5, 0.75]
    assert [sum(line["tenths"]) for line in lines] == [8] * 3


@pytest.mark.parametrize("seconds", [[0.2] * 1200, [60, *[0.2] * 900], [2] * 20_000])
def test_a_log_file_has_a_line_now_and_then(seconds, monkeypatch, capsys):
    """Of four minutes, five that begin with a compiler, and eleven hours."""
    clock = [0]
    monkeypatch.setattr("tqdm.std.time", lambda: clock[0])
    bar = progress_bar(total=len(seconds))
    for each in seconds:
        clock[0] += each
        bar.update()
    lines = capsys.readouterr().err.splitlines()
    assert 10 <= len(lines) <= 35 and " elapsed, " in lines[0]
    assert int(lines[0].split()[0]) in (1, 4, 40)  # after eight seconds, or one update


def test_evaluations_stay_above_a_bar_that_fits(tmp_path, monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("COLUMNS", "81")  # tqdm leaves one free
    monkeypatch.setenv("LINES", "25")
    log = Log(tmp_path, {}, dict, 0, 3000, {})
    log.add(torch.tensor(1.5), torch.tensor(1.0), torch.full((4,), 0.5))
    log.report_training(1, {}, 1, torch.tensor(4))
    shares = {"top_k": 0.25, "margin": 0.5}
    log.report_evaluation(1, {"accuracy": shares, "val_loss": 1.0}, 0)
    log.bar.refresh()
    assert "iteration 1: validation loss 1.000, 50.0% solved (margin)\n" in terminal.getvalue()
    bar = terminal.getvalue().rsplit("\r", 1)[1].removesuffix("\x1b[A")
    assert len(bar) <= 80 and "<" in bar and bar.endswith(", loss 1.500, visits 1.0, hidden 0.50")


def test_a_resumed_run_drops_the_lines_of_updates_that_were_lost(tmp_path):
    rows = [{"type": "config", "config": {}}, *[a_loss(iteration) for iteration in (1, 2, 3)]]
    write_lines(tmp_path / "metrics.jsonl", rows)
    Log(tmp_path, {}, dict, 2, 10, {"lr": (1, 2)})
    assert metrics(tmp_path)[:-1] == rows[:3] and metrics(tmp_path)[-1]["changes"] == {"lr": [1, 2]}


def a_loss(iteration):
    return {"type": "train", "iter": iteration, "loss": 1.0}


@pytest.mark.parametrize("line", [{}, {"type": "x"}, {"type": "train", "iter": "1"}, a_loss(19)])
def test_a_line_that_is_not_of_the_record_is_named(line, tmp_path):
    path = tmp_path / "metrics.jsonl"
    write_lines(path, [{"type": "config", "config": {}}, a_loss(10), a_loss(20), line])
    with pytest.raises(
        ValueError, match=r"metrics.jsonl, line 4: not a line of this run, or not in its order"
    ):
        read_metrics(path)


def test_metrics_wait_for_room(tmp_path, monkeypatch, capsys):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    log = Log(tmp_path, {}, dict, 0, 3, {})
    log.write(a_loss(1))
    whole = (tmp_path / "metrics.jsonl").read_text()
    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", full)
        log.write(a_loss(2))
        with pytest.raises(SystemExit, match="the run's record is lost"):
            log.close()
    assert (tmp_path / "metrics.jsonl").read_text() == whole
    log.write(a_loss(3))
    log.close()
    assert [line.get("iter") for line in metrics(tmp_path)] == [None, 1, 2, 3]
    with pytest.raises(ValueError, match="is the record of another run: move it away"):
        Log(tmp_path, {"seed": 2}, dict, 2, 3, {})
    assert "No space left on device; will retry at the next line" in capsys.readouterr().err


def test_the_commit_is_that_of_this_code(monkeypatch, tmp_path):
    """An installed copy in another repository, as in its .venv, has none."""
    who = "-c", "user.name=a", "-c", "user.email=b"
    for command in ("init", "-q"), (*who, "commit", "-q", "--allow-empty", "-m", "theirs"):
        subprocess.run(["git", "-C", tmp_path, *command], check=True)
    folder = tmp_path / "package" / "lab" / "old"
    folder.mkdir(parents=True)
    monkeypatch.setattr(log, "PROJECT", folder)
    assert log.commit() is None
