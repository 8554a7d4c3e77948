"""The processes of a chaos run, found by the marker that they inherit. Reads /proc only.

Not here: the faults (faults.py), the checks (checks.py).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from ftrun import linux

LOOK_S = 0.02
SOCKET_TIMEOUT = float(os.environ.get("CHAOS_PATIENCE", "1"))
"""How many times as long the bounds of P1 and P2 may take: more than 1 on a slow machine."""
ZOMBIE_S = 1.0 * SOCKET_TIMEOUT
ZOMBIE_LOOK_S = 0.25


class Late(AssertionError):
    """An awaited condition did not come in time."""


class Family:
    """All processes of one run."""

    def __init__(self, marker: str) -> None:
        self._marker = marker.encode()
        self._zombies: dict[tuple[int, int], float] = {}
        self._looked_at = 0.0
        self.stale: list[str] = []

    def rows(self) -> list[linux.ProcessRow]:
        """The living processes."""
        return [
            row
            for row in linux.process_rows()
            if not row.is_zombie and self._marker in linux.process_environment(row.pid).split(b"\0")
        ]

    def titled(self, *words: str) -> list[int]:
        """The pids whose command holds one of the words, in the order of their starts."""
        rows = [row for row in self.rows() if any(word in command(row.pid) for word in words)]
        return [row.pid for row in sorted(rows, key=lambda row: row.start_ticks)]

    def look_for_zombies(self) -> None:
        """P2: note each process that is a zombie for more than ``ZOMBIE_S``."""
        now = time.monotonic()
        if now - self._looked_at < ZOMBIE_LOOK_S:
            return
        slept_s, self._looked_at = now - self._looked_at, now
        rows = linux.process_rows()
        own = {row.pid for row in rows if not row.is_zombie and self._is_own(row.pid)}
        dead = {(r.pid, r.start_ticks): r.ppid for r in rows if r.is_zombie and r.ppid in own}
        self._zombies = {key: self._zombies.get(key, now) for key in dead}
        if slept_s > ZOMBIE_S:
            return  # we were not there to see
        for key, since in self._zombies.items():
            if now - since > ZOMBIE_S and not _is_stopped(dead[key]):
                self.stale.append(f"pid {key[0]}, child of {command(dead[key])}")

    def _is_own(self, pid: int) -> bool:
        return self._marker in linux.process_environment(pid).split(b"\0")


def _is_stopped(pid: int) -> bool:
    row = linux.process_row(pid)
    return row is None or row.state == "T"


def command(pid: int) -> str:
    """A process's command as ``ps`` shows it."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""


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


def wait(
    condition: Callable[[], object],
    what: str,
    timeout_s: float,
    meanwhile: Callable[[], None] = lambda: None,
) -> float:
    """Check until ``condition`` holds; returns the seconds that it took.

    Raises:
        Late: it did not within ``timeout_s``.
    """
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > timeout_s:
            raise Late(f"{what}: not within {timeout_s:g} s")
        meanwhile()
        time.sleep(LOOK_S)
    return time.monotonic() - began
