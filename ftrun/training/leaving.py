"""How a drained replica leaves: at an agreed boundary, or at once from a signal handler.

Not here: when it is asked to leave (inject/stopping.py, core/worker/machine.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from ftrun.base.errors import ExitCode
from ftrun.core.messages import LeaveReason
from ftrun.core.worker import events as e
from ftrun.core.worker.facts import StepPhase
from ftrun.core.worker.machine import StepMachine
from ftrun.training import context


class Drained(SystemExit):
    """Raised by ``start_quorum`` when this replica has left at an agreed boundary.

    It is a SystemExit: ``finally`` blocks and context managers run, so a script can save its
    checkpoint. A replica that leaves during a heal has nothing to save and raises a plain
    SystemExit.
    """

    def __init__(self) -> None:
        super().__init__(int(ExitCode.PREEMPTED))


class Interrupted(Drained, KeyboardInterrupt):
    """``Drained`` after Ctrl-C, which ``except KeyboardInterrupt`` catches too."""


@dataclass(eq=False, repr=False)
class Leaving:
    """Ends the script of a replica that leaves; ``closed``: its Manager has left the job.

    Args:
        holds_state: whether the script holds the state of its step, which it might save.
    """

    _machine: StepMachine
    _feed: Callable[[e.Event], None]
    _holds_state: Callable[[], bool] = lambda: True
    closed: bool = False

    def raise_drained(self) -> NoReturn:
        """Raise Drained, or a plain SystemExit if there is no whole state to save."""
        if self._machine.heal.torn or not self._holds_state():
            raise SystemExit(int(ExitCode.PREEMPTED))
        if context.was_interrupted():
            raise Interrupted
        raise Drained

    def if_pressed(self) -> None:
        """In a wait for peers: leave if the script must leave where it stands."""
        if context.is_pressed():
            self.at_once()

    def at_once(self) -> None:
        """Leave from a signal handler, wherever the main thread stands. Raises unless already left.

        Another thread sends the message to the others, because this one may hold a lock of the
        link.
        """
        if self._machine.phase is StepPhase.LEFT or self.closed:
            return
        if not self._machine.has_reported:
            self.raise_drained()  # it is in no quorum
        gone = e.WentAway(LeaveReason.DRAINED)
        threading.Thread(target=self._feed, args=(gone,), name="ftrun-leave").start()
        self.raise_drained()
