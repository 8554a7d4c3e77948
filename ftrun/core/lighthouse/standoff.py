"""Finds members that wait for each other for good: some in a reduction, some in a collective.

All ranks take part in the script's own collectives. If one replica has left its loop for an
``all_reduce`` behind it, and another one begins a further step there, neither reaches the other: an
operation that times out is begun again in both. So if all members wait, some in a reduction and
some in a collective, nothing changes by itself. That is a standoff if it lasts for the longest of
the members' standstill limits in a step (standstill.py), without the time that an evaluation may
take: no member computes.

Between two tries of an operation a member reports another activity for some seconds. That does not
end a standoff: it has the same members at the same steps, and a worker counts the wait in one
collective over all tries. A member that makes progress meanwhile reports another step, or another
collective.

A newcomer has caused the difference, by a value that did not heal. So the side whose members all
joined after the first one of the other side is given up, and is restarted within its budget; the
others continue without it. If both sides have members that joined at one time, it is unknown which
place is right, and another try would end in the same way: the job ends, and reports both places.

Not here: a member that all others wait for, and that does not wait itself (standstill.py); the
consequences for those that are given up (losses.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ftrun.core.activity import Activity
from ftrun.core.ids import replica_order
from ftrun.core.lighthouse.phases import Phase
from ftrun.core.lighthouse.replicas import Replica
from ftrun.core.lighthouse.standstill import FACTOR
from ftrun.core.lighthouse.state import MembershipState
from ftrun.core.lighthouse.suspicion import SilenceCheck
from ftrun.core.lighthouse.words import replicas
from ftrun.core.step_times import longest_limit_s

TRAINING = frozenset({Phase.STEADY, Phase.PREPARE, Phase.PROPOSE, Phase.SWITCH})
_Key = frozenset[tuple[str, str, int, int, bool]]


@dataclass(frozen=True, slots=True)
class FoundStandoff:
    """A standoff that has lasted for its limit.

    ``given_up``: the members that are wrong. Empty: that is unknown, and the job ends.
    """

    given_up: tuple[str, ...]
    cause: str


@dataclass(frozen=True, slots=True)
class _Sides:
    """All members: ``steps`` wait in a reduction, ``calls`` in a collective."""

    steps: tuple[Replica, ...]
    calls: tuple[Replica, ...]

    def key(self) -> _Key:
        """A key that changes if one of the members makes progress."""
        sides = (self.steps, False), (self.calls, True)
        return frozenset(
            (x.replica_id, x.incarnation, x.progress.step, x.progress.beats, is_call)
            for side, is_call in sides
            for x in side
            if x.progress is not None
        )

    def wrong(self) -> tuple[Replica, ...]:
        """The side whose members have all joined after the first of the other side."""
        steps_at, calls_at = (min(x.joined_at for x in side) for side in (self.steps, self.calls))
        if steps_at == calls_at:
            return ()
        return self.steps if steps_at > calls_at else self.calls


@dataclass(slots=True)
class _Suspicion:
    """The standoff that is watched. ``seen_at``: since when all report it, perhaps again."""

    key: _Key
    since: float
    seen_at: float = 0.0
    check: SilenceCheck = field(default_factory=SilenceCheck)


class Standoff:
    """Watches for a standoff. ``find`` returns the members that are given up."""

    def __init__(self, state: MembershipState) -> None:
        self._state = state
        self._suspicion: _Suspicion | None = None
        self._is_seen = False

    def find(self) -> FoundStandoff | None:
        """The standoff, if it has lasted for its limit; None: there is none."""
        state = self._state
        sides = self._sides()
        was_seen, self._is_seen = self._is_seen, sides is not None
        if sides is None:
            return None
        found = self._suspected(sides)
        if not was_seen:
            found.seen_at = state.now
        limit_s = self._limit_s(sides)
        late_s = state.now - max(found.check.overdue_at(found.since, limit_s), found.seen_at)
        if not found.check.ends(found.since, limit_s, state.now, late_s):
            return None
        self._suspicion, self._is_seen = None, False
        return _judged(sides, state.now - found.since)

    def next_deadline(self) -> float | None:
        """When to look again; None: not all members wait."""
        sides = self._sides() if self._is_seen else None
        if sides is None or self._suspicion is None:
            return None
        return self._suspicion.check.overdue_at(self._suspicion.since, self._limit_s(sides))

    def _suspected(self, sides: _Sides) -> _Suspicion:
        """The standoff of these sides, which may have been seen before."""
        key, known = sides.key(), self._suspicion
        began = max(x.waits_since or 0.0 for x in sides.calls)
        if known is None or known.key != key or began > known.since:
            known = self._suspicion = _Suspicion(key, self._state.now)
        return known

    def _sides(self) -> _Sides | None:
        """The places where members wait; None: one does not wait, or all are of one kind."""
        state = self._state
        if not state.stalled or state.phase not in TRAINING:
            return None
        members = [state.replicas[name] for name in sorted(state.live, key=replica_order)]
        calls = tuple(x for x in members if x.waits_since is not None)
        steps = tuple(x for x in members if x.replica_id in state.stalled)
        if not calls or len(calls) + len(steps) < len(members):
            return None
        return _Sides(steps, calls)

    def _limit_s(self, sides: _Sides) -> float:
        known = [x.progress for x in (*sides.steps, *sides.calls) if x.progress is not None]
        least_s = self._state.spec.hang_timeout_s
        return max(longest_limit_s(FACTOR, least_s, x.usual_s, x.longest_s) for x in known)


def _judged(sides: _Sides, waited_s: float) -> FoundStandoff:
    """The replicas to give up, with words that name both places."""
    wrong = sides.wrong()
    calls, steps = (replicas({x.replica_id for x in side}) for side in (sides.calls, sides.steps))
    in_call, in_step = _call(sides.calls[0]), _step(sides.steps[0])
    if wrong == sides.calls:
        text = f"waits in {in_call} while {steps} reached {in_step}"
    elif wrong == sides.steps:
        text = f"waits in {in_step} while {calls} reached {in_call}"
    else:
        cause = (
            f"{calls} and {steps} have waited for each other for {waited_s:.0f} s, in {in_call} "
            f"and in {in_step}: all ranks have to leave a loop at the same step, and to make the "
            "same collectives"
        )
        return FoundStandoff((), cause)
    cause = (
        f"{text}: they have waited for each other for {waited_s:.0f} s, and it joined later; it is "
        "replaced"
    )
    return FoundStandoff(tuple(x.replica_id for x in wrong), cause)


def _call(member: Replica) -> str:
    progress = member.progress
    assert progress is not None and progress.phase is Activity.COLLECTIVE
    return progress.position or "a collective"


def _step(member: Replica) -> str:
    progress = member.progress
    assert progress is not None
    at = f" ({progress.position})" if progress.position else ""
    return f"the reductions of step {progress.step}{at}"
