"""What a worker has left can be read, wherever a SIGKILL ended its writing."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import pytest

from ftrun.inject.zero_edit.values import journal
from ftrun.inject.zero_edit.values.journal import HALF_BYTES, Journal, read


def test_entries_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "left"
    assert read(path) == []
    writer = Journal(path)
    assert read(path) == []
    assert not writer.add(b"before the beginning")
    assert writer.begin(b"first") and writer.add(b"second") and writer.add(b"third")
    assert read(path) == [b"first", b"second", b"third"]


def test_a_full_half_is_followed_by_the_other_one(tmp_path: Path) -> None:
    writer, path = Journal(tmp_path / "left"), tmp_path / "left"
    assert writer.begin(b"1" * 1000)
    for number in range(7):
        while writer.add(b"x" * 5000):
            pass
        assert writer.begin(b"%d" % number)
        assert read(path) == [b"%d" % number]
    assert writer.add(b"y")
    assert read(path) == [b"6", b"y"]
    assert not writer.begin(bytes(HALF_BYTES))
    assert read(path) == [b"6", b"y"]


def test_a_successor_goes_on_in_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "left"
    Journal(path).begin(b"of the first")
    later = Journal(path)
    assert read(path) == [b"of the first"]
    later.begin(b"of the second")
    assert read(path) == [b"of the second"]


class Killed(Exception):
    """Stands for SIGKILL."""


class Torn:
    """A map whose writer dies when it has written so many bytes."""

    def __init__(self, real: mmap.mmap, left: int) -> None:
        self.real, self.left = real, left

    def __getitem__(self, key: slice) -> bytes:
        return self.real[key]

    def __setitem__(self, key: slice, value: bytes) -> None:
        part = value[: self.left]
        self.real[key.start : key.start + len(part)] = part
        self.left -= len(part)
        if len(part) < len(value):
            raise Killed


@pytest.mark.parametrize("begins", [False, True])
def test_nothing_torn_is_read(tmp_path: Path, begins: bool) -> None:
    """Killed after each byte of an entry, or of a new beginning."""
    for left in range(40):
        path = tmp_path / f"left{left}"
        writer: Any = Journal(path)
        for text in (b"old one", b"older"):  # both halves have had entries
            writer.begin(text)
            writer.add(b"that was long ago " * 3)
        writer.begin(b"begin")
        writer.add(b"known")
        writer._map = Torn(writer._map, left)
        try:
            (writer.begin if begins else writer.add)(b"new")
            done = True
        except Killed:
            done = False
        new = [b"new"] if begins else [b"begin", b"known", b"new"]
        assert read(path) == (new if done else [b"begin", b"known"]), left
    assert done


def test_a_file_of_another_size_is_no_journal(tmp_path: Path) -> None:
    path = tmp_path / "left"
    path.write_bytes(b"short")
    assert read(path) == []
    path.write_bytes(b"\xff" * 2 * HALF_BYTES)
    assert read(path) == []
    assert journal.Journal(path).begin(b"x")
    assert read(path) == [b"x"]
