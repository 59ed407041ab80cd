"""A path is the old file or the whole new one, whatever happens to its writer; damaged files."""

import os

import pytest

from engine.files import Lock, atomic_path, read_json, read_lines, write


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


def test_everything_is_on_disk_before_the_name_is(tmp_path, monkeypatch):
    calls, fsync, replace = [], os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: calls.append(os.fstat(fd).st_ino) or fsync(fd))
    monkeypatch.setattr(os, "replace", lambda *paths: calls.append("renamed") or replace(*paths))
    with atomic_path(tmp_path / "folder") as partial:
        (partial / "inner").mkdir(parents=True)
        for name in ("a", "inner/b"):
            (partial / name).write_text(name)
    inodes = {(tmp_path / "folder" / name).stat().st_ino for name in ("a", "inner/b")}
    assert set(calls[:-1]) == inodes and calls[-1] == "renamed"


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


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"cannot write .*file/run: .*Not a directory.*; use another"):
        Lock(tmp_path / "file" / "run").__enter__()


def test_a_line_that_is_cut_off_is_left_out(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"a": 1}\n{"a')
    assert read_lines(tmp_path / "a.jsonl") == [{"a": 1}]
    assert read_lines(tmp_path / "none.jsonl") == []


NOT_FINITE = [b'{"a": %b}' % number for number in (b"NaN", b"-Infinity", b"1e400", b"9" * 400)]


@pytest.mark.parametrize("line", [b"{", b"\xff", b"[" * 100_000, b"[]", b"3", *NOT_FINITE])
def test_a_damaged_line_is_named(line, tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"a": 1}\n' + line + b"\n")
    with pytest.raises(ValueError, match=r"a\.jsonl, line 2: not a JSON object: ") as error:
        read_lines(tmp_path / "a.jsonl")
    assert len(str(error.value)) < 400


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000])
def test_a_damaged_file_is_named(text, tmp_path):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=r"a\.json is damaged, move it away"):
        read_json(tmp_path / "a.json")
