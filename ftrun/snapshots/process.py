"""A worker's connection to the process that writes snapshots (serving.py).

Used by one background thread of a worker, except ``kill``. Every wait has a deadline. Not here:
which orders are sent (training/snapshots.py).
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
from pathlib import Path
from typing import Any

from ftrun.base import clock
from ftrun.base.errors import PeerError
from ftrun.snapshots.memory import SharedMemory

DRAFT, PART, MERGE, DROP, WHOLE, AGREE = "draft", "part", "merge", "drop", "whole", "agree"
"""The orders to write (writer.py)."""
FILL = "fill"
"""An agent's order to read (groups.py)."""
START_TIMEOUT_S = 120.0
LOOK_S = 0.1
ANSWER_BYTES_MAX = 1 << 16


class WriterProcess:
    """The connection. ``memory``: the memory that the process shall read; ``where``: its socket.

    Raises:
        PeerError: the process is not there.
    """

    def __init__(self, memory: SharedMemory, where: Path) -> None:
        self._rest = b""
        deadline = clock.now() + START_TIMEOUT_S
        self._socket = _connected(where, deadline)
        self.lives = True
        try:
            socket.send_fds(self._socket, [b"\n"], [memory.fd])
            self._answer(deadline)
        except (OSError, PeerError) as error:
            self.close()
            raise PeerError(f"the process that writes it cannot be reached: {error}") from error

    def write(self, order: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Order a snapshot. Returns its path, size and duration.

        Raises:
            PeerError: it could not be written, or the process has ended.
        """
        return self.ask(WHOLE, order, timeout_s)

    def ask(self, kind: str, order: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send one order of writer.py's table, and wait for the answer.

        Raises:
            PeerError: the order failed, or the process has ended.
        """
        try:
            self._socket.sendall(json.dumps([kind, order], allow_nan=False).encode() + b"\n")
        except OSError as error:
            self.kill()
            raise PeerError("the process that writes it has ended") from error
        answer = self._answer(clock.now() + timeout_s)
        if "error" in answer:
            raise PeerError(str(answer["error"]))
        return answer

    def _answer(self, deadline: float) -> dict[str, Any]:
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        while b"\n" not in self._rest:
            left_s = deadline - clock.now()
            if left_s <= 0 or not poller.poll(left_s * 1000):
                self.kill()
                raise PeerError("the process that writes it did not answer in time")
            data = b""
            with contextlib.suppress(ConnectionResetError):
                data = self._socket.recv(ANSWER_BYTES_MAX)
            if not data or len(self._rest) > ANSWER_BYTES_MAX:
                self.kill()
                raise PeerError("the process that writes it has ended")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def kill(self) -> None:
        """Cancel the order in progress. From any thread."""
        self.lives = False
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connection."""
        self.kill()
        self._socket.close()


def _connected(where: Path, deadline: float) -> socket.socket:
    """Connect, with retries while the process starts or is restarted after its death."""
    while True:
        made = socket.socket(socket.AF_UNIX)
        try:
            made.connect(str(where))
            return made
        except OSError as error:
            made.close()
            if clock.now() > deadline:
                raise PeerError(f"there is no process that writes: {error.strerror}") from error
        threading.Event().wait(LOOK_S)
