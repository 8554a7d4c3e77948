"""A gate that many may pass at once, and that one can close once the last of them is out.

Those inside never wait for anything but the kernel and the memory, so neither side waits for long;
the deadline is there to turn a bug into an error instead of a hang.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ftrun.errors import Bug

GATE_TIMEOUT_S = 60.0


class Gate:
    """``with gate.inside():`` for the many, ``with gate.closed():`` for the one."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._closed = False

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Be one of those whom ``closed`` waits for."""
        with self._changed:
            self._wait(lambda: not self._closed)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Keep everybody out."""
        with self._changed:
            self._wait(lambda: not self._closed)
            self._closed = True
            try:
                self._wait(lambda: self._inside == 0)
            except Bug:
                self._open()
                raise
        try:
            yield
        finally:
            with self._changed:
                self._open()

    def _open(self) -> None:
        self._closed = False
        self._changed.notify_all()

    def _wait(self, passable: Callable[[], bool]) -> None:
        if not self._changed.wait_for(passable, GATE_TIMEOUT_S):
            raise Bug(f"a gate of the state server did not open for {GATE_TIMEOUT_S:.0f} s")
