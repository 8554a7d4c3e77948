"""A gate that many threads may be inside at once, and that one thread closes when all are out.

Threads inside wait only for the kernel and for memory, so neither side waits long. The deadline
turns a bug into an error instead of a hang.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ftrun.base.errors import Bug

GATE_TIMEOUT_S = 60.0


class Gate:
    """``with gate.inside():`` for many threads, ``with gate.closed():`` for one."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._closed = False

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Be inside: ``closed`` waits until this thread is out."""
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
        """Wait until no thread is inside, then keep all others out."""
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
