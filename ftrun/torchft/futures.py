"""torchft.futures: deadlines for futures, streams and blocks of code.

Each callback runs in a separate thread, so a blocked one delays no other. A callback that takes
longer than TORCHFT_WATCHDOG_TIMEOUT_SEC is reported in the log; torchft would end the process.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch.futures import Future

log = logging.getLogger(__name__)

T = TypeVar("T")

WATCHDOG_TIMEOUT_SEC = "TORCHFT_WATCHDOG_TIMEOUT_SEC"
WATCHDOG_DEFAULT_S = "30"


class _Timers:
    """Calls back after a time, unless cancelled before."""

    def __init__(self) -> None:
        seconds = int(os.environ.get(WATCHDOG_TIMEOUT_SEC, WATCHDOG_DEFAULT_S))
        self._watchdog_interval = timedelta(seconds=seconds)

    def start(self, callback: Callable[[], None], timeout: timedelta) -> threading.Timer:
        """Call ``callback`` once ``timeout`` has passed; ``cancel`` the result to prevent it."""
        timer = threading.Timer(timeout.total_seconds(), self._call, (callback,))
        timer.daemon = True
        timer.start()
        return timer

    def _call(self, callback: Callable[[], None]) -> None:
        limit_s = self._watchdog_interval.total_seconds()
        watchdog = threading.Timer(limit_s, self._report, (callback, limit_s))
        watchdog.daemon = True
        watchdog.start()
        try:
            callback()
        finally:
            watchdog.cancel()

    def _report(self, callback: Callable[[], None], limit_s: float) -> None:
        log.error("the callback %r of a timeout has not returned for %g s", callback, limit_s)


_TIMEOUT_MANAGER = _Timers()


def future_timeout(fut: Future[T], timeout: timedelta) -> Future[T]:
    """A future with the result of ``fut``, or a TimeoutError once ``timeout`` has passed."""
    timed: Future[T] = Future()
    lock, is_open = threading.Lock(), [True]

    def is_first() -> bool:
        with lock:
            was_open, is_open[0] = is_open[0], False
        return was_open

    def too_late() -> None:
        if is_first():
            error: Any = TimeoutError(f"future did not complete within {timeout}")
            timed.set_exception(error)

    def resolve(source: Future[T]) -> None:
        timer.cancel()
        if not is_first():
            return
        try:
            value = source.wait()
        except Exception as error:  # noqa: BLE001  # whatever the script's future raises
            failure: Any = error
            timed.set_exception(failure)
        else:
            timed.set_result(value)

    timer = _TIMEOUT_MANAGER.start(too_late, timeout)
    fut.add_done_callback(resolve)
    return timed


def future_wait(fut: Future[T], timeout: timedelta) -> T:
    """The result of ``fut``.

    Raises:
        TimeoutError: it is not done within ``timeout``. Any other: the future's own.
    """
    done = threading.Event()
    fut.add_done_callback(lambda _: done.set())
    if not done.wait(timeout.total_seconds()):
        raise TimeoutError(f"future did not complete within {timeout}")
    return fut.wait()


def stream_timeout(callback: Callable[[], None], timeout: timedelta) -> None:
    """Call ``callback`` unless the current stream reaches this point within ``timeout``."""
    event = torch.Event()
    event.record()

    def check() -> None:
        if not event.query():
            callback()

    _TIMEOUT_MANAGER.start(check, timeout)


@contextmanager
def context_timeout(callback: Callable[[], None], timeout: timedelta) -> Iterator[None]:
    """Call ``callback`` unless the block ends, normally or by an exception, within ``timeout``."""
    timer = _TIMEOUT_MANAGER.start(callback, timeout)
    try:
        yield
    finally:
        timer.cancel()
