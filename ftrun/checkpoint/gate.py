"""A gate that many threads may be inside at once, and that one thread closes when all are out.

Threads inside wait only for the kernel and for memory, so neither side waits long. The deadline
turns a bug into an error instead of a hang.
"""

from __future__ import annotations

from collections.abc import Callable

from ftrun.base.errors import Bug
from ftrun.checkpoint.read_write_lock import RWLock

GATE_TIMEOUT_S = 60.0


class Gate(RWLock):
    """``with gate.inside():`` for many threads, ``with gate.closed():`` for one.

    Whoever waits to close it keeps others out.
    """

    inside, closed = RWLock.r_lock, RWLock.w_lock

    def w_acquire(self) -> None:
        """Wait until no thread is inside, then keep all others out."""
        with self._changed:
            self._await(lambda: not self._has_writer, "closing")
            self._has_writer = True
            try:
                self._await(lambda: self._readers == 0, "closing")
            except Bug:
                self.w_release()
                raise

    def _await(self, is_free: Callable[[], bool], purpose: str) -> None:
        if not self._changed.wait_for(is_free, GATE_TIMEOUT_S):
            raise Bug(f"the state server's gate: no {purpose} within {GATE_TIMEOUT_S:.0f} s")
