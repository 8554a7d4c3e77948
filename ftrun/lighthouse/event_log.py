"""The last notices sent to agents, and the last notice of each replica, for ``/status``.

Not here: their wording (core/), the changes of membership (core/books/history.py).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ftrun.base import clock
from ftrun.base.defaults import REPLICAS_MAX
from ftrun.core.lighthouse.status import NoticeStatus
from ftrun.core.messages import Notice

EVENTS_MAX = 100


@dataclass(frozen=True, slots=True)
class _Event:
    at: float
    wall: str
    notice: Notice

    def view(self, now: float) -> NoticeStatus:
        return {
            "kind": self.notice.kind,
            "replicas": list(self.notice.replica_ids),
            "text": self.notice.text,
            "time": self.wall,
            "ago_s": round(now - self.at, 3),
        }


class EventLog:
    """A bounded list of notices."""

    def __init__(self) -> None:
        self._events: deque[_Event] = deque(maxlen=EVENTS_MAX)
        self._last: dict[str, _Event] = {}

    def note(self, notice: Notice) -> bool:
        """Store a notice. Returns False if it repeats the last one, which was sent to one more
        agent."""
        if self._events and self._events[-1].notice is notice:
            return False
        event = _Event(clock.now(), clock.wall().isoformat(timespec="milliseconds"), notice)
        self._events.append(event)
        for replica_id in notice.replica_ids:
            if replica_id in self._last or len(self._last) < REPLICAS_MAX:
                self._last[replica_id] = event
        return True

    def events(self, now: float) -> list[NoticeStatus]:
        return [event.view(now) for event in self._events]

    def last_of(self, replica_id: str, now: float) -> NoticeStatus | None:
        event = self._last.get(replica_id)
        return None if event is None else event.view(now)
