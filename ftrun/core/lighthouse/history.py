"""Keeps what has happened, for people: the history of changes and each replica's story.

Everything is bounded (Q8) and decides nothing. Not here: the wording of notices (where they are
sent), what is shown (status/).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

from ftrun.core.ids import quorum_name, replica_order
from ftrun.core.lighthouse.events import LighthouseSettings
from ftrun.core.lighthouse.phases import Phase
from ftrun.core.lighthouse.status import ChangeStatus
from ftrun.core.quorum import Quorum

NAMES_MAX = 8
REASONS_MAX = 4


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
        """As plain JSON. ``more_cost_s``: since the cost was noted, if it is under way."""
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
    """The bounded memory of a lighthouse's life."""

    def __init__(self, settings: LighthouseSettings) -> None:
        self.changes: deque[Change] = deque(maxlen=settings.changes_max)
        self._lines_max = settings.story_lines_max
        self._stories: dict[str, deque[tuple[float, Phase, object]]] = {}

    def note(self, now: float, replica_id: str, phase: Phase, what: object) -> None:
        """Add a line to this replica's story; its text is made when it is read."""
        story = self._stories.get(replica_id)
        if story is None:
            story = self._stories[replica_id] = deque(maxlen=self._lines_max)
        story.append((now, phase, what))

    def story(self, replica_id: str) -> list[str]:
        """This replica's last lines, oldest first."""
        lines = self._stories.get(replica_id, ())
        return [f"{when:.3f} {phase.value}: {what}" for when, phase, what in lines]

    def begin(self, now: float, kind: str, reason: str) -> None:
        """Begin a change, or add this reason to the one under way, which is now of this kind."""
        change = self.under_way
        if change is None:
            self.changes.append(Change(kind, [reason], now))
            return
        change.kind = kind
        if len(change.reasons) < REASONS_MAX:
            change.reasons.append(reason)

    def complete(self, now: float, quorum: Quorum | None, what: str = "") -> None:
        """The change under way has led to ``quorum``, or to nothing for the reason ``what``."""
        change = self.under_way
        if change is None:
            return
        change.ended_at = now
        if what:
            change.reasons.append(what)
        if quorum is not None:
            change.quorum = quorum_name(quorum.attempt.quorum_id)
            change.members = tuple(member.replica_id for member in quorum.members)
            change.step = quorum.step

    @property
    def under_way(self) -> Change | None:
        """The change that has not led to a quorum yet."""
        if self.changes and self.changes[-1].ended_at is None:
            return self.changes[-1]
        return None


def replicas(ids: Collection[str]) -> str:
    """Replica ids for people: ``replica 1``, ``replicas 0, 2 and 3``, ``12 replicas``."""
    names = sorted(ids, key=replica_order)
    if not names:
        return "no replica"
    if len(names) == 1:
        return f"replica {names[0]}"
    if len(names) > NAMES_MAX:
        return f"{len(names)} replicas ({names[0]} to {names[-1]})"
    return f"replicas {_listed(names)}"


def _listed(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def sentence(text: str) -> str:
    """The text with a capital letter at its beginning."""
    return text[:1].upper() + text[1:]
