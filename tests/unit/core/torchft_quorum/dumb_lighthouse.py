"""A second torchft lighthouse, as simple as possible: no pruning, no shortcuts, all from scratch.

It follows the list of rules line by line, keeps every heartbeat forever, and checks everything
after every event. A replica waits since its newest call, even if that call has been given up:
torchft's lighthouse keeps one time per replica. Not here: the lighthouse it is compared with.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ftrun.core.torchft_quorum.records import QuorumMember, QuorumSettings


@dataclass
class DumbLighthouse:
    """One room. ``answers``: the quorum id and names of each answered call."""

    settings: QuorumSettings
    heartbeats: dict[str, float] = field(default_factory=dict)
    calls: list[tuple[int, QuorumMember]] = field(default_factory=list)
    since: dict[str, float] = field(default_factory=dict)
    last: list[str] | None = None
    quorum_id: int = 0
    answers: dict[int, tuple[int, tuple[str, ...]]] = field(default_factory=dict)

    def heartbeat(self, name: str, now: float) -> None:
        """A heartbeat."""
        self.heartbeats[name] = now
        self.look(now)

    def join(self, call: int, member: QuorumMember, now: float) -> None:
        """A call."""
        self.heartbeats[member.replica_id] = now
        self.calls.append((call, member))
        self.since[member.replica_id] = now
        self.look(now)

    def leave(self, call: int, now: float) -> None:
        """A call ends."""
        self.calls = [x for x in self.calls if x[0] != call]
        self.look(now)

    def look(self, now: float) -> None:
        """Check whether there is a quorum."""
        timeout_s = self.settings.heartbeat_timeout_s
        healthy = [name for name, at in self.heartbeats.items() if now - at < timeout_s]
        joined: dict[str, QuorumMember] = {}
        for _, member in self.calls:
            if member.replica_id in healthy:
                joined[member.replica_id] = member
        members = self._decide(joined, healthy, now)
        if not members:
            return
        names = [member.replica_id for member in members]
        if names != self.last or max(member.commit_failures for member in members) > 0:
            self.quorum_id += 1
        self.last = names
        waiting = []
        for call, member in self.calls:
            if member.replica_id in names:
                self.answers[call] = (self.quorum_id, tuple(names))
            else:
                waiting.append((call, member))
                self.since[member.replica_id] = now
        self.calls = waiting

    def _decide(
        self, joined: dict[str, QuorumMember], healthy: list[str], now: float
    ) -> list[QuorumMember] | None:
        if not joined:
            return None
        members = [joined[name] for name in sorted(joined)]
        if self.last is not None:
            if any(member.shrink_only for member in members):
                members = [member for member in members if member.replica_id in self.last]
            if all(name in joined for name in self.last):
                return members
        if len(joined) < self.settings.min_replicas:
            return None
        if len(joined) <= len(healthy) // 2:
            return None
        first = min(self.since[name] for name in joined)
        if len(joined) < len(healthy) and now - first < self.settings.join_timeout_s:
            return None
        return members
