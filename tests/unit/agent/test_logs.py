"""Logs: complete in the file, prefixed on the terminal; a stuck terminal delays no worker."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from ftrun.agent.logs import (
    QUEUE_BYTES_MAX,
    Terminal,
    WorkerLog,
    log_path,
)


def test_lines_are_prefixed_and_the_file_is_whole(tmp_path: Path) -> None:
    screen_read, screen_write = os.pipe()
    terminal = Terminal(screen_write, screen_write)
    path = log_path(tmp_path, "0", 1, 2)
    ended: list[WorkerLog] = []

    async def play() -> None:
        log = WorkerLog(path, terminal, "0", 1, ended.append)
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        log.follow(out_read, err_read)
        os.write(out_write, b"hello\nwor")
        os.write(err_write, b"oops\n")
        log.drain()
        os.write(out_write, b"ld")
        os.close(out_write)
        os.close(err_write)
        log.drain()

    asyncio.run(play())
    terminal.close()
    os.close(screen_write)
    with os.fdopen(screen_read, "rb") as screen:
        lines = screen.read().splitlines()
    assert sorted(lines) == [b"[0.1] hello", b"[0.1] oops", b"[0.1] world"]
    assert path == tmp_path / "replica_0" / "rank_1" / "2.log"
    assert sorted(path.read_bytes()) == sorted(b"hello\noops\nworld")
    assert len(ended) == 1


def test_a_log_of_before_is_kept(tmp_path: Path) -> None:
    path = log_path(tmp_path, "0", 0, 0)
    path.parent.mkdir(parents=True)
    path.write_text("before\n")
    null = os.open(os.devnull, os.O_WRONLY)
    terminal = Terminal(null, null)

    async def play() -> None:
        log = WorkerLog(path, terminal, "0", 0, lambda _: None)
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        log.follow(out_read, err_read)
        os.write(out_write, b"after\n")
        log.close()
        os.close(out_write)
        os.close(err_write)

    asyncio.run(play())
    terminal.close()
    os.close(null)
    assert path.read_text().splitlines() == ["before", "after"]


def test_a_log_that_cannot_be_written_costs_no_output(tmp_path: Path) -> None:
    screen_read, screen_write = os.pipe()
    terminal = Terminal(screen_write, screen_write)
    (tmp_path / "file").write_text("")

    async def play() -> None:
        log = WorkerLog(tmp_path / "file" / "0.log", terminal, "0", 0, lambda _: None)
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        log.follow(out_read, err_read)
        os.write(out_write, b"shown\n")
        log.close()
        os.close(out_write)
        os.close(err_write)

    asyncio.run(play())
    terminal.close()
    os.close(screen_write)
    with os.fdopen(screen_read, "rb") as screen:
        assert screen.read() == b"[0.0] shown\n"


def test_a_terminal_that_stands_still_loses_lines_and_says_so() -> None:
    screen_read, screen_write = os.pipe()
    terminal = Terminal(screen_write, screen_write)
    line = b"x" * 65536
    terminal.worker_line("0", 0, 4 * line, error=False)
    received = bytearray(os.read(screen_read, 1))  # the writer has it, and stands at it
    for _ in range(2 * QUEUE_BYTES_MAX // len(line)):
        terminal.worker_line("0", 0, line, error=False)
    assert terminal._bytes <= QUEUE_BYTES_MAX
    assert terminal._skipped > 0
    while terminal._bytes or len(received) < QUEUE_BYTES_MAX // 2:
        received += os.read(screen_read, 1 << 20)
    terminal.event_line("after")
    while b"after\n" not in received[-200:]:
        received += os.read(screen_read, 1 << 20)
    terminal.close()
    assert b"lines are in the log files only\n" in received[-200:]
    os.close(screen_read)
    os.close(screen_write)


def test_a_reader_that_is_gone_costs_the_output_only() -> None:
    screen_read, screen_write = os.pipe()
    os.close(screen_read)
    terminal = Terminal(screen_write, screen_write)
    terminal.event_line("nobody reads")
    terminal.close()
    assert not terminal._thread.is_alive()
    os.close(screen_write)
