"""Sends a quorum as its changes against one that the other end of the stream has.

A quorum of a thousand members is a hundred kilobytes. At a death every agent gets the next one and
every worker reports the last one: in full that would be O(groups²) bytes. A stream keeps its order,
so each end knows exactly which quorums the other end has. A quorum that the other end has is sent
as its attempt only, because an attempt identifies one member list (Q1). Any other quorum is sent
short: as a base, the replicas that have left and the members that are new. After a reconnection
both ends start empty, and the first quorum is sent in full.

Not here: bytes (codec.py), streams (rpc.py).
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import fields, replace
from operator import attrgetter
from typing import Any

from ftrun.base.errors import ProtocolError
from ftrun.core.ids import Attempt, replica_order
from ftrun.core.messages import NewQuorum, PendingQuorum, Prepare, Report, ToWorkers, WorkerMessage
from ftrun.core.quorum import Member, Quorum

KEPT = 16
"""The number of quorums kept in each direction. Both ends drop the same ones."""
RECENT = 4
"""The number of received quorums that may be referred to. The sender may have dropped older
ones."""


class QuorumMemory:
    """The quorums that the two ends of a stream have sent each other, as one end knows them."""

    def __init__(self) -> None:
        self._sent: dict[Attempt, Quorum] = {}
        self._received: dict[Attempt, Quorum] = {}
        self._last_sent: Quorum | None = None
        self._last_received: tuple[Quorum, Quorum] | None = None
        self._short: tuple[Quorum | None, Quorum | None, Quorum | None] = (None, None, None)

    def shorten(self, quorum: Quorum) -> Quorum:
        """``quorum`` as sent now; cached, because all workers of a node report the same one."""
        base = self.base_for(quorum)
        whole, by, short = self._short
        if short is None or whole is not quorum or by is not base:
            short = shorten(quorum, base)
            self._short = (quorum, base, short)
        return short

    def base_for(self, quorum: Quorum) -> Quorum | None:
        """A quorum that the other end has, as the base of ``quorum``; None: send it in full."""
        recent = list(self._received.values())[-RECENT:]
        known = self._sent.get(quorum.attempt)
        if known is None:
            known = next((q for q in recent if q.attempt == quorum.attempt), None)
        newest = [*list(self._sent.values())[-1:], *recent[-1:]]
        return known or max(newest, key=lambda q: q.attempt, default=None)

    def note_sent(self, quorum: Quorum) -> None:
        """Note that ``quorum`` is on its way, so the other end will have it."""
        if quorum is not self._last_sent:
            _keep(self._sent, quorum)
            self._last_sent = quorum

    def receive(self, sent: Quorum) -> Quorum:
        """The full quorum that the other end has sent, short or in full.

        Raises:
            ProtocolError: its base was never sent, or was dropped.
        """
        if self._last_received is not None and sent is self._last_received[0]:
            return self._last_received[1]
        quorum = sent
        if sent.base is not None:
            base = self._received.get(sent.base) or self._sent.get(sent.base)
            if base is None:
                raise ProtocolError(f"quorum {sent.attempt} is told by {sent.base}, not known here")
            quorum = restore(sent, base)
        _keep(self._received, quorum)
        self._last_received = (sent, quorum)
        return quorum


_REPORT = tuple(field.name for field in fields(Report))
_IN_FORCE, _PENDING = _REPORT.index("in_force"), _REPORT.index("pending")
_report_values = attrgetter(*_REPORT)
"""Used instead of ``dataclasses.replace``, which takes longer than the rest of a report."""


def _keep(quorums: dict[Attempt, Quorum], quorum: Quorum) -> None:
    quorums.pop(quorum.attempt, None)
    quorums[quorum.attempt] = quorum
    if len(quorums) > KEPT:
        del quorums[next(iter(quorums))]


def with_quorums(message: Any, change: Callable[[Quorum], Quorum]) -> Any:
    """The message with each quorum in it replaced by ``change`` of it."""
    match message:
        case ToWorkers(targets, NewQuorum(quorum) as inner):
            return ToWorkers(targets, replace(inner, quorum=change(quorum)))
        case ToWorkers(targets, Prepare(quorum)):
            return ToWorkers(targets, Prepare(change(quorum)))
        case WorkerMessage(key, Report() as report):
            return WorkerMessage(key, _with_quorums(report, change))
    return message


def _with_quorums(report: Report, change: Callable[[Quorum], Quorum]) -> Report:
    in_force, pending = report.in_force, report.pending
    if in_force is None and pending is None:
        return report
    values: list[Any] = list(_report_values(report))
    values[_IN_FORCE] = None if in_force is None else change(in_force)
    if pending is not None:
        values[_PENDING] = PendingQuorum(change(pending.quorum), pending.promise)
    return Report(*values)


def shorten(quorum: Quorum, base: Quorum | None) -> Quorum:
    """``quorum`` as changes against ``base``; unchanged if that is not exact or not shorter.

    Raises:
        ProtocolError: ``quorum`` is short already, and its base is not known here.
    """
    if quorum.base is not None:
        raise ProtocolError(f"quorum {quorum.attempt} is not whole")
    if base is None:
        return quorum
    if quorum.attempt == base.attempt:
        short = replace(quorum, members=(), newcomers=(), base=base.attempt)
    else:
        short = _changes(quorum, base)
    is_exact = 2 * len(short.members) <= len(quorum.members) and restore(short, base) == quorum
    return short if is_exact else quorum


def _changes(quorum: Quorum, base: Quorum) -> Quorum:
    stay = {member.replica_id for member in quorum.members}
    before = {member.replica_id: member for member in base.members}
    new = tuple(m for m in quorum.members if not _is_same(before.get(m.replica_id), m))
    left = tuple(name for name in before if name not in stay)
    return replace(quorum, members=new, base=base.attempt, left=left)


def _is_same(one: Member | None, other: Member) -> bool:
    return one is other or one == other


def restore(short: Quorum, base: Quorum) -> Quorum:
    if short.attempt == base.attempt:
        if (short.step, short.state, short.store) == (base.step, base.state, base.store):
            return base
        return replace(base, step=short.step, state=short.state, store=short.store)
    members = _merged(base.members, short.members, short.left)
    return replace(short, members=members, base=None, left=())


def _merged(
    before: tuple[Member, ...], new: tuple[Member, ...], left: tuple[str, ...]
) -> tuple[Member, ...]:
    """Merge by bisection, because few members change: sorting or scanning all would take longer."""
    members = list(before)
    for name in {*left, *(member.replica_id for member in new)}:
        at = bisect.bisect_left(members, replica_order(name), key=_place)
        if at < len(members) and members[at].replica_id == name:
            del members[at]
    for member in new:
        bisect.insort(members, member, key=_place)
    return tuple(members)


def _place(member: Member) -> tuple[int, int, str]:
    return replica_order(member.replica_id)
