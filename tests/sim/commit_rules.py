"""Q3, C1-C4: one history, and the rules of a commit. Used by invariants.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ftrun.core.ids import Attempt, StateId, Tag, WorkerKey
from ftrun.core.quorum import Quorum
from tests.sim.violation import Sum, Violation, require

Holder = tuple[str, str, int]
_Ballot = tuple[str, Tag, int]  # of an incarnation, under a tag, at its n-th try


class LineageRules:
    """Q3: one history. Two disjoint quorums never both commit."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._parent: dict[StateId, StateId] = {}
        self._born: dict[StateId, Attempt] = {}
        self._holders: dict[StateId, set[Holder]] = {}
        self._at: dict[WorkerKey, StateId] = {}
        self._heals: set[WorkerKey] = set()
        self._fenced: set[WorkerKey] = set()
        self._quorums: dict[Attempt, frozenset[Holder]] = {}
        self._confirmed: dict[int, StateId] = {}
        self._committed: dict[Attempt, frozenset[Holder]] = {}

    def in_force(self, quorum: Quorum) -> None:
        """Note that its members can confirm a state."""
        if quorum.attempt not in self._quorums:
            self._quorums[quorum.attempt] = _holders(quorum, self._workers)

    def died(self, key: WorkerKey) -> None:
        """Note that it does not hold a state any more."""
        self._at.pop(key, None)

    def heals(self, key: WorkerKey) -> None:
        """Note that the next state of this rank need not follow from its last."""
        self._heals.add(key)

    def fenced(self, key: WorkerKey) -> None:
        """Note that it cannot commit until it gets a message from a lighthouse."""
        self._fenced.add(key)

    def committed(self, key: WorkerKey, tag: Tag, before: StateId, after: StateId) -> None:
        """The chain grows, and no later quorum without a common member has continued before.

        The exception is a rank whose mate has committed the same step: it may learn that late.
        """
        self._fenced.discard(key)
        self._parent[after] = before
        self._born[after] = tag.attempt
        own = self._quorums.get(tag.attempt)
        require(own is not None, "Q3", f"{key} commits under {tag}, which nobody uses")
        assert own is not None
        place = (key.replica_id, key.incarnation)
        is_bound = any(holder[:2] == place for holder in self._holders.get(after, ()))  # by C1
        for attempt, members in self._committed.items():
            if attempt > tag.attempt and not own & members and not is_bound:
                text = f"{key} commits {tag} though {attempt}, disjoint from it, has gone on"
                raise Violation("Q3", text)
        self._committed[tag.attempt] = own

    def holds(self, key: WorkerKey, state: StateId) -> None:
        """``key`` is at ``state``; it may be the last rank that was missing for the state's
        confirmation."""
        before = self._at.get(key)
        if before == state:
            return
        if before is not None and self._parent.get(state) != before:
            require(key in self._heals, "C2", f"{key} holds {before}, and then {state}: no heal")
        self._heals.discard(key)
        self._at[key] = state
        holders = self._holders.setdefault(state, set())
        holders.add((key.replica_id, key.incarnation, key.group_rank))
        if state.step == 0 or self._confirmed.get(state.step) == state:
            return
        born = self._born[state]
        for attempt, members in self._quorums.items():
            if attempt >= born and members <= holders:
                self._confirm(state)
                return

    def _confirm(self, state: StateId) -> None:
        at: StateId | None = state
        while at is not None and at.step > 0 and self._confirmed.get(at.step) != at:
            known = self._confirmed.get(at.step)
            if known is not None:
                self._roll_back(known, at)
            self._confirmed[at.step] = at
            at = self._parent.get(at)

    def _roll_back(self, known: StateId, at: StateId) -> None:
        """Roll back, which is allowed only if no process holds the state or could act on it
        (C6)."""
        for key, held in self._at.items():
            if key not in self._fenced and self._descends(held, known):
                raise Violation("Q3", f"{at} is confirmed, and {known} was, which {key} holds")
        for step in [s for s in self._confirmed if s >= known.step]:
            del self._confirmed[step]

    def _descends(self, state: StateId, ancestor: StateId) -> bool:
        at: StateId | None = state
        while at is not None and at.step > ancestor.step:
            at = self._parent.get(at)
        return at == ancestor


class CommitRules:
    """C1-C4: the rules of a commit."""

    def __init__(self, workers: int, contributors_max: int | None) -> None:
        self._workers = workers
        self._contributors_max = contributors_max
        self._tries: Counter[tuple[WorkerKey, Tag]] = Counter()
        self._for: dict[_Ballot, set[int]] = {}
        self._outcomes: dict[_Ballot, tuple[bool, WorkerKey]] = {}
        self._against: dict[_Ballot, WorkerKey] = {}
        self._done: set[tuple[WorkerKey, StateId]] = set()
        self._stand: dict[Attempt, Attempt] = {}

    def in_force(self, quorum: Quorum) -> None:
        """Note the attempt whose results it keeps: its own results count beside these."""
        if quorum.stands_as is not None:
            self._stand[quorum.attempt] = quorum.stands_as

    def voted(self, key: WorkerKey, tag: Tag | None, flag: bool) -> None:
        """Remember the votes against it, and those for it."""
        if tag is None:
            return
        if flag:
            self._for.setdefault(self._ballot(key, tag), set()).add(key.group_rank)
        else:
            self._against[self._ballot(key, tag)] = key

    def decided(self, key: WorkerKey, tag: Tag, committed: bool, repeats: bool) -> None:
        """C1: one decision within a group, and true only if all voted for it.

        ``repeats``: all ranks try again under the same tag, each at its own time.
        """
        place = self._ballot(key, tag)
        if repeats:
            self._tries[key, tag] += 1
            return
        if committed:
            against = self._against.get(place)
            if against is not None:
                raise Violation("C1", f"{key} commits {tag}, and {against} voted against")
            votes = self._workers if self._workers == 1 else len(self._for.get(place, ()))
            require(votes == self._workers, "C1", f"{key} commits {tag}, and {votes} were for it")
        known, whose = self._outcomes.setdefault(place, (committed, key))
        if known != committed:
            raise Violation("C1", f"{key} decides {committed} on {tag}, and {whose} {known}")

    def _ballot(self, key: WorkerKey, tag: Tag) -> _Ballot:
        return key.incarnation, tag, self._tries[key, tag]

    def committed(self, key: WorkerKey, tag: Tag, before: StateId, after: StateId) -> None:
        """C2: one step further, once."""
        if after.step != before.step + 1 or tag.step != before.step or (key, after) in self._done:
            raise Violation("C2", f"{key} commits {tag}: {before} → {after}")
        self._done.add((key, after))

    def check_results(
        self,
        key: WorkerKey,
        tag: Tag,
        results: Sequence[tuple[Sum, int] | None],
        divisor: int,
        content: int,
    ) -> None:
        """C3, C4: contributions of this tag only, divided by the number of contributors.

        Contributions may also come from a quorum of the same members that keeps results of this
        tag, while other results are repaired or issued.
        """
        attempt = tag.attempt
        for index, result in enumerate(results):
            if result is None:
                raise Violation(
                    "C3", f"{key} commits {tag} without the result of operation {index}"
                )
            total, used = result
            if attempt not in (total.attempt, self._stand.get(total.attempt)):
                raise Violation("C3", f"{key}: {total.attempt} counts in {tag}")
            tag = Tag(total.attempt, tag.step)
            counting = 0
            for part in total.parts:
                if part.tag != tag or part.index != index:
                    text = f"{key}: {part.key}'s {part.tag} #{part.index} counts in {tag} #{index}"
                    raise Violation("C3", text)
                counting += part.counts
                if part.counts and part.base != content:
                    text = f"{part.key} contributes to {tag} from another state than {key}'s"
                    raise Violation("C4", text)
            if self._contributors_max is not None and counting > self._contributors_max:
                raise Violation("C4", f"{key}: {counting} contribute to {tag}: spares do not count")
            if not counting == used == divisor:
                text = f"{key}: {counting} contribute to {tag} and the divisor is {used}"
                raise Violation("C4", text)


def _holders(quorum: Quorum, workers: int) -> frozenset[Holder]:
    return frozenset(
        (member.replica_id, member.incarnation, rank)
        for member in quorum.members
        for rank in range(workers)
    )
