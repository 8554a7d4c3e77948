"""Q1, Q4, Q5, Q6: the rules of quorums and of promises. Used by invariants.py."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ftrun.core import messages as m
from ftrun.core.ids import NO_ATTEMPT, Attempt, Tag, WorkerKey, replica_order
from ftrun.core.quorum import Quorum
from tests.sim.violation import Violation, require

Incarnation = tuple[str, str]


class QuorumRules:
    """Q1, Q4, Q6: the quorums that the lighthouse may issue.

    ``excused``: incarnations that it may leave out, and why. ``dead``: incarnations that have
    ended. ``cut_off``: incarnations whose node neither the lighthouse nor peers can reach.
    ``ended``: slots that have ended. ``closed``: slots without which the job continues, as in the
    journal. ``left``: workers that have left in order. ``leases``: until when an incarnation may
    commit without another message from a lighthouse. ``given_up``: the highest attempt that a
    worker of the incarnation has given up for good, whatever its lease: no worker of the group
    commits under it any more.
    """

    def __init__(self, slots: int, min_replicas: int, workers: int = 1) -> None:
        self._workers = workers
        self.excused: dict[str, str] = {}
        self.ended: set[str] = set()
        self.healed: set[WorkerKey] = set()  # those whose state is not what they came with
        self._newcomers: frozenset[str] = frozenset()  # in the last quorum, by slot
        self._unheard: set[str] = set()  # of these: while no lighthouse led
        self.closed: frozenset[str] = frozenset()
        self.left: set[WorkerKey] = set()
        self.dead: set[str] = set()
        self.cut_off: set[str] = set()
        self.leases: dict[str, float] = {}
        self.given_up: dict[str, Attempt] = {}
        self._slots = slots
        self._min_replicas = min_replicas
        self.too_few: set[WorkerKey] = set()  # by their last Report
        self._members: dict[int, tuple[Incarnation, ...]] = {}
        self._last: tuple[Attempt, tuple[Incarnation, ...]] | None = None
        self._last_step = 0
        self._prior: tuple[Incarnation, ...] = ()
        self._ever: set[Incarnation] = set()
        self._struck: set[Incarnation] = set()
        self._issued: set[Attempt] = set()
        self._silent_until = 0.0
        self._awaited: set[str] = set()
        self._missing: set[str] = set()
        self._forms = True
        self._has_taken_over = False

    def takeover_began(self, now: float, grace_s: float, quorum: Quorum | None) -> None:
        """Q6: no quorum until the grace is over, or all members of ``quorum`` are back."""
        self._silent_until = now + grace_s if quorum is not None else 0.0
        self._forms = quorum is None
        self._has_taken_over, self._unheard = True, set(self.ended)
        self._struck.clear()  # a new lighthouse does not know: all that are back are survivors
        members = quorum.members if quorum is not None else ()
        written = {(x.replica_id, x.incarnation) for x in members}
        if self._last is not None and written:  # workers may not know what is written
            self._struck |= set(self._last[1]) - written
        self._ever |= written
        self._awaited = {member.incarnation for member in members}
        self._missing = set(self._awaited)

    def back(self, now: float, key: WorkerKey) -> None:
        """A member has reported; one that was not back within the grace stays removed."""
        if now < self._silent_until:
            self._missing.discard(key.incarnation)

    def strike(self, now: float, incarnations: Sequence[Incarnation]) -> None:
        """Remove these: they may come back as newcomers, or as members during a takeover."""
        if self._listens(now):
            self._missing |= {incarnation for _, incarnation in incarnations} & self._awaited
        else:
            self._struck.update(incarnations)

    def sent(self, now: float, message: m.ToWorker, removed: Collection[Incarnation] = ()) -> None:
        """Check one message to workers. ``removed``: old members that are not known to be dead."""
        if isinstance(message, m.AskReport):
            return
        text = f"{type(message).__name__} before the takeover grace is over"
        require(not self._listens(now), "Q6", text)
        if isinstance(message, m.Interrupt):
            self._struck.update(removed)
        elif isinstance(message, m.NewQuorum):
            self._issue(now, message.quorum, by_switch=False)
        elif isinstance(message, m.Prepare):
            self._issue(now, message.quorum, by_switch=True)

    def knows(self, quorum: Quorum) -> bool:
        """Whether one of its members was in a quorum before."""
        return not self._ever.isdisjoint(_members(quorum))

    def _listens(self, now: float) -> bool:
        """Whether a takeover is in progress: its grace is not over, and members are missing."""
        return now < self._silent_until - 1e-9 and bool(self._missing - self.dead - self.cut_off)

    def switched(self, quorum: Quorum) -> None:
        """A switch is confirmed: this is the predecessor of what follows."""
        members = _members(quorum)
        if self._last is not None and self._last[0] == quorum.attempt:
            return  # written again: a takeover writes the quorum that it finds
        if self._last is not None:
            self._prior = self._last[1]  # leavers are there until the switch
        self._last = (quorum.attempt, members)
        self._last_step = quorum.step or 0
        self._begins_with(quorum)
        self._struck -= set(members)
        self._missing -= {incarnation for _, incarnation in members}
        self._ever |= set(members)

    def _issue(self, now: float, quorum: Quorum, by_switch: bool) -> None:
        members = _members(quorum)
        known = self._members.setdefault(quorum.attempt.quorum_id, members)
        require(known == members, "Q1", f"{quorum.attempt} names {members}, and named {known}")
        if quorum.attempt in self._issued:
            return
        self._issued.add(quorum.attempt)
        ids = [replica_id for replica_id, _ in members]
        require(len(set(ids)) == len(ids), "Q4", f"{quorum.attempt}: a slot twice in {ids}")
        require(ids == sorted(ids, key=replica_order), "Q1", f"{quorum.attempt}: order of {ids}")
        if self._last is not None:
            attempt, last = self._last
            require(quorum.attempt > attempt, "Q2", f"{quorum.attempt} issued after {attempt}")
            self._check_left_out(quorum, members, last)
            self._check_fence(now, quorum, members, attempt, last or self._prior)
            if not by_switch:
                self._check_survivors(quorum, members, last)
        self._forms = self._has_taken_over = False
        if not by_switch:
            self._prior = ()
            self._last = (quorum.attempt, members)
            self._last_step = quorum.step or 0
            self._begins_with(quorum)
            self._struck -= set(members)
            self._missing -= {incarnation for _, incarnation in members}
            self._ever |= set(members)

    def _check_fence(
        self,
        now: float,
        quorum: Quorum,
        members: Sequence[Incarnation],
        attempt: Attempt,
        last: Sequence[Incarnation],
    ) -> None:
        """Check a quorum without a member of its predecessor: none of those can commit any more."""
        if self._forms or not members or set(members) & set(last):
            return  # a quorum without members commits nothing
        for replica_id, incarnation in last:
            has_left = self.given_up.get(incarnation, NO_ATTEMPT) >= attempt
            may_commit = not has_left and incarnation not in self.dead
            may_commit = may_commit and replica_id not in self.ended
            may_commit = may_commit and not self._has_left(replica_id, incarnation)
            lives = may_commit and now < self.leases.get(incarnation, 0.0) - 1e-9
            text = f"{quorum.attempt} is disjoint from its predecessor, of which {replica_id} lives"
            require(not lives, "Q4", text)

    def starts(self, replica_id: str, *, is_early: bool) -> None:
        """A slot is started: its recorded end was lost, or an early leaver has failed since.

        A lighthouse that was away may not know of the end, if the agent had nothing more to do.
        """
        if is_early or self._has_taken_over:
            self.ended.discard(replica_id)

    def _has_left(self, replica_id: str, incarnation: str) -> bool:
        """Whether all workers of the incarnation have left."""
        ranks = range(self._workers)
        return all(WorkerKey(replica_id, incarnation, rank) in self.left for rank in ranks)

    def _check_left_out(
        self, quorum: Quorum, members: Sequence[Incarnation], last: Sequence[Incarnation]
    ) -> None:
        for replica_id, incarnation in last:
            if (replica_id, incarnation) not in members:
                text = f"{quorum.attempt} leaves out {replica_id} ({incarnation[:4]}) for nothing"
                require(incarnation in self.excused, "Q4", text)

    def _check_survivors(
        self, quorum: Quorum, members: Sequence[Incarnation], last: Sequence[Incarnation]
    ) -> None:
        """Check that a shrink has survivors only. Without survivors it is a new start, with
        min_replicas or more."""
        open_count = self._slots - len(self.ended | self.closed)
        needed = min(self._min_replicas, open_count)
        require(len(members) >= needed, "Q4", f"{quorum.attempt} has {len(members)} members")
        if self._forms:
            return  # a lighthouse that has lost its journal has no predecessor
        struck = {x for x in members if x in self._struck or x[1] in self._missing}
        # A new lighthouse need not know the members that left by the last switch.
        known = last if self._has_taken_over else (*last, *self._prior)
        survivors = [x for x in members if x in known and x not in struck]
        of_all = all(set(survivors) & set(old) for old in (last, self._prior) if old)
        open_as_heard = self._slots - len((self.ended - self._unheard) | self.closed)
        enough = min(self._min_replicas, open_as_heard)
        too_few = any((k.replica_id, k.incarnation) in survivors for k in self.too_few)
        if of_all and len(survivors) >= enough and not too_few:
            others = [x for x in members if x not in survivors]
            if all(self._is_to_heal(x) for x in survivors):
                return  # no worker trains any more: all begin as at the start
            if (quorum.step or 0) < self._last_step:
                return  # no survivor has its first state: unaccounted members are needed (C6)
            fresh = [
                x for x in others if x not in self._ever
            ]  # others were unaccounted, and are back (C6)
            require(not fresh, "Q4", f"{quorum.attempt} takes {fresh} for survivors")

    def _begins_with(self, quorum: Quorum) -> None:
        self._newcomers = frozenset(quorum.newcomers)
        self.healed = {key for key in self.healed if key.replica_id not in self._newcomers}

    def _is_to_heal(self, member: Incarnation) -> bool:
        """Whether it had to heal in the last quorum, and one of its workers has not."""
        keys = {WorkerKey(*member, rank) for rank in range(self._workers)}
        return member[0] in self._newcomers and not keys <= self.healed


class PromiseRules:
    """Q5: every worker keeps its promise to switch at a step."""

    def __init__(self) -> None:
        self._promises: dict[WorkerKey, tuple[Attempt, int]] = {}
        self._confirmed: dict[Attempt, int] = {}
        self._heard: dict[Attempt, set[WorkerKey]] = {}
        self._unwritten: set[Attempt] = set()  # confirmed in a journal that is lost

    def promised(self, key: WorkerKey, attempt: Attempt, step: int) -> None:
        """Note the promise; it binds until ``void``."""
        self._promises[key] = (attempt, step)

    def void(self, key: WorkerKey, attempt: Attempt) -> None:
        """Promises up to ``attempt`` do not bind any more."""
        promise = self._promises.get(key)
        if promise is not None and promise[0] <= attempt:
            del self._promises[key]

    def confirmed(self, attempt: Attempt, step: int) -> None:
        """The switch is confirmed, for every worker and for good."""
        known = self._confirmed.setdefault(attempt, step)
        require(known == step, "Q5", f"{attempt} is confirmed at {known} and at {step}")

    def heard(self, key: WorkerKey, attempt: Attempt) -> None:
        """A worker knows that the switch is confirmed."""
        self._heard.setdefault(attempt, set()).add(key)

    def journal_lost(self) -> None:
        """Confirmations until now are known only to workers that have received them."""
        self._unwritten |= set(self._confirmed)

    def forgets(self, key: WorkerKey, attempt: Attempt | None = None) -> None:
        """The worker has given up all up to ``attempt``; None: all, because it is dead or isolated.

        A confirmation that no other worker has received then does not count.
        """
        for known, witnesses in self._heard.items():
            if attempt is None or known <= attempt:
                witnesses.discard(key)

    def _is_certain(self, attempt: Attempt) -> bool:
        return attempt not in self._unwritten or bool(self._heard.get(attempt))

    def reduces(self, key: WorkerKey, tag: Tag) -> None:
        """No worker reduces at S under the old quorum, or below S under the new."""
        attempt, step = self._promises.get(key, (NO_ATTEMPT, 0))
        if tag.attempt < attempt and tag.step >= step:
            raise Violation("Q5", f"{key} reduces {tag} and promised {attempt}@{step}")
        if tag.attempt == attempt and tag.step < step:
            raise Violation("Q5", f"{key} reduces {tag} before the switch at {step}")

    def committed(self, key: WorkerKey, tag: Tag) -> None:
        """A confirmed switch divides the steps between the two quorums."""
        if tag.step < self._confirmed.get(tag.attempt, 0):
            raise Violation("Q5", f"{key} commits {tag} before the switch")
        for attempt, step in self._confirmed.items():
            if tag.attempt < attempt and tag.step >= step and self._is_certain(attempt):
                raise Violation("Q5", f"{key} commits {tag} after the switch {attempt}@{step}")


def _members(quorum: Quorum) -> tuple[Incarnation, ...]:
    return tuple((member.replica_id, member.incarnation) for member in quorum.members)
