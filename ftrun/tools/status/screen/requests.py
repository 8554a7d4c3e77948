"""Requests to the lighthouse by keys: stacks, drain, restart, kill, and an incident's record.

Each runs in a separate thread with a deadline, and ends with one call of a callback. Not here: what
a request does (core/lighthouse/people/operators.py), the pages (pages.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from ftrun.base.errors import FtrunError
from ftrun.base.words import plain
from ftrun.core.incident_words import Record, block
from ftrun.core.lighthouse.status import OperationStatus
from ftrun.tools.status.asking import Asker
from ftrun.tools.status.client import fetch_json
from ftrun.tools.status.once import StatusQuery, find_lighthouse

WAIT_S = 5.0
OPERATION_S = 120.0
AT_ONCE_MAX = 8
TRACEBACK_LINES = 200
LINE_CHARS_MAX = 2000


@dataclass(frozen=True, slots=True)
class Order:
    """The requested operation. ``rank`` None: the whole replica."""

    command: str
    replica_id: str
    rank: int | None = None

    @property
    def subject(self) -> str:
        """The target of the operation, in words."""
        rank = "" if self.rank is None else f".{self.rank}"
        return f"{'replica' if self.rank is None else 'worker'} {self.replica_id}{rank}"


class Requests:
    """Sends requests in threads. ``deliver`` runs callbacks in the screen's own thread."""

    def __init__(
        self, query: Callable[[], StatusQuery], deliver: Callable[[Callable[[], None]], None]
    ) -> None:
        self._query = query
        self._deliver = deliver
        self._free = threading.BoundedSemaphore(AT_ONCE_MAX)
        self._stopped = threading.Event()

    def stop(self) -> None:
        self._stopped.set()

    def operate(
        self,
        order: Order,
        told: Callable[[str], None],
        ended: Callable[[OperationStatus], None],
    ) -> None:
        """Send an operation. ``told`` gets each new message about it, ``ended`` its outcome."""

        def work() -> None:
            ending = self._follow(order, told)
            if ending is not None:
                self._hand(lambda: ended(ending))

        self._spawn(work, told)

    def explain(
        self,
        replica_id: str | None,
        number: int | None,
        found: Callable[[list[str]], None],
        failed: Callable[[str], None],
    ) -> None:
        """Fetch an incident: the one with that number, or the last one of that replica."""

        def work() -> None:
            address, token, tls = find_lighthouse(self._query())
            answer = fetch_json(address, token, "/incidents", "incidents", tls=tls)
            record = chosen(answer["incidents"], replica_id, number)
            if record is None:
                whom = "" if replica_id is None else f" of replica {replica_id}"
                self._hand(lambda: failed(f"No incident{whom}: nothing has failed."))
                return
            text = block(record, traceback_lines=TRACEBACK_LINES)
            rows = [plain(row, LINE_CHARS_MAX) for row in text]
            self._hand(lambda: found(rows))

        self._spawn(work, failed)

    def _follow(self, order: Order, told: Callable[[str], None]) -> OperationStatus | None:
        """Report each new message until the end; None: it is not done, and not waited for any
        more."""
        sent: dict[str, Any] = {"command": order.command, "replica": order.replica_id, "node": ""}
        if order.rank is not None:
            sent["rank"] = order.rank
        say = lambda words: self._hand(partial(told, words))  # noqa: E731
        asker = Asker(self._query(), sent, OPERATION_S, say)
        operation = asker.run(waits=lambda: not self._stopped.is_set(), wait_s=WAIT_S)
        if operation["state"] != "under way":
            return operation
        self._hand(partial(told, f"{order.command}: not done yet. It continues."))
        return None

    def _spawn(self, work: Callable[[], None], failed: Callable[[str], None]) -> None:
        def run() -> None:
            try:
                work()
            except FtrunError as error:
                words = plain(str(error))
                self._hand(lambda: failed(words))
            finally:
                self._free.release()

        if not self._free.acquire(blocking=False):
            failed(f"{AT_ONCE_MAX} requests are under way: wait for one of them.")
            return
        threading.Thread(target=run, name="ftrun-request", daemon=True).start()

    def _hand(self, call: Callable[[], None]) -> None:
        if not self._stopped.is_set():
            self._deliver(call)


def chosen(records: list[Record], replica_id: str | None, number: int | None) -> Record | None:
    """The incident with this number, or the last one that names this replica."""
    if number is not None:
        numbered = [record for record in records if record.get("number") == number]
        return numbered[0] if numbered else None
    if replica_id is None:
        return records[-1] if records else None
    for record in reversed(records):
        parts = [record.get("first_cause") or {}, *(record.get("consequences") or [])]
        if any(part.get("replica_id") == replica_id for part in parts):
            return record
    return None
