"""Waiting until nobody writes any more for collectives of a group that was aborted.

A collective whose connections were shut down may still be reducing what it had received, and the
thread that does it may have to wait for a processor: only then may its tensors be written again.
Some never end (a lost message, see gloo.py), until their timeout. What tells them apart is whether
the backend's threads sleep: who sleeps on a connection that is shut down has nothing to write.

Not here: which collectives were under way (training/engine.py), how a group is aborted (gloo.py).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path

from torch.distributed import Work

from ftrun import clock
from ftrun.errors import PeerError

A_MOMENT = timedelta(milliseconds=1)
LOOKS = 2
"""So often in a row, a moment apart, all threads must sleep: one may hand over to another."""
LIMIT_S = 1.0
BLIND_LIMIT_S = 0.02


def settle(works: Iterable[Work], sleep: Callable[[], bool | None]) -> bool:
    """Wait until none of ``works``, all of aborted groups, can write any more.

    Args:
        works: collectives that have ended, are about to end, or wait for nothing.
        sleep: whether all the backend's threads sleep now; None: that cannot be told, and then
            what has not ended after ``BLIND_LIMIT_S`` is taken to wait.

    Returns:
        False if they still did not sleep after ``LIMIT_S``.
    """
    began, looks = clock.now(), 0
    for work in works:
        future = work.get_future()  # done before its callbacks, which may wait for us, run
        while not future.done():
            asleep = sleep()
            looks = looks + 1 if asleep else 0
            limit_s = BLIND_LIMIT_S if asleep is None else LIMIT_S
            if looks >= LOOKS or clock.now() >= began + limit_s:
                return asleep is not False
            with contextlib.suppress(RuntimeError, PeerError):
                work.wait(A_MOMENT)
    return True


def threads_sleep(names: frozenset[str]) -> bool | None:
    """Whether all threads of this process with these names sleep; None: it has none."""
    states = [state for name, state in _threads() if name in names]
    return all(state == "S" for state in states) if states else None


def _threads() -> Iterable[tuple[str, str]]:
    """Name (15 bytes at most) and state of each thread; see proc_pid_stat(5)."""
    for tid in os.listdir("/proc/self/task"):
        try:
            text = Path(f"/proc/self/task/{tid}/stat").read_text(errors="replace")
        except OSError:
            continue  # it has ended
        head, _, tail = text.rpartition(")")
        yield head.partition("(")[2], tail.split()[0]
