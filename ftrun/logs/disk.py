"""One thread that writes all log files, so that a slow disk never delays the agent.

The queue is bounded. When it is full, the agent stops reading the workers' pipes until there is
room. Nothing is lost, and a worker that prints faster than the disk writes waits in its own write,
as it would if it wrote to the file itself.

A file with a limit keeps its newest bytes: at half of the limit it is renamed to ``….old.log``,
replacing the former one, and a line in the new file counts what was removed. Not here: what is
written (agent/logs.py, agent/copies.py).
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

from ftrun.base import clock
from ftrun.base.errors import UserError
from ftrun.base.words import amount
from ftrun.logs.index import OWN, IndexMaker
from ftrun.logs.layout import index_path, old_path
from ftrun.logs.units import parse_bytes

QUEUE_BYTES_MAX = 16 << 20
BATCH_BYTES_MAX = 1 << 20
LIMIT_MIN = 1 << 20
LINE_WAIT_BYTES = 1 << 17
"""A limited file may exceed its half by this much until a line ends."""
STILL_S = 30.0
"""At the end, a disk that accepts no byte for this long is given up."""
_OPEN = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class LogFile:
    """One file that grows; all methods run in the thread of its DiskWriter.

    ``has_index``: it has an index file. ``bytes_max``: its limit; 0: none. ``has_failed``: it
    cannot be written, and later data for it is lost.
    """

    def __init__(self, path: Path, *, has_index: bool = False, bytes_max: int = 0) -> None:
        self.path = path
        self.has_failed = False
        self._bytes_max = bytes_max
        self._index = IndexMaker() if has_index else None
        self._fd = self._index_fd = -1
        self._size = 0
        self._removed = self._told = 0

    def write(self, data: bytes, stream: str, time_s: float) -> str:
        """Append. Returns a sentence for the user, or "".

        Raises:
            OSError: the file cannot be written.
        """
        if self._fd < 0:
            self._open()
        half = self._bytes_max // 2
        if not half or self._size + len(data) <= half:
            self._append(data, stream, time_s)
            return ""
        room = max(0, half - self._size)
        end = data.find(b"\n", room) + 1
        if not end and self._size < half + LINE_WAIT_BYTES:
            self._append(data, stream, time_s)
            return ""
        self._append(data[:end], stream, time_s)
        note = self._rotate(time_s)
        return self.write(data[end:], stream, time_s) or note

    def close(self) -> None:
        for fd in (self._fd, self._index_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._index_fd = -1

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(self.path, _OPEN, 0o644)
        self._size = os.fstat(self._fd).st_size
        if self._index is not None:
            self._index = IndexMaker()
            self._index_fd = os.open(index_path(self.path), _OPEN, 0o644)

    def _append(self, data: bytes, stream: str, time_s: float) -> None:
        if self._index is not None:
            record = self._index.note(self._size, stream, time_s)
            if record is not None:
                _write_all(self._index_fd, record.line())
        _write_all(self._fd, data)
        self._size += len(data)

    def _rotate(self, time_s: float) -> str:
        """Begin a new file. The last but one is removed."""
        old = old_path(self.path)
        with contextlib.suppress(FileNotFoundError):
            self._removed += old.stat().st_size
        self.close()
        os.replace(self.path, old)
        if self._index is not None:
            os.replace(index_path(self.path), index_path(old))
        self._open()
        if not self._removed:
            return ""
        words = f"--log-max-size: the first {self._removed} bytes of this log were removed; "
        words += f"what is left begins in {old.name}"
        self._append(f"ftrun: {words}\n".encode(), OWN, time_s)
        if self._removed < 2 * self._told:  # one line on the terminal at each doubling
            return ""
        self._told = self._removed
        return f"--log-max-size: the first {amount(self._removed)} of {self.path} were removed"


class DiskWriter:
    """The thread and its queue. ``say``: shows a sentence of ftrun, from any thread."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._queue: deque[tuple[LogFile, bytes, str, float]] = deque()
        self._bytes = 0
        self._written = 0
        self._is_writing = self._is_closed = False
        self._files: set[LogFile] = set()
        self._waiting: list[Callable[[], None]] = []
        self._condition = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="log files", daemon=True)
        self._thread.start()

    @property
    def is_full(self) -> bool:
        """Whether readers of pipes must wait."""
        return self._bytes >= QUEUE_BYTES_MAX

    def put(self, file: LogFile, data: bytes, stream: str = OWN) -> None:
        """Queue bytes; never waits."""
        if file.has_failed:
            return
        with self._condition:
            self._queue.append((file, data, stream, clock.wall().timestamp()))
            self._bytes += len(data)
            self._condition.notify_all()

    def end_file(self, file: LogFile) -> None:
        """Close the file once all its queued data is written."""
        with self._condition:
            self._queue.append((file, b"", "", 0.0))
            self._condition.notify_all()

    def when_room(self, callback: Callable[[], None]) -> None:
        """Call back, in the writer's thread, once the queue is half empty."""
        with self._condition:
            if self._bytes > QUEUE_BYTES_MAX // 2:
                self._waiting.append(callback)
                return
        callback()

    def flush(self, timeout_s: float) -> bool:
        """Wait until all currently queued data is written. False: not in time."""
        with self._condition:
            return self._condition.wait_for(self._is_idle, timeout_s)

    def close(self) -> int:
        """Write all queued data, as long as the disk accepts bytes. Returns the number of lost
        bytes."""
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()
        done = -1
        while self._thread.is_alive() and done != self._written:
            done = self._written
            self._thread.join(STILL_S)
        return self._bytes if self._thread.is_alive() else 0

    def _is_idle(self) -> bool:
        return not self._queue and not self._is_writing

    def _run(self) -> None:
        while batch := self._take():
            for file, pieces in groupby(batch, key=lambda piece: piece[0]):
                self._write(file, [piece[1:] for piece in pieces])
            self._done(sum(len(piece[1]) for piece in batch))
        for file in self._files:
            file.close()

    def _take(self) -> list[tuple[LogFile, bytes, str, float]]:
        """The first items of the queue, up to ``BATCH_BYTES_MAX``; empty if the writer is
        closed."""
        with self._condition:
            self._condition.wait_for(lambda: bool(self._queue) or self._is_closed)
            batch, size = [], 0
            while self._queue and size < BATCH_BYTES_MAX:
                batch.append(self._queue.popleft())
                size += len(batch[-1][1])
            self._is_writing = bool(batch)
            return batch

    def _done(self, size: int) -> None:
        with self._condition:
            self._is_writing = False
            self._bytes -= size
            self._written += size
            ready = self._waiting if self._bytes <= QUEUE_BYTES_MAX // 2 else []
            if ready:
                self._waiting = []
            self._condition.notify_all()
        for callback in ready:
            callback()

    def _write(self, file: LogFile, pieces: list[tuple[bytes, str, float]]) -> None:
        self._files.add(file)
        try:
            for data, stream, time_s in pieces:
                if not stream:
                    file.close()
                    self._files.discard(file)
                elif not file.has_failed and (note := file.write(data, stream, time_s)):
                    self._say(note)
        except OSError as error:
            file.has_failed = True
            file.close()
            self._say(f"{file.path}: {error.strerror}; its output is on the terminal only.")


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def parse_log_limit(text: str) -> int:
    """Parse ``--log-max-size`` to bytes; empty: 0, no limit.

    Raises:
        UserError: it is no size, or too small.
    """
    size = parse_bytes(text) if text else 0
    if size is None or 0 < size < LIMIT_MIN:
        raise UserError(
            f"--log-max-size {text!r}: give a size of 1MiB or more, for example 500MB or 2GiB. "
            "Nothing was started."
        )
    return size
