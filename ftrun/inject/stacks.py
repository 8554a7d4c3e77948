"""Lets the agent request a worker's Python stacks, even while its interpreter hangs.

At ``STACK_SIGNAL`` faulthandler writes the stacks of all threads to a file that both know. It needs
neither the interpreter's lock nor memory. It writes no end mark, but the main thread comes last,
and its outermost frame is constant. The file's first line names that frame. Not here: when stacks
are taken (agent/stacks.py).
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import resource
import signal
import sys
from pathlib import Path
from types import FrameType

from ftrun.core.ids import WorkerKey

STACK_SIGNAL = signal.SIGRTMIN + 13
END_MARK = "ends with: "


def stacks_path(runtime_dir: Path, key: WorkerKey) -> Path:
    """The file for one worker's stacks, in the agent's runtime directory."""
    return runtime_dir / f"stacks-{key.incarnation}-{key.group_rank}"


def install(runtime_dir: Path, key: WorkerKey) -> None:
    """Answer ``STACK_SIGNAL`` from now on. Processes that are forked later ignore it.

    Each answer is appended. If the disk is full or gone, the stacks are lost, not the worker.
    """
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        fd = _moved_up(os.open(stacks_path(runtime_dir, key), flags, 0o600))
        os.write(fd, f"{END_MARK}{_outermost(sys._getframe())}\n".encode())
    except OSError:
        signal.signal(STACK_SIGNAL, signal.SIG_IGN)
        return
    faulthandler.register(STACK_SIGNAL, file=fd, all_threads=True)
    os.register_at_fork(after_in_child=_ignore)


def _outermost(frame: FrameType) -> str:
    """The outermost frame as faulthandler writes it."""
    while frame.f_back is not None:
        frame = frame.f_back
    code = frame.f_code
    return f'  File "{code.co_filename}", line {frame.f_lineno} in {code.co_name}'


def _moved_up(fd: int) -> int:
    """The same file at a high number, so that a script's first file is still descriptor 3."""
    soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = max(3, min(soft_limit, 1024) - 8)
    high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, lowest)
    os.close(fd)
    return high


def _ignore() -> None:
    faulthandler.unregister(STACK_SIGNAL)
    signal.signal(STACK_SIGNAL, signal.SIG_IGN)
