"""All processes of one job, found by a marker that each inherits in its environment."""

from __future__ import annotations

import os
import select

from ftrun.agent import sweep
from ftrun.base import clock, linux

GONE_S = 60.0
"""P1 allows 5 s; `scripts/chaos.py orphans` measures the actual time."""
LOOK_S = 0.2
SWEEP_S = 5.0
MARKER = "MARK_OF_FTRUN_TEST"


class Family:
    """The processes whose environment has ``marker``, by default a random one.

    ``environment``: the variables with which a process and its descendants belong to the family.
    """

    def __init__(self, marker: str = "") -> None:
        mark = marker or os.urandom(8).hex()
        self.environment = {MARKER: mark}
        self._entry = f"{MARKER}={mark}".encode()

    def everybody(self) -> list[linux.ProcessRow]:
        """All of them, including zombies."""
        return [row for row in linux.process_rows() if self.has(row.pid)]

    def rows(self) -> list[linux.ProcessRow]:
        """The running ones."""
        return [row for row in self.everybody() if not row.is_zombie]

    def has(self, pid: int) -> bool:
        """True if the process belongs here."""
        return self._entry in linux.process_environment(pid).split(b"\0")

    def titles(self) -> dict[int, str]:
        """Their titles as shown by ``ps``, in the order of their starts."""
        rows = sorted(self.rows(), key=lambda row: row.start_ticks)
        return {row.pid: linux.command_line(row.pid) for row in rows}

    def titled(self, *words: str) -> list[int]:
        """The pids whose title contains one of the words, in the order of their starts."""
        return [pid for pid, title in self.titles().items() if any(word in title for word in words)]

    def left(self, within_s: float = GONE_S) -> list[int]:
        """The pids that are left after ``within_s``; returns earlier when none is left."""
        deadline = clock.now() + within_s
        while rows := self.rows():
            waiting = [fd for row in rows if (fd := _pidfd(row.pid)) is not None]
            left_s = max(0.0, deadline - clock.now())
            ready, _, _ = select.select(waiting, [], [], min(left_s, LOOK_S))
            for fd in waiting:
                os.close(fd)
            if not ready and clock.now() >= deadline:
                return [row.pid for row in rows]
        return []

    def kill_all(self, within_s: float = SWEEP_S) -> None:
        """SIGKILL until none is left."""
        sweep.kill_all(self.everybody, within_s)


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None
