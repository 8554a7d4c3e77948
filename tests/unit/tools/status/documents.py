"""Status documents of hypothetical jobs: healthy, healing, hung, of a thousand replicas.

Each is a function of the poll's number, so that a series of them changes. Not here: a status as a
lighthouse serves it (status_sample.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ftrun.core.books.history import ChangeStatus
from ftrun.core.lighthouse.status import (
    IncidentStatus,
    NoticeStatus,
    ReplicaStatus,
    Status,
)

GPUS = 2
GPU_BYTES = 85_000_000_000
STEP_S = 0.291


def replica(number: int, poll: int, nodes: int) -> ReplicaStatus:
    """A replica that trains."""
    wobble = math.sin(number * 1.7 + poll * 0.9) * 0.006
    own = 0.221 + math.sin(number * 2.3 + poll * 0.37) * 0.009
    pid = 20_311 + number * 7
    train_s = 4280.0 + math.sin(number) * 20
    return {
        "replica_id": str(number),
        "phase": "member",
        "use": "training",
        "use_s": 754.0 + poll,
        "seconds": {"training": train_s, "starting": 21.0, "no quorum": 6.5, "repairing": 1.9},
        "host": f"gpu-{number % nodes + 1:02d}",
        "step_s": STEP_S + wobble,
        "own_s": own,
        "heal": None,
        "restarts_left": 10,
        "is_hung": False,
        "workers": [
            {
                "group_rank": rank,
                "pid": pid + rank,
                "node": "",
                "device": f"cuda:{number // nodes * GPUS + rank}",
                "cpu_share": 1.02,
                "rss_bytes": 6_800_000_000,
                "gpu_memory_bytes": 61_000_000_000 + (number * 37 % 9) * 300_000_000,
                "gpu_memory_total_bytes": GPU_BYTES,
                "gpu_share": 0.96 + math.sin(number + poll * 0.5) * 0.02,
                "age_s": 0.4,
            }
            for rank in range(GPUS)
        ],
        "incarnation": f"c0ffee{number:02d}5e11",
        "agent_id": f"gpu-{number % nodes + 1:02d}-9f3c21aa0b17d2e4",
        "restarts": 0,
        "restart_in_s": None,
        "step": 14_208 + poll * 3,
        "batches": 14_208 * 10,
        "worker_phase": "step",
        "pause": None,
        "pause_s": None,
        "scalars": scalars(poll),
        "last_event": None,
    }


def scalars(poll: int) -> dict[str, float | None]:
    """The script's logged scalars."""
    loss = 2.31 * math.exp(-poll / 55) + 0.04 * math.sin(poll * 1.3) + 1.1
    return {
        "loss": round(loss, 4),
        "grad_norm": round(0.81 + 0.2 * math.sin(poll * 0.7), 3),
        "lr": 0.0003 * (1 - poll / 400),
        "tokens": 14_208.0 * 1024,
    }


def change(kind: str, ago_s: float, took_s: float, cost_s: float, reason: str) -> ChangeStatus:
    """A past change."""
    return {
        "kind": kind,
        "cost_s": cost_s,
        "reason": reason,
        "quorum": f"5.{int(9000 - ago_s)}",
        "members": [str(n) for n in range(10)],
        "step": int(14_208 - ago_s * 3.4) if ago_s < 4100 else 0,
        "ago_s": ago_s,
        "duration_s": took_s,
        "under_way": False,
    }


def incident(number: int, ago_s: float, who: str, words: str, cost_s: float) -> IncidentStatus:
    """A past incident."""
    return {
        "number": number,
        "ago_s": ago_s,
        "is_open": False,
        "replicas": [who],
        "host": f"gpu-{int(who) % 5 + 1:02d}",
        "kind": "signal",
        "words": words,
        "step": int(14_208 - ago_s * 3.4),
        "verdict": "restarted",
        "cost_steps": 0,
        "cost_s": cost_s,
    }


def notice(text: str, ago_s: float) -> NoticeStatus:
    """A notice of the lighthouse."""
    return {"kind": "healed", "replicas": [], "text": text, "time": "", "ago_s": ago_s}


def healthy(poll: int, *, replicas: int = 10, nodes: int = 5) -> Status:
    """All train; one was lost and healed some minutes ago."""
    members = [str(n) for n in range(replicas)]
    found = [replica(n, poll, nodes) for n in range(replicas)]
    found[3]["restarts"], found[3]["restarts_left"] = 1, 9
    found[3]["use_s"] = 412.0 + poll
    found[3]["seconds"] |= {"healing": 3.1, "backoff": 0.4, "absent": 0.2}
    lost = "replica 3: killed by SIGKILL"
    healed = "Replica 3 healed from replicas 0, 1 and 2: step 12,907, 4.1 GB in 2.9 s."
    return {
        "schema": "ftrun.status/1",
        "recovery": None,
        "lighthouse": {
            "version": "0.1.0", "pid": 20_300, "uptime_s": 4340.0, "agents_attached": nodes,
            "journal_writes": 9, "journal_write_s": 0.01, "epoch": 5,
        },
        "phase": "steady",
        "phase_age_s": 412.0,
        "job": {
            "job_id": "llama-1b-pretrain", "uptime_s": 4310.0 + poll, "replicas": replicas,
            "workers_per_replica": GPUS, "min_replicas": 2, "nodes": nodes, "spare_nodes": 0,
        },
        "epoch": 5,
        "step": 14_208 + poll * 3,
        "quorum": {
            "quorum_id": 1, "age_s": 412.0 + poll, "name": "5.7", "attempt": 1, "step": 12_900,
            "members": members, "live": members, "newcomers": ["3"], "donors": ["0"],
        },
        "replicas": found,
        "restarts": 1,
        "account": {
            "wall_s": 4310.0, "total_s": 43_100.0, "goodput": 0.9931, "lost_s": 71.4,
            "seconds": {"training": 42_800.0, "starting": 210.0}, "steps": 14_208,
            "bands": {"width_s": 60.0, "last_s": 10.0, "seconds": {}, "steps": []},
        },
        "rate": {"now": 3.41 + math.sin(poll * 0.8) * 0.05, "run": 3.296},
        "scalars": scalars(poll),
        "incidents": [incident(1, 415.0, "3", "killed by SIGKILL (pid 20332)", 3.9)],
        "waiting_for": [],
        "waiting": None,
        "agents": [],
        "history": [
            change("form", 4290.0, 0.412, 0.0, f"replicas 0-{replicas - 1} ready"),
            change("shrink", 415.0, 0.061, 0.6, lost),
            change("switch", 412.0, 0.23, 0.0, "replica 3 joins"),
        ],
        "outcome": None,
        "events": [notice(healed, 409.0 + poll)],
        "messages_received": {},
        "idle_nodes": [],
        "torchft": None,
    }  # fmt: skip


def without_step(replica: ReplicaStatus, use: str, use_s: float) -> None:
    """A replica without a step of its own."""
    replica["use"], replica["use_s"] = use, use_s
    replica["step"] = replica["step_s"] = replica["own_s"] = None


def backs_off(replica: ReplicaStatus, seconds: float, restarts: int) -> None:
    """A replica that is restarted after a backoff."""
    without_step(replica, "backoff", 5.2)
    replica["phase"], replica["restart_in_s"], replica["workers"] = "backoff", seconds, []
    replica["restarts"], replica["restarts_left"] = restarts, 10 - restarts


def heals(replica: ReplicaStatus, done_bytes: int) -> None:
    """A replica that fetches its peers' state."""
    without_step(replica, "healing", 1.9)
    replica["heal"] = {"done_bytes": done_bytes, "total_bytes": 4_100_000_000}
    replica["restarts"], replica["restarts_left"] = 1, 9
    for worker in replica["workers"]:
        worker["gpu_share"] = 0.04
        worker["pid"] += 900


def healing(poll: int) -> Status:
    """A replacement fetches the state of its peers; another waits for its backoff."""
    status = healthy(poll)
    heals(status["replicas"][6], 2_870_000_000)
    backs_off(status["replicas"][8], 3.0, 4)
    quorum = status["quorum"]
    assert quorum is not None
    quorum["live"] = [str(n) for n in range(10) if n != 8]
    quorum["name"], quorum["age_s"] = "5.9", 2.4
    status["restarts"] = 6
    status["account"]["goodput"], status["account"]["lost_s"] = 0.9907, 93.8
    status["rate"]["now"] = 3.24
    ecc = "RuntimeError: CUDA error: uncorrectable ECC error"
    status["history"] += [
        change("shrink", 9.1, 0.074, 0.7, "replica 8: exit code 1; replica 6: killed by SIGSEGV"),
        change("switch", 2.4, 0.19, 0.0, "replica 6 joins"),
    ]
    under_way = incident(3, 9.1, "8", ecc, 5.9)
    under_way["is_open"], under_way["replicas"] = True, ["6", "8"]
    status["incidents"] += [incident(2, 60.0, "8", ecc, 14.2), under_way]
    joined = "Replica 6 joined at step 14,380. The quorum is now replicas 0-7 and 9."
    status["events"].append(notice(joined, 2.4))
    return status


def hung(poll: int) -> Status:
    """One replica stalls, another is slow, and all wait."""
    status = healthy(poll)
    found = status["replicas"]
    for one in found:
        one["use"], one["use_s"] = "waiting", 11.0
    found[4]["use"], found[4]["use_s"], found[4]["is_hung"] = "training", 766.0, True
    for worker in found[4]["workers"]:
        worker["gpu_share"] = worker["cpu_share"] = 0.0
    found[7]["own_s"] = 0.288
    status["rate"]["now"] = 2.05
    words = "replicas 0-3 and 5-9 wait for replica 4 (it is in no reduction)"
    status["waiting"] = {"for": words, "whom": ["4"], "since_s": 11.2, "at_most_s": 18.8}
    status["waiting_for"] = ["4"]
    status["account"]["goodput"], status["account"]["lost_s"] = 0.9884, 171.0
    return status


def thousand(poll: int) -> Status:
    """A thousand replicas on 125 nodes."""
    status = healthy(poll, replicas=1000, nodes=125)
    found = status["replicas"]
    heals(found[17], 1_200_000_000)
    heals(found[404], 3_900_000_000)
    without_step(found[731], "starting", 2.2)
    backs_off(found[512], 7.0, 3)
    found[88]["own_s"] = 0.287
    quorum = status["quorum"]
    assert quorum is not None
    quorum["members"] = quorum["live"] = [str(n) for n in range(1000) if n not in (512, 731)]
    status["restarts"] = 41
    status["account"]["goodput"], status["account"]["lost_s"] = 0.9812, 81_000.0
    return status


DOCUMENTS: dict[str, Callable[[int], Status]] = {
    "healthy": healthy,
    "healing": healing,
    "hung": hung,
    "waiting": healthy,
    "thousand": thousand,
}
