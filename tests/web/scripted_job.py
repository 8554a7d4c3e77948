"""The status of a job of any size, as the types declare it, with every field that a page shows."""

from __future__ import annotations

from ftrun.core.lighthouse.status import (
    IncidentStatus,
    LighthouseStatus,
    ReplicaStatus,
    Status,
)

GIB = 1 << 30
HEALING, RESTARTING = 1, 2


def replica(number: int, host: str, use: str = "training") -> ReplicaStatus:
    """One replica; ``use`` decides its phase."""
    phase = {"training": "member", "healing": "member", "backoff": "backoff"}[use]
    return {
        "replica_id": str(number),
        "phase": phase,
        "use": use,
        "use_s": 2.0 if use == "healing" else 540.0,
        "seconds": {"training": 540.0},
        "host": host,
        "step_s": 0.21,
        "own_s": 0.2 if number == 3 else 0.09,
        "heal": {"done_bytes": 3 * GIB, "total_bytes": 5 * GIB} if use == "healing" else None,
        "restarts_left": 9,
        "is_hung": False,
        "workers": [
            {
                "group_rank": 0,
                "pid": 812 + number,
                "node": "",
                "device": "cuda:0",
                "cpu_share": 0.9,
                "rss_bytes": 3 * GIB,
                "gpu_memory_bytes": 61 * GIB,
                "gpu_memory_total_bytes": 80 * GIB,
                "gpu_share": 0.97,
                "age_s": 1.0,
            }
        ],
        "incarnation": "aa",
        "agent_id": host,
        "restarts": 1,
        "restart_in_s": 3.0 if use == "backoff" else None,
        "step": 2451,
        "batches": 2451,
        "worker_phase": "step",
        "pause": None,
        "pause_s": None,
        "scalars": {},
        "last_event": None,
    }


def job_status(replicas: int = 4, job_id: str = "job", text: str = "SIGKILL") -> Status:
    """A job in its tenth minute; ``text`` stands where a script's own words stand."""
    uses = {HEALING: "healing", RESTARTING: "backoff"}
    hosts = max(4, replicas // 8)
    service: LighthouseStatus = {
        "version": "1", "pid": 81, "uptime_s": 600.0, "agents_attached": 1, "journal_writes": 2,
        "journal_write_s": 0.01, "epoch": 1,
    }  # fmt: skip
    incident: IncidentStatus = {
        "number": 1, "ago_s": 95.0, "is_open": True, "replicas": ["1"], "host": "node-1",
        "kind": "signal", "words": f"replica 1 (pid 813) died: {text}", "step": 2210,
        "verdict": "restarted", "cost_steps": 0, "cost_s": 14.2,
    }  # fmt: skip
    bands = 120
    healing = [1.0 if 100 < i < 104 else 0.0 for i in range(bands)]
    members = [str(x) for x in range(replicas)]
    return {
        "schema": "ftrun.status/1",
        "recovery": None,
        "lighthouse": service,
        "phase": "steady",
        "phase_age_s": 2.0,
        "job": {
            "job_id": job_id, "uptime_s": 600.0, "replicas": replicas, "workers_per_replica": 1,
            "min_replicas": 2, "nodes": hosts, "spare_nodes": 0,
        },
        "epoch": 1,
        "step": 2451,
        "quorum": {
            "quorum_id": 5, "age_s": 90.0, "name": "1.5", "attempt": 1, "step": 2300,
            "members": members, "live": members, "newcomers": ["1"], "donors": ["0"],
        },
        "replicas": [
            replica(i, f"node-{i % hosts}", uses.get(i, "training")) for i in range(replicas)
        ],
        "restarts": 2,
        "account": {
            "wall_s": 600.0,
            "total_s": 600.0 * replicas,
            "seconds": {"training": 600.0 * replicas - 15.0, "healing": 15.0},
            "goodput": 0.981,
            "lost_s": 15.0,
            "steps": 2451,
            "bands": {
                "width_s": 5.0,
                "last_s": 4.0,
                "seconds": {
                    "training": [5.0 * (replicas - x) for x in healing],
                    "healing": [5.0 * x for x in healing],
                },
                "steps": [20 + i % 3 for i in range(bands)],
            },
        },
        "rate": {"now": 4.2, "run": 4.1},
        "scalars": {text: 0.25, "learning_rate": 3e-4, "nothing": None},
        "incidents": [incident],
        "waiting_for": ["1"],
        "waiting": {"for": f"replica 1 ({text})", "whom": ["1"], "since_s": 9.0, "at_most_s": 60.0},
        "agents": [],
        "history": [
            {
                "kind": "shrink", "cost_s": 1.2, "reason": text, "quorum": "1.5", "members": ["0"],
                "step": 2300, "ago_s": 95.0, "duration_s": 0.4, "under_way": False,
            }
        ],
        "outcome": None,
        "events": [],
        "messages_received": {},
        "idle_nodes": [],
        "torchft": None,
    }  # fmt: skip
