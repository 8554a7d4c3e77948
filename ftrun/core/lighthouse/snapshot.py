"""The core's part of the status, as plain JSON.

Not here: the fields' types (status.py), the decisions (machine.py, membership.py), the invariants
(checks.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ftrun.core import messages as m
from ftrun.core.activity import Activity
from ftrun.core.books.account import Account
from ftrun.core.books.books import Books
from ftrun.core.books.incident_state import Incident
from ftrun.core.books.uses import Use
from ftrun.core.ids import quorum_name, replica_order
from ftrun.core.lighthouse import status as s
from ftrun.core.lighthouse.account_status import (
    account_status,
    rate_status,
    slot_seconds,
    use_age_s,
)
from ftrun.core.lighthouse.agents import Agent
from ftrun.core.lighthouse.replicas import Replica
from ftrun.core.lighthouse.slots import Slot
from ftrun.core.lighthouse.state import MembershipState
from ftrun.core.lighthouse.waits import Wait
from ftrun.core.quorum import Quorum

CHANGES_SHOWN = 20
INCIDENTS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Facts:
    """The sources of a status.

    ``wait``: the wait that holds the job up, if any. ``hung``: the replica that is about to be
    replaced, because the others wait for it.
    """

    state: MembershipState
    agents: Mapping[str, Agent]
    books: Books
    wait: Wait | None
    hung: str | None


def snapshot(facts: Facts, now: float) -> s.MembershipStatus:
    state, account, wait = facts.state, facts.books.account, facts.wait
    slots = state.slots.by_agent()
    repaired_s = account.repaired_in_change_s(now)
    known = [x.progress for x in state.replicas.values() if x.progress is not None]
    apart = [x for x in known if x.phase is Activity.APART]
    return {
        "phase": state.phase.value,
        "phase_age_s": round(now - state.since, 3),
        "job": _job(state.spec, account, now),
        "epoch": state.attempts.epoch,
        "step": max([state.step_max, *(x.step for x in apart)]),
        "quorum": _quorum(state.quorum, state, now),
        "replicas": [_replica(facts, slot, now) for slot in state.slots.values()],
        "restarts": sum(slot.restarts for slot in state.slots.values()),
        "account": account_status(account, now),
        "rate": _rate(rate_status(account, now), apart),
        "scalars": _scalars_of_job(state),
        "incidents": [
            _incident(facts, x, now) for x in list(facts.books.incidents)[-INCIDENTS_SHOWN:]
        ],
        "recovery": _recovery(known),
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
            for agent in facts.agents.values()
        ],
        "history": [
            change.view(now, repaired_s)
            for change in list(facts.books.history.changes)[-CHANGES_SHOWN:]
        ],
        "outcome": _outcome(state.outcome),
    }


def _job(spec: m.JobSpec, account: Account, now: float) -> s.JobStatus:
    began = account.ledger.began
    return {
        "job_id": spec.job_id,
        "uptime_s": (account.now(now) - began) / 1e6 if account.is_open else 0.0,
        "replicas": spec.replicas,
        "workers_per_replica": spec.workers_per_replica,
        "min_replicas": spec.min_replicas,
        "nodes": spec.nodes,
        "spare_nodes": spec.spare_nodes,
    }


def _quorum(quorum: Quorum | None, state: MembershipState, now: float) -> s.QuorumStatus | None:
    if quorum is None:
        return None
    return {
        "quorum_id": quorum.attempt.quorum_id,
        "age_s": round(now - state.quorum_since, 3),
        "name": quorum_name(quorum.attempt.quorum_id),
        "attempt": quorum.attempt.number,
        "step": quorum.step,
        "members": [member.replica_id for member in quorum.members],
        "live": sorted(state.live, key=replica_order),
        "newcomers": list(quorum.newcomers),
        "donors": list(quorum.donors),
    }


def _replica(facts: Facts, slot: Slot, now: float) -> s.ReplicaStatus:
    state, account = facts.state, facts.books.account
    replica = state.replicas.get(slot.replica_id)
    book = account.book(slot.replica_id)
    agent = facts.agents.get(slot.agent_id)
    progress = replica.progress if replica is not None else None
    return {
        "replica_id": slot.replica_id,
        "phase": _replica_phase(state, slot, replica),
        "use": book.use.value,
        "use_s": use_age_s(account, book, now),
        "seconds": slot_seconds(account, book, now),
        "host": agent.host if agent is not None else None,
        "step_s": _seconds(progress.step_s) if progress is not None else None,
        "own_s": _seconds(progress.own_s) if progress is not None else None,
        "heal": _heal(progress, book.use),
        "restarts_left": slot.restarts_left,
        "is_hung": slot.replica_id == facts.hung,
        "workers": _workers(replica, now) if replica is not None else [],
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


def _seconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def _heal(progress: m.Progress | None, use: Use) -> s.HealStatus | None:
    """The heal that is under way; a last report of one that has ended does not count."""
    if progress is None or progress.heal is None or use is not Use.HEALING:
        return None
    return {"done_bytes": progress.heal.done_bytes, "total_bytes": progress.heal.total_bytes}


def _workers(replica: Replica, now: float) -> list[s.WorkerStatus]:
    return [
        {
            "group_rank": rank,
            "pid": facts.pid,
            "node": facts.node,
            "device": facts.device,
            "cpu_share": _share(facts.cpu_share),
            "rss_bytes": facts.rss_bytes,
            "gpu_memory_bytes": facts.gpu_memory_bytes,
            "gpu_memory_total_bytes": facts.gpu_memory_total_bytes,
            "gpu_share": _share(facts.gpu_share),
            "age_s": round(now - at, 3),
        }
        for rank, (at, facts) in sorted(replica.facts.items())
    ]


def _share(share: float | None) -> float | None:
    """None also for NaN and infinity, which JSON lacks."""
    return round(share, 4) if share is not None and math.isfinite(share) else None


def _restart_in_s(slot: Slot, replica: Replica | None, now: float) -> float | None:
    """The wait until a dead replica is started again; None: it does not wait."""
    if replica is not None or slot.restart_at is None:
        return None
    return round(max(0.0, slot.restart_at - now), 3)


def _scalars_of_job(state: MembershipState) -> dict[str, float | None]:
    """The scalars of the first live member that has any."""
    for name in sorted(state.live, key=replica_order):
        progress = state.replicas[name].progress
        if progress is not None and progress.scalars:
            return _scalars(progress.scalars)
    return {}


def _incident(facts: Facts, incident: Incident, now: float) -> s.IncidentStatus:
    first = incident.first()
    is_open = incident.closed_at is None
    cost_s = facts.books.account.cost_s(incident.number, now) if is_open else incident.cost_s
    return {
        "number": incident.number,
        "ago_s": round(now - first.at, 3),
        "is_open": is_open,
        "replicas": sorted({part.replica_id for part in incident.parts}, key=replica_order),
        "host": first.host,
        "kind": first.kind,
        "words": first.cause,
        "step": incident.step,
        "verdict": incident.verdict()[0],
        "cost_steps": incident.steps_lost(),
        "cost_s": round(cost_s, 3),
    }


def _scalars(scalars: Iterable[tuple[str, float]]) -> dict[str, float | None]:
    """The script's values; None for NaN and infinity, which JSON lacks."""
    return {name: value if math.isfinite(value) else None for name, value in scalars}


def _replica_phase(state: MembershipState, slot: Slot, replica: Replica | None) -> str:
    replica_id = slot.replica_id
    if replica is None and slot.is_finished:
        return "finished"
    if slot.absence is not None and (replica is None or replica.leaving is m.LeaveReason.DRAINED):
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
    is_apart = replica.progress is not None and replica.progress.phase is Activity.APART
    return "apart" if is_apart else "starting"


def _rate(counted: s.RateStatus, apart: Sequence[m.Progress]) -> s.RateStatus:
    """The job's rate. For a group without a Manager, its agent has measured a step."""
    times = [x.step_s for x in apart if x.step_s]
    now = round(1 / max(times), 4) if times else counted["now"]
    return {"now": now, "run": counted["run"]}


def _recovery(known: Sequence[m.Progress]) -> s.RecoveryStatus | None:
    """The recovery of the group that would lose most."""
    told = [x for x in known if x.worker_lost and x.node_lost and x.job_lost]
    if not told:
        return None

    def most(lost: Callable[[m.Progress], m.Resumption | None]) -> s.LossStatus:
        each = [(x.step, found) for x in told if (found := lost(x)) is not None]
        step, found = max(each, key=lambda one: one[1].age_s)
        steps = max(0, step - found.step)
        return {"from_step": found.step, "steps": steps, "seconds": round(found.age_s, 3)}

    return {
        "worker": most(lambda x: x.worker_lost),
        "node": most(lambda x: x.node_lost),
        "job": most(lambda x: x.job_lost),
    }


def _outcome(outcome: m.EndJob | None) -> s.OutcomeStatus | None:
    if outcome is None:
        return None
    return {"exit_code": outcome.exit_code, "reason": outcome.reason}
