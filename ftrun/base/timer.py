"""One timer of an event loop, for the deadlines of a core.

Not here: which deadline is next (the cores' ``next_deadline``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ftrun.base import clock


class DeadlineTimer:
    """Calls ``on_time`` once the last set deadline has passed.

    ``delay_min_s``: limits the CPU time of a core whose deadline is always now.
    """

    def __init__(self, on_time: Callable[[], None], delay_min_s: float = 0.0) -> None:
        self._on_time = on_time
        self._delay_min_s = delay_min_s
        self._at: float | None = None
        self._handle: asyncio.TimerHandle | None = None
        self._closed = False

    def set(self, at: float | None) -> None:
        """Move the deadline; None: there is none. Most calls change nothing and cost nothing."""
        if at == self._at or self._closed:
            return
        self._cancel()
        self._at = at
        if at is not None:
            delay_s = max(self._delay_min_s, at - clock.now())
            self._handle = asyncio.get_running_loop().call_later(delay_s, self._fire)

    def close(self) -> None:
        """Never fire again."""
        self._closed = True
        self._cancel()

    def _cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle = self._at = None
        self._on_time()
