"""A status as a lighthouse serves it, of a job with something of everything."""

from __future__ import annotations

import copy
from typing import Any

from ftrun.core.lighthouse.status import Status

_SAMPLE: Status = {
    "lighthouse": {
        "version": "0.1.0",
        "pid": 812,
        "uptime_s": 3723.0,
        "agents_attached": 1,
        "journal_writes": 4,
        "journal_write_s": 0.004,
        "epoch": 5,
    },
    "phase": "steady",
    "phase_age_s": 12.3456,
    "job": {
        "job_id": "digits",
        "replicas": 3,
        "workers_per_replica": 1,
        "min_replicas": 1,
        "nodes": 1,
    },
    "epoch": 5,
    "step": 1234,
    "quorum": {
        "quorum_id": 21474836482,
        "name": "5.2",
        "attempt": 1,
        "step": 1200,
        "members": ["0", "1"],
        "live": ["0", "1"],
        "newcomers": ["1"],
        "donors": ["0"],
    },
    "replicas": [
        {
            "replica_id": "0",
            "phase": "member",
            "incarnation": "abcdefghijkl",
            "agent_id": "node-a",
            "restarts": 0,
            "restart_in_s": None,
            "step": 1234,
            "batches": 1234,
            "worker_phase": "forward",
            "pause": None,
            "pause_s": None,
            "scalars": {"loss": 0.25},
            "last_event": None,
        },
        {
            "replica_id": "1",
            "phase": "joining",
            "incarnation": "mnopqrstuvwx",
            "agent_id": "node-a",
            "restarts": 2,
            "restart_in_s": None,
            "step": None,
            "batches": None,
            "worker_phase": None,
            "pause": None,
            "pause_s": None,
            "scalars": {"loss": None},
            "last_event": {
                "kind": "lost",
                "replicas": ["1"],
                "text": "Replica 1 lost: killed by SIGKILL.",
                "time": "2026-01-01T00:00:00.000+00:00",
                "ago_s": 0.25,
            },
        },
        {
            "replica_id": "2",
            "phase": "absent",
            "incarnation": None,
            "agent_id": None,
            "restarts": 0,
            "restart_in_s": None,
            "step": None,
            "batches": None,
            "worker_phase": None,
            "pause": None,
            "pause_s": None,
            "scalars": {},
            "last_event": None,
        },
    ],
    "restarts": 2,
    "waiting_for": [],
    "waiting": None,
    "agents": [],
    "history": [
        {
            "kind": "form",
            "reason": "all 3 replicas are ready",
            "quorum": "5.1",
            "members": ["0", "1", "2"],
            "step": 0,
            "ago_s": 4000.0,
            "duration_s": 0.0123,
            "under_way": False,
        },
        {
            "kind": "shrink",
            "reason": "replica 1: killed by SIGKILL",
            "quorum": "",
            "members": [],
            "step": None,
            "ago_s": 0.25,
            "duration_s": 0.25,
            "under_way": True,
        },
    ],
    "outcome": None,
    "events": [],
    "messages_received": {"Report": 2},
}


def sample() -> Any:
    """A copy to change."""
    return copy.deepcopy(_SAMPLE)
