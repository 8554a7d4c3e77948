"""A future with a deadline and a default: the result of ``Manager.wrap_future``.

Not here: the futures of reductions, which the step machine bounds (reductions.py, engine.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import cuda


class BoundedFuture:
    """``future`` yields the value of ``source``, or ``default`` if that fails or takes too long.

    In that case ``report`` gets the error, once at most.
    """

    def __init__(
        self,
        source: torch.futures.Future[Any],
        default: Any,
        timeout_s: float,
        report: Callable[[Exception], None],
    ) -> None:
        self.future: torch.futures.Future[Any] = torch.futures.Future(devices=_devices())
        self._default = default
        self._timeout_s = timeout_s
        self._report = report
        self._lock = threading.Lock()
        self._open = True
        self._timer = threading.Timer(timeout_s, self._too_late)
        self._timer.name = "ftrun-deadline"
        self._timer.daemon = True
        if not source.done():
            self._timer.start()
        source.add_done_callback(self._resolve)

    def _resolve(self, source: torch.futures.Future[Any]) -> None:
        self._timer.cancel()
        if not self._is_first():
            return
        try:
            value = source.value()
        except Exception as error:  # noqa: BLE001  # whatever the script's own future raises
            self._report(error)
            value = self._default
        self.future.set_result(value)

    def _too_late(self) -> None:
        if self._is_first():
            self._report(TimeoutError(f"a future was not done within {self._timeout_s:g} s"))
            self.future.set_result(self._default)

    def _is_first(self) -> bool:
        with self._lock:
            was_open, self._open = self._open, False
        return was_open


def _devices() -> list[Any]:
    """All devices that a value may be on, because a future does not show its own."""
    in_use = cuda.is_initialized()  # type: ignore[no-untyped-call]
    return list(range(cuda.device_count())) if in_use else []
