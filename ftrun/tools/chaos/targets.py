"""Finds the workers of one job on this machine so that nothing else can ever be killed (P3).

A process is a worker of the job only if all of this holds: it descends from the agent that the
job's own file names; its environment has, from the spawner, an incarnation that the job's
lighthouse reports to holders of the token; it is titled as a worker; and no older process has the
same marks, because children of a worker inherit them. It is signalled by pidfd. Not here: when
(session.py).
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from ftrun.agent.env_markers import OWNER_NAME
from ftrun.base import linux
from ftrun.base.linux import ProcessRow
from ftrun.core.lighthouse.status import Status

MEMBER = "member"


@dataclass(frozen=True)
class Target:
    """One worker of a member of the quorum in force."""

    replica_id: str
    group_rank: int
    incarnation: str
    row: ProcessRow

    @property
    def pid(self) -> int:
        """The worker's pid."""
        return self.row.pid

    def strike(self, number: signal.Signals) -> bool:
        """Send the signal; False if the worker has already ended."""
        pidfd = linux.send_signal(self.row, number)
        if pidfd is None:
            return False
        os.close(pidfd)
        return True


def find_targets(status: Status, agent_pid: int, only: str | None = None) -> list[Target]:
    """The workers below the agent ``agent_pid`` whose replicas are members, in order.

    ``only``: the one replica to look in; None: all.
    """
    wanted = {
        incarnation: replica["replica_id"]
        for replica in status["replicas"]
        if (incarnation := replica["incarnation"]) is not None
        and replica["phase"] == MEMBER
        and only in (None, replica["replica_id"])
    }
    rows = linux.process_rows()
    below = linux.descendants(rows, {agent_pid})
    found: dict[tuple[str, int], Target] = {}
    # The oldest process with these marks is the worker; the others are its children.
    for row in sorted(rows, key=lambda row: (row.start_ticks, row.pid)):
        if row.pid in below and not row.is_zombie:
            target = _as_target(row, wanted)
            if target is not None:
                found.setdefault((target.incarnation, target.group_rank), target)
    return [found[key] for key in sorted(found, key=lambda k: (found[k].replica_id, k[1]))]


def _as_target(row: ProcessRow, wanted: dict[str, str]) -> Target | None:
    incarnation = _owner(row.pid)
    replica_id = wanted.get(incarnation)
    if replica_id is None:
        return None
    title = f"ftrun worker {replica_id}."
    words = _command(row.pid)
    rank = words[len(title) :].partition(":")[0]
    if not words.startswith(title) or not rank.isdecimal():
        return None
    return Target(replica_id, int(rank), incarnation, row)


def _owner(pid: int) -> str:
    for entry in linux.process_environment(pid).split(b"\0"):
        name, _, value = entry.partition(b"=")
        if name == OWNER_NAME.encode():
            return value.decode(errors="replace")
    return ""


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""
