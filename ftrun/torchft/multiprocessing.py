"""torchft.multiprocessing: a pipe whose receiver does not wait forever."""

from __future__ import annotations

from datetime import timedelta
from multiprocessing.connection import Connection


class _MonitoredPipe:
    """One end of a ``multiprocessing`` pipe, whose ``recv`` has a deadline.

    For scripts that use torchft's class. ``multiprocessing`` pickles the objects in a pipe, so its
    other end must be a process of the same program. ftrun itself uses no such pipe.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def send(self, obj: object) -> None:
        self._pipe.send(obj)

    def recv(self, timeout: float | timedelta) -> object:
        """Receive one object; an exception that was sent is raised.

        Raises:
            TimeoutError: nothing has come within ``timeout`` (seconds, or a timedelta).
        """
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        if not self._pipe.poll(seconds):
            raise TimeoutError(f"pipe.recv() timed out after {seconds} seconds")
        received: object = self._pipe.recv()
        if isinstance(received, Exception):
            raise received
        return received

    def close(self) -> None:
        self._pipe.close()

    def closed(self) -> bool:
        return self._pipe.closed
