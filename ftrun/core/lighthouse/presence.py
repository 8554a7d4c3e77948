"""Sends workers that set their scripts up the addresses of their peers: ``Present`` → ``Roster``.

A script may exchange values with its peers before its first step, and needs their addresses. While
no replica trains, the answer waits until all replicas that are to take part are present, or after
``join_timeout_s`` until enough are. From then on these *take part*, and a later replica waits until
they train: then it reads what they have exchanged (E1). It is answered at once if those that take
part have reached their first step and are too few to begin without it.

Once there is a quorum, its members are the answer, and it is sent at once, also while its survivors
wait for more. A worker that cannot reach a peer asks again, because that peer may have been
restarted. A restarted lighthouse is asked again too, and the question names those that take part.

Not here: what workers exchange (core/worker/exchange.py); membership, which this does not change.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

from ftrun.core import messages as m
from ftrun.core.failure_kinds import TOGETHER
from ftrun.core.ids import replica_order
from ftrun.core.lighthouse.phases import IN_QUORUM, Phase
from ftrun.core.lighthouse.replicas import Replica
from ftrun.core.lighthouse.slots import EARLY
from ftrun.core.lighthouse.state import MembershipState
from ftrun.core.quorum import Endpoint

ALIKE_WITHIN_S = 1.0
"""An error of the script reaches all replicas within this time after the first one's end."""


class Presence:
    """The workers that wait for a Roster.

    ``_asking``: incarnations by replica_id, with a worker that has asked since the last answer.
    ``_part``: the slots that take part in the set-up; none before its first answer. ``_worlds``:
    incarnations whose process groups span all replicas; ``_set_up``: those that were sent as peers
    of each other, by replica_id, until they train; ``_gone_at``: when one of them was missed;
    ``_ending``: incarnations that were asked to restart, and may still ask until they end;
    ``_on_way``: those that know which replicas train, and have not healed from them. ``is_idle``:
    all of these are empty, so there is nothing to do.
    """

    def __init__(self, state: MembershipState) -> None:
        self.is_idle = True
        self._state = state
        self._asking: dict[str, str] = {}
        self._asked_at: float | None = None
        self._part: Set[str] = frozenset()
        self._worlds: set[tuple[str, str]] = set()
        self._set_up: dict[str, str] = {}
        self._gone_at: float | None = None
        self._ending: set[tuple[str, str]] = set()
        self._on_way: set[tuple[str, str]] = set()

    def on_present(self, replica: Replica, rank: int, present: m.Present) -> None:
        """A worker is present, and asks for its peers."""
        self.is_idle = False
        if (replica.replica_id, replica.incarnation) in self._ending:
            return
        replica.present[rank] = present.endpoint
        if present.together:
            find = self._state.replicas.find
            self._worlds = {pair for pair in self._worlds if find(*pair) is not None}
            self._worlds.add((replica.replica_id, replica.incarnation))
        if not self._part and self._state.phase not in IN_QUORUM:
            slots = {slot.replica_id for slot in self._state.slots.values()}
            self._part = slots.intersection(present.part)
        self._asking[replica.replica_id] = replica.incarnation
        if self._asked_at is None:
            self._asked_at = self._state.now

    def waits_for(self) -> tuple[str, ...]:
        """The replicas that an answer still waits for; none if no replica asks."""
        if not self._asking or self._state.phase is not Phase.EMPTY:
            return ()
        here = {replica.replica_id for replica in self._here()}
        part = self._open_part()
        slots = (
            slot.replica_id
            for slot in self._state.slots.values()
            if slot.is_open and (not part or slot.replica_id in part)
        )
        return tuple(name for name in slots if name not in here)

    def latecomers(self) -> tuple[str, ...]:
        """The replicas that ask, and are answered only when those that take part train."""
        if not (self._asking and self._part):
            return ()
        part = self._open_part()
        late = [name for name in self._asking if name not in part] if part else []
        return tuple(sorted(late, key=replica_order))

    def run_rules(self) -> None:
        self._begin_again()
        self._answer()
        self._state.latecomers = frozenset(self.latecomers())
        known = self._asking or self._part or self._set_up or self._ending or self._on_way
        self.is_idle = not known and self._gone_at is None

    def _begin_again(self) -> None:
        """A replica has ended before the first step: restart those that shared process groups with
        it.

        They wait for it in a collective, and its replacement cannot get the results that it had
        there. An error that all of them raise is seen first.
        """
        state = self._state
        if state.phase in IN_QUORUM:
            self._set_up = {}
            self._ending.clear()
            self._on_way = {pair for pair in self._on_way if self._is_on_way(*pair)}
        find = state.replicas.find
        self._turn_back()
        gone = [
            name
            for name, incarnation in self._set_up.items()
            if find(name, incarnation) is None and state.slots[name].is_open
        ]
        if not gone:
            self._gone_at = None
            return
        if self._gone_at is None:
            self._gone_at = state.now
        if state.now < self._gone_at + ALIKE_WITHIN_S:
            return
        reason = f"{TOGETHER} replica {gone[0]}, which ended before the first step"
        for name, incarnation in self._set_up.items():
            self._restart(name, incarnation, reason)
        self._set_up, self._gone_at = {}, None

    def _turn_back(self) -> None:
        """All that trained are lost: restart replicas on the way to them, whose set-up has no peers
        left.
        """
        if self._state.phase is Phase.EMPTY and self._on_way:
            reason = f"{TOGETHER} those that trained, of which none is left"
            for name, incarnation in sorted(self._on_way):
                self._restart(name, incarnation, reason)
            self._on_way.clear()

    def _is_on_way(self, name: str, incarnation: str) -> bool:
        """Whether a replica has none of the job's state so far: a member that is to heal loses all
        that it joined for if those that train are lost first."""
        replica = self._state.replicas.find(name, incarnation)
        return replica is not None and (name not in self._state.live or replica.heals)

    def _restart(self, name: str, incarnation: str, reason: str) -> None:
        replica = self._state.replicas.find(name, incarnation)
        if replica is not None and replica.leaving is None:  # otherwise its script has ended
            replica.present.clear()
            self._asking.pop(name, None)
            self._ending.add((name, incarnation))
            self._state.outbox.restart(replica, reason)

    def _answer(self) -> None:
        state = self._state
        if state.phase in IN_QUORUM:
            self._part = frozenset()
        find = state.replicas.find
        self._asking = {name: x for name, x in self._asking.items() if find(name, x)}
        if not self._asking:
            self._asked_at = None
            return
        self._dismiss()
        if self._asked_at is None and not self._open_part():
            self._asked_at = state.now
        roster = self._roster() if self._gone_at is None else None
        if roster is None:
            return
        if roster.has_begun:
            told = frozenset(self._asking)
            self._on_way |= self._worlds.intersection(self._asking.items())
        else:
            self._part = frozenset(entry.replica_id for entry in roster.entries)
            told = self._part.intersection(self._asking)
            self._set_up = {
                entry.replica_id: entry.incarnation
                for entry in roster.entries
                if (entry.replica_id, entry.incarnation) in self._worlds
            }
        if told:
            self._asked_at = None
            self._asking = {name: x for name, x in self._asking.items() if name not in told}
            state.send(sorted(told, key=replica_order), roster)

    def _dismiss(self) -> None:
        """Answer the workers of a replica that has left early, as one of them has reported."""
        early = {x.replica_id for x in self._state.slots.absent() if x.how == EARLY}
        asking = sorted(early & self._asking.keys(), key=replica_order)
        if asking:
            self._state.send(asking, self._of(True, []))
            self._asking = {name: x for name, x in self._asking.items() if name not in early}

    def next_deadline(self) -> float | None:
        """When time alone makes an answer due."""
        if self._state.phase is not Phase.EMPTY:
            return None
        dues = []
        if self._asked_at is not None:
            dues.append(self._asked_at + self._state.spec.join_timeout_s)
        if self._gone_at is not None:
            dues.append(self._gone_at + ALIKE_WITHIN_S)
        return min((due for due in dues if due > self._state.now), default=None)

    def _roster(self) -> m.Roster | None:
        """The answer; None: not known yet."""
        state = self._state
        is_rejoining = state.phase is Phase.REJOIN  # survivors may need this one to continue
        if (state.phase in IN_QUORUM or is_rejoining) and state.live:
            members = (state.replicas.get(name) for name in state.live)
            return self._of(True, [r for r in members if r is not None])
        if state.phase is not Phase.EMPTY:
            return None
        is_late = (
            self._asked_at is not None and state.now >= self._asked_at + state.spec.join_timeout_s
        )
        here, part = list(self._here()), self._open_part()
        known = [replica for replica in here if replica.replica_id in part]
        if self._need_more(known):
            return self._of(True, known)
        if part and (len(known) == len(part) or (is_late and len(known) >= state.needed)):
            return self._of(False, known)  # a later replica reads what these have exchanged
        if part and not is_late:
            return None
        enough = state.needed if is_late else state.slots.open_count
        return self._of(False, here) if len(here) >= enough else None

    def _open_part(self) -> Set[str]:
        """The slots that take part in the set-up and whose part in the job is not over."""
        if not self._part:
            return self._part
        return frozenset(
            slot.replica_id
            for slot in self._state.slots.values()
            if slot.is_open and slot.replica_id in self._part
        )

    def _here(self) -> Iterator[Replica]:
        """The replicas of which all workers are present, or have reported."""
        for replica in self._state.replicas.values():
            is_ending = (replica.replica_id, replica.incarnation) in self._ending
            is_here = replica.leaving is None and not is_ending
            if is_here and self._endpoints(replica) is not None:
                yield replica

    def _endpoints(self, replica: Replica) -> tuple[Endpoint, ...] | None:
        """By group_rank; None: not all are known."""
        found = []
        for rank in range(self._state.workers):
            report = replica.reports.get(rank)
            endpoint = report.endpoint if report is not None else replica.present.get(rank)
            if endpoint is None:
                return None
            found.append(endpoint)
        return tuple(found)

    def _need_more(self, known: list[Replica]) -> bool:
        """Whether those that take part have ended their set-up, and are too few to train."""
        has_reported = [replica.is_known(self._state.workers) for replica in known]
        return 0 < len(known) < self._state.needed and all(has_reported)

    def _of(self, has_begun: bool, members: list[Replica]) -> m.Roster:
        entries = []
        for replica in sorted(members, key=lambda r: replica_order(r.replica_id)):
            endpoints = self._endpoints(replica)
            if endpoints is not None:
                entries.append(m.RosterEntry(replica.replica_id, replica.incarnation, endpoints))
        slots = self._state.slots
        early = tuple(x.replica_id for x in slots.absent() if x.how == EARLY)
        over = [
            slot.replica_id
            for slot in slots.values()
            if not slot.is_open or slot.replica_id in early
        ]
        store = members[0].store if members else ""
        compared = self._state.compared
        return m.Roster(has_begun, tuple(entries), tuple(over), early, store, compared)
