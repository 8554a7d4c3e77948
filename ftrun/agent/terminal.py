"""The terminal: workers' output, as prefixed lines or unchanged, and ftrun's own lines.

The output of a job with one worker is passed on byte for byte, so that people see a prompt without
a newline. In larger jobs each line begins with its worker's name.

A thread with a bounded queue writes, so that a stopped terminal (Ctrl-S) delays no worker. Lines
that do not fit are only in the log files, and a line counts them. No output is dropped if it goes
to a file, or if it is the output of the only worker and goes to a pipe, as without ftrun. There a
slow disk or reader delays the workers.

Not here: the workers' pipes (logs.py), files (copies.py, logs/disk.py), the agent's own lines
(console.py), the row under the output (under_line.py).
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence

from ftrun.agent.copies import Copies
from ftrun.agent.under_line import Render, UnderLine
from ftrun.config.streams import Streams

QUEUE_BYTES_MAX = 8 << 20
FLUSH_TIMEOUT_S = 2.0
ERASE_TIMEOUT_S = 0.5
READER_TIMEOUT_S = 3600.0
"""At the end of the only worker's output: how long to wait for a reader that takes no byte."""
WRITE_BYTES = 1 << 16
_COLOURS = (36, 33, 35, 32, 34, 96, 93, 95, 92, 94)


class Terminal:
    """Standard output and standard error of ftrun.

    ``copies``: writes the same lines to files. ``reader``: the replica and the rank of the worker
    that reads from the terminal. ``last_event``: ftrun's own last line. ``node``: this node's name,
    if other nodes write to the same output: then ftrun's own lines about this node begin with it.
    """

    def __init__(
        self,
        out_fd: int = 1,
        err_fd: int = 2,
        *,
        streams: Streams | None = None,
        prefixes: bool = True,
        copies: Copies | None = None,
        node: str = "",
    ) -> None:
        self.node = node
        self.streams = Streams() if streams is None else streams
        self.prefixes = prefixes
        self.copies = copies
        self.is_tty = os.isatty(out_fd)
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        self.has_colours = self.is_tty and not plain
        self.last_event = ""
        self.reader: tuple[str, int] | None = None
        self._is_in_line = False
        self._err_fd = err_fd
        self._error = _Writer(err_fd, is_lossless=_is_lossless(err_fd, prefixes))
        self._out = self._error
        if not _is_same_file(out_fd, err_fd):
            self._out = _Writer(out_fd, is_lossless=_is_lossless(out_fd, prefixes))

    def wants_lines(self, group_rank: int, *, error: bool) -> bool:
        """True if this stream of this worker is shown or copied in lines."""
        shown = self.prefixes and self.streams.shows(group_rank, error=error)
        return shown or (self.copies is not None and self.copies.wants(error=error))

    def worker_lines(
        self,
        replica_id: str,
        group_rank: int,
        lines: Sequence[bytes],
        *,
        error: bool,
        in_any_case: bool = False,
    ) -> None:
        """Show lines of a worker's output.

        ``in_any_case``: show them even if the stream is not selected.
        """
        if not lines:
            return
        label = self.streams.label(replica_id, group_rank)
        if self.copies is not None:
            self.copies.worker_lines(label.encode(), lines, error=error)
        shown = self.streams.shows(group_rank, error=error) or in_any_case
        if not self.prefixes or not shown:
            return
        start = self._coloured(label, replica_id).encode()
        text = b"".join([part for line in lines for part in (start, line, b"\n")])
        self._writer(error=error).put(text, len(lines))

    def worker_bytes(
        self, group_rank: int, data: bytes, *, error: bool, in_any_case: bool = False
    ) -> None:
        """Show a worker's output unchanged, if the terminal shows it without prefixes."""
        shown = self.streams.shows(group_rank, error=error) or in_any_case
        if self.prefixes or not shown:
            return
        self._is_in_line = not data.endswith((b"\n", b"\r"))
        self._hold_line(not data.endswith(b"\n"))
        self._writer(error=error).put(data, data.count(b"\n"))

    def event_line(self, text: str, *, of_job: bool = False) -> None:
        """Write a line of ftrun's own, to stderr, because stdout belongs to the script.

        ``of_job``: the line is not about this node alone.
        """
        self.last_event = text
        label = "ftrun:" if of_job or not self.node else f"ftrun {self.node}:"
        label = f"\x1b[1m{label}\x1b[0m" if self.has_colours else label
        if self._is_in_line and self.is_tty:
            label, self._is_in_line = f"\n{label}", False
        self._error.put(f"{label} {text}\n".encode(errors="replace"), 1)
        if self.copies is not None:
            self.copies.own_line(text)

    def show_line(self, render: Render) -> None:
        """Show a row under all other output from now on. Standard error must be a terminal."""
        self._error.line = UnderLine(self._err_fd, render)
        self.refresh_line()

    def refresh_line(self) -> None:
        """Draw the row again: its content, or the terminal's size, may have changed."""
        self._error.touch()

    def pause_line(self, *, paused: bool) -> None:
        """Erase the row, and return once it is erased; or draw it again."""
        self._error.pause(paused=paused)

    def note_open_line(self, replica_id: str, group_rank: int, *, is_open: bool) -> None:
        """A worker has begun a line and not ended it.

        It is a prompt if it reads from the terminal.
        """
        if (replica_id, group_rank) == self.reader:
            self._hold_line(is_open)

    def _hold_line(self, is_held: bool) -> None:
        line = self._error.line
        if line is not None and line.is_held != is_held:
            line.is_held = is_held
            self.refresh_line()

    def json_line(self, text: str) -> None:
        """Write a line for programs to stderr, without a label."""
        self._error.put(f"{text}\n".encode(), 1)

    def when_room(self, callback: Callable[[], None], *, error: bool) -> bool:
        """True if a worker must wait for a reader; ``callback`` is called when it need not any
        more.
        """
        return self._writer(error=error).when_room(callback)

    def close(self) -> None:
        """Write the queue, for the time that ``_Writer.close`` allows."""
        self._out.close()
        if self._error is not self._out:
            self._error.close()

    def hurry(self) -> None:
        """Stop waiting for readers."""
        for writer in (self._out, self._error):
            writer.hurry()

    def _writer(self, *, error: bool) -> _Writer:
        return self._error if error else self._out

    def _coloured(self, label: str, replica_id: str) -> str:
        if not self.has_colours:
            return label
        colour = _COLOURS[sum(replica_id.encode()) % len(_COLOURS)]
        return f"\x1b[{colour}m{label.rstrip()}\x1b[0m" + label[len(label.rstrip()) :]


class _Writer:
    """A thread and its queue for one descriptor. ``is_lossless``: nothing may be dropped.

    ``line``: the row under the output, or None.
    """

    def __init__(self, fd: int, *, is_lossless: bool) -> None:
        self.line: UnderLine | None = None
        self._fd = fd
        self._is_touched = self._is_writing = False
        self._is_lossless = is_lossless
        self._queue: deque[bytes] = deque()
        self.queued = 0
        self.skipped = 0
        self._written = 0
        self._is_closed = self._hurries = False
        self._waiting: list[Callable[[], None]] = []
        self._condition = threading.Condition()
        self.thread = threading.Thread(target=self._run, name="terminal", daemon=True)
        self.thread.start()

    def put(self, data: bytes, lines: int) -> None:
        """Queue ``data``; if it does not fit, drop it and count its lines."""
        with self._condition:
            if not self._is_lossless and self.queued + len(data) > QUEUE_BYTES_MAX:
                self.skipped += max(1, lines)
                return
            if self.skipped:
                self._append(f"ftrun: {self.skipped} lines are in the log files only\n".encode())
                self.skipped = 0
            self._append(data)
            self._condition.notify_all()

    def touch(self) -> None:
        """Have the thread check the row again."""
        with self._condition:
            self._is_touched = self.line is not None
            self._condition.notify_all()

    def pause(self, *, paused: bool) -> None:
        """Erase the row and wait for it, at most ``ERASE_TIMEOUT_S``; or draw it again."""
        line = self.line
        if line is None:
            return
        with self._condition:
            line.is_paused = paused
            self._is_touched = True
            self._condition.notify_all()
            if paused:
                self._condition.wait_for(lambda: not self._is_drawn(), ERASE_TIMEOUT_S)

    def _is_drawn(self) -> bool:
        return self._is_writing or (self.line is not None and self.line.is_drawn)

    def when_room(self, callback: Callable[[], None]) -> bool:
        """True if the queue must not grow. Then ``callback`` is called once it is half empty."""
        with self._condition:
            if not self._is_lossless or self.queued < QUEUE_BYTES_MAX:
                return False
            self._waiting.append(callback)
            return True

    def close(self) -> None:
        """Write the queue: for ``FLUSH_TIMEOUT_S``, or as long as the reader reads if it is
        lossless.
        """
        self.pause(paused=True)
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()
            if not self._is_lossless:
                self._condition.wait_for(lambda: not self.queued, FLUSH_TIMEOUT_S)
            else:
                self._wait_for_reader()
        if not self.queued:
            self.thread.join(FLUSH_TIMEOUT_S)

    def hurry(self) -> None:
        """End a ``close`` that is waiting."""
        with self._condition:
            self._hurries = True
            self._condition.notify_all()

    def _wait_for_reader(self) -> None:
        gives_up = False
        while self.queued and not self._hurries and not gives_up:
            # Every write notifies, so the timeout expires only if the reader takes nothing.
            gives_up = not self._condition.wait(READER_TIMEOUT_S)

    def _append(self, data: bytes) -> None:
        self._queue.append(data)
        self.queued += len(data)

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(
                    lambda: bool(self._queue) or self._is_closed or self._is_touched
                )
                if not (self._queue or self._is_touched):
                    return
                self._is_touched, self._is_writing = False, True
                data = self._take() if self._queue else b""
                shown = data if self.line is None else self.line.around(data)
            _write(self._fd, shown)
            self._done(len(data))

    def _take(self) -> bytes:
        """The queued chunks for the next write."""
        parts = [self._queue.popleft()]
        size = len(parts[0])
        while self._queue and size < WRITE_BYTES:
            parts.append(self._queue.popleft())
            size += len(parts[-1])
        return b"".join(parts)

    def _done(self, size: int) -> None:
        with self._condition:
            self.queued -= size
            self._written += size
            self._is_writing = False
            ready = self._waiting if self.queued <= QUEUE_BYTES_MAX // 2 else []
            if ready:
                self._waiting = []
            self._condition.notify_all()
        for callback in ready:
            callback()


def flush_python_streams() -> None:
    """Write Python's buffered output before the Terminal writes its first line."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # Python has none for a descriptor that was closed from the start.
            with contextlib.suppress(OSError, ValueError):
                stream.flush()


def _write(fd: int, data: bytes) -> None:
    """Write all of ``data``; if the reader has gone (``ftrun … | head``), drop the rest."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except OSError:
            return


def _is_lossless(fd: int, prefixes: bool) -> bool:
    """True if no output may be dropped: into a file, or from the only worker into a pipe."""
    with contextlib.suppress(OSError):
        return stat.S_ISREG(os.fstat(fd).st_mode) or not (prefixes or os.isatty(fd))
    return False


def _is_same_file(one: int, other: int) -> bool:
    """True if both descriptors write to one place, so that the order of their output is kept."""
    try:
        return os.path.samestat(os.fstat(one), os.fstat(other))
    except OSError:
        return False
