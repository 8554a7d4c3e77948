"""Workers' output: from their pipes to their log files and to the terminal.

A restart deletes no file: the new worker gets its own. The log has all bytes in the order in which
they arrived; ``-r`` and ``-t`` also write the selected streams to separate files. If workers print
faster than the disk writes, ftrun stops reading their pipes for a while.

Not here: splitting bytes into lines (logs/lines.py), the files (logs/disk.py), the terminal
(terminal.py), the agent's own lines (console.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ftrun.agent.copies import Copies
from ftrun.agent.env_markers import AGENT_ID_NAME
from ftrun.agent.last_lines import OWN_BEGIN, OWN_END
from ftrun.agent.terminal import Terminal
from ftrun.base import clock
from ftrun.config.settings import RunSettings
from ftrun.logs import index
from ftrun.logs.disk import DiskWriter, LogFile
from ftrun.logs.keep import apply_keep, parse_keep
from ftrun.logs.layout import stream_path
from ftrun.logs.lines import LineSplitter

READ_BYTES = 1 << 16
PIPE_READS_MAX = 32
SLOW_S = 5.0
FLUSH_S = 0.2
SLOW_AGAIN_S = 300.0


class Output:
    """The terminal and the log files of one agent, and their limits.

    ``bytes_max``: the limit of each worker's log; 0: none. ``since_s``: the start of this run;
    earlier parts of a log are of an earlier run.
    """

    def __init__(self, terminal: Terminal, disk: DiskWriter, bytes_max: int = 0) -> None:
        self.terminal = terminal
        self.disk = disk
        self.bytes_max = bytes_max
        self.since_s = clock.wall().timestamp()
        self._slow_shown_at: float | None = None

    def note_slow(self, path: Path) -> None:
        """Workers wait for the disk: print one line per ``SLOW_AGAIN_S``."""
        now = clock.now()
        if self._slow_shown_at is None or now - self._slow_shown_at >= SLOW_AGAIN_S:
            self._slow_shown_at = now
            self.terminal.event_line(
                f"Workers print more than the disk of {path.parent} takes: they wait for it when "
                "they print. Nothing is lost. Give a --log-dir on a faster disk, or print less."
            )

    def flush(self) -> None:
        """Give the files up to ``FLUSH_S`` to take what was read."""
        self.disk.flush(FLUSH_S)

    def close(self) -> None:
        """Write the queue, and close. Call it outside the event loop, because it may block."""
        lost = self.disk.close()
        if lost:
            self.terminal.event_line(f"The logs' disk takes nothing: {lost} bytes are lost.")
        self.terminal.close()


def open_output(settings: RunSettings) -> Output:
    streams = settings.streams()
    node = socket.gethostname() if AGENT_ID_NAME in os.environ else ""  # srun merges outputs
    terminal = Terminal(streams=streams, prefixes=settings.prefixes_lines, node=node)
    if os.isatty(0):
        terminal.reader = settings.stdin_worker()
    disk = DiskWriter(terminal.event_line)
    limit = settings.log_bytes_max
    directory = settings.job_log_dir
    terminal.copies = Copies(disk, streams, directory, settings.merged_path, limit)
    return Output(terminal, disk, limit)


def start_keeping(settings: RunSettings, output: Output) -> None:
    """Remove other jobs' logs by ``--log-keep``, in a thread, so that training waits for no
    disk.
    """
    keep = parse_keep(settings.log_keep)
    if not keep:
        return

    def work() -> None:
        now_s = clock.wall().timestamp()
        for line in apply_keep(settings.log_dir, keep, settings.job_log_dir, now_s):
            output.terminal.event_line(line)

    threading.Thread(target=work, name="log-keep", daemon=True).start()


@dataclass(slots=True)
class _Pipe:
    """One stream of a worker.

    ``file``: its separate file, if it has one besides the worker's log.
    """

    is_error: bool
    file: LogFile | None
    splitter: LineSplitter = field(default_factory=LineSplitter)
    timer: asyncio.TimerHandle | None = None
    is_paused: bool = False


class WorkerLog:
    """Copies one worker's two pipes to its files, and to the terminal."""

    def __init__(
        self,
        path: Path,
        output: Output,
        replica_id: str,
        group_rank: int,
        on_end: Callable[[WorkerLog], None],
    ) -> None:
        self.path = path
        self._on_end = on_end
        self._output = output
        self._terminal = output.terminal
        self._name = (replica_id, group_rank)
        self._loop = asyncio.get_running_loop()
        self._pipes: dict[int, _Pipe] = {}
        self._file = LogFile(path, has_index=True, bytes_max=output.bytes_max)
        with contextlib.suppress(OSError):  # The writer finds the same error and shows it.
            path.parent.mkdir(parents=True, exist_ok=True)

    def follow(self, out_fd: int, err_fd: int) -> None:
        """Read both pipes until their ends, then close them."""
        for fd, error in ((out_fd, False), (err_fd, True)):
            os.set_blocking(fd, False)
            has_file = self._terminal.streams.has_file(self._name[1], error=error)
            path = stream_path(self.path, error=error)
            file = LogFile(path, bytes_max=self._output.bytes_max) if has_file else None
            self._pipes[fd] = _Pipe(error, file)
            self._loop.add_reader(fd, self._read, fd)

    def add(self, text: str) -> None:
        """Add the worker's stacks to its file only, because they are not output of the worker."""
        lines = f"{OWN_BEGIN}\n{text.strip()}\n{OWN_END}\n"
        self._output.disk.put(self._file, lines.encode(errors="replace"), index.OWN)

    def drain(self) -> None:
        """Read the output that is available now, at most a pipe's capacity."""
        for fd in list(self._pipes):
            for _ in range(PIPE_READS_MAX):
                if fd not in self._pipes or not self._read(fd):
                    break

    def give_pipes(self) -> list[int]:
        """Return copies of the pipes that are still open, and close this log."""
        self.drain()
        fds = [os.dup(fd) for fd in self._pipes]
        self.close()
        return fds

    def close(self) -> None:
        """Read the available output, and close."""
        self.drain()
        for fd in list(self._pipes):
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
        pipe = self._pipes[fd]
        self._to_files(pipe, data)
        rank, error = self._name[1], pipe.is_error
        failed = self._file.has_failed
        self._terminal.worker_bytes(rank, data, error=error, in_any_case=failed)
        if failed or self._terminal.wants_lines(rank, error=error):
            self._show(pipe, pipe.splitter.feed(data, clock.now()))
            self._terminal.note_open_line(*self._name, is_open=pipe.splitter.is_in_line)
            self._tick_later(pipe)
        self._pause_if_full(fd, pipe)
        return True

    def _end(self, fd: int) -> None:
        pipe = self._pipes.pop(fd)
        self._loop.remove_reader(fd)
        os.close(fd)
        if pipe.timer is not None:
            pipe.timer.cancel()
        self._show(pipe, pipe.splitter.flush())
        if pipe.file is not None:
            self._output.disk.end_file(pipe.file)
        if not self._pipes:
            self._output.disk.end_file(self._file)
            self._on_end(self)

    # ------------------------------------------------------------ where it goes

    def _to_files(self, pipe: _Pipe, data: bytes) -> None:
        stream = index.ERR if pipe.is_error else index.OUT
        self._output.disk.put(self._file, data, stream)
        if pipe.file is not None:
            self._output.disk.put(pipe.file, data, stream)

    def _show(self, pipe: _Pipe, lines: list[bytes]) -> None:
        failed = self._file.has_failed
        self._terminal.worker_lines(*self._name, lines, error=pipe.is_error, in_any_case=failed)

    def _tick_later(self, pipe: _Pipe) -> None:
        """Schedule the display of a progress bar that stands still in a state not shown yet."""
        if pipe.splitter.due_at is not None and pipe.timer is None:
            delay_s = max(0.0, pipe.splitter.due_at - clock.now())
            pipe.timer = self._loop.call_later(delay_s, self._tick, pipe)

    def _tick(self, pipe: _Pipe) -> None:
        pipe.timer = None
        due_at, now = pipe.splitter.due_at, clock.now()
        if due_at is not None and now >= due_at:
            self._show(pipe, pipe.splitter.tick(now))
        self._tick_later(pipe)

    # ------------------------------------------------------------ more than can be written

    def _pause_if_full(self, fd: int, pipe: _Pipe) -> None:
        """Stop reading until the disk and the terminal have taken the data they have."""
        if pipe.is_paused:
            return

        def resume() -> None:
            with contextlib.suppress(RuntimeError):  # The loop is closed: nothing is to be read.
                self._loop.call_soon_threadsafe(self._resume, fd, pipe)

        if self._output.disk.is_full:
            self._loop.call_later(SLOW_S, self._note_slow, pipe)
            pipe.is_paused = True
            self._loop.remove_reader(fd)
            self._output.disk.when_room(resume)
        elif self._terminal.when_room(resume, error=pipe.is_error):
            pipe.is_paused = True
            self._loop.remove_reader(fd)

    def _resume(self, fd: int, pipe: _Pipe) -> None:
        pipe.is_paused = False
        if self._pipes.get(fd) is pipe:
            self._loop.add_reader(fd, self._read, fd)

    def _note_slow(self, pipe: _Pipe) -> None:
        if pipe.is_paused and self._output.disk.is_full:
            self._output.note_slow(self.path)
