"""A job that really runs: ftrun as a child process, its output, its pids, and its end.

Everything waits on an event with a deadline: a line of output, a process's end.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from ftrun import clock, linux
from ftrun.agent import sweep

START_S = 180.0
END_S = 180.0
GONE_S = 60.0
"""P1 allows 5 s; `scripts/chaos.py orphans` measures the actual time."""


class Job:
    """``ftrun OPTIONS SCRIPT``; at the end of the ``with`` nothing of it may be left.

    ``within``: a prefix command that starts the rest of the line with fewer resources.
    ``program``: an installed ftrun; by default the one of the tests' own environment.
    """

    def __init__(
        self,
        directory: Path,
        source: str,
        *options: str,
        args: tuple[str, ...] = (),
        within: tuple[str, ...] = (),
        program: tuple[str, ...] = (),
    ) -> None:
        self.directory = directory
        self.script = directory / "script.py"
        self.script.write_text(source)
        self.logs = directory / "logs"
        self._mark = os.urandom(8).hex()
        command = list(program or (sys.executable, "-m", "ftrun"))
        command += ["--log-dir", str(self.logs), "--job-id", "job", "--prefix"]
        beside = {} if program else {"PYTHONPATH": str(Path(__file__).parents[2])}
        self.process = self._start([*within, *command, *options, str(self.script), *args], beside)
        self.output = ""

    def _start(self, words: list[str], beside: dict[str, str]) -> subprocess.Popen[bytes]:
        """Start ``words``; all processes that it starts carry the test's marker."""
        return subprocess.Popen(
            words,
            cwd=self.directory,
            env={
                **os.environ,
                "XDG_STATE_HOME": str(self.directory / "state"),
                "MARK_OF_FTRUN_TEST": self._mark,
                "TMPDIR": str(self.directory),
                **beside,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            print(self.output)
        self.process.kill()
        self.process.wait(END_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        sweep.kill_all(self._processes, 5.0)

    @property
    def pid(self) -> int:
        """The agent's pid."""
        return self.process.pid

    def expect(self, pattern: str, count: int = 1, timeout_s: float = START_S) -> list[str]:
        """Read until ``pattern`` was seen ``count`` times in all; returns the first groups."""
        deadline = clock.now() + timeout_s
        while len(found := re.findall(pattern, self.output, re.MULTILINE)) < count:
            assert self._read(deadline), f"no {pattern!r} (x{count}) in:\n{self.output}"
        return found

    def end(self, timeout_s: float = END_S) -> int:
        """Read to the end; returns the exit code."""
        deadline = clock.now() + timeout_s
        while self._read(deadline):
            pass
        return self.process.wait(max(0.1, deadline - clock.now()))

    def pids(self) -> list[int]:
        """Pids of every running process of the job."""
        return [row.pid for row in self._processes() if not row.is_zombie]

    def worker(self, replica_id: int, group_rank: int = 0) -> int:
        """The pid of a running worker, by its title."""
        return self._titled(f"ftrun worker {replica_id}.{group_rank}: ")

    def spawner(self) -> int:
        """The spawner's pid."""
        return self._titled("ftrun spawner")

    def stores(self) -> int:
        """The store process's pid."""
        return self._titled("ftrun stores")

    def lighthouse(self) -> int:
        """The embedded lighthouse's pid."""
        return self._titled(f"{sys.executable} -m ftrun.lighthouse")

    def signal(self, number: signal.Signals) -> None:
        """Signal the agent."""
        self.process.send_signal(number)

    def left(self, within_s: float = GONE_S) -> list[int]:
        """The pids of the job that are still there after ``within_s``."""
        deadline = clock.now() + within_s
        while rows := [row for row in self._processes() if not row.is_zombie]:
            pidfds = [_pidfd(row.pid) for row in rows]
            left_s = max(0.0, deadline - clock.now())
            waiting = [fd for fd in pidfds if fd is not None]
            ready, _, _ = select.select(waiting, [], [], min(left_s, 0.2))
            for fd in waiting:
                os.close(fd)
            if not ready and clock.now() >= deadline:
                return [row.pid for row in rows]
        return []

    def log(self, replica_id: int, restart: int, group_rank: int = 0) -> str:
        """One worker's log file."""
        path = self.logs / "job" / f"replica_{replica_id}" / f"rank_{group_rank}"
        return (path / f"{restart}.log").read_text()

    def _processes(self) -> list[linux.ProcessRow]:
        """All processes of this job; each has inherited the test's own marker."""
        mark = f"MARK_OF_FTRUN_TEST={self._mark}".encode()
        return [row for row in linux.process_rows() if mark in linux.process_environment(row.pid)]

    def expect_process(self, title: str, timeout_s: float = START_S, but: int = 0) -> int:
        """Wait until there is a process with this title; returns its pid, which is not ``but``."""
        deadline = clock.now() + timeout_s
        while True:
            try:
                return self._titled(title, but)
            except AssertionError:
                assert clock.now() < deadline, f"no process {title!r} in time"
                self._read(min(deadline, clock.now() + 0.02))

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Check until ``condition`` holds, and read output meanwhile."""
        deadline = clock.now() + END_S
        while not condition():
            assert clock.now() < deadline, f"not {what} in time:\n{self.output}"
            self._read(min(deadline, clock.now() + 0.02))

    def _titled(self, title: str, but: int = 0) -> int:
        for row in self._processes():
            if row.pid == but:
                continue  # killed, and perhaps not dead yet
            command = command_of(row.pid)
            if not row.is_zombie and command.replace(b"\0", b" ").decode().startswith(title):
                return row.pid
        raise AssertionError(f"no process {title!r} in:\n{self.output}")

    def _read(self, deadline: float) -> bool:
        """More output; False at its end or at the deadline."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], max(0, deadline - clock.now()))
        data = os.read(self.process.stdout.fileno(), 1 << 16) if ready else b""
        self.output += data.decode(errors="replace")
        return bool(data)


def command_of(pid: int) -> bytes:
    """A process's title; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0")
    except OSError:
        return b""  # it has ended, and is reaped


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None
