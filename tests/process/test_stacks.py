"""A worker's stacks, taken from outside while it holds the interpreter's lock."""

from __future__ import annotations

import asyncio
import ctypes
import os
import select
import threading
from pathlib import Path

from ftrun.agent.stacks import Target, take_stacks
from ftrun.core.ids import WorkerKey
from ftrun.inject import stacks

KEY = WorkerKey("0", "0-aaaa", 1)


def _hang_holding_the_lock(ready_fd: int) -> None:
    os.write(ready_fd, b"x")
    library = ctypes.PyDLL(None)
    while True:  # a signal ends each sleep
        library.sleep(60)


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
