"""Takes the Python stacks of workers, also of those that hang.

Not here: how a worker answers (inject/stacks.py), what the stacks are for.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ftrun import clock, linux
from ftrun.core.ids import WorkerKey
from ftrun.inject.stacks import STACK_SIGNAL, stacks_path

TAKE_TIMEOUT_S = 1.0
QUIET_S = 0.05
"""An answer that has not grown for so long is complete: faulthandler writes no end mark."""
STACK_BYTES_MAX = 256 << 10


@dataclass(frozen=True, slots=True)
class Target:
    """A worker whose stacks are wanted; the caller owns its pidfd or has not reaped its pid."""

    key: WorkerKey
    pid: int


async def take_stacks(runtime_dir: Path, targets: Iterable[Target]) -> dict[WorkerKey, str]:
    """The stacks of all threads of each worker, asked for at once, within ``TAKE_TIMEOUT_S``.

    A worker that has not reached its script, is stopped, or has ended has no stacks: "".
    """
    wanted = list(targets)
    answers = await asyncio.gather(*(_take(runtime_dir, target) for target in wanted))
    return {target.key: text for target, text in zip(wanted, answers, strict=True)}


async def _take(runtime_dir: Path, target: Target) -> str:
    path = stacks_path(runtime_dir, target.key)
    before = _size(path)
    # A command that took the worker's place (--no-python) would die of the signal.
    if before is None or not linux.survives_signal(target.pid, STACK_SIGNAL):
        return ""
    try:
        os.kill(target.pid, STACK_SIGNAL)
    except ProcessLookupError:
        return ""
    deadline = clock.now() + TAKE_TIMEOUT_S
    size = before
    while clock.now() < deadline:
        await asyncio.sleep(QUIET_S)
        grown = _size(path)
        if grown is None or (grown == size and grown > before):
            break
        size = grown
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(before)
        return file.read(STACK_BYTES_MAX).decode(errors="replace")
    return ""


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
