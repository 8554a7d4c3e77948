"""Waits until no thread writes any more for collectives of an aborted group.

A collective in host memory whose connections were shut down may still reduce what it has received,
and its thread may have to wait for a processor. Its tensors must not be written again before that
ends. Other collectives end only at their timeout (a lost message, see gloo.py), but write no more.
The states of the group's threads distinguish the two: if all of them sleep, they wait for
connections that are shut down.

Not here: the pending collectives (training/in_flight.py), how a group is aborted (gloo.py).
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path

from torch.distributed import Work

from ftrun.base import clock
from ftrun.base.errors import PeerError

A_MOMENT_S = 0.001
CHECKS = 2
"""Consecutive checks, ``A_MOMENT_S`` apart, in which all threads must sleep: one may wake
another."""
LIMIT_S = 4.0
"""Enough for threads that only wait for a processor on a busy machine. Less than the 5 s in which a
survivor must answer the lighthouse (core/lighthouse/events.py: rejoin_timeout_s)."""
BLIND_LIMIT_S = 0.2


def wait_for_writers(works: Iterable[Work], sleep: Callable[[], bool | None]) -> bool:
    """Wait until none of ``works``, all of one aborted group, can write any more.

    Args:
        works: collectives that have ended, are about to end, or will end only at their timeout.
        sleep: whether all the group's threads sleep now; None: unknown, and then a collective that
            has not ended after ``BLIND_LIMIT_S`` is assumed to write no more.

    Returns:
        False if threads were still working after ``LIMIT_S``.
    """
    began = clock.now()
    for work in works:
        future = work.get_future()  # done before its callbacks run, which may wait for this thread
        checks = 0
        while not future.done():
            asleep = sleep()
            checks = checks + 1 if asleep else 0
            if checks == CHECKS:
                return True
            if clock.now() >= began + (BLIND_LIMIT_S if asleep is None else LIMIT_S):
                return asleep is None
            _wait_a_moment(work)
    return True


def wait_for_sleep(sleep: Callable[[], bool | None]) -> None:
    """Wait up to ``LIMIT_S`` until all known threads of an aborted group sleep."""
    checks, until = 0, clock.now() + LIMIT_S
    while checks < CHECKS and clock.now() < until:
        asleep = sleep()
        if asleep is None:
            return
        checks = checks + 1 if asleep else 0
        time.sleep(A_MOMENT_S)


def _wait_a_moment(work: Work) -> None:
    began = clock.now()
    with contextlib.suppress(RuntimeError, PeerError):
        work.wait(timedelta(seconds=A_MOMENT_S))
    if not work.get_future().done():
        time.sleep(max(0.0, began + A_MOMENT_S - clock.now()))  # the wait may fail at once


class Build:
    """One group of this process while it is built.

    Attributes:
        is_built: it has succeeded.
        beside: other builds that ran at the same time.
    """

    def __init__(self) -> None:
        self.is_built = False
        self.beside: list[Build] = []

    @property
    def has_own_threads(self) -> bool:
        """Whether the threads that appeared during the build are its own: replicas may be
        threads."""
        return not any(other.is_built for other in self.beside)


class Builds:
    """The builds that are running in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: list[Build] = []

    @contextlib.contextmanager
    def build(self) -> Iterator[Build]:
        """Register a build until it has succeeded or failed."""
        mine = Build()
        with self._lock:
            for other in self._open:
                other.beside.append(mine)
                mine.beside.append(other)
            self._open.append(mine)
        try:
            yield mine
        finally:
            with self._lock:
                self._open.remove(mine)


BUILDS = Builds()


def foreign_threads() -> set[int]:
    """The ids of this process's threads that Python has not started.

    Threads that appear between two calls belong to a backend, or were started by other code
    meanwhile.
    """
    tids = {int(name) for name in os.listdir("/proc/self/task")}
    return tids - {thread.native_id for thread in threading.enumerate()}


def all_sleep(tids: Iterable[int], names: frozenset[str]) -> bool | None:
    """Whether all of these threads with one of ``names`` (15 bytes at most each) sleep.

    Older torch names some threads differently. If a name is missing: True if all of ``tids`` sleep,
    otherwise None.
    """
    found = [(name, state) for name, state in map(thread_stat, tids) if state]
    ours = [(name, state) for name, state in found if name in names]
    if {name for name, _ in ours} == names:
        return all(state == "S" for _, state in ours)
    return True if found and all(state == "S" for _, state in found) else None


def thread_stat(tid: int) -> tuple[str, str]:
    """Name and state of a thread, see proc_pid_stat(5); empty if it has ended."""
    try:
        text = Path(f"/proc/self/task/{tid}/stat").read_text(errors="replace")
    except OSError:
        return "", ""
    head, _, tail = text.rpartition(")")
    return head.partition("(")[2], tail.split()[0]
