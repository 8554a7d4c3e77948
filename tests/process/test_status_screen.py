"""``ftrun status`` in tmux, on a job that really runs: what is on the terminal, and the keys."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.process.job import Job
from tests.process.test_operators import CPU, STEPS

WAIT_S = 180.0

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")


class Tmux:
    """One window of a tmux of its own."""

    def __init__(self, directory: Path, *words: str, size: tuple[int, int]) -> None:
        self._socket = str(directory / "tmux")
        environ = {
            "XDG_STATE_HOME": str(directory / "state"),
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }
        setting = [part for name, value in environ.items() for part in ("-e", f"{name}={value}")]
        # A shell writes the exit code: tmux does not always come to know it.
        self._code = directory / "code"
        words = (sys.executable, "-m", "ftrun", "status", *words)
        command = ["sh", "-c", f'"$@"; echo $? > {self._code}; sleep {WAIT_S:.0f}', "sh", *words]
        columns, rows = (str(cells) for cells in size)
        self.call("-f", "/dev/null", "new-session", "-d", "-x", columns, "-y", rows, *setting,
                  "-c", str(directory), *command)  # fmt: skip

    def call(self, *words: str) -> str:
        """One command of tmux."""
        found = subprocess.run(
            ["tmux", "-S", self._socket, *words],
            env={name: value for name, value in os.environ.items() if name != "TMUX"},
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=True,
        )
        return found.stdout

    def text(self) -> str:
        """What is on the terminal."""
        return self.call("capture-pane", "-p")

    def press(self, *keys: str) -> None:
        """Press keys."""
        self.call("send-keys", *keys)

    def ending(self) -> str:
        """The command's exit code; empty: it has not ended."""
        return self._code.read_text().strip() if self._code.exists() else ""

    def close(self) -> None:
        """End it."""
        with contextlib.suppress(subprocess.CalledProcessError):
            self.call("kill-server")


@contextlib.contextmanager
def tmux(directory: Path, *words: str, size: tuple[int, int] = (100, 30)) -> Iterator[Tmux]:
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
