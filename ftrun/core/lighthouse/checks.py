"""The lighthouse's invariants, asserted between events by tests and by the simulator.

Not here: those of the whole job, over all its parties (tests/sim/invariants.py).
"""

from __future__ import annotations

from collections.abc import Collection

from ftrun.core.lighthouse.departed import FATES_PER_SLOT_MAX
from ftrun.core.lighthouse.membership import Membership
from ftrun.core.lighthouse.next_job import NextJob
from ftrun.core.lighthouse.phases import IN_QUORUM, Phase
from ftrun.core.lighthouse.state import Stage


def check_lighthouse(
    stage: Stage, membership: Membership, agents: Collection[str], next_job: NextJob
) -> None:
    """Assert what must hold between events; a failure tells the stories of those concerned."""
    _check_members(stage)
    _check_bounds(stage, agents, next_job)
    plan = membership.switching.plan
    is_planned = stage.phase in (Phase.PREPARE, Phase.PROPOSE)
    assert (plan is not None) == is_planned, f"a plan belongs to a switch: {stage.phase}"
    if stage.quorum is not None:
        assert stage.quorum.attempt <= stage.attempts.highest, "Q2: an attempt of no number"
    waits = (Phase.BUILD, Phase.PREPARE, Phase.PROPOSE)
    assert stage.phase not in waits or stage.deadline is not None, "L2: a wait without a deadline"
    assert not stage.replacements, "an event was not settled"
    assert (stage.outcome is not None) == (stage.phase is Phase.ENDED)


def _check_members(stage: Stage) -> None:
    """Q4: one incarnation per slot, and who counts as a member is one and lives."""
    for name in stage.live:
        assert name in stage.replicas, f"member {name} does not live: {stage.history.story(name)}"
        replica = stage.replicas[name]
        quorums = [q for q in (stage.quorum, stage.prior) if q is not None]
        is_member = any(q.index(name, replica.incarnation) is not None for q in quorums)
        assert is_member or stage.phase in (Phase.REJOIN, Phase.ENDED), f"{name} is no member"
    assert not stage.live & stage.replicas.ready, "a member is no newcomer"
    if stage.phase in (Phase.EMPTY, Phase.FENCE, Phase.TAKEOVER):
        assert not stage.live, f"{stage.phase} has members"
    if stage.phase in IN_QUORUM and stage.phase is not Phase.SWITCH and stage.quorum is not None:
        size = len({member.replica_id for member in stage.quorum.members})
        assert size == len(stage.quorum.members), "Q4: two incarnations in one slot"


def _check_bounds(stage: Stage, agents: Collection[str], next_job: NextJob) -> None:
    """Q8: memory is bounded by the slots and the agents, not by what has happened."""
    slots = len(stage.slots)
    free = [slot for slot in stage.slots if not slot.is_finished and not slot.agent_id]
    assert stage.slots.free_count == len(free)
    assert stage.slots.open_count == sum(not slot.is_finished for slot in stage.slots)
    assert set(stage.stalled) <= stage.live, "Q8: who waits for peers is a member"
    assert len(stage.replicas) <= slots, "Q8: more replicas than slots"
    assert len(stage.live) <= slots and len(stage.drains) <= slots
    members = len(stage.quorum.members) if stage.quorum else 0
    assert len(stage.departed) <= FATES_PER_SLOT_MAX * max(slots, members)
    assert not stage.removed, "an event was not settled"
    waiting = set(next_job.waiting)
    assert set(stage.outbox.agents) <= set(agents) | waiting
    assert len(waiting) <= next_job.wanted(stage), "Q8: more wait than are wanted"
    assert set(stage.heard_at) == set(agents)
