"""The requests of people by number, and what of them is in the journal.

A request is in the journal before it is acknowledged, so a lighthouse that is started again goes on
with it, and knows a request that is sent once more. Requests for stacks are not: whoever waits for
them asks again. Not here: what is done (operators.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ftrun.core.lighthouse.events import JournaledOperation, Operation, Request

OPERATIONS_MAX = 256
TEXT_CHARS_MAX = 300


class OperationTable:
    """The last ``OPERATIONS_MAX`` operations, oldest first."""

    def __init__(self, journaled: Iterable[JournaledOperation]) -> None:
        self._operations = {x.number: _resumed(x) for x in journaled}
        self.last_number = max(self._operations, default=0)

    def __iter__(self) -> Iterator[Operation]:
        return iter(self._operations.values())

    def get(self, number: int) -> Operation | None:
        """The operation with this number, if it is still known."""
        return self._operations.get(number)

    def asked_as(self, request_id: str) -> Operation | None:
        """The operation of a request with this id."""
        if not request_id:
            return None
        return next((x for x in self if x.request.request_id == request_id), None)

    def add(self, operation: Operation) -> bool:
        """Add it, in place of the oldest that has ended; False: too many are under way."""
        if len(self._operations) >= OPERATIONS_MAX:
            ended = (number for number, x in self._operations.items() if x.has_ended)
            oldest = next(ended, None)
            if oldest is None:
                return False
            del self._operations[oldest]
        self._operations[operation.number] = operation
        return True

    def under_way(self) -> list[Operation]:
        """Those that have not ended."""
        return [x for x in self if not x.has_ended]

    def journaled(self) -> tuple[JournaledOperation, ...]:
        """What survives the lighthouse."""
        return tuple(_journaled(x) for x in self if x.request.command != "stack" and not x.refused)


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
