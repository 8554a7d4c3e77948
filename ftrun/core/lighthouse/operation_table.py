"""People's requests by number, and the part of them that is in the journal.

A request is in the journal before it is acknowledged. So a restarted lighthouse continues it, and
recognises a request that is sent again. Requests for stacks are not in the journal: their callers
ask again. Not here: how requests are carried out (operators.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

from ftrun.core.lighthouse.events import JournaledOperation, Operation, Request

OPERATIONS_MAX = 256
TEXT_CHARS_MAX = 300
_ASKED = [field.name for field in fields(Request)]
_KEPT = [x.name for x in fields(JournaledOperation) if x.name in Operation.__dataclass_fields__]


class OperationTable(dict[int, Operation]):
    """The last ``OPERATIONS_MAX`` operations, oldest first.

    ``last_number``: the highest of an earlier life. ``are_under_way``: some may not have ended.
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
    text = operation.text[:TEXT_CHARS_MAX] if operation.has_ended else ""
    asked, kept = _of(operation.request, _ASKED), _of(operation, _KEPT)
    return JournaledOperation(**asked, **{**kept, "text": text})


def _resumed(found: JournaledOperation) -> Operation:
    is_resumed = not (found.has_ended or found.is_held)
    request = Request(**_of(found, _ASKED))
    return Operation(request=request, is_resumed=is_resumed, **_of(found, _KEPT))


def _of(record: Any, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}
