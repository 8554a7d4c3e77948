"""The health of a chaos run's processes. Reads /proc only.

Not here: the faults (faults.py), the checks (checks.py).
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil

from ftrun.base import linux
from tests import jobs

SOCKET_TIMEOUT = float(os.environ.get("CHAOS_PATIENCE", "1"))
"""The factor by which the bounds of P1 and P2 are extended: more than 1 on a slow machine."""
ZOMBIE_S = 1.0 * SOCKET_TIMEOUT
ZOMBIE_LOOK_S = 0.25


class Family(jobs.Family):
    """All processes of one run. ``stale``: those that were zombies for too long."""

    def __init__(self) -> None:
        super().__init__()
        self._zombies: dict[tuple[int, int], float] = {}
        self._looked_at = 0.0
        self.stale: list[str] = []

    def look_for_zombies(self) -> None:
        """P2: note each process that is a zombie for more than ``ZOMBIE_S``."""
        now = time.monotonic()
        if now - self._looked_at < ZOMBIE_LOOK_S:
            return
        slept_s, self._looked_at = now - self._looked_at, now
        rows = linux.process_rows()
        own = {row.pid for row in rows if not row.is_zombie and self.has(row.pid)}
        dead = {(r.pid, r.start_ticks): r.ppid for r in rows if r.is_zombie and r.ppid in own}
        self._zombies = {key: self._zombies.get(key, now) for key in dead}
        if slept_s > ZOMBIE_S:
            return  # this process was paused and could not look
        for key, since in self._zombies.items():
            if now - since > ZOMBIE_S and not _is_stopped(dead[key]):
                self.stale.append(f"pid {key[0]}, child of {linux.command_line(dead[key])}")


def _is_stopped(pid: int) -> bool:
    row = linux.process_row(pid)
    return row is None or row.state == "T"


def vital_signs(pid: int) -> dict[str, int]:
    """Descriptors, threads, TCP ports and resident KiB of a process; empty if it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        return {
            "fds": len(os.listdir(f"/proc/{pid}/fd")),
            "threads": len(os.listdir(f"/proc/{pid}/task")),
            "ports": len({c.laddr for c in psutil.Process(pid).net_connections("tcp")}),
            "rss_kib": int(fields.get("VmRSS", "0 kB").split()[0]),
        }
    except (OSError, ValueError, psutil.Error):
        return {}
