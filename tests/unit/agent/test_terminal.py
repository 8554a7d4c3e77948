"""The terminal: one that stands still delays nobody; a pipe behind one worker gets every byte."""

from __future__ import annotations

import os
import select
import threading

from ftrun.agent.terminal import QUEUE_BYTES_MAX, Terminal

TIMEOUT_S = 60.0


def test_a_terminal_that_stands_still_loses_lines_and_says_so() -> None:
    screen_read, screen_write = os.pipe()
    terminal = Terminal(screen_write, screen_write)
    line = b"x" * 65536
    terminal.worker_lines("0", 0, [4 * line], error=False)
    received = bytearray(os.read(screen_read, 1))  # the writer has it, and stands at it
    for _ in range(2 * QUEUE_BYTES_MAX // len(line)):
        terminal.worker_lines("0", 0, [line], error=False)
    assert terminal._out.queued <= QUEUE_BYTES_MAX
    assert terminal._out.skipped > 0
    while terminal._out.queued:
        if select.select([screen_read], [], [], 0.1)[0]:
            received += os.read(screen_read, 1 << 20)
    terminal.event_line("after")
    while b"after\n" not in received[-200:]:
        received += os.read(screen_read, 1 << 20)
    terminal.close()
    assert b"lines are in the log files only\n" in received[-200:]
    os.close(screen_read)
    os.close(screen_write)


def test_a_pipe_behind_the_only_worker_gets_every_byte_however_late() -> None:
    screen_read, screen_write = os.pipe()
    err_read, err_write = os.pipe()
    terminal = Terminal(screen_write, err_write, prefixes=False)
    chunk = os.urandom(1 << 20)
    room = threading.Event()
    count = 0
    while not terminal.when_room(room.set, error=False):
        terminal.worker_bytes(0, chunk, error=False)
        count += 1
    assert not room.is_set()
    terminal.event_line("a full pipe of stdout does not delay what is on stderr")
    assert os.read(err_read, 200).startswith(b"ftrun: a full pipe")
    closing = threading.Thread(target=terminal.close)
    closing.start()
    received = bytearray()
    while len(received) < count * len(chunk):
        received += os.read(screen_read, 1 << 20)
    closing.join(TIMEOUT_S)
    assert not closing.is_alive()
    assert room.wait(TIMEOUT_S)
    assert received == count * chunk
    for fd in (screen_read, screen_write, err_read, err_write):
        os.close(fd)


def test_a_second_signal_ends_the_wait_for_a_reader() -> None:
    screen_read, screen_write = os.pipe()
    terminal = Terminal(screen_write, screen_write, prefixes=False)
    terminal.worker_bytes(0, b"x" * (1 << 20), error=False)
    closing = threading.Thread(target=terminal.close)
    closing.start()
    terminal.hurry()
    closing.join(TIMEOUT_S)
    assert not closing.is_alive()
    os.close(screen_read)  # the writer's thread ends with the pipe
    terminal._out.thread.join(TIMEOUT_S)
    os.close(screen_write)


def test_a_reader_that_is_gone_costs_the_output_only() -> None:
    screen_read, screen_write = os.pipe()
    os.close(screen_read)
    terminal = Terminal(screen_write, screen_write)
    terminal.event_line("nobody reads")
    terminal.close()
    assert not terminal._out.thread.is_alive()
    os.close(screen_write)
