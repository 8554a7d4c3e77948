"""Stands in for a lighthouse's shell behind the routes of operations: a table and no core."""

from __future__ import annotations

import asyncio

from ftrun.core.lighthouse.events import Operation, Request


class ScriptedOperations:
    """Notes each request as an operation that is under way, until ``end``."""

    def __init__(self) -> None:
        self.operations: dict[int, Operation] = {}
        self._changed = asyncio.Event()

    async def ask(self, request: Request) -> Operation | None:
        """Begin; ``busy`` as the replica is too much."""
        if request.replica_id == "busy":
            return None
        number = len(self.operations) + 1
        operation = self.operations[number] = Operation(number, request, "under way")
        if request.replica_id == "77":
            operation.refused, operation.text = 404, "the job has no replica '77'."
        return operation

    def operation(self, number: int) -> Operation | None:
        """The operation with this number."""
        return self.operations.get(number)

    async def operation_changed(self, number: int, timeout_s: float) -> None:
        """Wait for ``end``."""
        await asyncio.wait_for(self._changed.wait(), timeout_s)

    def end(self, number: int, text: str) -> None:
        """End one operation."""
        self.operations[number].text, self.operations[number].has_ended = text, True
        self._changed.set()
        self._changed = asyncio.Event()  # For those who wait for the next one.
