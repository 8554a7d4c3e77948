"""What may never break, coded once: Q1-Q6, C1-C4, S1, S2 of docs/INVARIANTS.md.

Facts go in, a ``Violation`` comes out at the first that must not be. Nothing here knows the
simulation: the history of a run with real processes can be told to it as well. L1 is the world's
(it needs to know when faults have stopped).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ftrun.core import messages as m
from ftrun.core.ids import NO_ATTEMPT, Attempt, StateId, Tag, WorkerKey, replica_order

Incarnation = tuple[str, str]
Holder = tuple[str, str, int]


class Violation(Exception):  # the word that INVARIANTS.md uses
    """One of the codes does not hold."""

    seed: int | None = None

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


class Part(Protocol):
    """One member's contribution to a reduction."""

    @property
    def key(self) -> WorkerKey: ...
    @property
    def tag(self) -> Tag: ...
    @property
    def index(self) -> int: ...
    @property
    def base(self) -> int: ...
    @property
    def counts(self) -> bool: ...


class Sum(Protocol):
    """What a reduction gave."""

    @property
    def attempt(self) -> Attempt: ...
    @property
    def parts(self) -> Sequence[Part]: ...


def require(holds: bool, code: str, text: str) -> None:
    """Raise the violation of ``code`` unless ``holds``."""
    if not holds:
        raise Violation(code, text)


class Invariants:
    """The memory of one job's history, and the checks at each fact."""

    def __init__(self, slots: int, workers: int, min_replicas: int) -> None:
        self.quorums = QuorumRules(slots, min_replicas)
        self.promises = PromiseRules()
        self.lineages = LineageRules(workers)
        self.commits = CommitRules()
        self._acted: dict[WorkerKey, Attempt] = {}
        self._given_up: dict[WorkerKey, Attempt] = {}
        self._contents: dict[tuple[StateId, int], tuple[int, WorkerKey]] = {}
        self._offers: dict[tuple[Attempt, int], tuple[StateId, WorkerKey]] = {}

    # ------------------------------------------------------------ the lighthouse

    def takeover_began(self, now: float, grace_s: float, quorum: m.Quorum | None) -> None:
        """A lighthouse has started; ``quorum`` is what its journal says."""
        self.quorums.takeover_began(now, grace_s, quorum)

    def back(self, key: WorkerKey) -> None:
        """A worker's Report has reached the lighthouse."""
        self.quorums.back(key)

    def lighthouse_said(self, now: float, message: m.ToWorker) -> None:
        """It sends ``message`` to workers."""
        self.quorums.said(now, message)

    def switch_confirmed(self, quorum: m.Quorum, step: int) -> None:
        """The switch to ``quorum`` at ``step`` is in the journal."""
        self.quorums.switched(quorum)
        self.promises.confirmed(quorum.attempt, step)

    def excuse(self, incarnation: str, why: str) -> None:
        """The lighthouse may rightly take this incarnation for lost, or for gone."""
        self.quorums.excused[incarnation] = why

    def agent_lost(self, incarnations: Sequence[Incarnation]) -> None:
        """Their agent's stream is over: the lighthouse has struck them."""
        self.quorums.strike(incarnations)

    def slot_ends(self, replica_id: str) -> None:
        """The slot's script has ended, or it was asked to leave for good."""
        self.quorums.ended.add(replica_id)

    # ------------------------------------------------------------ workers

    def acts_on(self, key: WorkerKey, attempt: Attempt, what: str) -> None:
        """A worker builds or uses the group of ``attempt`` (Q2)."""
        before = self._acted.get(key, NO_ATTEMPT)
        if attempt < before:
            raise Violation("Q2", f"{key} {what} {attempt} after {before}")
        self._acted[key] = attempt

    def gave_up(self, key: WorkerKey, attempt: Attempt) -> None:
        """A worker reports what it has given up for good (Q2)."""
        before = self._given_up.get(key, NO_ATTEMPT)
        if attempt < before:
            raise Violation("Q2", f"{key} has given up {before}, and now only {attempt}")
        self._given_up[key] = attempt

    def promised(self, key: WorkerKey, attempt: Attempt, step: int) -> None:
        """A worker promises not to begin ``step`` under what it has."""
        self.promises.promised(key, attempt, step)

    def promise_void(self, key: WorkerKey, attempt: Attempt) -> None:
        """A Cancel, an Interrupt or a newer quorum has reached the worker."""
        self.promises.void(key, attempt)

    def reduces(self, key: WorkerKey, tag: Tag) -> None:
        """A worker puts a reduction on its way (Q5)."""
        self.promises.reduces(key, tag)

    def in_force(self, quorum: m.Quorum) -> None:
        """Somebody trains under ``quorum`` now."""
        self.lineages.in_force(quorum)

    def voted(self, key: WorkerKey, tag: Tag | None, flag: bool) -> None:
        """A rank votes within its group."""
        self.commits.voted(key, tag, flag)

    def decided(self, key: WorkerKey, tag: Tag, committed: bool, repeats: bool = False) -> None:
        """The step is over for this rank. ``repeats``: for now; too few contributed."""
        self.commits.decided(key, tag, committed, repeats)

    def committed(
        self,
        key: WorkerKey,
        tag: Tag,
        before: StateId,
        after: StateId,
        results: Sequence[tuple[Sum, int] | None],
        divisor: int,
        content: int,
    ) -> None:
        """A rank has committed a step; ``content`` is what it held before it."""
        self.holds(key, before, content)
        self.commits.committed(key, tag, before, after)
        self.commits.check_results(key, tag, results, divisor, content)
        self.promises.committed(key, tag)
        self.lineages.committed(key, tag, before, after)

    def holds(self, key: WorkerKey, state: StateId, content: int) -> None:
        """A rank holds ``content`` under the name ``state`` (S1)."""
        place = (state, key.group_rank)
        known, whose = self._contents.setdefault(place, (content, key))
        if known != content:
            raise Violation("S1", f"{key} and {whose} hold unlike content as {state}")
        self.lineages.holds(key, state)

    def offers(self, key: WorkerKey, tag: Tag, state: StateId, content: int) -> None:
        """A donor serves its state under ``tag`` (S2, S4)."""
        self.holds(key, state, content)
        known, whose = self._offers.setdefault((tag.attempt, tag.step), (state, key))
        text = f"{key} gives {state} and {whose} gives {known} under {tag}"
        require(known == state, "S2", text)
        require(state.step == tag.step, "S4", f"{key} gives {state} under {tag}")

    def died(self, key: WorkerKey) -> None:
        """A worker's process has ended."""
        self.excuse(key.incarnation, "it died")
        self.quorums.dead.add(key.incarnation)
        self.lineages.died(key)

    def isolated(self, key: WorkerKey) -> None:
        """A worker has had no word for the isolation limit and does not commit."""
        self.lineages.fenced(key)


class QuorumRules:
    """Q1, Q4, Q6: what the lighthouse may issue.

    ``excused``: incarnations that it may leave out, and why. ``dead``: those that have ended.
    ``ended``: slots whose part is over.
    """

    def __init__(self, slots: int, min_replicas: int) -> None:
        self.excused: dict[str, str] = {}
        self.ended: set[str] = set()
        self.dead: set[str] = set()
        self._slots = slots
        self._min_replicas = min_replicas
        self._members: dict[int, tuple[Incarnation, ...]] = {}
        self._last: tuple[Attempt, tuple[Incarnation, ...]] | None = None
        self._prior: tuple[Incarnation, ...] = ()
        self._struck: set[Incarnation] = set()
        self._issued: set[Attempt] = set()
        self._silent_until = 0.0
        self._missing: set[str] = set()
        self._forms = True

    def takeover_began(self, now: float, grace_s: float, quorum: m.Quorum | None) -> None:
        """Q6: quiet until the grace is over, or all members of ``quorum`` are back."""
        self._silent_until = now + grace_s if quorum is not None else 0.0
        self._forms = quorum is None
        self._struck.clear()  # a new life knows nothing of it: whoever is back is a survivor
        members = quorum.members if quorum is not None else ()
        self._missing = {member.incarnation for member in members}

    def back(self, key: WorkerKey) -> None:
        """A member has reported."""
        self._missing.discard(key.incarnation)

    def strike(self, incarnations: Sequence[Incarnation]) -> None:
        """They are no survivors; they may come back as newcomers."""
        self._struck.update(incarnations)

    def said(self, now: float, message: m.ToWorker) -> None:
        """Look at one message to workers."""
        if isinstance(message, m.AskReport):
            return
        early = now < self._silent_until - 1e-9 and bool(self._missing - self.dead)
        require(not early, "Q6", f"{type(message).__name__} before the takeover grace is over")
        if isinstance(message, m.Interrupt):
            self._struck.update((x.replica_id, x.incarnation) for x in message.lost)
        elif isinstance(message, m.NewQuorum):
            self._issue(message.quorum, by_switch=False)
        elif isinstance(message, m.Prepare):
            self._issue(message.quorum, by_switch=True)

    def switched(self, quorum: m.Quorum) -> None:
        """A switch is confirmed: this is the predecessor of what follows."""
        members = _members(quorum)
        if self._last is not None and self._last[0] != quorum.attempt:
            self._prior = self._last[1]  # until it is carried out, leavers are still there
        self._last = (quorum.attempt, members)
        self._struck -= set(members)

    def _issue(self, quorum: m.Quorum, by_switch: bool) -> None:
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
            if not by_switch:
                self._check_survivors(quorum, members, last)
        self._forms = False
        if not by_switch:
            self._prior = ()
            self._last = (quorum.attempt, members)
            self._struck -= set(members)

    def _check_left_out(
        self, quorum: m.Quorum, members: Sequence[Incarnation], last: Sequence[Incarnation]
    ) -> None:
        for replica_id, incarnation in last:
            if (replica_id, incarnation) not in members:
                text = f"{quorum.attempt} leaves out {replica_id} ({incarnation[:4]}) for nothing"
                require(incarnation in self.excused, "Q4", text)

    def _check_survivors(
        self, quorum: m.Quorum, members: Sequence[Incarnation], last: Sequence[Incarnation]
    ) -> None:
        """A shrink holds survivors only; without any, it is formed anew, min_replicas at least."""
        enough = len(members) >= min(self._min_replicas, self._slots - len(self.ended))
        require(enough, "Q4", f"{quorum.attempt} has {len(members)} members")
        if self._forms:
            return  # a lighthouse that has lost its journal knows of no predecessor
        survivors = [x for x in members if x in (*last, *self._prior) and x not in self._struck]
        of_all = all(set(survivors) & set(old) for old in (last, self._prior) if old)
        if of_all and len(survivors) >= self._min_replicas:
            others = [x for x in members if x not in survivors]
            if any(x[0] in quorum.donors and x in (*last, *self._prior) for x in others):
                return  # struck, and back: without them nobody would hold the job's state
            require(not others, "Q4", f"{quorum.attempt} takes {others} for survivors")


class PromiseRules:
    """Q5: a promise to switch at a step is kept by everybody."""

    def __init__(self) -> None:
        self._promises: dict[WorkerKey, tuple[Attempt, int]] = {}
        self._confirmed: dict[Attempt, int] = {}

    def promised(self, key: WorkerKey, attempt: Attempt, step: int) -> None:
        """Until void."""
        self._promises[key] = (attempt, step)

    def void(self, key: WorkerKey, attempt: Attempt) -> None:
        """What was promised up to ``attempt`` binds no more."""
        promise = self._promises.get(key)
        if promise is not None and promise[0] <= attempt:
            del self._promises[key]

    def confirmed(self, attempt: Attempt, step: int) -> None:
        """For everybody and for ever."""
        known = self._confirmed.setdefault(attempt, step)
        require(known == step, "Q5", f"{attempt} is confirmed at {known} and at {step}")

    def reduces(self, key: WorkerKey, tag: Tag) -> None:
        """Nobody reduces at S under the old quorum, nobody below S under the new."""
        attempt, step = self._promises.get(key, (NO_ATTEMPT, 0))
        if tag.attempt < attempt and tag.step >= step:
            raise Violation("Q5", f"{key} reduces {tag} and promised {attempt}@{step}")
        if tag.attempt == attempt and tag.step < step:
            raise Violation("Q5", f"{key} reduces {tag} before the switch at {step}")

    def committed(self, key: WorkerKey, tag: Tag) -> None:
        """Seen from outside: a confirmed switch parts the steps."""
        if tag.step < self._confirmed.get(tag.attempt, 0):
            raise Violation("Q5", f"{key} commits {tag} before the switch")
        for attempt, step in self._confirmed.items():
            if tag.attempt < attempt and tag.step >= step:
                raise Violation("Q5", f"{key} commits {tag} after the switch {attempt}@{step}")


class LineageRules:
    """Q3: one history. Two disjoint quorums never both commit."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._parent: dict[StateId, StateId] = {}
        self._born: dict[StateId, Attempt] = {}
        self._holders: dict[StateId, set[Holder]] = {}
        self._at: dict[WorkerKey, StateId] = {}
        self._fenced: set[WorkerKey] = set()
        self._quorums: dict[Attempt, frozenset[Holder]] = {}
        self._confirmed: dict[int, StateId] = {}
        self._committed: dict[Attempt, frozenset[Holder]] = {}

    def in_force(self, quorum: m.Quorum) -> None:
        """Its members can confirm a state."""
        if quorum.attempt not in self._quorums:
            self._quorums[quorum.attempt] = _holders(quorum, self._workers)

    def died(self, key: WorkerKey) -> None:
        """It holds nothing any more."""
        self._at.pop(key, None)

    def fenced(self, key: WorkerKey) -> None:
        """It cannot commit until a lighthouse has spoken to it."""
        self._fenced.add(key)

    def committed(self, key: WorkerKey, tag: Tag, before: StateId, after: StateId) -> None:
        """The chain grows; and no later quorum without a common member has gone on already."""
        self._fenced.discard(key)
        self._parent[after] = before
        self._born[after] = tag.attempt
        own = self._quorums.get(tag.attempt)
        require(own is not None, "Q3", f"{key} commits under {tag}, which nobody uses")
        assert own is not None
        for attempt, members in self._committed.items():
            if attempt > tag.attempt and not own & members:
                text = f"{key} commits {tag} though {attempt}, disjoint from it, has gone on"
                raise Violation("Q3", text)
        self._committed[tag.attempt] = own

    def holds(self, key: WorkerKey, state: StateId) -> None:
        """``key`` is at ``state``: it may be the last one that was missing for its confirmation."""
        if self._at.get(key) == state:
            return
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
        """Only if nobody is left who holds it, or could act upon it (C6)."""
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
    """C1-C4: what a commit is."""

    def __init__(self) -> None:
        self._outcomes: dict[tuple[str, Tag], tuple[bool, WorkerKey]] = {}
        self._against: dict[tuple[str, Tag], WorkerKey] = {}
        self._done: set[tuple[WorkerKey, StateId]] = set()

    def voted(self, key: WorkerKey, tag: Tag | None, flag: bool) -> None:
        """Remember who was against."""
        if tag is not None and not flag:
            self._against[key.incarnation, tag] = key

    def decided(self, key: WorkerKey, tag: Tag, committed: bool, repeats: bool) -> None:
        """C1: one decision within a group, and true only if all were for it."""
        place = (key.incarnation, tag)
        if repeats:
            self._against.pop(place, None)
            return
        if committed:
            against = self._against.get(place)
            if against is not None:
                raise Violation("C1", f"{key} commits {tag}, and {against} voted against")
        known, whose = self._outcomes.setdefault(place, (committed, key))
        if known != committed:
            raise Violation("C1", f"{key} decides {committed} on {tag}, and {whose} {known}")

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
        """C3, C4: of this tag only, and divided by those who have contributed."""
        for index, result in enumerate(results):
            if result is None:
                raise Violation("C3", f"{key} commits {tag} without the result of operation {index}")
            total, used = result
            if total.attempt != tag.attempt:
                raise Violation("C3", f"{key}: {total.attempt} counts in {tag}")
            counting = 0
            for part in total.parts:
                if part.tag != tag or part.index != index:
                    text = f"{key}: {part.key}'s {part.tag} #{part.index} counts in {tag} #{index}"
                    raise Violation("C3", text)
                counting += part.counts
                if part.counts and part.base != content:
                    text = f"{part.key} contributes to {tag} from another state than {key}'s"
                    raise Violation("C4", text)
            if not counting == used == divisor:
                text = f"{key}: {counting} contribute to {tag} and the divisor is {used}"
                raise Violation("C4", text)


def _members(quorum: m.Quorum) -> tuple[Incarnation, ...]:
    return tuple((member.replica_id, member.incarnation) for member in quorum.members)


def _holders(quorum: m.Quorum, workers: int) -> frozenset[Holder]:
    return frozenset(
        (member.replica_id, member.incarnation, rank)
        for member in quorum.members
        for rank in range(workers)
    )
