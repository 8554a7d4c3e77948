"""The output of one of ftrun's own processes: the event loop passes it on and keeps its last lines.

Not here: the output of workers (logs.py, last_lines.py).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from ftrun.core.agent.failures import signal_name
from ftrun.protocol.frames import CHUNK_BYTES

KEPT_BYTES = 16 * 1024
LINES_MAX = 3
LINE_CHARS_MAX = 300


class HelperOutput:
    """Reads ``fd`` until its end, and closes it. ``take`` is called with each chunk."""

    def __init__(self, fd: int, take: Callable[[bytes], None]) -> None:
        self._fd = fd
        self._take = take
        self._loop = asyncio.get_running_loop()
        self.kept = b""
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self.read)

    def read(self) -> None:
        while self._fd >= 0:
            try:
                data = os.read(self._fd, CHUNK_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.close()
                return
            self.kept = (self.kept + data)[-KEPT_BYTES:]
            self._take(data)

    def close(self) -> None:
        """Stop reading; ``kept`` stays."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def ending(self, status: int) -> str:
        """How the process ended, with its last lines unless a signal ended it."""
        if status < 0:
            return f"died: {signal_name(-status)}"
        lines = [line.strip() for line in self.kept.decode(errors="replace").splitlines()]
        last = [line[:LINE_CHARS_MAX] for line in lines if line][-LINES_MAX:]
        return f"ended with exit code {status}" + (f": {' / '.join(last)}" if last else "")
