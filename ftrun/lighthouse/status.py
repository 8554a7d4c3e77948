"""The whole status of a lighthouse: the core's part, plus the shell's and the process's.

Not here: the fields' types (core/lighthouse/status.py), the core's part
(core/lighthouse/snapshot.py).
"""

from __future__ import annotations

import os
from importlib.metadata import version

from ftrun.base import clock
from ftrun.core.lighthouse.status import SCHEMA, Status
from ftrun.core.torchft_quorum.status import TorchftStatus
from ftrun.lighthouse.shell import Journaling, Shell


def full_status(
    shell: Shell, journal: Journaling, uptime_s: float, torchft: TorchftStatus | None = None
) -> Status:
    """The status now, as plain JSON. ``torchft``: None: no port for torchft's clients is open."""
    now = clock.now()
    membership, log = shell.snapshot(now), shell.event_log
    for replica in membership["replicas"]:
        replica["last_event"] = log.last_of(replica["replica_id"], now)
    return {
        "schema": SCHEMA,
        "lighthouse": {
            "version": version("ftrun"),
            "pid": os.getpid(),
            "uptime_s": round(uptime_s, 3),
            "agents_attached": shell.agents,
            "journal_writes": journal.writes,
            "journal_write_s": round(journal.write_s, 6),
            "epoch": membership["epoch"],
        },
        **membership,
        "idle_nodes": shell.idle_nodes(),
        "events": log.events(now),
        "messages_received": shell.messages_received(),
        "torchft": torchft,
    }
