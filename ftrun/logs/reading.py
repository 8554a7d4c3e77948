"""Reads a worker's log with its index: lines with their times and streams, even while it grows.

The index is read after the bytes, so it covers them all. Without an index a line's time is the
file's last change, and everything counts as standard output. Not here: which logs are shown, and
how (show.py).
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ftrun.logs.index import OUT, Record, parse_record
from ftrun.logs.layout import ATTEMPT_LOG, WORKER_DIR, index_path, log_path, old_path
from ftrun.logs.lines import LineSplitter

READ_BYTES = 1 << 20
RECORDS_BACK = 64
"""Reading begins this number of records early, so that a line written in pieces is complete."""


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker of the job."""

    replica_id: str
    group_rank: int

    def __str__(self) -> str:
        return f"{self.replica_id}.{self.group_rank}"


@dataclass(frozen=True, slots=True)
class Line:
    """One line without its end. ``time_s``: when ftrun read its first byte, in seconds since
    1970."""

    time_s: float
    worker: Worker
    attempt: int
    stream: str
    text: bytes


def find_workers(directory: Path) -> dict[Worker, list[int]]:
    """The workers that have logs below a job's directory, with their attempts in order."""
    found: dict[Worker, list[int]] = {}
    for place in directory.glob("replica_*/rank_*"):
        names = WORKER_DIR.fullmatch(place.relative_to(directory).as_posix())
        if names is None:
            continue
        with contextlib.suppress(OSError):
            logs = [ATTEMPT_LOG.fullmatch(name) for name in os.listdir(place)]
            attempts = sorted({int(log["attempt"]) for log in logs if log is not None})
            if attempts:
                found[Worker(names["replica"], int(names["rank"]))] = attempts
    return dict(sorted(found.items(), key=lambda item: _order(item[0])))


def _order(worker: Worker) -> tuple[int, str, int]:
    is_number = worker.replica_id.isdecimal()
    number = int(worker.replica_id) if is_number else -1
    return number, worker.replica_id, worker.group_rank


class LogReader:
    """One attempt of one worker. ``has_index``: the times of its lines are known."""

    def __init__(self, directory: Path, worker: Worker, attempt: int) -> None:
        self.path = log_path(directory, worker.replica_id, worker.group_rank, attempt)
        self._worker = worker
        self._attempt = attempt
        self._fd = -1
        self._parts: dict[str, tuple[LineSplitter, float]] = {}
        self._last_s = 0.0
        self._has_begun = self._is_closed = False
        self._records: list[Record] = []

    @property
    def has_index(self) -> bool:
        """Whether the file that is read has an index."""
        return bool(self._records)

    def skip_before(self, time_s: float) -> None:
        """Continue at a record before this time, if the index has one."""
        self._begin()
        while self._fd >= 0:
            self._read_index()
            at = bisect_right(self._records, time_s, key=lambda record: record.time_s) - 1
            is_last = at == len(self._records) - 1
            if is_last and self._next_file():
                continue
            self._offset = self._records[max(0, at - RECORDS_BACK)].offset if self._records else 0
            return

    def skip_to_last(self, lines: int) -> None:
        """Continue at a position with at least this number of lines after it."""
        newest = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            start = _start_of_last(newest, lines)
        finally:
            os.close(newest)
        if start:
            self._has_begun = True
            self._open(self.path)
            self._read_index()
            at = bisect_right(self._records, start, key=lambda record: record.offset) - 1
            # A record names the stream of the bytes after it, so reading begins at a record.
            self._offset = self._records[max(0, at - RECORDS_BACK)].offset if at >= 0 else start

    def lines(self) -> Iterator[Line]:
        """All lines that are complete now; none after ``close``."""
        self._begin()
        while self._fd >= 0:
            data = os.pread(self._fd, READ_BYTES, self._offset)
            if not data:
                if self._next_file():
                    continue
                return
            self._read_index()
            for start, end, record in self._segments(len(data)):
                yield from self._split(data[start:end], record)
            self._offset += len(data)
        if not self._is_closed and self._reopens():
            yield from self.lines()

    def rest(self) -> Iterator[Line]:
        """The remaining text without a line end, when no more output follows."""
        for stream, (splitter, since_s) in self._parts.items():
            for text in splitter.flush():
                yield Line(max(since_s, self._last_s), self._worker, self._attempt, stream, text)
        self._parts.clear()

    def close(self) -> None:
        self._is_closed = True
        self._close_file()

    # ------------------------------------------------------------ files

    def _begin(self) -> None:
        """Open the first file only when it is needed, because a worker may have had very many
        starts."""
        if not self._has_begun:
            self._has_begun = True
            old = old_path(self.path)
            self._open(old if old.exists() else self.path)

    def _close_file(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self, path: Path) -> None:
        self._close_file()
        self._index = index_path(path)
        self._records = []
        self._index_offset = self._offset = 0
        with contextlib.suppress(OSError):
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def _reopens(self) -> bool:
        self._open(self.path)
        return self._fd >= 0

    def _next_file(self) -> bool:
        """Open the next file, if the log was rotated."""
        with contextlib.suppress(OSError):
            if not os.path.samestat(os.stat(self.path), os.fstat(self._fd)):
                self._open(self.path)
                return self._fd >= 0
        return False

    def _read_index(self) -> None:
        with contextlib.suppress(OSError), open(self._index, "rb") as file:
            file.seek(self._index_offset)
            text = file.read()
            end = text.rfind(b"\n") + 1
            self._index_offset += end
            found = (parse_record(line) for line in text[:end].splitlines())
            self._records += [record for record in found if record is not None]

    # ------------------------------------------------------------ lines

    def _segments(self, size: int) -> Iterator[tuple[int, int, Record]]:
        """The pieces of the next ``size`` bytes, one per record."""
        start = self._offset
        end = start + size
        at = bisect_right(self._records, start, key=lambda record: record.offset) - 1
        blank = Record(0, OUT, os.fstat(self._fd).st_mtime)
        while start < end:
            record = self._records[at] if at >= 0 else blank
            is_last = at + 1 >= len(self._records)
            stop = end if is_last else min(end, self._records[at + 1].offset)
            if stop > start:
                yield start - self._offset, stop - self._offset, record
            start, at = max(start, stop), at + 1

    def _split(self, data: bytes, record: Record) -> Iterator[Line]:
        splitter, since_s = self._parts.get(record.stream, (LineSplitter(), 0.0))
        started_s = since_s if splitter.is_in_line else record.time_s
        texts = splitter.feed(data, record.time_s)
        for text in texts:
            self._last_s = max(self._last_s, started_s)
            yield Line(self._last_s, self._worker, self._attempt, record.stream, text)
            started_s = record.time_s
        self._parts[record.stream] = splitter, started_s


def _start_of_last(fd: int, lines: int) -> int:
    """The offset of a position with at least ``lines`` line ends after it, or 0."""
    at, seen = os.fstat(fd).st_size, 0
    while at > 0 and seen <= lines:
        size = min(READ_BYTES, at)
        at -= size
        seen += os.pread(fd, size, at).count(b"\n")
    return at if seen > lines else 0
