"""The signals that an agent catches, and the file whose appearance is a preemption notice.

Not here: the meaning of a signal (core/agent/signals.py), the shutdown (core/agent/ending.py).
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

from ftrun.core.agent.signals import Reaction, SignalRules

FILE_INTERVAL_S = 0.5
"""The interval at which --preempt-file is checked. A network file system sends no events."""


def catch_signals(rules: SignalRules, received: Callable[[int], None]) -> None:
    """Call ``received`` for every signal that has a meaning here.

    If SIGHUP was ignored it stays ignored, so that ``nohup ftrun`` outlives its terminal. The same
    holds for SIGUSR1 and SIGUSR2, because the workers ignore them too.
    """
    loop = asyncio.get_running_loop()
    for number in sorted(rules.caught()):
        is_passed_on = rules.reaction(number) is Reaction.PASS_ON
        if signal.getsignal(number) is signal.SIG_IGN and (number == signal.SIGHUP or is_passed_on):
            continue
        loop.add_signal_handler(number, received, number)


class PreemptionFile:
    """Calls ``appeared`` once, when a file exists at ``path``."""

    def __init__(self, path: Path, appeared: Callable[[], None]) -> None:
        self._path = path
        self._appeared = appeared
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._look()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        """Check in a thread: a file system that hangs does not delay the agent."""
        self._timer = None
        found = self._loop.run_in_executor(None, _exists, self._path)
        found.add_done_callback(self._looked)

    def _looked(self, found: asyncio.Future[bool]) -> None:
        if found.cancelled():
            return
        if found.result():
            self._appeared()
        else:
            self._timer = self._loop.call_later(FILE_INTERVAL_S, self._look)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False
