"""Tells the agent of a script that makes no Manager: then its replica groups train apart.

That is a fact when optimizers step and no Manager has been made, or when the script ends and none
ever was. Nothing is read from the script's text. Not here: what people are told
(core/agent/supervisor.py).
"""

from __future__ import annotations

import os
import sys
from typing import Any

from ftrun.inject.report import send_to_agent
from ftrun.training import context
from ftrun.training.context import WorkerContext

STEPS_REPORTED = 2
"""One step before the Manager is made may be there to give an optimizer its state."""


class Alone:
    """Watches one script. One that trains, with or without a Manager, is past its start."""

    def __init__(self, here: WorkerContext) -> None:
        self._here = here
        self._pid = os.getpid()
        self._is_reported = False
        self._steps = 0
        self._hook: Any = None
        if "torch" in sys.modules:
            from torch.optim.optimizer import register_optimizer_step_post_hook

            self._hook = register_optimizer_step_post_hook(self._stepped)

    def ends(self, *, well: bool) -> None:
        """The script has ended; of one that has failed its failure is told, and no more."""
        if well:
            self._send(has_stepped=False)

    def _stepped(self, *_: Any) -> None:
        """A step of any optimizer: there is a Manager by now, or the script trains without."""
        self._steps += 1
        if self._steps == STEPS_REPORTED:
            self._hook.remove()
            self._send(has_stepped=True)

    def _send(self, *, has_stepped: bool) -> None:
        if self._is_reported or context.had_manager() or os.getpid() != self._pid:
            return
        from ftrun.core.messages import NoManager

        self._is_reported = True
        send_to_agent(self._here, NoManager(has_stepped))
