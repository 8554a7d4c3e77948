"""A program on a new terminal, and the content of its screen (pyte)."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import sys
import termios
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import pyte

from ftrun.base import clock
from tests.jobs.forks import IN_FRONT, popen

DEADLINE_S = 180.0
ROOT = Path(__file__).parents[3]


class PtyScreen:
    """Starts ``words`` in the foreground of a new terminal; ``seen``: all bytes that it wrote.

    The program may read one byte from the descriptor in STEPS, to wait for ``step``.
    """

    def __init__(
        self,
        *words: str,
        columns: int = 80,
        rows: int = 24,
        environ: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        self.seen = b""
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        self._fd, slave = pty.openpty()
        steps, self._steps = os.pipe()
        self.resize(columns, rows)
        self.modes = termios.tcgetattr(self._fd)
        self.process = popen(
            [sys.executable, "-c", IN_FRONT, *words],
            **{"stdin": slave, "stdout": slave, "stderr": slave, **options},
            env={
                **{name: value for name, value in os.environ.items() if name != "NO_COLOR"},
                "PYTHONPATH": str(ROOT),
                "TERM": "xterm-256color",
                "PYTHONIOENCODING": "utf-8",
                "STEPS": str(steps),
                **(environ or {}),
            },
            pass_fds=[steps],
            start_new_session=True,
        )
        os.close(slave)
        os.close(steps)

    def __enter__(self) -> PtyScreen:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            print("\n".join(self.lines()))
        self.process.kill()
        self.process.wait(DEADLINE_S)
        os.close(self._fd)
        os.close(self._steps)

    def resize(self, columns: int, rows: int) -> None:
        """Another size of the terminal; the program gets SIGWINCH."""
        self._screen.resize(rows, columns)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def step(self) -> None:
        """Let a program that waits for its next step continue."""
        os.write(self._steps, b".")

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._fd, keys.encode())

    def lines(self) -> list[str]:
        """The rows of the screen from the top, without blanks at their ends and empty last ones."""
        rows = [row.rstrip() for row in self._screen.display]
        while rows and not rows[-1]:
            rows.pop()
        return rows

    def cursor(self) -> tuple[int, int]:
        """Row and column, from 0."""
        return self._screen.cursor.y, self._screen.cursor.x

    def until(self, condition: Callable[[list[str]], object]) -> list[str]:
        """Read until the condition holds of the rows; returns them."""
        deadline = clock.now() + DEADLINE_S
        while not condition(self.lines()):
            left_s = deadline - clock.now()
            assert left_s > 0, "it did not come:\n" + "\n".join(self.lines())
            self._read(left_s)
        return self.lines()

    def end(self) -> int:
        """Read to the program's end; returns its exit code."""
        deadline = clock.now() + DEADLINE_S
        while self._read(max(0.0, deadline - clock.now())):
            pass
        return self.process.wait(DEADLINE_S)

    def _read(self, timeout_s: float) -> bool:
        if not select.select([self._fd], [], [], timeout_s)[0]:
            return False
        try:
            data = os.read(self._fd, 1 << 16)
        except OSError:  # no process has the terminal open any more
            return False
        self.seen += data
        self._stream.feed(data)
        return bool(data)
