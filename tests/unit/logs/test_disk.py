"""The thread that writes logs: in order, with an index, within a limit, with a word on failures."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ftrun.base.errors import UserError
from ftrun.logs.disk import DiskWriter, LogFile, parse_log_limit
from ftrun.logs.index import ERR, OUT, IndexMaker, Record, parse_record
from ftrun.logs.layout import index_path, old_path

TIMEOUT_S = 60.0
LIMIT = 1 << 20


def test_bytes_come_in_order_and_the_index_says_whose(tmp_path: Path) -> None:
    said: list[str] = []
    disk = DiskWriter(said.append)
    log = LogFile(tmp_path / "deep" / "0.log", has_index=True)
    for data, stream in ((b"one ", OUT), (b"two ", ERR), (b"three ", ERR), (b"four", OUT)):
        disk.put(log, data, stream)
    disk.end_file(log)
    assert disk.flush(TIMEOUT_S)
    assert log.path.read_bytes() == b"one two three four"
    records = [parse_record(line) for line in index_path(log.path).read_bytes().splitlines()]
    streams = [(record.offset, record.stream) for record in records if record is not None]
    assert [s for s in streams if s != (8, ERR)] == [(0, OUT), (4, ERR), (14, OUT)]
    assert disk.close() == 0
    assert said == []


def test_a_record_is_made_at_a_change_and_at_an_interval() -> None:
    index = IndexMaker()
    assert index.note(0, OUT, 5.0) == Record(0, OUT, 5.0)
    assert index.note(7, OUT, 5.05) is None
    assert index.note(9, ERR, 5.06) == Record(9, ERR, 5.06)
    assert index.note(12, ERR, 5.2) == Record(12, ERR, 5.2)


@pytest.mark.parametrize("line", [b"", b"1 o", b"x o 1.0", b"1 z 1.0", b"1 o 1.0 2", b"\xff o 1"])
def test_a_line_that_is_no_record_is_left_out(line: bytes) -> None:
    assert parse_record(line) is None
    assert parse_record(Record(3, OUT, 1.5).line()) == Record(3, OUT, 1.5)


def test_a_limited_file_keeps_its_newest_lines_and_says_what_went(tmp_path: Path) -> None:
    said: list[str] = []
    disk = DiskWriter(said.append)
    log = LogFile(tmp_path / "0.log", has_index=True, bytes_max=LIMIT)
    lines = [b"%09d\n" % number for number in range(5 * LIMIT // 10)]
    for at in range(0, len(lines), 1000):
        disk.put(log, b"".join(lines[at : at + 1000]), OUT)
        assert disk.flush(TIMEOUT_S)
        size = sum(path.stat().st_size for path in tmp_path.glob("*.log"))
        assert size <= LIMIT + 20_000
    disk.close()
    kept = old_path(log.path).read_bytes() + log.path.read_bytes()
    own = [line for line in kept.splitlines(keepends=True) if line.startswith(b"ftrun: ")]
    rest = [line for line in kept.splitlines(keepends=True) if not line.startswith(b"ftrun: ")]
    assert rest == lines[-len(rest) :]
    assert len(rest) * 10 > LIMIT // 2
    assert len(own) == 2
    assert b"bytes of this log were removed; what is left begins in 0.old.log" in own[-1]
    assert index_path(old_path(log.path)).exists()
    assert 2 <= len(said) <= 4
    assert said[0].startswith("--log-max-size: the first ")


def test_a_file_that_cannot_be_written_is_named_once(tmp_path: Path) -> None:
    said: list[str] = []
    disk = DiskWriter(said.append)
    log = LogFile(Path("/dev/full"))
    other = LogFile(tmp_path / "other.log")
    for _ in range(3):
        disk.put(log, b"lost\n")
        disk.put(other, b"kept\n")
        assert disk.flush(TIMEOUT_S)
    disk.close()
    assert said == [f"/dev/full: {os.strerror(28)}; its output is on the terminal only."]
    assert log.has_failed
    assert other.path.read_bytes() == b"kept\n" * 3


def test_the_limit_is_a_size() -> None:
    assert parse_log_limit("") == 0
    assert parse_log_limit("500MB") == 500_000_000
    for text in ("500", "1kB", "big", "-1GB"):
        with pytest.raises(UserError, match="--log-max-size"):
            parse_log_limit(text)
