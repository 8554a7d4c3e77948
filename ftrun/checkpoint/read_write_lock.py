"""A lock that many readers hold together, or one writer alone; every wait may have a deadline.

Not here: what the lock guards (transport.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class RWLock:
    """Many readers or one writer. A writer that waits does not block readers.

    Args:
        timeout: seconds that an ``acquire`` waits; -1: no limit.
    """

    def __init__(self, timeout: float = -1) -> None:
        self.timeout = timeout
        self._changed = threading.Condition()
        self._readers = 0
        self._has_writer = False

    def r_acquire(self) -> None:
        """Begin to read.

        Raises:
            TimeoutError: a writer holds the lock for longer than ``timeout``.
        """
        with self._changed:
            self._await(lambda: not self._has_writer, "reading")
            self._readers += 1

    def r_release(self) -> None:
        with self._changed:
            assert self._readers > 0, "released more often than acquired"
            self._readers -= 1
            self._changed.notify_all()

    def w_acquire(self) -> None:
        """Begin to write.

        Raises:
            TimeoutError: others hold the lock for longer than ``timeout``.
        """
        with self._changed:
            self._await(lambda: not self._has_writer and self._readers == 0, "writing")
            self._has_writer = True

    def w_release(self) -> None:
        """End writing; from any thread."""
        with self._changed:
            assert self._has_writer, "released without being acquired"
            self._has_writer = False
            self._changed.notify_all()

    def w_locked(self) -> bool:
        """Whether a writer cannot begin now, because the lock is held."""
        return self._has_writer or self._readers > 0

    @contextmanager
    def r_lock(self) -> Iterator[None]:
        """Read within the block."""
        self.r_acquire()
        try:
            yield
        finally:
            self.r_release()

    @contextmanager
    def w_lock(self) -> Iterator[None]:
        """Write within the block."""
        self.w_acquire()
        try:
            yield
        finally:
            self.w_release()

    def _await(self, is_free: Callable[[], bool], purpose: str) -> None:
        limit_s = None if self.timeout < 0 else self.timeout
        if not self._changed.wait_for(is_free, limit_s):
            raise TimeoutError(f"the lock was not free for {purpose} within {self.timeout} s")
