"""One room: the replica groups of one torchft job, their heartbeats, and its last quorum.

A replica group joins by a call that waits. A second call of the same group replaces the first one;
both receive the answer. A call whose client has gone does not count any more, which is stricter
than torchft, whose next quorum would have the group in it.

The quorum id rises if the members' names are not the last quorum's, or if a member reports commit
failures. Not here: when a quorum forms (rules.py), several rooms (machine.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from ftrun.core.torchft_quorum import records as r
from ftrun.core.torchft_quorum.rules import Joiner, Verdict, decide

NOBODY = Verdict(None, "no replica has joined")


class Room:
    """The tables of one room. ``quorum`` is the last one; None: none since this lighthouse began.

    ``changed``: the last quorum has another id than the one before it.
    """

    def __init__(self, settings: r.QuorumSettings, record: r.RoomRecord, now: float) -> None:
        self._settings = settings
        self.quorum_id = record.quorum_id
        self.last: tuple[str, ...] | None = record.replica_ids or None
        self.quorum: r.TorchftQuorum | None = None
        self.quorum_at: float | None = None
        self.touched_at = now
        self.verdict = NOBODY
        self._heartbeats: dict[str, float] = {}  # oldest first
        self._joiners: dict[str, Joiner] = {}
        self._calls: dict[int, r.QuorumMember] = {}
        # The members of the quorum before a restart have the heartbeat timeout to report: the first
        # one that joins must not become a quorum alone.
        for name in record.replica_ids:
            self._heartbeats[name] = now

    @property
    def record(self) -> r.RoomRecord:
        """The record that is kept on disk."""
        return r.RoomRecord(self.quorum_id, self.last or ())

    @property
    def calls(self) -> dict[int, r.QuorumMember]:
        """The calls that wait, and the member that each describes."""
        return self._calls

    @property
    def joiners(self) -> dict[str, Joiner]:
        """The replica groups that wait, by name."""
        return self._joiners

    def heartbeats(self, now: float) -> dict[str, float]:
        """The healthy replica groups, and when each was last seen."""
        self._forget_silent(now)
        return self._heartbeats

    def is_idle(self, now: float) -> bool:
        """Whether no client waits and no replica group lives in it."""
        return not self._calls and not self.heartbeats(now)

    def has_place(self, replica_id: str, now: float) -> bool:
        """Whether there is room for this replica group in the table."""
        heartbeats = self.heartbeats(now)
        return replica_id in heartbeats or len(heartbeats) < r.REPLICAS_MAX

    def heartbeat(self, replica_id: str, now: float) -> list[r.Answer]:
        """Note that the group lives. Only a waiting one that was given up can complete a quorum."""
        self._forget_silent(now)
        was_healthy = self._heartbeats.pop(replica_id, None) is not None
        self._heartbeats[replica_id] = now
        self.touched_at = now
        return [] if was_healthy or replica_id not in self._joiners else self.form(now)

    def join(self, call: int, member: r.QuorumMember, now: float) -> list[r.Answer]:
        """Add a call that waits for the next quorum."""
        self._heartbeats.pop(member.replica_id, None)
        self._heartbeats[member.replica_id] = now
        self.touched_at = now
        self._calls[call] = member
        self._joiners[member.replica_id] = Joiner(member, now)
        return self.form(now)

    def leave(self, call: int, now: float) -> list[r.Answer]:
        """A client does not wait any more.

        The others may be a quorum without its wish to shrink.
        """
        member = self._calls.pop(call)
        others = [x for x in self._calls.values() if x.replica_id == member.replica_id]
        if not others:
            self._joiners.pop(member.replica_id, None)
        elif self._joiners[member.replica_id].member is member:
            since = self._joiners[member.replica_id].since
            self._joiners[member.replica_id] = Joiner(others[-1], since)
        return self.form(now)

    def form(self, now: float) -> list[r.Answer]:
        """The answers of a quorum, if the joiners are one now.

        Joiners that a shrinking quorum leaves out may be the next one: each round has fewer
        joiners.
        """
        self._forget_silent(now)
        answers: list[r.Answer] = []
        self.verdict = NOBODY
        while self._joiners:
            healthy = self._heartbeats.keys()
            self.verdict = decide(self._joiners, healthy, self.last, self._settings, now)
            if self.verdict.members is None:
                break
            answers += self._stand(self.verdict.members, now)
        return answers

    def next_deadline(self) -> float | None:
        """When the joiners may become a quorum although nothing more arrives."""
        if not self._joiners:
            return None
        oldest = next(iter(self._heartbeats.values()), None)
        expiry = None if oldest is None else oldest + self._settings.heartbeat_timeout_s
        return min((at for at in (expiry, self.verdict.until) if at is not None), default=None)

    def _stand(self, members: tuple[r.QuorumMember, ...], now: float) -> Iterator[r.Answer]:
        names = tuple(member.replica_id for member in members)
        if names != self.last or any(member.commit_failures > 0 for member in members):
            self.quorum_id += 1
        self.last = names
        self.quorum = r.TorchftQuorum(self.quorum_id, members)
        self.quorum_at = now
        answered = [call for call, member in self._calls.items() if member.replica_id in names]
        for call in answered:
            del self._calls[call]
            yield r.Answer(call, self.quorum)
        # A replica that was left out waits for the next quorum as if it joined now.
        waiting = {member.replica_id: member for member in self._calls.values()}
        self._joiners = {name: Joiner(member, now) for name, member in waiting.items()}

    def _forget_silent(self, now: float) -> None:
        timeout_s = self._settings.heartbeat_timeout_s
        while self._heartbeats:
            name, at = next(iter(self._heartbeats.items()))
            if now - at < timeout_s:
                return
            del self._heartbeats[name]
