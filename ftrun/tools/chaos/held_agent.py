"""The agent of the job under chaos, held by pidfd so that its end is an event.

Not here: the job's file, which has its pid (status/jobs.py), the workers (targets.py).
"""

from __future__ import annotations

import os
import select
from types import TracebackType

from ftrun.base import clock
from ftrun.tools.status.jobs import RunningJob, agent_lives

MS_PER_S = 1000.0
POLL_S_MAX = 3600.0
"""The kernel's limit for one wait is 24 days."""


class HeldAgent:
    """The process that the job's file names, never a later process with the same pid.

    ``lives`` is False from the start if that process is gone. Use it as a context manager.
    """

    def __init__(self, job: RunningJob) -> None:
        self._poll = select.poll()
        try:
            self._pidfd = os.pidfd_open(job.pid)
        except OSError:
            self._pidfd = -1
            return
        if not agent_lives(job):  # checked after the open, so the mark is the held process's
            self._close()
            return
        self._poll.register(self._pidfd, select.POLLIN)

    def __enter__(self) -> HeldAgent:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    @property
    def lives(self) -> bool:
        return not self.ends_within(0.0)

    def ends_within(self, timeout_s: float) -> bool:
        """Wait up to ``timeout_s`` for its end. Returns True if it has ended."""
        deadline = clock.now() + timeout_s
        while self._pidfd >= 0:
            left_s = max(0.0, deadline - clock.now())
            if self._poll.poll(min(left_s, POLL_S_MAX) * MS_PER_S):
                return True
            if left_s <= POLL_S_MAX:
                return False
        return True

    def _close(self) -> None:
        if self._pidfd >= 0:
            os.close(self._pidfd)
        self._pidfd = -1
