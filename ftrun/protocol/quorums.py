"""Quorums told by what is new in them, on a stream whose two ends remember what was told.

A quorum of a thousand members is a hundred kilobytes, and at a death every agent gets the next one
and every worker reports the last one: in full that would be O(groups²) bytes. A stream keeps its
order, so each end knows exactly which quorums the other one has had. One that it has had (an
attempt names one member list, Q1) is only named; another is told by who has left and who is new.
After a reconnection both ends begin with nothing, and the first quorum goes in full.

Not here: bytes (codec.py), streams (rpc.py).
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import fields, replace
from operator import attrgetter
from typing import Any

from ftrun.core.ids import Attempt, replica_order
from ftrun.core.messages import NewQuorum, PendingQuorum, Prepare, Report, ToWorkers, WorkerMessage
from ftrun.core.quorum import Member, Quorum
from ftrun.errors import ProtocolError

KEPT = 16
"""So many quorums are remembered in each direction; both ends forget the same ones."""
RECENT = 4
"""Of those that the other end has told only so many may be named: it may be ahead of us."""


class QuorumMemory:
    """What the two ends of one stream have told each other, as one end remembers it."""

    def __init__(self) -> None:
        self._sent: dict[Attempt, Quorum] = {}
        self._received: dict[Attempt, Quorum] = {}
        self._last_sent: Quorum | None = None
        self._last_received: tuple[Quorum, Quorum] | None = None
        self._short: tuple[Quorum | None, Quorum | None, Quorum | None] = (None, None, None)

    def shorten(self, quorum: Quorum) -> Quorum:
        """How ``quorum`` is told now; the workers of a node report the same one in turn."""
        base = self.base_for(quorum)
        whole, by, short = self._short
        if short is None or whole is not quorum or by is not base:
            short = shorten(quorum, base)
            self._short = (quorum, base, short)
        return short

    def base_for(self, quorum: Quorum) -> Quorum | None:
        """What the other end knows and ``quorum`` can be told by; None: it is told in full."""
        recent = list(self._received.values())[-RECENT:]
        known = self._sent.get(quorum.attempt)
        if known is None:
            known = next((q for q in recent if q.attempt == quorum.attempt), None)
        newest = [*list(self._sent.values())[-1:], *recent[-1:]]
        return known or max(newest, key=lambda q: q.attempt, default=None)

    def note_sent(self, quorum: Quorum) -> None:
        """It is on its way: the other end will know it."""
        if quorum is not self._last_sent:
            _keep(self._sent, quorum)
            self._last_sent = quorum

    def receive(self, sent: Quorum) -> Quorum:
        """The quorum that the other end means.

        Raises:
            ProtocolError: it names one that it has never told, or that was forgotten.
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
"""As ``dataclasses.replace`` would, which takes longer than all the rest of a report."""


def _keep(quorums: dict[Attempt, Quorum], quorum: Quorum) -> None:
    quorums.pop(quorum.attempt, None)
    quorums[quorum.attempt] = quorum
    if len(quorums) > KEPT:
        del quorums[next(iter(quorums))]


def with_quorums(message: Any, change: Callable[[Quorum], Quorum]) -> Any:
    """The message with ``change`` of each quorum in it."""
    match message:
        case ToWorkers(targets, NewQuorum(quorum)):
            return ToWorkers(targets, NewQuorum(change(quorum)))
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
    """``quorum`` told by ``base``; as it is where that would not be exact, or not shorter.

    Raises:
        ProtocolError: it is short already, and nobody here can know what it means.
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
    """The quorum that ``shorten`` was given."""
    if short.attempt == base.attempt:
        if (short.step, short.state, short.store) == (base.step, base.state, base.store):
            return base
        return replace(base, step=short.step, state=short.state, store=short.store)
    members = _merged(base.members, short.members, short.left)
    return replace(short, members=members, base=None, left=())


def _merged(
    before: tuple[Member, ...], new: tuple[Member, ...], left: tuple[str, ...]
) -> tuple[Member, ...]:
    """Few come and go among many: to sort all anew, or to look at each, would take longer."""
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
