"""The lighthouse's invariants, asserted between events by tests and by the simulator.

Not here: the invariants of the whole job (tests/sim/invariants.py).
"""

from __future__ import annotations

from collections.abc import Collection

from ftrun.core.lighthouse.departed import FATES_PER_SLOT_MAX
from ftrun.core.lighthouse.membership import Membership
from ftrun.core.lighthouse.next_job import NextJob
from ftrun.core.lighthouse.phases import IN_QUORUM, Phase
from ftrun.core.lighthouse.state import MembershipState


def check_lighthouse(
    state: MembershipState, membership: Membership, agents: Collection[str], next_job: NextJob
) -> None:
    """Assert what must hold between events; a failure shows the replica's story."""
    _check_members(state)
    _check_bounds(state, agents, next_job)
    plan = membership.switching.plan
    is_planned = state.phase in (Phase.PREPARE, Phase.PROPOSE)
    assert (plan is not None) == is_planned, f"a plan belongs to a switch: {state.phase}"
    if state.quorum is not None:
        assert state.quorum.attempt <= state.attempts.highest, "Q2: an attempt of no number"
    waits = (Phase.BUILD, Phase.PREPARE, Phase.PROPOSE)
    assert state.phase not in waits or membership.deadline is not None, (
        "L2: a wait without a deadline"
    )
    assert not state.replacements, "the rules did not run after an event"
    assert (state.outcome is not None) == (state.phase is Phase.ENDED)


def _check_members(state: MembershipState) -> None:
    """Q4: one incarnation per slot; every live member is in a quorum and lives."""
    for name in state.live:
        assert name in state.replicas, f"member {name} does not live: {state.story(name)}"
        replica = state.replicas[name]
        quorums = [q for q in (state.quorum, state.prior) if q is not None]
        is_member = any(q.index(name, replica.incarnation) is not None for q in quorums)
        assert is_member or state.phase in (Phase.REJOIN, Phase.ENDED), f"{name} is no member"
    assert not state.live & state.replicas.ready, "a member is no newcomer"
    if state.phase in (Phase.EMPTY, Phase.FENCE, Phase.TAKEOVER):
        assert not state.live, f"{state.phase} has members"
    if state.phase in IN_QUORUM and state.phase is not Phase.SWITCH and state.quorum is not None:
        size = len({member.replica_id for member in state.quorum.members})
        assert size == len(state.quorum.members), "Q4: two incarnations in one slot"


def _check_bounds(state: MembershipState, agents: Collection[str], next_job: NextJob) -> None:
    """Q8: memory is bounded by the slots and the agents, not by what has happened."""
    slots = len(state.slots)
    free = [slot for slot in state.slots.values() if slot.is_open and not slot.agent_id]
    assert state.slots.free_count == len(free)
    assert state.slots.open_count == sum(slot.is_open for slot in state.slots.values())
    withdrawn = [slot.replica_id for slot in state.slots.values() if slot.is_withdrawn]
    assert set(state.slots.withdrawn) == set(withdrawn)
    assert set(state.stalled) <= state.live, "Q8: who waits for peers is a member"
    assert len(state.replicas) <= slots, "Q8: more replicas than slots"
    assert len(state.live) <= slots and len(state.drains) <= slots
    members = len(state.quorum.members) if state.quorum else 0
    assert len(state.departed) <= FATES_PER_SLOT_MAX * max(slots, members)
    assert not state.removed, "the rules did not run after an event"
    waiting = set(next_job.waiting)
    assert set(state.outbox.agents) <= set(agents) | waiting
    assert len(waiting) <= next_job.wanted(state), "Q8: more wait than are wanted"
    assert set(state.last_message_at) == set(agents)
