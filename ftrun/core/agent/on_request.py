"""One slot whose incarnation leaves, or dies, because people have asked for it.

The rest of the node and the job continue. A script with a Manager leaves at the boundary that the
lighthouse arranges, however late that is; then the grace period begins. For any other script it
begins at once. Not here: the end of the whole agent (ending.py), which slot it is
(core/lighthouse).
"""

from __future__ import annotations

from dataclasses import dataclass

from ftrun.core.agent.events import SIGTERM, AskToStop, SignalWorker
from ftrun.core.agent.part import Part
from ftrun.core.agent.slot_state import Leaves, Outcome, SlotPhase, SlotState
from ftrun.core.agent.stopping import SIGKILL, Stopping
from ftrun.core.ids import WorkerKey
from ftrun.core.messages import KillWorkers, ReplicaLost, StopReplica

LEFT = "it was asked to leave"


@dataclass(eq=False, repr=False)
class OnRequest(Part):
    """Carries people's requests out, slot by slot; it keeps no state."""

    _stopping: Stopping

    def stop(self, asked: StopReplica) -> None:
        """Ask an incarnation to leave. A repeated request changes only whether it restarts then."""
        slot = self._slots.get(asked.replica_id)
        if slot is None:
            return
        if slot.phase in (SlotPhase.WAITING, SlotPhase.ENDED):
            self._decide_idle(slot, restart=asked.restart)
            return
        if asked.incarnation not in ("", slot.incarnation):
            return
        is_first = slot.leaves is None
        slot.leaves = Leaves.TO_RESTART if asked.restart else Leaves.FOR_GOOD
        if slot.failure_reports or slot.phase is not SlotPhase.RUNNING:
            return
        self._slots.note(self._out.now, slot, f"is asked to leave: {slot.leaves.value}")
        if not asked.at_boundary or not slot.has_manager:
            self._stopping.ask(slot)
            self._stopping.leave_now(slot)
        elif is_first:
            slot.asked_with = SIGTERM
            self._out.add(AskToStop(slot.replica_id, slot.incarnation, SIGTERM))

    def _decide_idle(self, slot: SlotState, *, restart: bool) -> None:
        """Nothing runs in the slot: start it now, or report that it stays empty."""
        if restart and (slot.phase is SlotPhase.WAITING or slot.outcome is Outcome.DRAINED):
            slot.phase, slot.outcome = SlotPhase.WAITING, None
            slot.wake_at = self._out.now
        elif not restart and slot.phase is SlotPhase.WAITING:
            slot.end(Outcome.DRAINED, self._out.now)
            self._out.send(ReplicaLost(slot.replica_id, slot.incarnation, LEFT))

    def left(self, slot: SlotState) -> None:
        """One of its workers has left or ended: the grace period of the others begins."""
        if slot.leaves is not None and slot.phase is SlotPhase.RUNNING and slot.alive:
            slot.phase = SlotPhase.STOPPING
            slot.kill_at = self._out.now + self._settings.grace_s

    def ended(self, slot: SlotState) -> bool:
        """All of it has ended. Returns whether to start it again."""
        cause = slot.killed or LEFT
        self._stopping.report_lost(slot, cause, killed=bool(slot.killed))
        if slot.leaves is Leaves.TO_RESTART:
            return True
        slot.end(Outcome.DRAINED, self._out.now)
        return False

    def kill(self, asked: KillWorkers) -> None:
        """Kill workers; their ends are failures like any other."""
        slot = self._slots.get(asked.replica_id)
        if slot is None or slot.incarnation != asked.incarnation:
            return
        for rank in sorted(slot.living & set(asked.group_ranks)):
            key = WorkerKey(slot.replica_id, slot.incarnation, rank)
            slot.killed_on_request.add(rank)
            self._out.add(SignalWorker(key, SIGKILL))
