"""Waits for a word of shared memory to change, and wakes waiting threads (Linux's futex).

Not here: the meaning of the words (life_lock.py, snapshots/board.py).
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform

from ftrun.base import linux

_FUTEX_WAIT, _FUTEX_WAKE = 0, 1
_FUTEX_NUMBERS = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221}
_ENDED_EARLY = (errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT)
ALL = 2**31 - 1


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def wait_while(at: int, word: int, timeout_s: float | None = None) -> None:
    """Wait while the 32 bits at ``at`` are ``word``, ``timeout_s`` at most.

    It may return early, so callers must check again.

    Raises:
        OSError: this system refuses to wait.
    """
    until = None
    if timeout_s is not None:
        seconds, rest = divmod(timeout_s, 1.0)
        until = ctypes.byref(_Timespec(int(seconds), int(rest * 1e9)))
    _futex(at, _FUTEX_WAIT, word, until)


def wake(at: int, count: int) -> None:
    """Wake up to ``count`` threads that wait for the word at ``at``."""
    _futex(at, _FUTEX_WAKE, count, None)


def number() -> int:
    """The system call's number.

    Raises:
        OSError: it is not known for this kind of processor.
    """
    found = _FUTEX_NUMBERS.get(platform.machine())
    if found is None:
        raise OSError(f"the number of the system call futex on {platform.machine()} is not known")
    return found


def _futex(at: int, operation: int, value: int, timeout: object) -> None:
    long = ctypes.c_long
    result = linux.libc().syscall(
        long(number()), ctypes.c_void_p(at), long(operation), long(value), timeout, None, None
    )
    if result < 0 and (code := ctypes.get_errno()) not in _ENDED_EARLY:
        raise OSError(code, os.strerror(code))
