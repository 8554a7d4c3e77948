"""How a slot's workers are stopped, and how their loss is reported.

Three steps, each harder than the last: ``ask`` requests a stop, ``press`` makes the script leave at
once, ``kill`` ends it. Not here: when each is due (supervisor.py, ending.py), what a script does
when asked (inject/stopping.py).
"""

from __future__ import annotations

import signal

from ftrun.core.agent.events import SIGTERM, AskToStop, SendToReplica, SignalReplica
from ftrun.core.agent.part import Part
from ftrun.core.agent.slot_state import SlotPhase, SlotState
from ftrun.core.messages import LeaveNow, LeaveReason, Loss, Raised, ReplicaLost, StartFailure

SIGKILL = int(signal.SIGKILL)
PRESS_SHARE = 0.5
"""After this share of the grace period, a group that has not left must leave at once."""
PRESS_AGAIN_SHARE = 0.125
"""A Manager that is still there is asked again: two requests just before a long call of the script
may have been seen as one.
"""


class Stopping(Part):
    """Stops one slot at a time; it keeps no state."""

    def ask(self, slot: SlotState, number: int = SIGTERM) -> None:
        """Ask its script to stop. Its whole grace period begins now.

        A script that has raised ends by itself, and has a deadline already.
        """
        if slot.failure_reports:
            return
        if slot.replaced and self._is_spare(slot):
            self.kill(slot)  # it would not reach a boundary in time
            return
        grace_s = self._settings.grace_s
        slot.phase = SlotPhase.STOPPING
        slot.asked_with = number
        slot.press_at = self._out.now + PRESS_SHARE * grace_s
        slot.kill_at = self._out.now + grace_s
        self._out.add(AskToStop(slot.replica_id, slot.incarnation, number))

    def _is_spare(self, slot: SlotState) -> bool:
        """Whether another replica here has the job's state, and can leave with it."""
        others = (one for one in self._slots if one is not slot and one.has_joined and one.living)
        return any(not (one.replaced or one.is_failing) for one in others)

    def ask_siblings(self, slot: SlotState) -> None:
        """Ask the rest of a group whose worker has failed; none of it trains any more."""
        slot.phase = SlotPhase.STOPPING
        slot.clear_deadlines()
        slot.kill_at = self._out.now + self._settings.grace_s
        self._out.add(AskToStop(slot.replica_id, slot.incarnation, SIGTERM))

    def press(self, slot: SlotState) -> None:
        """The group has not left in half of its grace period: make it leave at once."""
        is_heard = slot.has_left or not slot.has_manager
        again_at = self._out.now + PRESS_AGAIN_SHARE * self._settings.grace_s
        slot.press_at = None if is_heard else again_at
        number = slot.asked_with or SIGTERM
        self._out.add(AskToStop(slot.replica_id, slot.incarnation, number))
        self.leave_now(slot)

    def leave_now(self, slot: SlotState, *, in_quorum: bool = True) -> None:
        """Have its Managers leave at their next boundary. No lighthouse will agree on one.

        ``in_quorum`` False: only those that are in no quorum; the others leave by an agreement.
        """
        if slot.has_manager and not slot.has_left:
            order = LeaveNow(LeaveReason.DRAINED, in_quorum)
            self._out.add(SendToReplica(slot.replica_id, slot.incarnation, order))

    def kill(self, slot: SlotState) -> None:
        self.await_end(slot)
        self._out.add(SignalReplica(slot.replica_id, slot.incarnation, SIGKILL))

    def await_end(self, slot: SlotState) -> None:
        """All its processes are dying: wait only for the kernel."""
        slot.phase = SlotPhase.STOPPING
        slot.clear_deadlines()
        slot.stuck_at = self._out.now + self._settings.stuck_after_s

    def report_lost(
        self,
        slot: SlotState,
        cause: str,
        *,
        killed: bool = False,
        start_failure: StartFailure | None = None,
        raised: Raised | None = None,
        kind: str = "",
        follows: str = "",
    ) -> None:
        """Report the loss of its incarnation to the lighthouse, once.

        ``kind``: the failure's, if any.
        """
        if slot.lost:
            return
        slot.lost = True
        self._slots.dead.append(Loss(slot.replica_id, slot.incarnation, cause, killed))
        place = slot.replica_id, slot.incarnation
        loss = ReplicaLost(*place, cause, killed, start_failure, kind, raised, follows)
        self._out.send(loss)
