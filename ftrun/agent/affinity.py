"""Binds a worker to CPUs and prefers one NUMA node's memory for it.

Memory is preferred, not required: if a node is full, the kernel uses another one and the worker
lives on. Where policies are not permitted, as in many containers, Linux puts a page on the node
that first uses it, which is the same node because the CPUs are bound.

Not here: which CPUs (numa.py).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
from collections.abc import Iterable

PREFERRED = 1
"""MPOL_PREFERRED of the kernel's set_mempolicy."""
NODES_MAX = 1024
_CALLS = {"x86_64": 238, "aarch64": 237, "riscv64": 237, "ppc64le": 261}
"""The number of set_mempolicy by architecture; libc has no name for it."""


def bind(cpus: Iterable[int], memory_node: int) -> None:
    """Bind all threads of this process; ``memory_node`` -1: memory is not changed.

    Raises:
        OSError: the CPUs may not be used any more.
    """
    wanted = frozenset(cpus)
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, wanted)
    for name in os.listdir("/proc/self/task"):
        # A thread that has ended meanwhile is gone; one that was bound elsewhere keeps its binding.
        with contextlib.suppress(OSError):
            if os.sched_getaffinity(int(name)) == before:
                os.sched_setaffinity(int(name), wanted)
    if memory_node >= 0:
        prefer_memory(memory_node)


def prefer_memory(node: int) -> bool:
    """Prefer this node's memory for what is allocated from now on; False: not permitted here."""
    number = _CALLS.get(platform.machine())
    if number is None or not 0 <= node < NODES_MAX:
        return False
    word = 8 * ctypes.sizeof(ctypes.c_ulong)
    mask = (ctypes.c_ulong * (NODES_MAX // word))()
    mask[node // word] = 1 << (node % word)
    # The kernel reads one bit less than this number.
    bits = ctypes.c_ulong(NODES_MAX + 1)
    call = ctypes.CDLL(None, use_errno=True).syscall
    return bool(call(ctypes.c_long(number), ctypes.c_int(PREFERRED), mask, bits) == 0)
