"""The signals that an agent catches, and the file whose appearance is a notice of preemption.

Not here: what a signal means (core/agent/signals.py), what follows (core/agent/ending.py).
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

from ftrun.core.agent.signals import Reaction, SignalRules

FILE_INTERVAL_S = 0.5
"""How often the file of --preempt-file is looked for; a network's file system has no events."""


def catch_signals(rules: SignalRules, received: Callable[[int], None]) -> None:
    """Call ``received`` for every signal that has a meaning here.

    SIGHUP stays ignored if it was: ``nohup ftrun`` outlives its terminal. So do SIGUSR1 and
    SIGUSR2, because the workers ignore them too.
    """
    loop = asyncio.get_running_loop()
    for number in sorted(rules.caught()):
        is_passed_on = rules.reaction(number) is Reaction.PASS_ON
        if signal.getsignal(number) is signal.SIG_IGN and (number == signal.SIGHUP or is_passed_on):
            continue
        loop.add_signal_handler(number, received, number)


class PreemptionFile:
    """Calls ``appeared`` once, when there is a file at ``path``."""

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
        """A file system that hangs delays a thread, and not the agent."""
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
