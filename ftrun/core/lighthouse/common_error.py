"""An exception that all replicas raise at one place, at one step: the script's own.

Under torchrun such a job fails once. Here each replica's agent would restart its replica, all state
would be lost, and the job would train again up to the same line. So such an error ends the job,
with the script's exit code.

The evidence must be complete: all members of one quorum, two or more, raise an exception of one
type with the same frames at the same step, and the innermost frame is not ftrun's. The errors must
not follow from a death: the quorum has committed a step since it began, so no change of members has
just happened; no member ends otherwise meanwhile; and no replica commits a further step. The first
error breaks the quorum up, and the others raise in the next one, or before it.

Not here: replicas that fail alike before their first step (running.py); the frames
(core/agent/failures.py); the same error of one replica, twice (core/agent/restarts.py).
"""

from __future__ import annotations

from ftrun.core.lighthouse.state import MembershipState
from ftrun.core.messages import Raised, ReplicaLost

MEMBERS_MIN = 2
"""One replica alone proves nothing: others might have continued."""


class CommonError:
    """Detects that all members of a quorum raise the same exception, one after another.

    ``is_watching``: a member has raised, and others are awaited.
    """

    def __init__(self, state: MembershipState) -> None:
        self.is_watching = False
        self._state = state
        self._first: Raised | None = None
        self._awaited: set[tuple[str, str]] = set()
        self._members = 0

    def lost(self, lost: ReplicaLost) -> str:
        """A replica is lost, and is still a member.

        Returns the reason if its error ends the job.
        """
        key, raised = (lost.replica_id, lost.incarnation), lost.raised
        if self._first is None or self._is_stale:
            self._begin(key, raised)
        elif key in self._awaited:
            self._awaited.discard(key)
            if raised is None or not raised.is_like(self._first):
                self._first = None
        self.is_watching = self._first is not None
        if self._first is None or self._awaited:
            return ""
        return (
            f"all {self._members} replicas have raised the same exception at step "
            f"{self._first.step}, so it is the script's: {self._first.words}"
        )

    @property
    def _is_stale(self) -> bool:
        """True if a replica has committed the step since, or was lost without a report."""
        state = self._state
        goes_on = self._first is not None and state.step_max > self._first.step
        return goes_on or any(state.replicas.find(*key) is None for key in self._awaited)

    def _begin(self, key: tuple[str, str], raised: Raised | None) -> None:
        """This may be the first of several replicas to raise."""
        quorum = self._state.quorum
        members = {x.key for x in quorum.members} if quorum else set()
        self._first, self._awaited, self._members = None, set(), len(members)
        if raised is None or key not in members or len(members) < MEMBERS_MIN:
            return
        are_complete = {name for name, _ in members} <= self._state.live
        if are_complete and quorum and quorum.step is not None and raised.step > quorum.step:
            self._first, self._awaited = raised, members - {key}
