"""Keeps the changes of membership, for people.

Everything is bounded (Q8), and no decision depends on it. Not here: the wording of notices (in the
modules that send them), what is shown (status/).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TypedDict

from ftrun.core.ids import quorum_name
from ftrun.core.quorum import Quorum

REASONS_MAX = 4


class ChangeStatus(TypedDict):
    """One change of membership. ``duration_s``: until now, if it is ``under_way``.

    ``cost_s``: the replica-seconds in which members did not train because of it.
    """

    kind: str
    cost_s: float
    reason: str
    quorum: str
    members: list[str]
    step: int | None
    ago_s: float
    duration_s: float
    under_way: bool


@dataclass(slots=True)
class Change:
    """One change of membership. ``ended_at`` is None while it is under way.

    ``cost_s``: the replica-seconds of repairs in it so far (account.py).
    """

    kind: str
    reasons: list[str]
    began_at: float
    ended_at: float | None = None
    quorum: str = ""
    members: tuple[str, ...] = ()
    step: int | None = None
    cost_s: float = 0.0

    def view(self, now: float, more_cost_s: float = 0.0) -> ChangeStatus:
        """The change as plain JSON.

        ``more_cost_s``: the cost since it was noted, if it is under way.
        """
        end = self.ended_at if self.ended_at is not None else now
        return {
            "kind": self.kind,
            "cost_s": round(self.cost_s + (more_cost_s if self.ended_at is None else 0.0), 4),
            "reason": "; ".join(self.reasons),
            "quorum": self.quorum,
            "members": list(self.members),
            "step": self.step,
            "ago_s": round(now - self.began_at, 3),
            "duration_s": round(end - self.began_at, 4),
            "under_way": self.ended_at is None,
        }


class History:
    """The last changes of a lighthouse's life, oldest first.

    ``under_way``: the one that has not led to a quorum yet.
    """

    def __init__(self, changes_max: int) -> None:
        self.changes: deque[Change] = deque(maxlen=changes_max)
        self.under_way: Change | None = None

    def begin(self, now: float, kind: str, reason: str) -> None:
        """Begin a change, or add this reason to the one under way, which gets this kind."""
        change = self.under_way
        if change is None:
            self.under_way = Change(kind, [reason], now)
            self.changes.append(self.under_way)
            return
        change.kind = kind
        if len(change.reasons) < REASONS_MAX:
            change.reasons.append(reason)

    def complete(self, now: float, quorum: Quorum | None, what: str = "") -> None:
        """The change under way has led to ``quorum``, or to none for the reason ``what``."""
        change = self.under_way
        if change is None:
            return
        change.ended_at, self.under_way = now, None
        if what:
            change.reasons.append(what)
        if quorum is not None:
            change.quorum = quorum_name(quorum.attempt.quorum_id)
            change.members = tuple(member.replica_id for member in quorum.members)
            change.step = quorum.step
