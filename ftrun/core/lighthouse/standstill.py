"""Finds the member whose loop stands still, because all other members wait for it.

Such a worker's link thread still answers, so the worker is not silent (core/agent/hang_watch.py).
But a member that waits in a reduction reports that. A member that heals waits as well, until some
donor has begun the quorum's first step. So does one without a quorum, while replicas are to join or
leave at a step that the last member does not reach. Until a departing replica has left, no replica
can join, so it counts as waited for although the others keep training. If all others wait, the last
one is waited for, and its loop stands still if it has made no progress for the limit:

- in a step: ``--hang-timeout``, or ``FACTOR`` times its own usual step, or twice its longest one,
  whichever is the longest;
- between two steps, where a script evaluates and saves: ``OUTSIDE_TIMES`` that;
- before it has timed ``STEPS_MIN`` steps (the first ones compile): ``FIRST_TIMES`` the option.

A worker times its steps itself and reports them, so the limit depends neither on the heartbeats
that arrived, nor on the life of a lighthouse. It counts over quorums: members that give an
operation up and repeat the step still wait for the same replica. A member is never found if it
heals, has announced a pause (``ftrun.paused``), has left, or reports a new step or heartbeat within
the limit. One that is asked to leave, and does not reach its boundary, is found like any other.

A lighthouse that was paused itself finds old waits. So a second check decides (suspicion.py). Not
here: the consequences (losses.py), a loop that no member waits for (core/agent/loop_watch.py),
members that wait for each other at different places (standoff.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ftrun.core.activity import Activity
from ftrun.core.lighthouse.phases import Phase
from ftrun.core.lighthouse.replicas import Replica
from ftrun.core.lighthouse.state import MembershipState
from ftrun.core.lighthouse.suspicion import SilenceCheck
from ftrun.core.messages import Progress
from ftrun.core.step_times import STEPS_MIN, longest_limit_s

FACTOR = 10.0
OUTSIDE_TIMES = 10.0
FIRST_TIMES = 10.0
FOUND_IN = frozenset({Activity.STEP, Activity.OUTSIDE})
"""The activities of a loop that should make progress by itself."""
SAME_STEP = FOUND_IN | {Activity.QUORUM, Activity.COLLECTIVE}
"""Between two tries of a step a worker is in no quorum: this does not end a standstill."""
SWITCHING = frozenset({Phase.PROPOSE, Phase.SWITCH})
TRAINING = frozenset({Phase.STEADY, Phase.PREPARE}) | SWITCHING


@dataclass(slots=True)
class _Suspect:
    """The member that is waited for. ``since``: when the others began to wait for it."""

    incarnation: str
    step: int
    beats: int
    since: float
    check: SilenceCheck = field(default_factory=SilenceCheck)

    def is_same(self, replica: Replica, progress: Progress) -> bool:
        """Whether the replica has made no progress since it was suspected."""
        now = (replica.incarnation, progress.step, progress.beats)
        return now == (self.incarnation, self.step, self.beats)


class Standstill:
    """Watches for a standstill. ``find`` returns the replica to replace, with the cause."""

    def __init__(self, state: MembershipState) -> None:
        self._state = state
        self._suspects: dict[str, _Suspect] = {}  # several in turn, because reports may cross
        self._moved_at = 0.0  # when a suspect last made progress, perhaps unknown to its peers

    def find(self) -> tuple[str, str] | None:
        """The replica whose loop stands still, and the cause; None if none is found."""
        state = self._state
        self._forget_the_moved()
        replica = self._waited_for()
        if replica is None or replica.progress is None:
            return None
        suspect = self._suspects.get(replica.replica_id)
        if suspect is None:
            began = [*state.stalled.values(), self._moved_at]
            since = state.now if self._wait_otherwise() else max(began)
            progress = replica.progress
            suspect = _Suspect(replica.incarnation, progress.step, progress.beats, since)
            self._suspects[replica.replica_id] = suspect
        limit_s = self._limit_s(replica.progress)
        late_s = state.now - suspect.check.overdue_at(suspect.since, limit_s)
        if not suspect.check.ends(suspect.since, limit_s, state.now, late_s):
            return None
        del self._suspects[replica.replica_id]
        return replica.replica_id, self._cause(replica, state.now - suspect.since)

    def hung(self, now: float) -> str | None:
        """The replica that is about to be found: half of its limit is over."""
        found = self._suspected()
        if found is None:
            return None
        replica_id, suspect, limit_s = found
        return replica_id if now - suspect.since >= limit_s / 2 else None

    def next_deadline(self) -> float | None:
        """When to check again; None: no replica is suspected."""
        found = self._suspected()
        if found is None:
            return None
        _, suspect, limit_s = found
        return suspect.check.overdue_at(suspect.since, limit_s)

    def _suspected(self) -> tuple[str, _Suspect, float] | None:
        """The replica that all others wait for now, since when, and its limit."""
        replica = self._waited_for() if self._suspects else None
        suspect = self._suspects.get(replica.replica_id) if replica is not None else None
        if replica is None or replica.progress is None or suspect is None:
            return None
        return replica.replica_id, suspect, self._limit_s(replica.progress)

    def lone_busy(self) -> Replica | None:
        """The only member that does not wait for another one, while all others do."""
        state = self._state
        busy = state.live - set(state.stalled) - self._wait_otherwise()
        if len(busy) != 1 or len(state.live) < 2:
            return None
        return state.replicas[min(busy)]

    def _wait_otherwise(self) -> set[str]:
        """The members that wait outside a reduction, or that have switched already."""
        return {name for name in self._state.live if self._waits(self._state.replicas[name])}

    def _waits(self, member: Replica) -> bool:
        state, phase = self._state, member.progress.phase if member.progress else None
        attempt = state.quorum.attempt if state.quorum is not None else None
        if state.phase is Phase.SWITCH and member.begun == attempt:
            return True  # it trains under the next quorum, and no replica can join meanwhile
        if phase is Activity.QUORUM:
            return state.phase in SWITCHING and not member.is_overtaken
        return phase is Activity.HEALING and not self._has_donor()

    def _has_donor(self) -> bool:
        """Whether some donor has begun the quorum's first step."""
        state, quorum = self._state, self._state.quorum
        assert quorum is not None  # one is in force, or coming into it: members heal
        donors = [state.replicas.get(name) for name in quorum.donors]
        return any(donor is not None and donor.begun == quorum.attempt for donor in donors)

    def _waited_for(self) -> Replica | None:
        """The only member that all others wait for, if its loop should make progress by itself."""
        replica = self.lone_busy() if self._state.phase in TRAINING else None
        if replica is None or replica.progress is None:
            return None
        has_left = replica.leaving is not None
        return None if has_left or replica.progress.phase not in FOUND_IN else replica

    def _forget_the_moved(self) -> None:
        for name, suspect in list(self._suspects.items()):
            replica = self._state.replicas.get(name)
            progress = replica.progress if replica is not None else None
            stands = (
                replica is not None
                and progress is not None
                and progress.phase in SAME_STEP
                and suspect.is_same(replica, progress)
            )
            if not stands:
                del self._suspects[name]
                self._moved_at = self._state.now

    def _limit_s(self, progress: Progress) -> float:
        return limit_s(progress, self._state.spec.hang_timeout_s)

    def _cause(self, replica: Replica, waited_s: float) -> str:
        progress, quorum = replica.progress, self._state.quorum
        assert progress is not None
        where = (
            "between two steps"
            if progress.phase is Activity.OUTSIDE
            else f"in step {progress.step}"
        )
        known = (
            f"a step usually takes {progress.usual_s:.2g} s"
            if progress.steps
            else "it has made no step yet"
        )
        if quorum is not None and quorum.index(replica.replica_id, replica.incarnation) is None:
            waits, ends = f"it was to leave after it, {waited_s:.0f} s ago", "killed"
        else:
            waits, ends = f"the others have waited for it for {waited_s:.0f} s", "replaced"
        return f"stands still {where}: {waits}, and {known}; it is {ends}"


def limit_s(progress: Progress, hang_timeout_s: float) -> float:
    """How long all others may wait for a member that reports this."""
    if progress.steps < STEPS_MIN:
        return FIRST_TIMES * hang_timeout_s
    in_step_s = longest_limit_s(FACTOR, hang_timeout_s, progress.usual_s, progress.longest_s)
    return in_step_s * (OUTSIDE_TIMES if progress.phase is Activity.OUTSIDE else 1.0)
