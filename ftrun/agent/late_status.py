"""The exit status of a worker whose exit the busy or stopped spawner does not report.

Not here: the usual, immediate report (forked.py), the decision after an exit (fleet.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from ftrun.agent.groups import Groups, Worker
from ftrun.base import clock, linux
from ftrun.core.agent.imports import LIMIT_S
from ftrun.core.ids import WorkerKey

STATUS_LATE_S = 0.5
STATUS_LOOKS = 20
"""How often the status is looked for after the spawner has reaped a worker without a report."""
STATUS_WAIT_S = LIMIT_S
"""How long an import may keep the spawner from reaping and reporting."""

Exited = Callable[[str, int, int, int, str], None]
"""Incarnation, group_rank, pid, status, reason."""


class LateStatus:
    """Finds a worker's exit status, until a deadline; calls ``exited``."""

    def __init__(self, groups: Groups, exited: Exited) -> None:
        self._groups = groups
        self._exited = exited
        self._loop = asyncio.get_running_loop()

    def ended(self, key: WorkerKey) -> None:
        """A pidfd shows that a worker has exited; usually the spawner reports it at once."""
        worker = self._groups.worker(key)
        if worker is not None:
            self._ask_later(key, worker, STATUS_LOOKS, clock.now() + STATUS_WAIT_S)

    def _ask_later(self, key: WorkerKey, worker: Worker, looks: int, deadline: float) -> None:
        self._loop.call_later(STATUS_LATE_S, partial(self._late, key, worker, looks, deadline))

    def _late(self, key: WorkerKey, worker: Worker, looks: int, deadline: float) -> None:
        """The spawner is busy or stopped: read the status of the zombie from /proc."""
        if self._groups.worker(key) is not worker:
            return
        status = linux.status_of_zombie(worker.pid)
        if status:
            self._exited(key.incarnation, key.group_rank, worker.pid, status, "")
        elif looks > 1 and clock.now() < deadline:
            # Status 0 may mean success or that it must not be read: wait for the spawner.
            self._ask_later(key, worker, looks - (status is None), deadline)
        else:
            reason = "has ended, and the spawner does not report how"
            self._exited(key.incarnation, key.group_rank, worker.pid, -9, reason)
