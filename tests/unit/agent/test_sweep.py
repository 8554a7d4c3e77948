"""The job's processes are found, whatever their session, parent or environment is now."""

from __future__ import annotations

import os
import resource
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from ftrun.agent import sweep
from ftrun.agent.env_markers import GUARD_NAME, OWNER_NAME
from ftrun.base import clock, linux

FAMILY = """
import os, signal, subprocess
from ftrun.base import clock, linux
linux.become_subreaper()
subprocess.Popen(["sleep", "1000"])
subprocess.Popen(["sleep", "1000"], start_new_session=True)
subprocess.run(["sh", "-c", "trap '' TERM; setsid sleep 1000 &"])
subprocess.run(["env", "-i", "/bin/sh", "-c", "/bin/sleep 1000 &"])
if os.fork() == 0:
    os.setsid()
    if os.fork() > 0:
        os._exit(0)
    signal.pause()
os.wait()
print("up", flush=True)
signal.pause()
"""


@pytest.fixture
def guard_id() -> str:
    return secrets.token_hex(16)


@pytest.fixture
def family(guard_id: str) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, GUARD_NAME: guard_id, OWNER_NAME: "f" * 16}
    with subprocess.Popen(
        [sys.executable, "-c", FAMILY], env=environment, stdout=subprocess.PIPE
    ) as root:
        assert root.stdout is not None
        assert root.stdout.readline() == b"up\n"
        yield root
        sweep.kill_all(partial(sweep.job_processes, guard_id, root.pid, frozenset()), 10.0)
        root.kill()


def test_all_descendants_are_found_and_killed_and_nobody_else(
    family: subprocess.Popen[bytes], guard_id: str
) -> None:
    with subprocess.Popen(["sleep", "1000"]) as stranger:
        select = partial(sweep.job_processes, guard_id, family.pid, frozenset({family.pid}))
        found = [row for row in select() if not row.is_zombie]
        assert len(found) == 5
        assert stranger.pid not in {row.pid for row in found}
        assert sweep.kill_all(select, 10.0) == []
        assert family.poll() is None
        assert stranger.poll() is None
        stranger.kill()


def test_the_marker_is_found_even_when_the_root_is_dead(
    family: subprocess.Popen[bytes], guard_id: str
) -> None:
    before = sweep.job_processes(guard_id, family.pid, frozenset({family.pid}))
    family.kill()
    family.wait(10)
    select = partial(sweep.job_processes, guard_id, family.pid, frozenset())
    marked = [row for row in select() if not row.is_zombie]
    assert len(marked) == 4  # The one with an empty environment has no marker left.
    assert sweep.kill_all(select, 10.0) == []
    for row in before:
        pidfd = linux.send_signal(row, signal.SIGKILL)
        if pidfd is not None:
            os.close(pidfd)


def test_an_incarnations_processes_are_found_by_its_name(
    family: subprocess.Popen[bytes], guard_id: str
) -> None:
    assert sweep.owned_processes("0" * 16) == []
    owned = {row.pid for row in sweep.owned_processes("f" * 16)}
    assert family.pid in owned
    assert len(owned) >= 6
    assert os.getpid() not in owned


def test_a_part_of_a_marker_is_no_marker(guard_id: str) -> None:
    environment = {**os.environ, f"X{GUARD_NAME}": guard_id, GUARD_NAME: guard_id + "0"}
    with subprocess.Popen(["sleep", "1000"], env=environment) as near:
        assert sweep.job_processes(guard_id, -1, frozenset()) == []
        near.kill()


def test_what_cannot_be_killed_in_time_is_reported(guard_id: str) -> None:
    with subprocess.Popen(["sleep", "1000"]) as child:
        row = linux.process_row(child.pid)
        assert row is not None
        # A selection that never empties, as with a process stuck in the kernel.
        assert sweep.kill_all(lambda: [row], 0.3) == [child.pid]
        assert child.wait(10) == -signal.SIGKILL


def test_a_guard_that_may_open_no_more_files_sweeps_with_those_it_has_held_back(
    family: subprocess.Popen[bytes], guard_id: str
) -> None:
    select = partial(sweep.job_processes, guard_id, family.pid, frozenset({family.pid}))
    count = len([row for row in select() if not row.is_zombie])
    assert count > 3
    held_back = sweep.hold_back_descriptors()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(held_back) + 1, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            while True:
                taken.append(os.dup(0))
        with pytest.raises(OSError, match="Too many open files"):
            select()
        for fd in held_back[:3]:  # for /proc, a file in it, and the pidfds one after the other
            os.close(fd)
        assert sweep.kill_all(select, 60.0) == []
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in (*taken, *held_back[3:]):
            os.close(fd)
    assert [row for row in select() if not row.is_zombie] == []


TRACKED = """
import multiprocessing, signal
semaphore = multiprocessing.get_context("spawn").Semaphore()
print(semaphore._semlock.name, flush=True)
signal.pause()
"""


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="named semaphores are elsewhere here")
def test_what_a_killed_process_has_shared_is_removed_by_pythons_own_tracker(guard_id: str) -> None:
    environment = {**os.environ, GUARD_NAME: guard_id}
    with subprocess.Popen(
        [sys.executable, "-c", TRACKED], env=environment, stdout=subprocess.PIPE
    ) as root:
        assert root.stdout is not None
        path = Path(f"/dev/shm/sem.{root.stdout.readline().decode().strip().lstrip('/')}")
        assert path.exists()
        find = partial(sweep.job_processes, guard_id, root.pid, frozenset())
        try:
            deadline = clock.now() + 10.0
            while not any("resource_tracker" in linux.command_line(row.pid) for row in find()):
                assert clock.now() < deadline, "it is being started"
            assert sweep.kill_all(find, 10.0) == []
        finally:
            root.kill()
    assert not path.exists() and not find()
