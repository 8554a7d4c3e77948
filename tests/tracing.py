"""A traced thread: its process has died, but exists until its tracer has waited for it.

To its agent it looks like a worker with much memory, for as long as a test wants.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SEIZE = 0x4206
WALL = 0x4000_0000
"""A flag of ptrace(2) and waitpid(2)."""


@contextmanager
def held_back(pid: int) -> Iterator[None]:
    """The process may die in the block, but exists until the block's end.

    It needs a second thread, and this thread must be allowed to trace it.
    """
    tid = next(
        int(path.name) for path in Path(f"/proc/{pid}/task").iterdir() if path.name != f"{pid}"
    )
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(ctypes.c_long(SEIZE), ctypes.c_long(tid), None, None) != 0:
        pytest.skip(f"this system lets no test trace: {os.strerror(ctypes.get_errno())}")
    try:
        yield
    finally:
        os.waitpid(tid, WALL)
