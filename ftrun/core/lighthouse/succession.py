"""Succession: whether survivors may decide, with whose state, and which replicas they wait for.

From INVARIANTS.md:

    Q3  for each step at most one lineage is ever confirmed; two disjoint quorums never both commit
    C6  a confirmed step is not rolled back while a holder lives

All members take part in every reduction, so a quorum with an interrupted member commits no more.
If every quorum that may be in force has a survivor, no lost member commits elsewhere (Q3). If a
survivor holds the state that the last quorum began with, no lost member alone holds a confirmed
step (C6). Otherwise the job waits until members come back, or until all of them are dead or
isolated.

Pure arithmetic over records. Not here: which state is the best of several (choice.py), how long the
job waits for removed members (departed.py), what is sent (forming.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ftrun.core.ids import StateId
from ftrun.core.lighthouse.choice import Choice, choose, group_state
from ftrun.core.lighthouse.replicas import Replica
from ftrun.core.quorum import Quorum


@dataclass(frozen=True, slots=True)
class Candidate:
    """One living replica, as far as succession is concerned.

    ``held``: the state that all its workers hold. ``has_healed``: it had nothing to heal, or has
    healed. ``was_removed``: it was removed from the last quorum or an earlier one. ``too_few``: it
    cannot commit its step without others. ``bars_at``: the steps at which its script permits no
    join.
    """

    replica_id: str
    incarnation: str
    held: StateId | None
    has_healed: bool = True
    was_removed: bool = False
    too_few: bool = False
    bars_at: frozenset[int] = frozenset()

    @property
    def key(self) -> tuple[str, str]:
        return self.replica_id, self.incarnation


@dataclass(frozen=True, slots=True)
class Case:
    """All that the decision depends on, once every survivor has answered.

    ``quorum``: the last one; ``prior``: in a switch the one before it, which may be in force too.
    ``survivors``: their interrupted members. ``ready``: other replicas that could join. ``needed``:
    the smallest size of a quorum. ``is_switch``: ``quorum`` was installed by a switch.
    ``finishing``: replicas whose script has ended and whose processes have not. ``departed``:
    removed members that may still run and are still waited for.
    """

    quorum: Quorum | None
    survivors: tuple[Candidate, ...]
    ready: tuple[Candidate, ...]
    needed: int
    prior: Quorum | None = None
    is_switch: bool = False
    finishing: frozenset[str] = frozenset()
    departed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Succession:
    """How the job continues.

    ``may_decide``: the survivors need not ask those that are lost. ``survivors``: including removed
    members that are back, without newcomers that join later. ``wait_for``: replicas without which
    no decision is possible yet. ``members``: of the next quorum; empty while they are too few.
    ``choice``: the state they begin with; None if no member holds a whole one.
    """

    may_decide: bool
    survivors: frozenset[str] = frozenset()
    wait_for: frozenset[str] = frozenset()
    members: frozenset[str] = frozenset()
    choice: Choice | None = None


def candidate(replica: Replica, *, was_removed: bool) -> Candidate:
    """The record of a replica that has reported in full."""
    reports = replica.reports.values()
    return Candidate(
        replica.replica_id,
        replica.incarnation,
        group_state(reports),
        has_healed=not replica.has_not_healed(),
        was_removed=was_removed,
        too_few=any(report.too_few for report in reports),
        bars_at=frozenset(r.state.step for r in reports if r.freezes_membership),
    )


def first(members: Sequence[Candidate], needed: int) -> Succession:
    """The quorum of a job in which no replica trains: the best state that any of them holds.

    Replicas that hold another state join later if a holder's script permits no join at that step,
    and the holders are enough to train without them (Q9).
    """
    choice = choose({member.replica_id: member.held for member in members})
    if choice is not None and choice.newcomers and choice.state.step > 0:
        holders = tuple(r for r in members if r.replica_id in choice.donors)
        is_barred = any(choice.state.step in holder.bars_at for holder in holders)
        if is_barred and len(holders) >= needed:
            members, choice = holders, choose({r.replica_id: r.held for r in holders})
    return Succession(True, members=_ids(members), choice=choice)


def succeed(case: Case) -> Succession:
    """The quorum after the last one, or the replicas that it waits for."""
    survivors = case.survivors
    may_decide = _may_decide(case, survivors)
    if not may_decide:
        survivors += tuple(r for r in case.ready if r.was_removed)
        may_decide = _may_decide(case, survivors)
        wait_for = frozenset() if may_decide else case.finishing or case.departed
        if wait_for:
            return Succession(False, _ids(survivors), wait_for)
    late = _held_off(case, survivors)
    if late:
        survivors = tuple(r for r in survivors if r not in late)
        may_decide = _may_decide(case, survivors)
    survivors = _without_outsiders(case, survivors, may_decide=may_decide)
    deciders = survivors if may_decide else ()
    members = survivors
    if len(survivors) < case.needed or any(r.too_few for r in survivors):
        members = tuple(dict.fromkeys((*survivors, *case.ready)))
        members = _without_barred(case, members, _choice(case, members, deciders))
    if len(members) < case.needed:
        return Succession(may_decide, _ids(survivors))
    choice = _choice(case, members, deciders)
    return Succession(may_decide, _ids(survivors), members=_ids(members), choice=choice)


def _may_decide(case: Case, survivors: Sequence[Candidate]) -> bool:
    """Whether no lost member can commit in a quorum (Q3) or hold a later confirmed step (C6).

    In the middle of a switch two quorums may be in force: leavers are in the first one only, and
    newcomers in the second.
    """
    keys = {survivor.key for survivor in survivors}
    in_force = [q for q in (case.prior, case.quorum) if q is not None and q.members]
    are_stopped = all(not keys.isdisjoint(_keys(quorum)) for quorum in in_force)
    return are_stopped and not _are_behind(case.prior or case.quorum, survivors)


def _are_behind(quorum: Quorum | None, survivors: Sequence[Candidate]) -> bool:
    """Whether no survivor holds the state that ``quorum`` began with, and a lost member may.

    If all its donors survive and none of them holds it, no replica does: the script has run one
    more operation, which outdated the results that they had reported.
    """
    if quorum is None or any(_holds(survivor, quorum) for survivor in survivors):
        return False
    keys = _keys(quorum)
    here = {survivor.replica_id for survivor in survivors if survivor.key in keys}
    return not quorum.donors or not here.issuperset(quorum.donors)


def _holds(replica: Candidate, quorum: Quorum) -> bool:
    """Whether it has reached the begin of ``quorum``, or is further, in the same history."""
    held, began = replica.held, quorum.step or 0
    if held is None:
        return False
    if held.step == began == 0:
        return True  # of any lineage: at step 0 all heal before they reduce, so none is ahead
    if not replica.has_healed:
        return False
    return held.step > began or (held.step == began and quorum.state in (None, held))


def _held_off(case: Case, survivors: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """The newcomers of a switch to a step at which a script permits no join (Q9).

    They join at a later step, unless the others are too few to train without them.
    """
    quorum = case.quorum
    if quorum is None or not case.is_switch or any(r.too_few for r in survivors):
        return ()
    late = tuple(r for r in survivors if r.replica_id in quorum.newcomers)
    others = [r for r in survivors if r.replica_id not in quorum.newcomers]
    is_barred = any(quorum.step in other.bars_at for other in others)
    return late if is_barred and len(others) >= case.needed else ()


def _without_outsiders(
    case: Case, survivors: tuple[Candidate, ...], *, may_decide: bool
) -> tuple[Candidate, ...]:
    """The survivors, without replicas of no quorum in force that would heal at a barred step (Q9).

    Such a replica was lost before, and returned while the job waited for the others. It joins
    later, unless the others are too few to train without it, or can decide only with it.
    """
    choice = _choice(case, survivors, survivors if may_decide else ())
    if choice is None or any(r.too_few for r in survivors):
        return survivors
    keys = {key for q in (case.prior, case.quorum) if q is not None for key in _keys(q)}
    late = {r for r in survivors if r.key not in keys and r.replica_id in choice.newcomers}
    rest = tuple(r for r in survivors if r not in late)
    is_barred = any(choice.state.step in r.bars_at for r in rest)
    is_enough = len(rest) >= case.needed and _may_decide(case, rest) == may_decide
    return rest if late and is_barred and is_enough else survivors


def _without_barred(
    case: Case, members: tuple[Candidate, ...], choice: Choice | None
) -> tuple[Candidate, ...]:
    """The members, without ready replicas that would have to heal at a step that a holder bars
    (Q9).

    They join later if the ready holders of the state are enough to train without them. If there are
    no such holders, the survivors are too few, and only replicas that heal can help.
    """
    if choice is None:
        return members
    late = {r for r in case.ready if r.replica_id in choice.newcomers} - set(case.survivors)
    rest = tuple(r for r in members if r not in late)
    is_barred = any(choice.state.step in r.bars_at for r in rest)
    helps = len(rest) > len(case.survivors) and len(rest) >= case.needed
    return rest if late and is_barred and helps else members


def _choice(
    case: Case, members: Sequence[Candidate], deciders: Sequence[Candidate]
) -> Choice | None:
    """Choose the deciders' state, whatever others hold; without deciders the best of all.

    A replica removed long ago may report more steps, but of an abandoned history: ignore it (Q3). A
    removed member of these quorums counts with the deciders once it is back, unless it has not
    healed.
    """
    held = {member.replica_id: member.held for member in members}
    if deciders:
        keys = {key for q in (case.prior, case.quorum) if q is not None for key in _keys(q)}
        keys |= {decider.key for decider in deciders}
        voices = {r.replica_id for r in members if r.key in keys and r.has_healed}
        own = choose({name: held[name] for name in voices})
        if own is not None:
            voices |= {name for name, state in held.items() if state == own.state}
            held = {name: state if name in voices else None for name, state in held.items()}
    return choose(held)


def _keys(quorum: Quorum) -> set[tuple[str, str]]:
    return {member.key for member in quorum.members}


def _ids(replicas: Sequence[Candidate]) -> frozenset[str]:
    return frozenset(replica.replica_id for replica in replicas)
