"""An event loop in a separate thread, for a server inside a program that has no loop.

Not here: the servers.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

CALL_TIMEOUT_S = 60.0


class BackgroundLoop:
    """The loop runs from construction until ``close``. Its thread ends with the process at the
    latest."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def run(self, main: Coroutine[Any, Any, T], timeout_s: float = CALL_TIMEOUT_S) -> T:
        """Run a coroutine in the loop and wait for it.

        Raises:
            concurrent.futures.TimeoutError: it took longer; it is cancelled.
        """
        future = asyncio.run_coroutine_threadsafe(main, self._loop)
        try:
            return future.result(timeout_s)
        finally:
            future.cancel()

    def begin(self, main: Coroutine[Any, Any, None]) -> None:
        """Start a coroutine in the loop without waiting for it. A closed loop drops it."""
        try:
            asyncio.run_coroutine_threadsafe(main, self._loop)
        except RuntimeError:
            main.close()

    def close(self) -> None:
        """Cancel what still runs and end the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join(CALL_TIMEOUT_S)

    def end_with(self, stop: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run ``stop`` in the loop and close; without waiting if called in the loop's own thread.

        (The garbage collector may end a server in any thread.)
        """
        if threading.current_thread() is self._thread:
            stopping = asyncio.ensure_future(stop())
            stopping.add_done_callback(lambda _: self._loop.stop())
            return
        try:
            self.run(stop())
        finally:
            self.close()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            remaining = asyncio.all_tasks(self._loop)
            for task in remaining:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*remaining, return_exceptions=True))
        finally:
            self._loop.close()
