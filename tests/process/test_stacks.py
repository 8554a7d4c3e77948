"""A worker's stacks, taken from outside while it holds the interpreter's lock."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import select
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftrun.agent.stacks import NO_STACKS, Target, take_stacks
from ftrun.core.agent.stack_words import innermost
from ftrun.core.ids import WorkerKey
from ftrun.inject import stacks

KEY = WorkerKey("0", "0-aaaa", 1)


def _hang_holding_the_lock(ready_fd: int) -> None:
    os.write(ready_fd, b"x")
    library = ctypes.PyDLL(None)
    while True:  # a signal ends each sleep
        library.sleep(60)


def _hang(ready_fd: int) -> None:
    library = ctypes.PyDLL(None)
    os.write(ready_fd, b"x")
    library.sleep(3600)


@contextlib.contextmanager
def unanswering(directory: Path) -> Iterator[int]:
    """The pid of a worker that hangs in C, holds the lock, and lets no signal through.

    Signals are blocked before the fork: gRPC, of which other tests have made use in this process,
    begins threads in the child, and one of these would answer.
    """
    read_fd, write_fd = os.pipe()
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    pid = os.fork()
    if pid == 0:
        stacks.install(directory, KEY)
        _hang(write_fd)
    signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
    try:
        assert select.select([read_fd], [], [], 30)[0]
        yield pid
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(read_fd)
        os.close(write_fd)


def taken(directory: Path, pid: int) -> str:
    (text,) = asyncio.run(take_stacks(directory, [Target(KEY, pid)])).values()
    return text


@pytest.mark.parametrize("is_stopped", [False, True])
def test_py_spy_reads_a_worker_that_cannot_answer(tmp_path: Path, is_stopped: bool) -> None:
    with unanswering(tmp_path) as pid:
        if is_stopped:
            os.kill(pid, signal.SIGSTOP)
        text = taken(tmp_path, pid)
    if text.startswith(f"{NO_STACKS}py-spy cannot read it: Error: Permission Denied"):
        pytest.skip(text.strip())
    assert text.count("_hang (") == 1
    assert "_hang (test_stacks.py:" in innermost(text)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (None, "py-spy, which may still read them, is not installed"),
        ("echo Permission Denied >&2; exit 1", "py-spy cannot read it: Permission Denied"),
        ("exit 1", "py-spy cannot read it: it does not say why"),
        ("exec sleep 600", "py-spy has not read them within"),
    ],
)
def test_without_py_spy_or_its_permission_a_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str | None, message: str
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    if program is not None:
        path = tmp_path / "py-spy"
        path.write_text(f"#!/bin/sh\n{program}\n")
        path.chmod(0o755)
    elif shutil.which("py-spy"):
        pytest.skip("py-spy is installed for the whole system")
    with unanswering(tmp_path) as pid:
        text = taken(tmp_path, pid)
    assert text.startswith(f"{NO_STACKS}{message}")
    assert innermost(text) == ""


def test_a_worker_that_holds_the_lock_answers(tmp_path: Path) -> None:
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        stacks.install(tmp_path, KEY)
        _hang_holding_the_lock(write_fd)
    try:
        assert select.select([read_fd], [], [], 30)[0]
        for _ in range(2):
            (text,) = asyncio.run(take_stacks(tmp_path, [Target(KEY, pid)])).values()
            assert text.count("_hang_holding_the_lock") == 1
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(read_fd)
        os.close(write_fd)


def test_a_process_that_never_reached_its_script_has_none(tmp_path: Path) -> None:
    answers = asyncio.run(take_stacks(tmp_path, [Target(KEY, os.getpid())]))
    assert answers == {KEY: ""}


def test_an_answer_has_the_main_thread_first_and_is_whole(tmp_path: Path) -> None:
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        threading.Thread(target=threading.Event().wait, name="other", daemon=True).start()
        stacks.install(tmp_path, KEY)
        _hang_holding_the_lock(write_fd)
    try:
        assert select.select([read_fd], [], [], 30)[0]
        (text,) = asyncio.run(take_stacks(tmp_path, [Target(KEY, pid)])).values()
        main, other = text.strip().split("\n\n")
        assert "_hang_holding_the_lock" in main
        assert "_bootstrap" in other
        named = (
            (tmp_path / f"stacks-{KEY.incarnation}-{KEY.group_rank}").read_text().splitlines()[0]
        )
        assert main.splitlines()[-1] == named.removeprefix(stacks.END_MARK)
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(read_fd)
        os.close(write_fd)
