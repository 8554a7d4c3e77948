"""Workers' output: complete in files; on the terminal in lines with prefixes, or as it comes.

A job of one worker has its output on the terminal byte for byte, so that a prompt without a newline
is there to be answered. In larger jobs each line begins with its worker's name.

Files are never deleted and never cut: a restart gets a file of its own. A thread behind a bounded
queue writes to the terminal, so that a stopped terminal (Ctrl-S) delays no worker. Lines that do
not fit are in the file only, and a line on the terminal counts them.

Not here: lines out of bytes (lines.py), the agent's own sentences (console.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

from ftrun import clock
from ftrun.agent.lines import LineSplitter
from ftrun.config.streams import Streams

QUEUE_BYTES_MAX = 8 << 20
READ_BYTES = 1 << 16
PIPE_READS_MAX = 32
FLUSH_TIMEOUT_S = 2.0
_COLOURS = (36, 33, 35, 32, 34, 96, 93, 95, 92, 94)


class Terminal:
    """Lines to stdout and stderr, in order, from a thread of its own."""

    def __init__(
        self,
        out_fd: int = 1,
        err_fd: int = 2,
        *,
        streams: Streams | None = None,
        prefixes: bool = True,
        filtered: Path | None = None,
    ) -> None:
        self._fds = (out_fd, err_fd)
        self.streams = Streams() if streams is None else streams
        self.prefixes = prefixes
        self._filtered = filtered
        self._is_in_line = False
        self.is_tty = os.isatty(out_fd) and "NO_COLOR" not in os.environ
        self._queue: deque[tuple[int, bytes]] = deque()
        self._bytes = 0
        self._skipped = 0
        self._closed = False
        self._condition = threading.Condition()
        self._thread = threading.Thread(target=self._write_all, name="terminal", daemon=True)
        self._thread.start()

    def worker_line(self, replica_id: str, group_rank: int, line: bytes, *, error: bool) -> None:
        """One line of a worker's output; ``filtered_std….log`` gets a copy if it has a word."""
        if self.streams.copies(line, error=error):
            self._copy(line, error=error)
        if not self.prefixes or not self.streams.shows(group_rank, error=error):
            return
        label = self.streams.label(replica_id, group_rank)
        if self.is_tty:
            colour = _COLOURS[sum(replica_id.encode()) % len(_COLOURS)]
            label = f"\x1b[{colour}m{label.rstrip()}\x1b[0m" + label[len(label.rstrip()) :]
        self._put(1 if error else 0, label.encode() + line + b"\n")

    def worker_bytes(self, group_rank: int, data: bytes, *, error: bool) -> None:
        """Output of a worker as it came, if the terminal shows it so."""
        if self.prefixes or not self.streams.shows(group_rank, error=error):
            return
        self._is_in_line = not data.endswith((b"\n", b"\r"))
        self._put(1 if error else 0, data)

    def _copy(self, line: bytes, *, error: bool) -> None:
        """A full disk costs the copy: the worker's own log says so."""
        if self._filtered is None:
            return
        path = self._filtered / f"filtered_{'stderr' if error else 'stdout'}.log"
        with contextlib.suppress(OSError), path.open("ab") as file:
            file.write(line + b"\n")

    def event_line(self, text: str) -> None:
        """One line of ftrun's own, on stderr, because stdout is the script's."""
        label = "\x1b[1mftrun:\x1b[0m" if self.is_tty else "ftrun:"
        if self._is_in_line and self.is_tty:
            label, self._is_in_line = f"\n{label}", False
        self._put(1, f"{label} {text}\n".encode(errors="replace"))

    def json_line(self, text: str) -> None:
        """One line for programs, on stderr, without a label."""
        self._put(1, f"{text}\n".encode())

    def close(self) -> None:
        """Write what is queued, for at most ``FLUSH_TIMEOUT_S``."""
        with self._condition:
            self._closed = True
            self._condition.notify()
        self._thread.join(FLUSH_TIMEOUT_S)

    def _put(self, stream: int, data: bytes) -> None:
        with self._condition:
            if self._bytes + len(data) > QUEUE_BYTES_MAX:
                self._skipped += 1
                return
            if self._skipped:
                note = f"ftrun: {self._skipped} lines are in the log files only\n".encode()
                self._append(1, note)
                self._skipped = 0
            self._append(stream, data)
            self._condition.notify()

    def _append(self, stream: int, data: bytes) -> None:
        self._queue.append((stream, data))
        self._bytes += len(data)

    def _write_all(self) -> None:
        while True:
            with self._condition:
                while not self._queue and not self._closed:
                    self._condition.wait()
                if not self._queue:
                    return
                stream, data = self._take()
            _write(self._fds[stream], data)

    def _take(self) -> tuple[int, bytes]:
        """The queued lines of one stream that one write takes."""
        stream = self._queue[0][0]
        parts: list[bytes] = []
        while self._queue and self._queue[0][0] == stream and len(parts) < 512:
            parts.append(self._queue.popleft()[1])
        data = b"".join(parts)
        self._bytes -= len(data)
        return stream, data


class WorkerLog:
    """Copies one worker's two pipes to its file, and line by line to the terminal."""

    def __init__(
        self,
        path: Path,
        terminal: Terminal,
        replica_id: str,
        group_rank: int,
        on_end: Callable[[WorkerLog], None],
    ) -> None:
        self.path = path
        self._on_end = on_end
        self._terminal = terminal
        self._name = (replica_id, group_rank)
        self._loop = asyncio.get_running_loop()
        self._splitters: dict[int, tuple[LineSplitter, bool]] = {}
        self._file_fd = -1
        with contextlib.suppress(OSError):  # A full or vanished disk costs the log, not the job.
            path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._file_fd = os.open(path, flags, 0o644)

    def follow(self, out_fd: int, err_fd: int) -> None:
        """Read both pipes until their ends, and close them then."""
        for fd, error in ((out_fd, False), (err_fd, True)):
            os.set_blocking(fd, False)
            self._splitters[fd] = (LineSplitter(), error)
            self._loop.add_reader(fd, self._read, fd)

    def add(self, text: str) -> None:
        """Put lines of ftrun's own into the file only."""
        self._to_file(text.encode(errors="replace"))

    def drain(self) -> None:
        """Read the output that is there now, at most a pipe's capacity."""
        for fd in list(self._splitters):
            for _ in range(PIPE_READS_MAX):
                if fd not in self._splitters or not self._read(fd):
                    break

    def close(self) -> None:
        """Read the output that is there, and close."""
        self.drain()
        for fd in list(self._splitters):
            self._end(fd)

    def _read(self, fd: int) -> bool:
        """Read once; True if there was output."""
        try:
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._end(fd)
            return False
        self._to_file(data)
        splitter, error = self._splitters[fd]
        self._terminal.worker_bytes(self._name[1], data, error=error)
        self._show(splitter.feed(data, clock.now()), error)
        return True

    def _end(self, fd: int) -> None:
        splitter, error = self._splitters.pop(fd)
        self._loop.remove_reader(fd)
        os.close(fd)
        self._show(splitter.flush(), error)
        if self._splitters:
            return
        if self._file_fd >= 0:
            os.close(self._file_fd)
            self._file_fd = -1
        self._on_end(self)

    def _show(self, lines: list[bytes], error: bool) -> None:
        for line in lines:
            self._terminal.worker_line(*self._name, line, error=error)

    def _to_file(self, data: bytes) -> None:
        if self._file_fd < 0:
            return
        try:
            os.write(self._file_fd, data)
        except OSError as error:
            os.close(self._file_fd)
            self._file_fd = -1
            self._terminal.event_line(f"{self.path}: {error.strerror}; its output is shown only.")


def log_path(directory: Path, replica_id: str, group_rank: int, restarts: int) -> Path:
    """``replica_<id>/rank_<r>/<restart>.log``."""
    return directory / f"replica_{replica_id}" / f"rank_{group_rank}" / f"{restarts}.log"


def _write(fd: int, data: bytes) -> None:
    """Write all of ``data``; a reader that is gone (``ftrun … | head``) costs the output only."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except OSError:
            return


def flush_python_streams() -> None:
    """Write Python's buffered output before the Terminal writes its first line."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # Python has none for a descriptor that was closed from the start.
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
