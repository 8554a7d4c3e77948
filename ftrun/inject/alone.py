"""Reports a script without a Manager to the agent: its replica groups train apart.

That is certain when optimizers step before any Manager is made, or when the script ends without
one. The script's text is not read. Not here: the notice for people (core/agent/words.py).
"""

from __future__ import annotations

import os
import sys
from typing import Any

from ftrun.inject.report import send_to_agent
from ftrun.training import context
from ftrun.training.context import WorkerContext

STEPS_REPORTED = 2
"""A script may take one step before it makes the Manager, to give an optimizer its state."""


class Alone:
    """Watches one script. Optimizer steps show that it trains, and so is past its start."""

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
        """The script has ended. A failed one is not reported here, because its failure is."""
        if well:
            self._send(has_stepped=False)

    def _stepped(self, *_: Any) -> None:
        """Any optimizer has stepped: by now a Manager is made, or the script trains without one."""
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
