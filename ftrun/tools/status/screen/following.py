"""Follows a worker's log on this machine, over its restarts, in a thread.

Not here: how a log is read (ftrun/logs/), the page that shows it (pages.py).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ftrun.base.words import plain
from ftrun.logs.reading import LogReader, Worker, find_workers

POLL_S = 0.25
LAST_LINES = 500
BATCH_LINES = 2000
LINE_CHARS_MAX = 2000
_ESCAPES = re.compile(rb"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|[@-Z\\^_])")


@dataclass(frozen=True, slots=True)
class LogText:
    """One line. ``is_note``: a note of ftrun, not the worker's output."""

    text: str
    is_note: bool = False


def clean(found: bytes) -> str:
    """A line without colours, cursor moves and text that a progress bar has overwritten."""
    shown = _ESCAPES.sub(b"", found).rstrip(b"\r").rpartition(b"\r")[2]
    return plain(shown.decode("utf-8", "replace").expandtabs(8), LINE_CHARS_MAX)


def has_log(directory: Path, worker: Worker) -> bool:
    """Whether this machine has a log of the worker."""
    return worker in find_workers(directory)


class Following:
    """Calls ``show`` in its thread with new lines, a batch at a time."""

    def __init__(
        self, directory: Path, worker: Worker, show: Callable[[list[LogText]], None]
    ) -> None:
        self._directory = directory
        self._worker = worker
        self._show = show
        self._stopped = threading.Event()
        self._reader: LogReader | None = None
        self._attempt = -1
        self._thread = threading.Thread(target=self._run, name="ftrun-log", daemon=True)

    def start(self) -> None:
        """Begin with the last lines."""
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                self._look()
                self._stopped.wait(POLL_S)
        except OSError as error:
            self._hand([LogText(f"the log cannot be read: {error.strerror}", True)])
        finally:
            if self._reader is not None:
                self._reader.close()

    def _look(self) -> None:
        """Show new lines. Move on to the worker's next start when there is one."""
        attempts = find_workers(self._directory).get(self._worker, [])
        if self._reader is None and attempts:
            self._open(attempts[-1])
            assert self._reader is not None
            self._reader.skip_to_last(LAST_LINES)
        if self._reader is None:
            return
        self._read()
        following = [attempt for attempt in attempts if attempt > self._attempt]
        if following:
            rest = [LogText(clean(line.text)) for line in self._reader.rest()]
            self._reader.close()
            self._hand([*rest, LogText(f"start {following[0]} of worker {self._worker}", True)])
            self._open(following[0])

    def _open(self, attempt: int) -> None:
        self._attempt = attempt
        self._reader = LogReader(self._directory, self._worker, attempt)

    def _read(self) -> None:
        assert self._reader is not None
        batch: list[LogText] = []
        for line in self._reader.lines():
            batch.append(LogText(clean(line.text)))
            if len(batch) >= BATCH_LINES:
                self._hand(batch)
                batch = []
            if self._stopped.is_set():
                return
        if batch:
            self._hand(batch)

    def _hand(self, lines: list[LogText]) -> None:
        if lines and not self._stopped.is_set():
            self._show(lines)
