"""``ftrun status`` in tmux, on a job that really runs: what is on the terminal, and the keys."""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.jobs import Job
from tests.process.test_operators import CPU, STEPS
from tests.process.tmux_window import Tmux

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")


@contextlib.contextmanager
def tmux(directory: Path, *words: str, size: tuple[int, int] = (100, 30)) -> Iterator[Tmux]:
    words = (sys.executable, "-m", "ftrun", "status", *words)
    terminal = Tmux(directory, *words, size=size)
    try:
        yield terminal
    finally:
        terminal.close()


def step_of(text: str) -> int:
    """The step in the head; 0: none yet."""
    found = re.search(r"step +([\d,]+)", text)
    return int(found[1].replace(",", "")) if found else 0


def test_a_job_on_the_screen(tmp_path: Path) -> None:
    with (
        tmux(tmp_path) as terminal,
        Job(tmp_path, STEPS, "--replicas", "3", "--min-replicas", "1", *CPU) as job,
    ):

        def until(condition: str | Callable[[str], object]) -> str:
            """Wait until the words are there, or the condition holds; gives what is there."""
            seen = [""]

            def look() -> bool:
                seen[0] = terminal.text()
                is_there = (
                    condition in seen[0] if isinstance(condition, str) else condition(seen[0])
                )
                return bool(is_there)

            try:
                job.until(look, "on the terminal")
            except AssertionError:
                raise AssertionError(f"{condition!r} did not come:\n{seen[0]}") from None
            return seen[0]

        first = step_of(until("● training"))  # it has found the job, which began after it
        until(lambda text: step_of(text) > first)
        until("3 of 3")
        terminal.press("s")
        until(lambda text: "script.py" in "".join(text.split()))  # a long path is wrapped
        terminal.press("Escape")
        until("timeline")
        terminal.press("l")
        until(lambda text: re.search(r"^ step \d+", text, re.MULTILINE))
        terminal.press("Escape")
        until("timeline")
        terminal.press("j", "K")
        until("Kill replica 1 now")
        terminal.press("y")
        until("1 incident")
        until("3 of 3")
        terminal.press("Tab", "Tab")
        until("no  replica")
        terminal.press("e")
        until("first cause:")
        terminal.press("Escape")
        until(lambda text: "timeline" in text and "first cause:" not in text)
        terminal.call("resize-window", "-x", "20", "-y", "8")
        until("q quits")
        terminal.call("resize-window", "-x", "80", "-y", "24")
        until("timeline")
        (tmp_path / "over").touch()
        assert job.end() == 0
        until("ended with exit code 0")
        terminal.press("q")
        until(lambda text: terminal.ending() == "0")
        assert job.left() == []
