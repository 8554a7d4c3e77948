"""Copies of lines in further files: ``merged.log`` and ``filtered_std….log``.

Lines are copied as the terminal shows them, so a progress bar appears once a second. Not here: the
workers' own logs (logs.py), which have every byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ftrun.base import clock
from ftrun.config.streams import Streams
from ftrun.logs.disk import DiskWriter, LogFile

_NAMES = {False: "filtered_stdout.log", True: "filtered_stderr.log"}


class Copies:
    """Receives every line of every worker, and ftrun's own.

    ``merged``: the file with all lines and their times; None without --merged-log. ``bytes_max``:
    the limit of each file; 0: none.
    """

    def __init__(
        self,
        disk: DiskWriter,
        streams: Streams,
        directory: Path,
        merged: Path | None = None,
        bytes_max: int = 0,
    ) -> None:
        self._disk = disk
        self._streams = streams
        self._merged = None if merged is None else LogFile(merged, bytes_max=bytes_max)
        self._filtered = {
            error: LogFile(directory / name, bytes_max=bytes_max) for error, name in _NAMES.items()
        }

    def wants(self, *, error: bool) -> bool:
        return self._merged is not None or self._streams.filters(error=error)

    def worker_lines(self, label: bytes, lines: Sequence[bytes], *, error: bool) -> None:
        if self._merged is not None:
            start = f"{_stamp()} ".encode() + label
            self._disk.put(self._merged, b"".join(start + line + b"\n" for line in lines))
        if self._streams.filters(error=error):
            found = [line for line in lines if self._streams.copies(line, error=error)]
            if found:
                text = b"".join(label + line + b"\n" for line in found)
                self._disk.put(self._filtered[error], text)

    def own_line(self, text: str) -> None:
        if self._merged is not None:
            line = f"{_stamp()} ftrun: {text}\n"
            self._disk.put(self._merged, line.encode(errors="replace"))


def _stamp() -> str:
    """The time in UTC, with milliseconds."""
    return clock.wall().isoformat(timespec="milliseconds").replace("+00:00", "Z")
