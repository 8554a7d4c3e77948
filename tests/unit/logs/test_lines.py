"""Output in pieces becomes whole lines; progress bars do not flood; nothing is lost at the end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ftrun.logs.lines import LINE_BYTES_MAX, ROWS_MAX, LineSplitter


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
    data = data.replace(b"\r", b"").replace(b"\x1b[", b"")
    splitter = LineSplitter()
    shown = []
    for at in range(0, len(data), size):
        shown += splitter.feed(data[at : at + size], 0.0)
    rest = splitter.flush()
    assert b"\n".join([*shown, *(rest or [b""])]) == data


@given(st.lists(st.sampled_from([b"a", b"\r", b"\n", b"bc", b"\x1b[A", b"\x1b["]), max_size=80))
def test_what_is_pending_stays_bounded(pieces: list[bytes]) -> None:
    splitter = LineSplitter()
    for at, piece in enumerate(pieces * 50):
        splitter.feed(piece, at * 0.01)
        assert len(splitter._rows) <= ROWS_MAX
        assert sum(len(row.text) for row in splitter._rows) <= ROWS_MAX * LINE_BYTES_MAX


def test_a_colour_is_no_cursor_and_stays() -> None:
    line = b"\x1b[01;31m\x1b[Kred\x1b[m\x1b[K end"
    assert LineSplitter().feed(line + b"\n", 0.0) == [b"\x1b[01;31mred\x1b[m end"]


def test_blank_lines_stay_and_an_end_that_is_shown_is_not_repeated() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"\r\n\none\r\n", 0.0) == [b"", b"", b"one"]
    assert splitter.feed(b"\r100%\r", 1.0) == [b"100%"]
    assert splitter.feed(b"\n", 1.1) == []


def test_a_bar_that_is_erased_leaves_no_line() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"\r 50%", 0.0) == []
    assert splitter.feed(b"\r100%", 0.1) == [b" 50%"]
    assert splitter.feed(b"\r    \r", 0.2) == []
    assert splitter.feed(b"done\n", 0.3) == [b"done"]


def test_after_a_silence_the_last_state_is_shown() -> None:
    splitter = LineSplitter()
    splitter.feed(b"\r10%", 5.0)
    assert splitter.feed(b"\r20%", 5.1) == [b"10%"]
    assert splitter.due_at == 6.1
    assert splitter.tick(6.1) == [b"20%"]
    assert splitter.due_at is None
    assert splitter.feed(b"\n", 6.2) == []


def nested(outer: int, inner: int) -> bytes:
    """What two nested bars write for one redraw of both, the second one below the first."""
    return b"\r out %d\n\r in %d\x1b[A" % (outer, inner)


def test_nested_bars_come_out_as_lines_of_their_own_once_a_second() -> None:
    splitter = LineSplitter()
    shown = splitter.feed(nested(0, 0), 0.0)
    for at in range(1, 40):
        shown += splitter.feed(nested(at, at), at / 20)
    assert all(b"\x1b" not in line and b"\r" not in line for line in shown)
    assert shown == [b" out 0", b" in 0", b" out 20", b" in 20"]
    assert splitter.tick(3.0) == [b" out 39", b" in 39"]


def test_nested_bars_may_come_in_any_pieces() -> None:
    splitter = LineSplitter()
    stream = b"".join(nested(at, at) for at in range(30))
    shown = [
        line for at, byte in enumerate(stream) for line in splitter.feed(bytes([byte]), at / 9)
    ]
    shown += splitter.flush()
    known = {text % at for at in range(30) for text in (b" out %d", b" in %d")}
    assert set(shown) <= known
    assert shown[-2:] == [b" out 29", b" in 29"]
    assert len(shown) == len(set(shown))


def test_lines_among_nested_bars_are_whole() -> None:
    splitter = LineSplitter()
    splitter.feed(nested(0, 0), 0.0)
    splitter.feed(nested(1, 1), 0.1)
    assert b"epoch 1 is over" in splitter.feed(b"\r          \repoch 1 is over\n", 0.2) + (
        splitter.tick(2.0)
    )


def test_a_line_that_is_written_in_a_bars_row_is_shown_at_once() -> None:
    """tqdm leaves the cursor in the row of the first bar, and a log's lines begin there."""
    splitter = LineSplitter()
    shown = []
    for at in range(12):
        shown += splitter.feed(b"\n\r %d/12 [second bar]\x1b[A" % at, at / 100)
        shown += splitter.feed(b"INFO %d\nINFO more of %d\n" % (at, at), at / 100)
        assert shown[-2:] == [b"INFO %d" % at, b"INFO more of %d" % at]
    shown += splitter.flush()
    lines = [line for line in shown if line.startswith(b"INFO")]
    assert len(lines) == 24 == len(set(lines))
