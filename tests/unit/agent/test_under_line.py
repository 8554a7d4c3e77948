"""The row under the output, on a terminal: the rest of the screen is as it would be without it."""

from __future__ import annotations

import os
import pty
import termios
from pathlib import Path

import pytest

from ftrun.agent.under_line import wants_line
from tests.unit.agent.pty_screen import PtyScreen
from tests.unit.run_settings import run_settings

BEGIN = """
import os, signal, sys
from ftrun.agent.terminal import Terminal

terminal = Terminal(1, 2, prefixes={prefixes})
row = [b"the row"]
terminal.show_line(lambda columns: row[0][: columns - 1])

def step():
    os.read(int(os.environ["STEPS"]), 1)
"""
ROW = "the row"


def shown(tmp_path: Path, source: str, *, prefixes: bool = True, **more: object) -> PtyScreen:
    """A program that writes to a Terminal with a row."""
    script = tmp_path / "writes.py"
    script.write_text(BEGIN.format(prefixes=prefixes) + source)
    return PtyScreen(str(script), **more)  # type: ignore[arg-type]


def has_row(lines: list[str]) -> bool:
    return bool(lines) and lines[-1] == ROW


def test_the_row_is_under_all_lines_and_leaves_nothing(tmp_path: Path) -> None:
    source = """
step()
terminal.worker_lines("0", 0, [b"one", b"two"], error=False)
step()
terminal.event_line("three")
step()
row[0] = b"new"
terminal.refresh_line()
step()
terminal.close()
print("after", flush=True)
"""
    with shown(tmp_path, source, rows=5) as screen:
        assert screen.until(has_row) == [ROW]
        assert screen.cursor() == (0, 0)
        screen.step()
        assert screen.until(lambda lines: len(lines) == 3) == ["[0.0] one", "[0.0] two", ROW]
        screen.step()
        screen.until(lambda lines: "ftrun: three" in lines and has_row(lines))
        screen.step()
        found = screen.until(lambda lines: lines[-1] == "new")
        assert found == ["[0.0] one", "[0.0] two", "ftrun: three", "new"]
        screen.step()
        assert screen.end() == 0
        assert screen.lines() == ["[0.0] one", "[0.0] two", "ftrun: three", "after"]
        assert termios.tcgetattr(screen._fd) == screen.modes


def test_the_screen_scrolls_with_the_row_at_its_end(tmp_path: Path) -> None:
    source = """
for number in range(50):
    terminal.worker_lines("0", 0, [b"%d" % number], error=False)
step()
"""
    with shown(tmp_path, source, rows=4) as screen:
        found = screen.until(lambda lines: lines[:3] == ["[0.0] 47", "[0.0] 48", "[0.0] 49"])
        assert found[3:] in ([], [ROW])
        screen.until(has_row)


@pytest.mark.parametrize(
    ("first", "then", "after"),
    [
        ("(Pdb) ", "", "\\n"),
        (" 10%|#   |", "\\r 20%|##  |", "\\n"),
        ("\\r 10%|#   |\\r", "", "\\r\\n"),
    ],
    ids=["prompt", "bar", "return"],
)
def test_a_line_that_has_begun_is_left_alone(
    tmp_path: Path, first: str, then: str, after: str
) -> None:
    source = f"""
step()
terminal.worker_bytes(0, b"{first}", error=True)
step()
row[0] = b"never seen meanwhile"
terminal.refresh_line()
terminal.worker_bytes(0, b"{then}", error=False)
step()
terminal.worker_bytes(0, b"{after}", error=True)
row[0] = b"the row"
terminal.refresh_line()
step()
"""
    begun = first.split("\\r")[-1] or first.split("\\r")[-2]
    with shown(tmp_path, source, prefixes=False) as screen:
        screen.until(has_row)
        screen.step()
        assert screen.until(lambda lines: lines == [begun.rstrip()])
        screen.step()
        screen.step()
        last = (then or begun).removeprefix("\\r").rstrip()
        assert screen.until(has_row) == [last, ROW]
        assert b"never seen" not in screen.seen


def test_an_event_does_not_bring_the_row_back_over_a_prompt(tmp_path: Path) -> None:
    source = """
terminal.worker_bytes(0, b"(Pdb) ", error=False)
terminal.event_line("news")
step()
terminal.worker_bytes(0, b"done\\n", error=False)
step()
"""
    with shown(tmp_path, source, prefixes=False) as screen:
        news = ["(Pdb)", "ftrun: news"]
        assert screen.until(lambda lines: lines[-2:] == news)
        screen.type("x = 1")  # the terminal echoes
        assert screen.until(lambda lines: lines[-1:] == ["x = 1"])[-3:-1] == news
        screen.step()
        found = screen.until(has_row)
        assert found[-4:] == ["(Pdb)", "ftrun: news", "x = 1done", ROW]


def test_a_program_that_draws_a_screen_of_its_own_is_left_alone_for_good(tmp_path: Path) -> None:
    source = """
terminal.worker_bytes(0, b"one\\ntwo\\n\\x1b[", error=False)
terminal.worker_bytes(0, b"2ATOP\\n", error=False)
step()
terminal.worker_bytes(0, b"more\\n", error=False)
step()
"""
    with shown(tmp_path, source, prefixes=False) as screen:
        screen.until(lambda lines: "TOP" in "".join(lines))
        screen.step()
        assert screen.until(lambda lines: "more" in lines) == ["TOP", "more"]


def test_a_worker_that_reads_from_the_terminal_gets_the_row_out_of_its_way(
    tmp_path: Path,
) -> None:
    source = """
terminal.reader = ("1", 0)
terminal.note_open_line("0", 0, is_open=True)
step()
terminal.note_open_line("1", 0, is_open=True)
step()
terminal.note_open_line("1", 0, is_open=False)
step()
"""
    with shown(tmp_path, source) as screen:
        screen.until(has_row)
        screen.step()
        screen.until(lambda lines: lines == [])
        screen.step()
        screen.until(has_row)


def test_it_is_as_wide_as_the_terminal_is_now(tmp_path: Path) -> None:
    source = """
row[0] = b"0123456789" * 20
terminal.refresh_line()
step()
terminal.refresh_line()
step()
terminal.refresh_line()
step()
"""
    with shown(tmp_path, source, columns=40) as screen:
        screen.until(lambda lines: lines == ["0123456789" * 3 + "012345678"])
        screen.resize(20, 24)
        screen.step()
        screen.until(lambda lines: lines == ["0123456789012345678"])
        screen.resize(8, 24)  # too narrow for anything
        screen.step()
        screen.until(lambda lines: lines == [])


def test_it_is_not_there_while_it_is_paused_or_in_the_background(tmp_path: Path) -> None:
    source = """
step()
terminal.pause_line(paused=True)
os.write(1, b"stopped\\n")
step()
terminal.pause_line(paused=False)
step()
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
other = os.fork()
if other == 0:
    os.setpgid(0, 0)
    os.tcsetpgrp(2, os.getpgrp())
    signal.pause()
while os.tcgetpgrp(2) == os.getpgrp():
    pass
terminal.refresh_line()
step()
os.kill(other, signal.SIGKILL)
"""
    with shown(tmp_path, source) as screen:
        screen.until(has_row)
        screen.step()
        assert screen.until(lambda lines: lines == ["stopped"])
        screen.step()
        assert screen.until(has_row) == ["stopped", ROW]
        screen.step()
        assert screen.until(lambda lines: lines == ["stopped"])
        screen.step()
        screen.end()


def front(fd: int) -> int:
    """As os.tcgetpgrp, if all terminals were this session's."""
    os.get_terminal_size(fd)
    return os.getpgrp()


def test_which_terminals_get_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    plain = run_settings()
    master, screen = pty.openpty()
    other_master, other = pty.openpty()
    reader, pipe = os.pipe()
    file = os.open(tmp_path / "out", os.O_CREAT | os.O_WRONLY)
    null = os.open(os.devnull, os.O_WRONLY)
    assert not wants_line(plain, screen, screen), "it is another session's"
    monkeypatch.setattr(os, "tcgetpgrp", front)
    assert wants_line(plain, screen, screen)
    assert wants_line(plain, file, screen)
    assert wants_line(plain, null, screen)
    assert not wants_line(plain, pipe, screen), "ftrun … | tee: two write to one terminal"
    assert not wants_line(plain, other, screen)
    for err in (pipe, file, null):
        assert not wants_line(plain, screen, err)
    assert not wants_line(run_settings(status_line=False), screen, screen)
    for term in ("dumb", ""):
        monkeypatch.setenv("TERM", term)
        assert not wants_line(plain, screen, screen)
    for fd in (master, screen, other_master, other, reader, pipe, file, null):
        os.close(fd)
