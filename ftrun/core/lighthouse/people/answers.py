"""The answers to people: refusals, and the text of each operation as it proceeds.

Not here: how a request is carried out (operators.py).
"""

from __future__ import annotations

from ftrun.core.lighthouse.events import Operation
from ftrun.core.lighthouse.replicas import Replica
from ftrun.core.lighthouse.slots import Slot
from ftrun.core.lighthouse.state import MembershipState

NOT_FOUND, CONFLICT = 404, 409
WAITS_FOR_AGENTS = "The lighthouse was restarted. This continues once its agents are back."


class Refused(Exception):
    """A request that cannot be carried out; ``code``: the HTTP status of the answer."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Answers:
    """Checks the names in requests, and keeps their operations' texts."""

    def __init__(self, state: MembershipState) -> None:
        self._state = state
        self._began_at = state.now
        self._agents_before = state.agents_seen

    @property
    def back_by(self) -> float:
        """An agent that has not come back to a restarted lighthouse by then is gone."""
        return self._began_at + self._state.silence_s

    def may_come_back(self) -> bool:
        """Whether some agent of the lighthouse's last life may still come back."""
        state = self._state
        return len(state.outbox.agents) < self._agents_before and state.now < self.back_by

    def slot(self, replica_id: str) -> Slot:
        slots = self._state.slots
        if replica_id not in slots:
            last = len(slots) - 1
            known = f"0 to {last}" if last > 0 else "0 only" if last == 0 else "none yet"
            raise Refused(NOT_FOUND, f"the job has no replica {replica_id!r}: it has {known}")
        if slots[replica_id].is_finished:
            raise Refused(CONFLICT, f"replica {replica_id} has finished")
        return slots[replica_id]

    def running(self, operation: Operation) -> tuple[Replica, tuple[int, ...]]:
        """The replica of a request and the ranks that it means."""
        request, workers = operation.request, self._state.workers
        slot = self.slot(request.replica_id)
        replica = self._state.replicas.get(slot.replica_id)
        if replica is None:
            raise Refused(CONFLICT, f"replica {slot.replica_id} does not run now")
        if request.group_rank is None:
            return replica, tuple(range(workers))
        if request.group_rank >= workers:
            raise Refused(
                NOT_FOUND,
                f"replica {slot.replica_id} has no worker {request.group_rank}: it has "
                f"{workers} of them, from 0 on",
            )
        return replica, (request.group_rank,)

    def show(self, operation: Operation, text: str) -> None:
        if operation.text != text:
            operation.text = text
            self._state.outbox.operation_changed(operation.number)

    def end(self, operation: Operation, text: str, *, failed: bool = False) -> None:
        operation.has_ended, operation.has_failed = True, failed
        operation.text = text
        self._state.outbox.operation_changed(operation.number)


def counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
