"""A fork's pipes and descriptors."""

from __future__ import annotations

import os
import resource

import pytest

from ftrun.agent import child


def test_pipes_come_all_or_none() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = child.open_pipes()
    child.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (sorted(free)[-1], hard))  # one too few
    try:
        with pytest.raises(OSError, match="Too many open files"):
            child.open_pipes()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for fd in free:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_a_worker_whose_cpus_are_gone_ends_with_the_reason() -> None:
    with pytest.raises(SystemExit, match=r"cannot be bound to CPUs 4094-4095 \(Invalid argument"):
        child._bind([4094, 4095], -1)
