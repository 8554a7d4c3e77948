"""No process outlives the job (P1): finds the job's processes, and kills no others (P3).

A process belongs to the job if it descends from one of the job's processes, or if its environment
has the job's random marker. Signals are sent by pidfd, after a check of the start time.

Not here: when to sweep (spawner.py, tcp_stores.py, fleet.py).
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Collection

from ftrun.agent.env_markers import GUARD_NAME, OWNER_NAME
from ftrun.base import clock, linux
from ftrun.base.linux import ProcessRow

RESCAN_S = 0.2
TRACKER = "from multiprocessing.resource_tracker import "
TRACKER_S = 2.0
"""The time that Python's resource tracker gets to remove the semaphores and shared memory of killed
processes. It ends after the last of them.
"""
DESCRIPTORS_HELD_BACK = 8
"""A sweep reads /proc and holds one pidfd per process; with few descriptors it takes more
rounds.
"""

Selection = Callable[[], list[ProcessRow]]


def kill_all(selection: Selection, deadline_s: float) -> list[int]:
    """Send SIGKILL to all processes that ``selection`` finds, until it finds none.

    This is repeated because a process may fork between its listing and its death. Python's resource
    trackers end by themselves, or are killed after ``TRACKER_S``.

    Returns:
        The pids that are left after ``deadline_s``: they are stuck in the kernel.
    """
    began = clock.now()
    deadline = began + deadline_s
    while True:
        rows = [row for row in selection() if not row.is_zombie]
        if not rows:
            return []
        is_early = clock.now() < began + min(TRACKER_S, deadline_s / 2)
        spared = {row.pid for row in rows if is_early and is_tracker(row.pid)}
        numbers = [0 if row.pid in spared else signal.SIGKILL for row in rows]
        pidfds = [linux.send_signal(row, x) for row, x in zip(rows, numbers, strict=True)]
        _wait_gone([fd for fd in pidfds if fd is not None], deadline)
        if clock.now() >= deadline:
            return [row.pid for row in selection() if not row.is_zombie]


def hold_back_descriptors() -> tuple[int, ...]:
    """Reserve descriptors that a guard closes before a sweep, so that it has enough (P1)."""
    flags = os.O_RDONLY | os.O_CLOEXEC
    return tuple(os.open(os.devnull, flags) for _ in range(DESCRIPTORS_HELD_BACK))


def job_processes(
    guard_id: str, root_pid: int, spare: frozenset[int], spare_guards: Collection[str] = ()
) -> list[ProcessRow]:
    """The descendants of ``root_pid`` and all processes with the marker, without ``spare``.

    ``spare_guards``: processes with one of these other markers do not belong to the job.
    """
    rows = linux.process_rows()
    descendants = linux.descendants(rows, {root_pid})
    marker, *others = (f"{GUARD_NAME}={guard}".encode() for guard in (guard_id, *spare_guards))
    found = [
        row
        for row in rows
        if row.pid not in spare and (row.pid in descendants or _carries(row.pid, marker))
    ]
    return [row for row in found if not any(_carries(row.pid, other) for other in others)]


def owned_processes(incarnation: str) -> list[ProcessRow]:
    """The processes of one incarnation of a replica group: its workers and their descendants.

    Every worker has its incarnation in its environment. So do its forks, whatever their session or
    parent is.
    """
    rows = linux.process_rows()
    marker = f"{OWNER_NAME}={incarnation}".encode()
    carriers = {row.pid for row in rows if _carries(row.pid, marker)}
    found = carriers | linux.descendants(rows, carriers)
    return [row for row in rows if row.pid in found]


def is_tracker(pid: int) -> bool:
    """True if this is the resource tracker of Python's ``multiprocessing``."""
    return TRACKER in linux.command_line(pid)


def _carries(pid: int, marker: bytes) -> bool:
    environment = linux.process_environment(pid)
    return environment.startswith(marker + b"\0") or b"\0" + marker + b"\0" in environment


def _wait_gone(pidfds: list[int], deadline: float) -> None:
    poll = select.poll()
    for pidfd in pidfds:
        poll.register(pidfd, select.POLLIN)
    waiting = set(pidfds)
    rescan = min(deadline, clock.now() + RESCAN_S)
    while waiting and (left_s := rescan - clock.now()) > 0:
        for pidfd, _ in poll.poll(left_s * 1000):
            poll.unregister(pidfd)
            waiting.discard(pidfd)
    for pidfd in pidfds:
        os.close(pidfd)
