"""The node's health before a restart: ``--health-check CMD``.

A group that has failed is started again only if the command ends with 0. Otherwise that is one more
failure of the slot: it costs a restart of the budget, the wait grows, and it is reported to the
lighthouse, which may assign the slot to another node. Without ``--health-check`` nothing is
checked.

Not here: running the command (agent/health.py), which node gets the slot
(core/lighthouse/set_aside.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from ftrun.core.agent.events import CheckHealth, HealthChecked
from ftrun.core.agent.failed_slots import FailedSlots
from ftrun.core.agent.failures import Failure
from ftrun.core.agent.part import Part
from ftrun.core.agent.slot_state import SlotPhase, SlotState

ANSWER_MARGIN_S = 10.0
"""The shell ends the command at its deadline. Any answer arrives within this time after it."""


@dataclass(eq=False, repr=False)
class NodeHealth(Part):
    """Asks for a check before each restart after a failure."""

    _failures: FailedSlots

    def permits_start(self, slot: SlotState) -> bool:
        """At the slot's wake time: whether to start. False until the answer has arrived."""
        if not self._settings.health_check or not slot.has_failed or slot.is_healthy:
            return True
        if slot.is_checked:
            self._unhealthy(slot, "--health-check gave no answer")
            return False
        slot.is_checked = True
        slot.wake_at = self._out.now + self._settings.health_timeout_s + ANSWER_MARGIN_S
        self._out.add(CheckHealth(slot.replica_id, slot.incarnation))
        return False

    def checked(self, event: HealthChecked) -> None:
        slot = self._slots.last_of(event.incarnation)
        if slot is None or slot.phase is not SlotPhase.WAITING or not slot.is_checked:
            return
        if event.failure:
            self._unhealthy(slot, event.failure)
        else:
            slot.is_checked, slot.is_healthy = False, True
            slot.wake_at = self._out.now

    def _unhealthy(self, slot: SlotState, why: str) -> None:
        slot.is_checked = False
        reason = f"cannot be restarted: {why}"
        restarts = slot.started - 1
        failure = Failure(slot.replica_id, 0, 0, restarts, 1, reason=reason, is_of_node=True)
        self._failures.unhealthy(slot, failure)
