"""A replacement does not print again what its predecessor has printed."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator

import pytest

from ftrun.inject.zero_edit import told
from ftrun.inject.zero_edit.printed import Printed
from ftrun.inject.zero_edit.sent import Position, Sent
from ftrun.snapshots.board import PRINTED, Board
from ftrun.snapshots.group_memory import GroupMemory

BEGIN = ((0, 0), (0, 0))


@pytest.fixture
def board() -> Iterator[Board]:
    memory = GroupMemory.make(1, 16 << 20, range(1))
    yield memory.board
    memory.close()


class Raw(io.BytesIO):
    """A stream's end, whose ``write`` can be another."""


def life(monkeypatch: pytest.MonkeyPatch, board: Board) -> tuple[Printed, list[Raw]]:
    """A process of this rank, with streams of its own."""
    raws = [Raw(), Raw()]
    streams = [io.TextIOWrapper(raw, "utf-8", write_through=True) for raw in raws]
    monkeypatch.setattr(sys, "stdout", streams[0])
    monkeypatch.setattr(sys, "stderr", streams[1])
    monkeypatch.setattr(sys, "__stderr__", streams[1])
    printed = Printed(board, 0)
    assert not any("write" in vars(stream) for stream in streams), "the script finds its own"
    return printed, raws


def on(board: Board) -> Position:
    """Where the standard output stands."""
    return Sent(board, 0, PRINTED[:3], None, len).position()


def test_repeated_steps_print_nothing(monkeypatch: pytest.MonkeyPatch, board: Board) -> None:
    first, _ = life(monkeypatch, board)
    print("set-up\nstep 0")
    at_place = first.counts()
    print("step 1")
    print("step 2")
    second, before = life(monkeypatch, board)
    print("set-up")
    second.goes_on(at_place, lambda: True)
    print("step 1")
    third, after = life(monkeypatch, board)  # it has died there, too
    third.goes_on(at_place, lambda: True)
    sys.stdout.write("step 1\nstep 2\nstep 3\nste")
    print("p 4")
    assert before[0].getvalue() == b"set-up\n"
    assert after[0].getvalue() == b"step 3\nstep 4\n"
    assert third.counts() == ((6, 0), (0, 0)) and on(board) == (6, 0)


def test_of_a_line_that_was_begun_the_rest_is_printed(
    monkeypatch: pytest.MonkeyPatch, board: Board
) -> None:
    """A death between the text and the end of its line, which are two writes."""
    life(monkeypatch, board)
    print("step 1\nstep ", end="")
    assert on(board) == (1, 5)
    for line, rest in (("step 2", b"2\n"), ("step", b"\n")):
        words = [(x, board.read(0, x)) for x in PRINTED]
        second, raws = life(monkeypatch, board)
        second.goes_on(BEGIN, lambda: True)
        print("step 1")
        print(line)
        print("step 3")
        assert raws[0].getvalue() == rest + b"step 3\n"
        assert second.counts()[0] == on(board) == (3, 0)
        for word, value in words:
            board.set(0, word, value)


def test_what_another_thread_or_a_signal_prints_in_between(
    monkeypatch: pytest.MonkeyPatch, board: Board
) -> None:
    """It comes out in the middle of a line, and is not counted."""
    monkeypatch.setattr(Sent, "write", lambda _, piece: (print("handler"), kept.append(piece)))
    kept: list[bytes] = []
    _, raws = life(monkeypatch, board)
    print("step 1")
    assert b"".join(kept) == b"step 1\n" and raws[0].getvalue() == b"handler\n" * 2


def test_errors_and_notices_are_printed(monkeypatch: pytest.MonkeyPatch, board: Board) -> None:
    life(monkeypatch, board)
    print("epoch 0\nepoch 1\nepoch 2", file=sys.stderr)
    second, raws = life(monkeypatch, board)
    second.goes_on(BEGIN, lambda: True)
    told.say("of ftrun's")
    print("epoch 0", file=sys.stderr)
    try:
        raise ValueError("no")
    except ValueError:
        print("an error", file=sys.stderr)
    assert raws[1].getvalue() == b"ftrun: of ftrun's\nan error\n"


def test_past_its_predecessors_calls_it_prints_all(
    monkeypatch: pytest.MonkeyPatch, board: Board
) -> None:
    """A progress bar prints as many lines as the clock says: the step's lines are fewer now."""
    life(monkeypatch, board)
    for line in ("step 1", "bar", "bar", "bar", "step 2"):
        print(line)
    second, raws = life(monkeypatch, board)
    is_live = False
    second.goes_on(BEGIN, lambda: not is_live)
    print("step 1\nbar\nstep 2")
    is_live = True
    print("step 3")
    assert raws[0].getvalue() == b"step 3\n"
    at_place = second.counts()
    print("step 4")
    third, raws = life(monkeypatch, board)
    third.goes_on(at_place, lambda: True)
    print("step 4\nstep 5")
    assert raws[0].getvalue() == b"step 5\n" and on(board) == (6, 0)
