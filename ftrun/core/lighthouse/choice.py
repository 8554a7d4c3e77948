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
    """The chosen ``state``, with which a quorum begins.

    ``donors`` hold it, ``newcomers`` do not.
    """

    state: StateId
    donors: tuple[str, ...]
    newcomers: tuple[str, ...]


def choose(group_states: Mapping[str, StateId | None]) -> Choice | None:
    """Choose among the replicas' states: highest step, commonest lineage, lowest replica_id.

    Results that stand at one replica stand at all, so the highest step wins (C6). None if no
    replica holds a whole state.
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

    A worker whose results stand (``reduced``) will commit them. A worker that has voted will commit
    too, if a worker of its group has committed already, because then all votes were true (C1). None
    if the workers share no state, for example because only some have healed or one's state is torn:
    such a replica cannot be a donor.
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


def can_repair(reports: Collection[Report], state: StateId) -> bool:
    """Whether all workers of one replica can resume the step in which they were interrupted.

    They must be in the same step, which ``state`` begins: a worker that has ended it would begin
    the next one. A worker whose results are in ``state`` ends the step before, and begins this one.
    """
    steps, can = set[int](), True
    for report in reports:
        stands = _stands(report, state)
        can = can and (report.repairable or stands)
        steps.add(report.local_step_index + stands)
    return can and len(steps) == 1


@dataclass(frozen=True, slots=True)
class Standing:
    """What stands of the step that ``state`` begins: by rank, its first ``kept`` operations.

    ``attempt``: the attempt under which the step is committed.
    """

    state: StateId
    attempt: Attempt
    kept: tuple[int, ...]


def standing(groups: Collection[Mapping[int, Report]]) -> Standing | None:
    """What stands of the step under way in the next quorum of the same members.

    A death makes some reductions of a step fail. The results of others are complete; scripts have
    used them, and may issue more. The operations that all groups have completed at a rank stand.
    Those whose results no script has seen are issued again.

    Args:
        groups: the reports of each member, by rank; no member is lost or new.

    Returns:
        None: no script has seen a result; or one has seen a result that another lacks; or the step
            is over, because all workers of a group have voted.
    """
    reports = [report for group in groups for report in group.values()]
    seen = {report.under for report in reports if report.handed}
    tag = seen.pop() if len(seen) == 1 else None
    if tag is None or len({(r.state, r.refused_tries) for r in reports}) > 1:
        return None
    if any(report.under is None for report in reports):
        return None
    if any(len({r.local_step_index for r in group.values()}) > 1 for group in groups):
        return None
    if any(all(report.voted for report in group.values()) for group in groups):
        return None
    kept = []
    for rank in sorted(next(iter(groups))):
        column = [group[rank] for group in groups]
        kept.append(max(report.handed for report in column))
        # A replacement may not know the last attempt: its results under another one do not count.
        if kept[-1] > min(report.done if report.under == tag else 0 for report in column):
            return None
    return Standing(reports[0].state, tag.attempt, tuple(kept))


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
