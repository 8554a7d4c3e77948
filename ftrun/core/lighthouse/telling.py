"""Sends the books the present state of the slots and of the job.

Not here: the facts (facts.py), what the books do with them (books.py).
"""

from __future__ import annotations

from ftrun.core.books.facts import Fact, Seen, Stage, Stood
from ftrun.core.lighthouse.phases import IN_QUORUM, Phase
from ftrun.core.lighthouse.slots import Slot
from ftrun.core.lighthouse.state import MembershipState

STAGES = {
    **dict.fromkeys(IN_QUORUM, Stage.STANDS),
    Phase.BUILD: Stage.BROKEN,
    Phase.TAKEOVER: Stage.TAKEOVER,
    Phase.EMPTY: Stage.EMPTY,
    Phase.ENDED: Stage.ENDED,
}


def tell(state: MembershipState, *failure: Fact) -> None:
    """Send the present state of the changed slots and of the job, and then a failure.

    So the record of a failure has the state of the others at that time.
    """
    if state.changed:
        state.facts += [seen(state, state.slots[x]) for x in state.changed if x in state.slots]
        state.changed.clear()
    phase, step, quorum = state.phase, state.step_max, state.quorum
    told_phase, told_step, told_quorum = state.told
    if phase is not told_phase or step != told_step or quorum is not told_quorum:
        state.told = phase, step, quorum
        words = state.outcome.reason if state.outcome is not None else ""
        stage = STAGES.get(phase, Stage.BROKEN)
        state.facts.append(Stood(stage, step, quorum, phase is Phase.BUILD, words))
    state.facts += failure


def seen(state: MembershipState, slot: Slot) -> Seen:
    name = slot.replica_id
    replica = state.replicas.get(name)
    is_drained, is_backing_off = slot.is_withdrawn or slot.was_drained, slot.restart_at is not None
    if replica is None:
        is_first = slot.runs_at != "" and not (slot.dead or slot.restarts)
        return Seen(
            name, slot.is_open, slot.is_finished, is_drained, is_backing_off, is_first=is_first
        )
    joins = state.quorum is not None and name in state.quorum.newcomers
    return Seen(
        name,
        slot.is_open,
        slot.is_finished,
        is_drained,
        is_backing_off,
        incarnation=replica.incarnation,
        is_member=name in state.live,
        leaving=replica.leaving,
        is_known=replica.is_known(state.workers),
        reports=tuple(replica.reports.values()),
        progress=replica.progress,
        is_overtaken=replica.is_overtaken,
        heals=replica.heals,
        awaits_switch=replica.awaits_switch,
        is_unhealed=joins and replica.has_not_healed(),
    )
