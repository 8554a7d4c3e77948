"""The requests of people by number, and what of them is in the journal.

A request is in the journal before it is acknowledged, so a lighthouse that is started again goes on
with it, and knows a request that is sent once more. Requests for stacks are not: whoever waits for
them asks again. Not here: what is done (operators.py).
"""

from __future__ import annotations

from collections.abc import Iterable

from ftrun.core.lighthouse.events import JournaledOperation, Operation, Request

OPERATIONS_MAX = 256
TEXT_CHARS_MAX = 300


class OperationTable(dict[int, Operation]):
    """The last ``OPERATIONS_MAX`` operations, oldest first.

    ``last_number``: of an earlier life. ``are_under_way``: some have not ended, perhaps.
    """

    def __init__(self, journaled: Iterable[JournaledOperation]) -> None:
        super().__init__((x.number, _resumed(x)) for x in journaled)
        self.last_number = max(self, default=0)
        self.are_under_way = True

    def asked_as(self, request_id: str) -> Operation | None:
        if not request_id:
            return None
        return next((x for x in self.values() if x.request.request_id == request_id), None)

    def add(self, operation: Operation) -> bool:
        """Add it, in place of the oldest that has ended; False: too many are under way."""
        if len(self) >= OPERATIONS_MAX:
            oldest = next((number for number, x in self.items() if x.has_ended), None)
            if oldest is None:
                return False
            del self[oldest]
        self[operation.number] = operation
        self.are_under_way = True
        return True

    def under_way(self) -> list[Operation]:
        found = [x for x in self.values() if not x.has_ended]
        self.are_under_way = bool(found)
        return found

    def journaled(self) -> tuple[JournaledOperation, ...]:
        """The requests that survive the lighthouse."""
        kept = (x for x in self.values() if x.request.command != "stack" and not x.refused)
        return tuple(_journaled(x) for x in kept)


def _journaled(operation: Operation) -> JournaledOperation:
    request = operation.request
    return JournaledOperation(
        number=operation.number,
        command=request.command,
        replica_id=request.replica_id,
        group_rank=request.group_rank,
        node=request.node,
        request_id=request.request_id,
        incarnation=operation.incarnation,
        was_live=operation.was_live,
        step=operation.step,
        has_ended=operation.has_ended,
        has_failed=operation.has_failed,
        text=operation.text[:TEXT_CHARS_MAX] if operation.has_ended else "",
        is_held=operation.is_held,
    )


def _resumed(found: JournaledOperation) -> Operation:
    request = Request(
        found.command, found.replica_id, found.group_rank, found.node, found.request_id
    )
    return Operation(
        number=found.number,
        request=request,
        text=found.text,
        has_ended=found.has_ended,
        has_failed=found.has_failed,
        incarnation=found.incarnation,
        was_live=found.was_live,
        is_resumed=not (found.has_ended or found.is_held),
        is_held=found.is_held,
        step=found.step,
    )
