"""Finds the workers of one job on this machine, so that nothing else can ever be killed (P3).

A process is a worker of the job only if all of this holds: it descends from the agent in the job's
own file; its environment has, from the spawner, an incarnation that the job's lighthouse reports to
holders of the token; it is titled as a worker; and no older process has the same marks, because
children of a worker inherit them. It is signalled by pidfd. Not here: when (session.py).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass

from ftrun.agent.env_markers import OWNER_NAME
from ftrun.base import linux
from ftrun.base.linux import ProcessRow
from ftrun.core.activity import Activity
from ftrun.core.lighthouse.status import ReplicaStatus, Status

MEMBER = "member"
LIGHTHOUSE = "ftrun lighthouse"
BETWEEN = ("ftrun spawner", "ftrun stores")
"""The titles of the processes between a worker and its agent."""


def trains(replica: ReplicaStatus) -> bool:
    """Whether it is a member of the quorum in force, or one group that trains without a quorum."""
    return replica["phase"] == MEMBER or replica["worker_phase"] == Activity.APART.value


@dataclass(frozen=True)
class Target:
    """One worker of a replica that trains."""

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


def find_targets(status: Status, agent_pid: int | None, only: str | None = None) -> list[Target]:
    """The workers below the agent ``agent_pid`` whose replicas train, in order.

    ``agent_pid`` None: below any agent on this machine, because the job may have several here.
    ``only``: search this replica only; None: all.
    """
    wanted = {
        incarnation: replica["replica_id"]
        for replica in status["replicas"]
        if (incarnation := replica["incarnation"]) is not None
        and trains(replica)
        and only in (None, replica["replica_id"])
    }
    rows = linux.process_rows()
    below = {x.pid for x in rows} if agent_pid is None else linux.descendants(rows, {agent_pid})
    found: dict[tuple[str, int], Target] = {}
    # The oldest process with these marks is the worker; the others are its children.
    for row in sorted(rows, key=lambda row: (row.start_ticks, row.pid)):
        if row.pid in below and not row.is_zombie:
            target = _as_target(row, wanted)
            if target is not None:
                found.setdefault((target.incarnation, target.group_rank), target)
    return [found[key] for key in sorted(found, key=lambda k: (found[k].replica_id, k[1]))]


def node_of(target: Target) -> list[ProcessRow]:
    """The worker's agent, then all processes below it; empty if the agent is not found."""
    rows = {row.pid: row for row in linux.process_rows()}
    agent = rows.get(target.row.ppid)
    while agent is not None and linux.command_line(agent.pid).startswith(BETWEEN):
        agent = rows.get(agent.ppid)
    if agent is None or agent.pid == 1 or agent.pid == target.row.ppid:
        return []
    below = linux.descendants(rows.values(), {agent.pid})
    return [agent, *(rows[pid] for pid in sorted(below))]


def lighthouse_below(agent_pids: Iterable[int]) -> list[ProcessRow]:
    """The lighthouse that one of these agents runs; empty if it runs separately."""
    rows = {row.pid: row for row in linux.process_rows()}
    below = linux.descendants(rows.values(), agent_pids) & rows.keys()
    return [rows[pid] for pid in below if linux.command_line(pid).startswith(LIGHTHOUSE)]


def _as_target(row: ProcessRow, wanted: dict[str, str]) -> Target | None:
    incarnation = _owner(row.pid)
    replica_id = wanted.get(incarnation)
    if replica_id is None:
        return None
    title = f"ftrun worker {replica_id}."
    words = linux.command_line(row.pid)
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
