"""A job's stdout and stderr in the program that launched it.

If ``sys.stdout`` writes to descriptor 1, the job inherits the descriptor. If the program has
replaced it (a notebook, a test that captures), the job writes to a pipe, and the launching thread
copies it to the program's stream. Not here: prefixes and log files (agent/logs.py).
"""

from __future__ import annotations

import codecs
import contextlib
import os
from typing import TextIO

READ_BYTES = 1 << 16
READS_MAX = 32


class Output:
    """One stream. The job inherits ``fd``; the program reads from ``read_fd``, unless it is -1."""

    def __init__(self, stream: TextIO | None, number: int) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self.fd = number
        self.read_fd = -1
        if stream is None:
            return
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
        if not _writes_to(stream, number):
            self.read_fd, self.fd = os.pipe()
            os.set_blocking(self.read_fd, False)

    def started(self) -> None:
        """Close the job's end of the pipe here, after the job was started."""
        if self.read_fd >= 0:
            os.close(self.fd)

    def pump(self) -> bool:
        """Copy the available data. Returns False at the end of the pipe."""
        try:
            data = os.read(self.read_fd, READ_BYTES)
        except BlockingIOError:
            return True
        self._show(self._decoder.decode(data, final=not data))
        return bool(data)

    def close(self) -> None:
        """Copy what is left, at most one pipe's capacity, because a process may keep the other end
        open."""
        if self.read_fd < 0:
            return
        for _ in range(READS_MAX):
            if not self.pump():
                break
        os.close(self.read_fd)
        self.read_fd = -1

    def _show(self, text: str) -> None:
        if text and self._stream is not None:
            with contextlib.suppress(OSError, ValueError):  # the program has closed its stream
                self._stream.write(text)
                self._stream.flush()


def _writes_to(stream: TextIO, number: int) -> bool:
    try:
        return stream.fileno() == number
    except (OSError, ValueError, AttributeError):
        return False
