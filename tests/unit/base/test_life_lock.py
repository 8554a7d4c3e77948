"""The lock that a process holds while it lives: who holds it, and what gives it back."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from ftrun.base import futex, life_lock, linux
from ftrun.base.life_lock import OWNER_DIED, RELEASED, WAITERS, LifeLock, LifeLocks

TIMEOUT_S = 120.0
HOLDER = """
import os, sys, threading
from ftrun.base import life_lock
life_lock.hold(sys.argv[1])
print("held", flush=True)
"""


@pytest.fixture
def locks() -> Iterator[LifeLocks]:
    made = LifeLocks()
    yield made
    made.close()


@pytest.fixture
def start() -> Iterator[Callable[[str, str], subprocess.Popen[str]]]:
    """Starts a process that holds the lock at a place, then runs some code."""
    started: list[subprocess.Popen[str]] = []

    def begin(place: str, then: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER + then, place],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


Start = Callable[[str, str], subprocess.Popen[str]]


def wait_until(lock: LifeLock, bit: int) -> None:
    """Wait as the agent does, in a thread, so that a lost wake-up fails and does not hang."""

    def wait() -> None:
        while not (word := lock.read()) & bit:
            lock.wait_while(word)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()


def say(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def test_a_kill_gives_it_back_and_the_status_is_known_before_the_process_is_reaped(
    locks: LifeLocks, start: Start
) -> None:
    lock = locks.lock(3)
    process = start(locks.place(3), "input()")
    assert lock.read() == process.pid | WAITERS
    assert linux.status_of_dying(process.pid) is None
    process.kill()
    wait_until(lock, OWNER_DIED)
    assert linux.status_of_dying(process.pid) == -9
    process.wait()
    assert linux.status_of_dying(process.pid) is None


@pytest.mark.parametrize(
    ("then", "status"),
    [
        ("os._exit(3)", 3),
        ("threading.Thread(target=os._exit, args=(4,)).start(); threading.Event().wait()", 4),
        ("import ctypes; ctypes.string_at(0)", -11),
        ("os._exit(0)", 0),
    ],
)
def test_each_kind_of_end_shows_its_status(
    locks: LifeLocks, start: Start, then: str, status: int
) -> None:
    lock = locks.lock(0)
    process = start(locks.place(0), f"input(); {then}")
    say(process, "end")
    wait_until(lock, OWNER_DIED)
    assert linux.status_of_dying(process.pid) == status


def test_a_process_that_calls_exec_lives_and_takes_its_lock_again(
    locks: LifeLocks, start: Start
) -> None:
    lock = locks.lock(0)
    again = f"input(); os.execv(sys.executable, [sys.executable, '-c', '''{HOLDER}input()''', "
    process = start(locks.place(0), "input();" + again + "sys.argv[1]])")
    say(process, "exec")
    say(process, "")
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    assert lock.read() == process.pid | WAITERS
    process.kill()
    wait_until(lock, OWNER_DIED)
    assert linux.status_of_dying(process.pid) == -9


def test_after_an_exec_without_it_no_end_is_seen(locks: LifeLocks, start: Start) -> None:
    lock = locks.lock(0)
    process = start(locks.place(0), "input(); os.execv('/bin/cat', ['cat'])")
    say(process, "exec")
    wait_until(lock, OWNER_DIED)
    assert linux.status_of_dying(process.pid) is None, "it lives on as another program"


def test_a_main_thread_that_ends_alone_shows_no_status(locks: LifeLocks, start: Start) -> None:
    then = """
threading.Thread(target=input).start()
import ctypes
ctypes.CDLL(None).pthread_exit(None)
"""
    lock = locks.lock(0)
    process = start(locks.place(0), then)
    wait_until(lock, OWNER_DIED)
    assert not linux.status_of_dying(process.pid)


def test_the_end_of_a_fork_or_of_another_thread_changes_nothing(
    locks: LifeLocks, start: Start
) -> None:
    then = """
pid = os.fork()
if pid == 0: os._exit(5)
os.waitpid(pid, 0)
import subprocess
subprocess.run(["true"], check=True)
thread = threading.Thread(target=print, args=("thread", ))
thread.start(); thread.join()
print("all ended", flush=True); input()
"""
    lock = locks.lock(0)
    process = start(locks.place(0), then)
    assert process.stdout is not None
    while process.stdout.readline() != "all ended\n":
        pass
    assert lock.read() == process.pid | WAITERS


def test_a_released_lock_ends_the_wait(locks: LifeLocks) -> None:
    lock = locks.lock(1)
    ended = threading.Thread(target=wait_until, args=(lock, RELEASED), daemon=True)
    ended.start()
    lock.release()
    ended.join(TIMEOUT_S)
    assert not ended.is_alive()
    assert locks.lock(1).read() == 0


def test_other_robust_mutexes_of_the_script_work_beside_it(locks: LifeLocks, start: Start) -> None:
    """A second lock is what a script's own mutex would be: one list of the thread has both."""
    first, second = locks.lock(0), locks.lock(1)
    process = start(
        locks.place(0), f"life_lock.hold({locks.place(1)!r}); print('both', flush=True); input()"
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "both\n"
    process.kill()
    wait_until(first, OWNER_DIED)
    wait_until(second, OWNER_DIED)


def test_what_cannot_be_had_is_an_error_of_the_system(
    locks: LifeLocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OSError, match="No such file"):
        life_lock.hold(f"/proc/{os.getpid()}/fd/987654:0")
    lock = locks.lock(0)
    with monkeypatch.context() as refusing:
        refusing.setattr(futex, "_FUTEX_WAIT", 99)
        with pytest.raises(OSError, match="not implemented"):
            lock.wait_while(0)
    monkeypatch.setattr("platform.machine", lambda: "vax")
    with pytest.raises(OSError, match="vax is not known"):
        LifeLocks()
