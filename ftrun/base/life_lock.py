"""A lock that a worker holds for all of its life: the earliest sign of its death.

When a process ends, the kernel first marks the robust locks of its threads and wakes their waiters.
Then it frees the process's memory, which takes tenths of a second for some GB. Only after that are
its sockets closed and its pidfd readable. So a waiter for the lock notices the end first. (A core
dump, if enabled, is written before all this.)

A lock is a robust pthread mutex in memory that the agent and its workers share. The agent only
reads the mutex's first word, a futex:

| word                  | meaning                                                                  |
|-----------------------|--------------------------------------------------------------------------|
| 0                     | not taken yet                                                            |
| thread id and WAITERS | a worker's main thread holds it                                          |
| OWNER_DIED            | that thread has ended, or its process has become another program (exec)  |
| RELEASED              | the agent has stopped waiting                                            |

A process forked by a worker holds nothing, and one that calls exec may take its lock again. Not
here: the waiter (agent/death_watch.py), what an end means (core/agent/supervisor.py).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading

from ftrun.base import futex, linux

LOCKS_MAX = 256
LOCK_BYTES = 64
"""Room for a ``pthread_mutex_t``: at most 48 bytes, in glibc's ports to 64 bits."""
WAITERS, OWNER_DIED, RELEASED = 0x8000_0000, 0x4000_0000, 0x3FFF_FFFF
_BYTES = LOCKS_MAX * LOCK_BYTES


class LifeLocks:
    """The agent's side: the memory of all locks.

    Raises:
        OSError: there is no such memory, or no futex is known for this kind of processor.
    """

    def __init__(self) -> None:
        futex.number()
        self._fd = os.memfd_create("ftrun-life-locks", os.MFD_CLOEXEC)
        os.ftruncate(self._fd, _BYTES)
        self._memory = mmap.mmap(self._fd, _BYTES)
        self._first = ctypes.c_char.from_buffer(self._memory)

    def place(self, number: int) -> str:
        """The data that ``hold`` needs to find a lock, even in a process that has called exec."""
        return f"/proc/{os.getpid()}/fd/{self._fd}:{number * LOCK_BYTES}"

    def lock(self, number: int) -> LifeLock:
        """Reset a lock, so that it is not taken."""
        at = number * LOCK_BYTES
        self._memory[at : at + LOCK_BYTES] = bytes(LOCK_BYTES)
        return LifeLock(ctypes.addressof(self._first) + at)

    def close(self) -> None:
        """Free the memory. No ``LifeLock`` may be used any more."""
        del self._first
        self._memory.close()
        os.close(self._fd)


class LifeLock:
    """One lock, as the agent sees it."""

    def __init__(self, at: int) -> None:
        self._at = at
        self._word = ctypes.c_uint32.from_address(at)

    def read(self) -> int:
        return self._word.value

    def wait_while(self, word: int) -> None:
        """Wait until the word may have changed; returns at once if it has.

        Raises:
            OSError: this system refuses to wait.
        """
        futex.wait_while(self._at, word)

    def release(self) -> None:
        """End all waits, permanently."""
        self._word.value = RELEASED
        futex.wake(self._at, 1)


def hold(place: str) -> None:
    """Take the lock at ``place`` in the main thread of this process, for as long as it lives.

    Raises:
        OSError: it cannot be taken; then the agent notices this process's end by its pidfd.
    """
    path, _, offset = place.rpartition(":")
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        at = _map_for_ever(fd) + int(offset)
    finally:
        os.close(fd)
    libc = linux.libc()
    try:
        attributes = ctypes.create_string_buffer(LOCK_BYTES)
        _check(libc.pthread_mutexattr_init(attributes))
        _check(libc.pthread_mutexattr_setpshared(attributes, 1))
        _check(libc.pthread_mutexattr_setrobust(attributes, 1))
        _check(libc.pthread_mutex_init(ctypes.c_void_p(at), attributes))
        _check(libc.pthread_mutex_lock(ctypes.c_void_p(at)))
    except AttributeError as error:
        raise OSError("this C library has no robust mutexes") from error
    word = ctypes.c_uint32.from_address(at)
    if word.value != threading.get_native_id():
        libc.pthread_mutex_unlock(ctypes.c_void_p(at))
        raise OSError("this C library's mutexes do not begin with the futex")
    # The kernel wakes waiters only if this bit is set. The lock is never unlocked, so set it here.
    word.value |= WAITERS
    futex.wake(at, 1)


def _map_for_ever(fd: int) -> int:
    """Map the memory. It is never unmapped, because this thread's list of robust mutexes is in
    it."""
    libc = linux.libc()
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
    ]  # fmt: skip
    flags = mmap.PROT_READ | mmap.PROT_WRITE
    at = libc.mmap(None, _BYTES, flags, mmap.MAP_SHARED, fd, 0)
    if at in (None, ctypes.c_void_p(-1).value):
        _check(ctypes.get_errno())
    return int(at)


def _check(code: int) -> None:
    if code != 0:
        raise OSError(code, os.strerror(code))
