"""Chooses the state that a quorum begins with, and so its donors.

Pure arithmetic over reports. Not here: which replicas may choose (succession.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ftrun.core.ids import Attempt, StateId, replica_order
from ftrun.core.messages import Report


@dataclass(frozen=True, slots=True)
class Choice:
    """``state``: what the quorum begins with; ``donors`` hold it, ``newcomers`` do not."""

    state: StateId
    donors: tuple[str, ...]
    newcomers: tuple[str, ...]


def choose(group_states: Mapping[str, StateId | None]) -> Choice | None:
    """Choose among the replicas' states: highest step, commonest lineage, lowest replica_id.

    Results that stand anywhere stand everywhere: the highest step wins (C6). None if nobody holds
    a whole state.
    """
    top = max((s.step for s in group_states.values() if s is not None), default=None)
    if top is None:
        return None
    votes = Counter(s for s in group_states.values() if s is not None and s.step == top)
    most = max(votes.values())
    in_order = sorted(group_states, key=replica_order)
    state = next(s for r in in_order if (s := group_states[r]) is not None and votes[s] == most)
    holds = {r for r, s in group_states.items() if s is state or s == state}
    donors = tuple(r for r in in_order if r in holds)  # S2: unlike lineages heal
    newcomers = tuple(r for r in in_order if r not in holds)
    return Choice(state, donors, newcomers)


def group_state(reports: Collection[Report]) -> StateId | None:
    """The highest state that all workers of one replica hold or are certain to hold.

    A worker whose results stand (``reduced``) will commit them. A worker that has voted will too,
    if a worker of its group has committed already, because then all votes were true (C1). None if
    the workers share no state, as when only some have healed or one's state is torn: such a replica
    cannot be a donor.
    """
    if any(report.torn for report in reports):
        return None
    if len(reports) == 1:
        (report,) = reports
        if report.reduced is None:
            return report.state
    shared = set.intersection(*(_reach(report) for report in reports))
    held = {report.state for report in reports}
    certain = [s for s in shared if s in held or all(_stands(r, s) for r in reports)]
    return max(certain, key=lambda s: (s.step, s.lineage), default=None)


def can_repair(reports: Collection[Report]) -> bool:
    """Whether all workers of one replica can go on with the step that they were interrupted in.

    They must be in the same step: a worker that has ended it would begin the next one.
    """
    return all(r.repairable for r in reports) and len({r.local_step_index for r in reports}) == 1


def standing(
    groups: Collection[Mapping[int, Report]], state: StateId
) -> tuple[Attempt, tuple[int, ...]] | None:
    """The ranks that have all results of the step that ``state`` begins, and under which attempt.

    A death strikes the reductions of one rank, and those of another may be over. If that one has
    them in all groups, they stand, and the step need not be computed again: the others repair it.

    Args:
        groups: of all members, by rank: nobody is lost or new.

    Returns:
        None: there are none, or another rank cannot repair the step.
    """
    reports = [report for group in groups for report in group.values()]
    if any(report.state != state or report.healing or report.torn for report in reports):
        return None
    if any(len({r.local_step_index for r in group.values()}) > 1 for group in groups):
        return None
    used = {report.reduced for report in reports if not report.repairable}
    tag = used.pop() if len(used) == 1 else None
    if tag is None or tag.step != state.step:
        return None
    ranks = []
    for rank in sorted(next(iter(groups))):
        column = [group[rank] for group in groups]
        if all(report.reduced == tag for report in column):
            ranks.append(rank)
        elif not all(report.repairable for report in column):
            return None
    return tag.attempt, tuple(ranks)


def under_way(groups: Collection[Mapping[int, Report]]) -> StateId | None:
    """The state that begins a step whose results all ranks have so far, in all groups.

    Their scripts may issue more in it, as one that reduces its modules one by one. So the step is
    not over before all ranks of a group have voted for it.

    Args:
        groups: of all members, by rank: nobody is lost or new.

    Returns:
        None: there is no such step, or it is over.
    """
    reports = [report for group in groups for report in group.values()]
    if len({(report.state, report.reduced) for report in reports}) > 1 or not reports[0].reduced:
        return None
    is_over = any(all(report.voted for report in group.values()) for group in groups)
    return None if is_over else reports[0].state


def _reach(report: Report) -> set[StateId]:
    states = {report.state}
    for tag in (report.reduced, report.voted):
        if tag is not None and tag.step == report.state.step:
            states.add(report.state.committed(tag))
    return states


def _stands(report: Report, state: StateId) -> bool:
    tag = report.reduced
    return (
        tag is not None and tag.step == report.state.step and state == report.state.committed(tag)
    )
