"""Output in pieces becomes whole lines; progress bars do not flood; nothing is lost at the end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ftrun.agent.lines import LINE_BYTES_MAX, LineSplitter


def test_lines_come_whole_however_they_are_cut() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"one\ntw", 0.0) == [b"one"]
    assert splitter.feed(b"o\n\nth", 0.0) == [b"two", b""]
    assert splitter.flush() == [b"th"]
    assert splitter.flush() == []


def test_windows_line_ends_are_line_ends() -> None:
    assert LineSplitter().feed(b"one\r\ntwo\r\n", 0.0) == [b"one", b"two"]


def test_a_progress_bar_is_shown_once_a_second_and_at_its_end() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"10%\r", 5.0) == [b"10%"]
    assert splitter.feed(b"20%\r", 5.1) == []
    assert splitter.feed(b"30%\r", 5.2) == []
    assert splitter.feed(b"40%\r", 6.1) == [b"40%"]
    assert splitter.feed(b"50%\r60%\n", 6.2) == [b"60%"]


def test_a_bar_that_returns_first_shows_what_is_whole() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"\r10%", 5.0) == []
    assert splitter.feed(b"\r20%", 5.1) == [b"10%"]
    assert splitter.flush() == [b"20%"]


def test_an_endless_line_is_cut_in_parts() -> None:
    splitter = LineSplitter()
    shown = splitter.feed(b"x" * (2 * LINE_BYTES_MAX + 5), 0.0)
    assert [len(line) for line in shown] == [LINE_BYTES_MAX, LINE_BYTES_MAX]
    assert splitter.feed(b"\n", 0.0) == [b"xxxxx"]


@given(st.binary(max_size=300), st.integers(1, 50))
def test_without_returns_every_byte_is_shown_once(data: bytes, size: int) -> None:
    data = data.replace(b"\r", b"")
    splitter = LineSplitter()
    shown = []
    for at in range(0, len(data), size):
        shown += splitter.feed(data[at : at + size], 0.0)
    rest = splitter.flush()
    assert b"\n".join([*shown, *(rest or [b""])]) == data


@given(st.lists(st.sampled_from([b"a", b"\r", b"\n", b"bc"]), max_size=80))
def test_what_is_pending_stays_bounded(pieces: list[bytes]) -> None:
    splitter = LineSplitter()
    for at, piece in enumerate(pieces * 50):
        splitter.feed(piece, at * 0.01)
        assert len(splitter._pending) <= LINE_BYTES_MAX + 64
