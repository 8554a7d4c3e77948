"""The lines that a process has printed when it was killed."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from ftrun.inject.zero_edit import sent
from ftrun.inject.zero_edit.sent import Sent
from ftrun.snapshots.board import PRINTED, Board
from ftrun.snapshots.group_memory import GroupMemory

WORDS = PRINTED[:3]


@pytest.fixture
def board() -> Iterator[Board]:
    memory = GroupMemory.make(1, 16 << 20, range(1))
    yield memory.board
    memory.close()


def never(_: bytes) -> int:
    raise AssertionError("the kernel can send it")


def print_until_killed(board: Board, write: int) -> None:
    ours, number = Sent(board, 0, WORDS, write, never), 0
    while True:
        ours.write(f"step {number}".encode())
        ours.write(b"\n")
        number += 1


@pytest.mark.parametrize("seed", range(24))
def test_no_sigkill_comes_between_a_line_and_its_count(board: Board, seed: int) -> None:
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            print_until_killed(board, write)
        finally:
            os._exit(1)
    os.close(write)
    found, bytes_min, is_killed = b"", random.Random(seed).randrange(1, 50_000), False
    while data := os.read(read, 1 << 16):
        found += data
        if len(found) >= bytes_min and not is_killed:
            is_killed = True
            os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(read)
    lines = found.split(b"\n")
    assert lines[:-1] == [f"step {x}".encode() for x in range(len(lines) - 1)]
    assert Sent(board, 0, WORDS, None, len).position() == (len(lines) - 1, len(lines[-1]))


def test_a_full_pipe_and_a_new_file(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sent, "FILE_BYTES_MAX", 64 << 10)
    read, write = os.pipe()
    ours = Sent(board, 0, WORDS, write, never)
    piece, total = b"x" * 300_000 + b"\n", bytearray()

    def take() -> None:
        while len(total) < 5 * len(piece):
            total.extend(os.read(read, 5_000))
            time.sleep(0)

    reader = threading.Thread(target=take)
    reader.start()
    for _ in range(5):
        ours.write(piece)
    reader.join()
    assert bytes(total) == 5 * piece and ours.position() == (5, 0)
    os.close(read)
    os.close(write)


def test_a_file_that_is_appended_to_is_written_plainly(board: Board, tmp_path: object) -> None:
    file = os.open(f"{tmp_path}/log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    ours = Sent(board, 0, WORDS, file, lambda data: os.write(file, data))
    for piece in (b"step 1\n", b"step", b" 2\n"):
        ours.write(piece)
    os.close(file)
    with open(f"{tmp_path}/log", "rb") as log:
        assert log.read() == b"step 1\nstep 2\n" and ours.position() == (2, 0)


def test_a_death_between_the_words(board: Board) -> None:
    """Each word is written by itself, before the bytes are sent."""
    plain = bytearray()
    ours = Sent(board, 0, WORDS, None, lambda data: plain.extend(data) or len(data))
    ours.write(b"one\n")
    ours.write(b"tw")
    for piece, before in ((b"o\n", (1, 2)), (b"three\n", (2, 0)), (b"fo", (3, 0))):
        values = [board.read(0, word) for word in WORDS]
        ours.write(piece)
        after = [board.read(0, word) for word in WORDS]
        for count in range(3):  # killed when so many words were written
            for word, value in zip(WORDS, values, strict=True):
                board.set(0, word, value)
            for at in (2, 1)[:count]:
                board.set(0, WORDS[at], after[at])
            assert ours.position() == before
        for word, value in zip(WORDS, after, strict=True):
            board.set(0, word, value)
    ours.stands_at(7)
    assert ours.position() == (7, 0)
