"""The workers that the spawner has forked: signals to them, and their exits.

A pid in the table has not been reaped, so no other process can have its number. Not here: the fork
(spawner.py), standbys (standbys.py), the decision after an exit (core/agent/supervisor.py).
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ftrun.agent.standbys import Standbys
from ftrun.base import linux
from ftrun.inject.stopping import request_signal


@dataclass
class _Worker:
    incarnation: str
    group_rank: int
    pid: int
    pidfd: int


class ForkedWorkers:
    """The table of the workers, by pid. ``send``: sends a report to the agent."""

    def __init__(self, send: Callable[[dict[str, Any]], None], standbys: Standbys) -> None:
        self._send = send
        self._standbys = standbys
        self._workers: dict[int, _Worker] = {}
        self.writer = 0  # the process that writes snapshots

    def add(self, name: dict[str, Any], pid: int, pidfd: int) -> None:
        """Add a worker that was forked. ``name``: its incarnation and group_rank."""
        self._workers[pid] = _Worker(**name, pid=pid, pidfd=pidfd)

    def pidfds(self) -> Iterator[int]:
        """The pidfds of all workers, which a fork inherits."""
        return (worker.pidfd for worker in self._workers.values())

    def signal(self, incarnation: str, number: int) -> None:
        """Signal the process groups of one incarnation's workers.

        A pid in ``_workers`` has not been reaped, so no other process or group has its number (P3).
        """
        for worker in self._workers.values():
            if worker.incarnation == incarnation:
                _signal_group(worker.pid, number)

    def ask_to_stop(self, incarnation: str, number: int) -> None:
        """Ask the workers alone, without their process groups, to stop: each ends its own
        processes.

        A worker that has not reached its script, or has executed another program, gets the signal
        itself.
        """
        request = request_signal(number)
        for worker in self._workers.values():
            if worker.incarnation == incarnation:
                survives = linux.survives_signal(worker.pid, request)
                os.kill(worker.pid, request if survives else number)

    def reap(self) -> None:
        """Report and reap every child that has ended."""
        while True:
            try:
                seen = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if seen is None:
                return
            worker = self._workers.pop(seen.si_pid, None)
            if worker is not None:
                self._report(worker, seen)
            elif (standby := self._standbys.forget(seen.si_pid)) is not None:
                status = _status(seen)
                self._send({"op": "standby_exited", "name": standby.name, "status": status})
            elif seen.si_pid == self.writer:
                self._send({"op": "writer_ended"})
            os.waitid(os.P_PID, seen.si_pid, os.WEXITED)

    def _report(self, worker: _Worker, seen: os.waitid_result) -> None:
        """Report the exit to the agent. If the worker failed, kill the rest of its process group.

        The worker is still a zombie here, so the number of its group is not in use again.
        """
        status = _status(seen)
        name = {"incarnation": worker.incarnation, "group_rank": worker.group_rank}
        self._send({"op": "exited", **name, "pid": worker.pid, "status": status})
        if status != 0:
            _signal_group(worker.pid, signal.SIGKILL)
        os.close(worker.pidfd)


def _status(seen: os.waitid_result) -> int:
    """The exit code, or minus the signal."""
    return seen.si_status if seen.si_code == os.CLD_EXITED else -seen.si_status


def _signal_group(leader: int, number: int) -> None:
    try:
        os.killpg(leader, number)
    except ProcessLookupError:
        # forked a moment ago: the process does not lead a group yet
        with contextlib.suppress(ProcessLookupError):
            os.kill(leader, number)
