"""Takes the Python stacks of workers, including workers that hang.

A worker answers by itself (inject/stacks.py). If it does not, because it is stopped or its signals
are blocked, py-spy, if installed, reads the stacks from outside. Not here: the use of the stacks.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ftrun.base import clock, linux
from ftrun.core.ids import WorkerKey
from ftrun.inject.stacks import END_MARK, STACK_SIGNAL, stacks_path

TAKE_TIMEOUT_S = 1.0
LOOK_S = 0.01
QUIET_S = 0.05
"""An answer without its last line counts as complete when it has not grown for this time.

The last line is missing if a stack has more than 100 frames, and in a process that is exiting.
"""
STACK_BYTES_MAX = 256 << 10
NO_STACKS = "no stacks: the worker does not answer, and "
REASON_CHARS_MAX = 300
PY_SPY_TIMEOUT_S = 0.8
"""Together with ``TAKE_TIMEOUT_S``, less than the time an agent waits for stacks before it
kills.
"""


@dataclass(frozen=True, slots=True)
class Target:
    """A worker whose stacks are requested. The caller owns its pidfd or has not reaped its pid."""

    key: WorkerKey
    pid: int


async def take_stacks(runtime_dir: Path, targets: Iterable[Target]) -> dict[WorkerKey, str]:
    """The stacks of all threads of each worker, the main thread first, within two seconds.

    "" for a worker that has not reached its script or has ended. For a worker that does not answer,
    because it is stopped or blocks its signals, the stacks come from py-spy; if it is not installed
    or may not read the process, one line states that.
    """
    wanted = list(targets)
    answers = await asyncio.gather(*(_take(runtime_dir, target) for target in wanted))
    return {target.key: text for target, text in zip(wanted, answers, strict=True)}


async def _take(runtime_dir: Path, target: Target) -> str:
    path = stacks_path(runtime_dir, target.key)
    before = _size(path)
    # A command that took the worker's place (--no-python) would be killed by the signal.
    if before is None or not linux.survives_signal(target.pid, STACK_SIGNAL):
        return ""
    last_line = _last_line(path)
    try:
        os.kill(target.pid, STACK_SIGNAL)
    except ProcessLookupError:
        return ""
    deadline = clock.now() + TAKE_TIMEOUT_S
    text, grown_at = "", clock.now()
    while clock.now() < deadline:
        await asyncio.sleep(LOOK_S)
        longer = _read(path, before)
        if longer is None:
            break
        if longer != text:
            text, grown_at = longer, clock.now()
        is_quiet = clock.now() - grown_at >= QUIET_S
        if text and (text.rstrip("\n").endswith(last_line) or is_quiet):
            break
    return _main_first(text) if text else await _py_spy(target.pid)


def _main_first(text: str) -> str:
    """Move the main thread's stack to the front, as in py-spy; faulthandler writes it last."""
    blocks = text.strip("\n").split("\n\n")
    return "\n\n".join([blocks[-1], *blocks[:-1]]) + "\n"


def _read(path: Path, offset: int) -> str | None:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(STACK_BYTES_MAX).decode(errors="replace")
    except OSError:
        return None


def _last_line(path: Path) -> str:
    """The line that ends this worker's answers: after the mark in its file's first line, or the
    mark.
    """
    text = _read(path, 0) or ""
    return text.partition("\n")[0].removeprefix(END_MARK) or END_MARK


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


async def _py_spy(pid: int) -> str:
    """The output of ``py-spy dump``; if it cannot read the process, one line with the reason.

    It does not pause the process, which may have to answer others meanwhile.
    """
    beside = Path(sys.executable).with_name("py-spy")
    program = str(beside) if beside.exists() else shutil.which("py-spy")
    if program is None:
        return f"{NO_STACKS}py-spy, which may still read them, is not installed\n"
    try:
        process = await asyncio.create_subprocess_exec(
            program,
            "dump",
            "--nonblocking",
            "--pid",
            str(pid),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        return f"{NO_STACKS}py-spy cannot be run: {error.strerror}\n"
    try:
        out, err = await asyncio.wait_for(process.communicate(), PY_SPY_TIMEOUT_S)
    except asyncio.TimeoutError:
        return f"{NO_STACKS}py-spy has not read them within {PY_SPY_TIMEOUT_S:g} s\n"
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode == 0:
        return out[:STACK_BYTES_MAX].decode(errors="replace")
    lines = err.decode(errors="replace").strip().splitlines() or ["it does not say why"]
    return f"{NO_STACKS}py-spy cannot read it: {lines[-1][:REASON_CHARS_MAX]}\n"
