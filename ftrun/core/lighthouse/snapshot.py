"""The core's part of the status, as plain JSON.

Not here: the fields' types (status.py), the decisions (machine.py, membership.py), the invariants
(checks.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ftrun.core import messages as m
from ftrun.core.ids import quorum_name, replica_order
from ftrun.core.lighthouse.agents import Agent
from ftrun.core.lighthouse.replicas import Replica
from ftrun.core.lighthouse.slots import Slot
from ftrun.core.lighthouse.state import MembershipState
from ftrun.core.lighthouse.status import (
    JobStatus,
    MembershipStatus,
    OutcomeStatus,
    QuorumStatus,
    ReplicaStatus,
)
from ftrun.core.lighthouse.waits import Wait
from ftrun.core.quorum import Quorum

CHANGES_SHOWN = 20


def snapshot(
    state: MembershipState, agents: Iterable[Agent], wait: Wait | None, now: float
) -> MembershipStatus:
    """The membership now. ``wait``: the wait that holds the job up, if any."""
    slots = state.slots.by_agent()
    return {
        "phase": state.phase.value,
        "phase_age_s": round(now - state.since, 3),
        "job": _job(state.spec),
        "epoch": state.attempts.epoch,
        "step": state.step_max,
        "quorum": _quorum(state.quorum, state),
        "replicas": [_replica(state, slot, now) for slot in state.slots],
        "restarts": sum(slot.restarts for slot in state.slots),
        "waiting_for": list(wait.whom) if wait is not None else list(state.waiting.silent()),
        "waiting": None if wait is None else wait.view(now),
        "agents": [
            {
                "agent_id": agent.agent_id,
                "host": agent.host,
                "capacity": agent.capacity,
                "attached": agent.gone_at is None,
                "silent_s": round(now - agent.last_message_at, 3),
                "slots": slots.get(agent.agent_id, []),
            }
            for agent in agents
        ],
        "history": [change.view(now) for change in list(state.history.changes)[-CHANGES_SHOWN:]],
        "outcome": _outcome(state.outcome),
    }


def _job(spec: m.JobSpec) -> JobStatus:
    return {
        "job_id": spec.job_id,
        "replicas": spec.replicas,
        "workers_per_replica": spec.workers_per_replica,
        "min_replicas": spec.min_replicas,
        "nodes": spec.nodes,
    }


def _quorum(quorum: Quorum | None, state: MembershipState) -> QuorumStatus | None:
    if quorum is None:
        return None
    return {
        "quorum_id": quorum.attempt.quorum_id,
        "name": quorum_name(quorum.attempt.quorum_id),
        "attempt": quorum.attempt.number,
        "step": quorum.step,
        "members": [member.replica_id for member in quorum.members],
        "live": sorted(state.live, key=replica_order),
        "newcomers": list(quorum.newcomers),
        "donors": list(quorum.donors),
    }


def _replica(state: MembershipState, slot: Slot, now: float) -> ReplicaStatus:
    replica = state.replicas.at(slot.replica_id)
    progress = replica.progress if replica is not None else None
    return {
        "replica_id": slot.replica_id,
        "phase": _replica_phase(state, slot, replica),
        "incarnation": replica.incarnation if replica is not None else None,
        "agent_id": slot.agent_id or None,
        "restarts": slot.restarts,
        "restart_in_s": _restart_in_s(slot, replica, now),
        "step": progress.step if progress is not None else None,
        "batches": progress.batches if progress is not None else None,
        "worker_phase": progress.phase.value if progress is not None else None,
        "pause": progress.pause if progress is not None and progress.pause else None,
        "pause_s": None
        if replica is None or replica.paused_at is None
        else round(now - replica.paused_at, 3),
        "scalars": _scalars(progress.scalars) if progress is not None else {},
        "last_event": None,  # lighthouse/status.py fills it
    }


def _restart_in_s(slot: Slot, replica: Replica | None, now: float) -> float | None:
    """The wait until a dead replica is started again; None: it does not wait."""
    if replica is not None or slot.restart_at is None:
        return None
    return round(max(0.0, slot.restart_at - now), 3)


def _scalars(scalars: Iterable[tuple[str, float]]) -> dict[str, float | None]:
    """The script's values; None for NaN and infinity, which JSON lacks."""
    return {name: value if math.isfinite(value) else None for name, value in scalars}


def _replica_phase(state: MembershipState, slot: Slot, replica: Replica | None) -> str:
    replica_id = slot.replica_id
    if replica is None and slot.is_finished:
        return "finished"
    if replica is None and slot.given_up:
        return "given up"
    if replica is None and slot.restart_at is not None:
        return "backoff"
    if replica is None:
        return "drained" if slot.was_drained else "absent"
    if replica.leaving:
        return replica.leaving.value
    if replica_id in state.live:
        return "draining" if replica_id in state.drains else "member"
    if replica_id in state.replicas.ready:
        return "joining"
    return "starting"


def _outcome(outcome: m.EndJob | None) -> OutcomeStatus | None:
    if outcome is None:
        return None
    return {"exit_code": outcome.exit_code, "reason": outcome.reason}
