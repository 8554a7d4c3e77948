"""The lighthouse as people and tests see it: a JSON-able picture, and its invariants.

Not here: anything that changes it (lighthouse.py, membership.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ftrun.core import messages as m
from ftrun.core.fence import FATES_PER_SLOT_MAX
from ftrun.core.ids import quorum_name, replica_order
from ftrun.core.phases import IN_QUORUM, Phase
from ftrun.core.roster import Replica
from ftrun.core.slots import Slot
from ftrun.core.stage import Stage

if TYPE_CHECKING:
    from ftrun.core.lighthouse import Lighthouse

CHANGES_SHOWN = 20


def snapshot(lighthouse: Lighthouse, now: float) -> dict[str, Any]:
    """Everything worth showing, as plain JSON."""
    stage, wait = lighthouse.stage, lighthouse.waits.current()
    slots = stage.slots.by_agent()
    return {
        "phase": stage.phase.value,
        "phase_age_s": round(now - stage.since, 3),
        "job": _job(stage.spec),
        "epoch": stage.numbering.epoch,
        "step": stage.step_max,
        "quorum": _quorum(stage.quorum, stage),
        "replicas": [_replica(stage, slot) for slot in stage.slots],
        "restarts": sum(slot.restarts for slot in stage.slots),
        "waiting_for": list(wait.whom) if wait is not None else list(stage.waiting.silent()),
        "waiting": None if wait is None else wait.view(now),
        "agents": [
            {
                "agent_id": agent.agent_id,
                "host": agent.host,
                "capacity": agent.capacity,
                "attached": agent.gone_at is None,
                "silent_s": round(now - agent.heard_at, 3),
                "slots": slots.get(agent.agent_id, []),
            }
            for agent in lighthouse.agents.values()
        ],
        "history": [change.view(now) for change in list(stage.chronicle.changes)[-CHANGES_SHOWN:]],
        "outcome": _outcome(stage.outcome),
    }


def _job(spec: m.JobSpec) -> dict[str, Any]:
    return {
        "job_id": spec.job_id,
        "replicas": spec.replicas,
        "workers_per_replica": spec.workers_per_replica,
        "min_replicas": spec.min_replicas,
        "nodes": spec.nodes,
    }


def _quorum(quorum: m.Quorum | None, stage: Stage) -> dict[str, Any] | None:
    if quorum is None:
        return None
    return {
        "quorum_id": quorum.attempt.quorum_id,
        "name": quorum_name(quorum.attempt.quorum_id),
        "attempt": quorum.attempt.number,
        "step": quorum.step,
        "members": [member.replica_id for member in quorum.members],
        "live": sorted(stage.live, key=replica_order),
        "newcomers": list(quorum.newcomers),
        "donors": list(quorum.donors),
    }


def _replica(stage: Stage, slot: Slot) -> dict[str, Any]:
    replica = stage.roster.at(slot.replica_id)
    progress = replica.progress if replica is not None else None
    return {
        "replica_id": slot.replica_id,
        "phase": _replica_phase(stage, slot, replica),
        "incarnation": replica.incarnation if replica is not None else None,
        "agent_id": slot.agent_id or None,
        "restarts": slot.restarts,
        "step": progress.step if progress is not None else None,
        "batches": progress.batches if progress is not None else None,
        "worker_phase": progress.phase if progress is not None else None,
        "scalars": dict(progress.scalars) if progress is not None else {},
    }


def _replica_phase(stage: Stage, slot: Slot, replica: Replica | None) -> str:
    replica_id = slot.replica_id
    if replica is None and slot.is_finished:
        return "finished"
    if replica is None:
        return "drained" if slot.was_drained else "absent"
    if replica.leaving:
        return replica.leaving
    if replica_id in stage.live:
        return "draining" if replica_id in stage.drains else "member"
    if replica_id in stage.roster.ready:
        return "joining"
    return "starting"


def _outcome(outcome: m.EndJob | None) -> dict[str, Any] | None:
    if outcome is None:
        return None
    return {"exit_code": outcome.exit_code, "reason": outcome.reason}


# ---------------------------------------------------------------- invariants


def check_lighthouse(lighthouse: Lighthouse) -> None:
    """Assert what must hold between events; a failure tells the stories of those concerned."""
    stage, membership = lighthouse.stage, lighthouse.membership
    _check_members(stage)
    _check_bounds(lighthouse)
    plan = membership.switching.plan
    is_planned = stage.phase in (Phase.PREPARE, Phase.PROPOSE)
    assert (plan is not None) == is_planned, f"a plan belongs to a switch: {stage.phase}"
    if stage.quorum is not None:
        assert stage.quorum.attempt <= stage.numbering.highest, "Q2: an attempt of no number"
    waits = (Phase.BUILD, Phase.PREPARE, Phase.PROPOSE)
    assert stage.phase not in waits or stage.deadline is not None, "L2: a wait without a deadline"
    assert not stage.replacements, "an event was not settled"
    assert (stage.outcome is not None) == (stage.phase is Phase.ENDED)


def _check_members(stage: Stage) -> None:
    """Q4: one incarnation per slot, and who counts as a member is one and lives."""
    for name in stage.live:
        assert name in stage.roster, f"member {name} does not live: {stage.chronicle.story(name)}"
        replica = stage.roster[name]
        quorums = [q for q in (stage.quorum, stage.prior) if q is not None]
        is_member = any(q.index(name, replica.incarnation) is not None for q in quorums)
        assert is_member or stage.phase in (Phase.REJOIN, Phase.ENDED), f"{name} is no member"
    assert not stage.live & stage.roster.ready, "a member is no newcomer"
    if stage.phase in (Phase.EMPTY, Phase.FENCE, Phase.TAKEOVER):
        assert not stage.live, f"{stage.phase} has members"
    if stage.phase in IN_QUORUM and stage.phase is not Phase.SWITCH and stage.quorum is not None:
        size = len({member.replica_id for member in stage.quorum.members})
        assert size == len(stage.quorum.members), "Q4: two incarnations in one slot"


def _check_bounds(lighthouse: Lighthouse) -> None:
    """Q8: memory is bounded by the slots and the agents, not by what has happened."""
    stage = lighthouse.stage
    slots = len(stage.slots)
    free = [slot for slot in stage.slots if not slot.is_finished and not slot.agent_id]
    assert stage.slots.free_count == len(free)
    assert stage.slots.open_count == sum(not slot.is_finished for slot in stage.slots)
    assert set(stage.stalled) <= stage.live, "Q8: who waits for peers is a member"
    assert len(stage.roster) <= slots, "Q8: more replicas than slots"
    assert len(stage.live) <= slots and len(stage.drains) <= slots
    members = len(stage.quorum.members) if stage.quorum else 0
    assert len(stage.fence) <= FATES_PER_SLOT_MAX * max(slots, members)
    assert not stage.struck, "an event was not settled"
    waiting = set(lighthouse.next_job.waiting)
    assert set(stage.outbox.agents) <= set(lighthouse.agents) | waiting
    assert len(waiting) <= lighthouse.next_job.wanted(stage), "Q8: more wait than are wanted"
    assert set(stage.heard_at) == set(lighthouse.agents)
