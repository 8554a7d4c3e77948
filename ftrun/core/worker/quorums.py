"""The quorums that one worker knows (in force, pending, given up), and its promises.

Bookkeeping, and questions about it. Not here: a worker's reactions (machine.py), the choice of a
quorum's members (core/lighthouse/membership.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from ftrun.core.ids import NO_ATTEMPT, Attempt, Tag, WorkerKey
from ftrun.core.messages import PendingQuorum, SwitchPromise
from ftrun.core.quorum import Quorum


@dataclass(slots=True)
class Pending:
    """A quorum that is not in force here yet.

    ``promise``: the step that will not be begun under the old quorum. ``confirmed``: a Switch has
    arrived for it. ``wanted``: the step from which on a promise is due, at the first boundary at
    which the script lets members join. If the quorum of a switch leaves this worker out, the worker
    leaves at the switch and builds nothing.
    """

    quorum: Quorum
    is_switch: bool
    built: bool = False
    promise: int | None = None
    wanted: int | None = None
    confirmed: bool = False

    @property
    def attempt(self) -> Attempt:
        return self.quorum.attempt

    def reported(self) -> PendingQuorum:
        """The record of it in a Report."""
        promise = None if self.promise is None else SwitchPromise(self.promise, self.confirmed)
        return PendingQuorum(self.quorum, promise)

    def may_be_promised(self, attempt: Attempt) -> bool:
        """Whether this is the quorum of ``attempt``, and it is built.

        Then it is a switch, because any other quorum is in force once it is built.
        """
        return self.built and self.attempt == attempt

    def outdates(self, step: int) -> bool:
        """Whether a proposal of ``step`` is outdated: proposals rise until one is confirmed."""
        return self.confirmed or (self.promise is not None and step < self.promise)


class Quorums:
    """One worker's quorums.

    ``interrupted``: the highest attempt that was given up. ``seen``: the highest known. Neither
    ever falls, and ``interrupted`` < pending, in force ≤ ``seen`` (Q2). ``freezes_membership``: the
    script permits no join at its latest boundary.
    """

    def __init__(self, key: WorkerKey) -> None:
        self.in_force: Quorum | None = None
        self.pending: Pending | None = None
        self.interrupted: Attempt = NO_ATTEMPT
        self.seen: Attempt = NO_ATTEMPT
        self.freezes_membership = False
        self._has_frozen = False
        self._key = key
        self._entered: Attempt = NO_ATTEMPT
        self._begun = 0  # the last step that was begun under ``_entered``

    # ------------------------------------------------------------ about a quorum

    def is_member(self, quorum: Quorum) -> bool:
        return quorum.index(self._key.replica_id, self._key.incarnation) is not None

    def is_newcomer(self, quorum: Quorum) -> bool:
        """This replica heals in the first step of ``quorum``."""
        return self._key.replica_id in quorum.newcomers

    def is_donor(self, quorum: Quorum) -> bool:
        """This replica serves its state to newcomers in the first step of ``quorum``."""
        return bool(quorum.newcomers) and not self.is_newcomer(quorum)

    @property
    def awaits_newcomers(self) -> bool:
        """Whether others may join at the next boundary (Q9).

        The next quorum has newcomers and no step of it has begun, or it is not yet known.
        """
        quorum = self.in_force if self.pending is None else self.pending.quorum
        return quorum is None or (quorum.attempt != self._entered and bool(quorum.newcomers))

    def has_built(self, attempt: Attempt) -> bool:
        """The process group of ``attempt`` is built, in use or pending."""
        built = self.pending.quorum if self.pending is not None and self.pending.built else None
        return any(q is not None and q.attempt == attempt for q in (self.in_force, built))

    def is_in_force(self, attempt: Attempt) -> bool:
        return self.in_force is not None and self.in_force.attempt == attempt

    def awaits(self, attempt: Attempt) -> Pending | None:
        pending = self.pending
        return pending if pending is not None and pending.attempt == attempt else None

    # ------------------------------------------------------------ steps and promises

    @property
    def is_unentered(self) -> bool:
        """This worker has not begun a step under the quorum in force."""
        return self.in_force is not None and self.in_force.attempt != self._entered

    def next_step(self, own_step: int) -> int:
        """The step that the next boundary begins; ``own_step``: the step of the state held."""
        if self.in_force is None or not self.is_unentered:
            return own_step
        return self.in_force.first_step

    @property
    def last_begun(self) -> int | None:
        """The step up to which no switch is promised; None without a quorum in force.

        A switch leaves a quorum after its first step at the earliest, because only that step makes
        sure that this worker holds the state.
        """
        if self.in_force is None:
            return None
        return self.in_force.first_step if self.is_unentered else self._begun

    def can_promise(self, step: int) -> bool:
        """Whether ``step`` has not begun under the quorum in force."""
        begun = self.last_begun
        return begun is None or step > begun

    def at_boundary(self, freezes_membership: bool) -> None:
        """The script has reached a boundary. ``freezes_membership``: no member may join there."""
        self.freezes_membership = freezes_membership
        self._has_frozen |= freezes_membership

    def promises_late(self, pending: Pending) -> bool:
        """Whether a promise waits for its boundary, because the script may permit no join there.

        False for a worker in no quorum, and for a switch by which no member joins.
        """
        return self._has_frozen and self._is_joined(pending)

    def bars(self, pending: Pending) -> bool:
        """Whether a member would join by this switch, at a boundary that permits no join."""
        return self.freezes_membership and self._is_joined(pending)

    def _is_joined(self, pending: Pending) -> bool:
        return self.in_force is not None and bool(pending.quorum.newcomers)

    def at_promise(self, own_step: int) -> bool:
        """Whether the next step must not begin under the old quorum, by promise (Q5)."""
        pending = self.pending
        if pending is None or pending.promise is None:
            return False
        return self.in_force is None or self.next_step(own_step) >= pending.promise

    def begin(self, tag: Tag) -> bool:
        """A step begins under the quorum in force.

        Returns True if it has begun before (a retry).
        """
        repeats = self._entered == tag.attempt and self._begun == tag.step
        self._entered, self._begun = tag.attempt, tag.step
        return repeats

    # ------------------------------------------------------------ changes

    def take(self, quorum: Quorum, *, is_switch: bool) -> Pending:
        """A newer quorum is known: it is pending now."""
        self.seen = quorum.attempt
        self.pending = Pending(quorum, is_switch)
        return self.pending

    def adopt(self, quorum: Quorum) -> None:
        """The pending quorum comes into force as ``quorum``."""
        self.in_force, self.pending = quorum, None

    def succeed(self, quorum: Quorum, step: int) -> None:
        """This worker repeats the steps of a lost one, which had begun ``step`` last under
        ``quorum``.
        """
        self.in_force, self.seen = quorum, quorum.attempt
        self._entered, self._begun = quorum.attempt, step

    def drop_pending(self) -> list[Attempt]:
        """Forget the pending quorum and its promise; returns the group to abort."""
        pending, self.pending = self.pending, None
        return [pending.attempt] if pending is not None and self.is_member(pending.quorum) else []

    def give_up(self, attempt: Attempt) -> list[Attempt]:
        """Give up every attempt up to and including ``attempt``; returns the groups to abort."""
        self.interrupted = self.seen = attempt
        quorum, self.in_force = self.in_force, None
        return [*([quorum.attempt] if quorum is not None else []), *self.drop_pending()]

    # ------------------------------------------------------------ what must hold

    def check(self) -> None:
        """Assert Q2 and Q5."""
        if self.in_force is not None:
            assert self.interrupted < self.in_force.attempt <= self.seen, (
                "Q2: trains in a quorum that is over"
            )
        if self.pending is not None:
            self._check_pending(self.pending)

    def _check_pending(self, pending: Pending) -> None:
        assert self.interrupted < pending.attempt <= self.seen, "Q2: prepares a quorum that is over"
        assert pending.built or pending.promise is None, "promised a quorum that it has not built"
        assert pending.is_switch or pending.promise is None, "promised a quorum that is no switch"
        assert not pending.confirmed or pending.promise is not None, "confirmed without a promise"
        if self.in_force is not None and self.last_begun is not None:
            assert pending.is_switch, "still in the quorum that another replaces"
            assert pending.attempt > self.in_force.attempt, "Q2: prepares an older quorum"
            if pending.promise is not None:
                assert self.last_begun < pending.promise, "Q5: has begun a promised step"
