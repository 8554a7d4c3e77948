"""What a worker has left can be read, wherever a SIGKILL ended its writing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ftrun.inject.zero_edit import told
from ftrun.inject.zero_edit.values.journal import Journal, packed, read


def heads(path: Path) -> list[object]:
    return [head for head, _ in read(path)]


def test_entries_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "left"
    assert read(path) == []
    writer = Journal(path)
    assert not writer.add("before the beginning") and read(path) == []
    assert writer.begin(["first"], [b"\n", b""]) and writer.add({"n": 2.5}) and writer.put(None)
    assert read(path) == [(["first"], [b"\n", b""]), ({"n": 2.5}, []), (None, [])]


def test_a_full_file_is_followed_by_another_one(tmp_path: Path) -> None:
    path = tmp_path / "left"
    writer = Journal(path, bytes_max=10_000)
    for number in range(7):
        assert writer.begin(number)
        while writer.add("x" * 3000):
            pass
        assert heads(path) == [number, *["x" * 3000] * 3]
    assert writer.put("x" * 3000) and heads(path) == ["x" * 3000]
    assert not writer.put("y" * 10_000)
    assert heads(path) == ["x" * 3000] and os.listdir(tmp_path) == ["left"]


def test_what_a_worker_has_left_stays_until_its_successor_begins(tmp_path: Path) -> None:
    path = tmp_path / "left"
    Journal(path).begin("of the first")
    later = Journal(path)
    assert not later.add("of the second") and heads(path) == ["of the first"]
    assert later.put("of the second") and heads(path) == ["of the second"]


def test_nothing_torn_is_read(tmp_path: Path) -> None:
    """Killed after each byte of an entry."""
    path, new = tmp_path / "left", packed(["new"], [b"with", b"bytes"])
    for left in range(len(new) + 1):
        writer = Journal(path)
        writer.begin("begin")
        writer.add("known", [b"body"])
        whole = path.read_bytes()
        path.write_bytes(whole + new[:left])
        is_there = left == len(new)
        assert heads(path) == ["begin", "known", *([["new"]] if is_there else [])], left


def test_a_disk_that_is_full_is_told_and_leaves_no_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "left"
    writer, plain = Journal(path, "all is lost"), os.write
    writer.begin("begin")
    monkeypatch.setattr(os, "write", lambda file, text: plain(file, text[:5]))
    assert not writer.add("new")
    monkeypatch.undo()
    assert not writer.add("after half an entry") and heads(path) == ["begin"]
    monkeypatch.setattr(os, "write", lambda file, text: plain(file, text[:5]))
    said: list[str] = []
    monkeypatch.setattr(told, "once", said.append)
    assert not writer.begin("another")
    assert ["all is lost" in x and "there is no room" in x for x in said] == [True]
    monkeypatch.undo()
    assert heads(path) == ["begin"]


def test_a_strange_file_is_no_journal(tmp_path: Path) -> None:
    path = tmp_path / "left"
    for text in (b"short", b"\xff" * 99 + b"\n", b"7\n", b"[1]\nx", b"[1,[2]]\nx"):
        path.write_bytes(text)
        assert read(path) == [], text
