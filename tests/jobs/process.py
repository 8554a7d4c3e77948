"""One process of a test and all its output. Every wait is for an event, and has a deadline.

Not here: the other processes that it starts (family.py).
"""

from __future__ import annotations

import codecs
import contextlib
import os
import random
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from ftrun.base import clock
from tests.jobs.forks import popen

Self = TypeVar("Self", bound="Process")
START_S = 180.0
END_S = 180.0
CLOSE_S = 60.0
LOOK_S = 0.02
PAUSE_TIMES = 4.0
"""The pause after each search, as a multiple of its duration: searches of long output then take a
fifth of a core."""
PORTS = (10_240, 29_000)  # below outgoing connections' ports and the lighthouse's
PORT_TRIES = 100


class Late(AssertionError):
    """An awaited condition did not come in time."""


class Process:
    """A command, started at once, and its output, which a thread reads to the end.

    Args:
        words: the command.
        directory: its working directory.
        environment: its whole environment.
        session: start it in a new session, so that the terminal's Ctrl-C does not reach it.
        fresh: start it by exec, even if a fork would be enough (forks.py).
    """

    def __init__(
        self,
        words: list[str],
        directory: Path,
        environment: dict[str, str],
        *,
        session: bool = False,
        fresh: bool = True,
    ) -> None:
        self._text = ""
        self._has_ended = False
        self._more = threading.Condition()
        self.process = (subprocess.Popen if fresh else popen)(
            words,
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=session,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            print(self.output)
        self.close()

    @property
    def pid(self) -> int:
        """Its pid."""
        return self.process.pid

    @property
    def output(self) -> str:
        """The output of the process and its children until now."""
        return self._text

    def signal(self, number: int) -> None:
        """Signal it, unless it has ended."""
        self.process.send_signal(number)

    def expect(self, pattern: str, count: int = 1, timeout_s: float = START_S) -> list[str]:
        """Wait until ``pattern`` was printed ``count`` times in all; returns the first groups."""
        deadline = clock.now() + timeout_s
        while True:
            began, text = time.thread_time(), self.output
            found = re.findall(pattern, text, re.MULTILINE)
            if len(found) >= count:
                return found
            pause_s = PAUSE_TIMES * (time.thread_time() - began)
            more = self.prints_more(len(text), deadline - clock.now())
            assert more, f"no {pattern!r} (x{count}) in:\n{self.output}"
            time.sleep(pause_s)

    def prints_more(self, than: int, within_s: float) -> bool:
        """Wait for more than ``than`` characters; False at the output's end, or after the
        timeout."""
        with self._more:
            told = lambda: len(self._text) > than or self._has_ended  # noqa: E731
            self._more.wait_for(told, max(0.0, within_s))
            return len(self._text) > than

    def until(self, condition: Callable[[], object], what: str, timeout_s: float = END_S) -> None:
        """Check until ``condition`` holds; a failure shows the output."""
        try:
            wait(condition, what, timeout_s)
        except Late as late:
            raise Late(f"{late}; printed so far:\n{self.output}") from None

    def end(self, timeout_s: float = END_S) -> int:
        """Wait for the end of the process and of its output; returns the exit code."""
        deadline = clock.now() + timeout_s
        while self.prints_more(len(self.output), deadline - clock.now()):
            pass
        return self.process.wait(max(0.1, deadline - clock.now()))

    def kill(self) -> int:
        """SIGKILL, unless it has ended; returns the exit code."""
        self.process.kill()
        return self.process.wait(END_S)

    def close(self) -> None:
        """Kill it, and close its output when no process can write to it any more."""
        self.kill()
        self._reader.join(CLOSE_S)
        assert not self._reader.is_alive(), f"its output is open:\n{self.output}"
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while data := os.read(self.process.stdout.fileno(), 1 << 16):
            with self._more:
                self._text += decoder.decode(data)
                self._more.notify_all()
        with self._more:
            self._has_ended = True
            self._more.notify_all()


def wait(
    condition: Callable[[], object],
    what: str,
    timeout_s: float,
    meanwhile: Callable[[], None] = lambda: None,
) -> float:
    """Check until ``condition`` holds; returns the seconds it took.

    Raises:
        Late: it did not hold within ``timeout_s``.
    """
    began, looked = clock.now(), time.thread_time()
    while not condition():
        if clock.now() - began > timeout_s:
            raise Late(f"{what}: not within {timeout_s:g} s")
        pause_s = max(LOOK_S, PAUSE_TIMES * (time.thread_time() - looked))
        meanwhile()
        time.sleep(pause_s)
        looked = time.thread_time()
    return clock.now() - began


def free_port() -> int:
    """A port that the kernel assigns to no outgoing connection while its owner is down."""
    first, last = PORTS
    for port in random.sample(range(first, last), PORT_TRIES):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError(f"{PORT_TRIES} ports of {PORTS} are taken")


def write_at_once(path: Path, text: str) -> None:
    """Write a file atomically: a job that looks for it never reads half of it."""
    draft = path.with_name(f"{path.name}.draft")
    draft.write_text(text)
    draft.rename(path)
