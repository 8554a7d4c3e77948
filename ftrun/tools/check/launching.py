"""The launchers of one trial run, one per node: starts them, reads their output, ends them.

Not here: the command (command.py), how a node is lost (losing.py).
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ftrun.agent.sweep import kill_all
from ftrun.agent.workers import SOCKET_NAME
from ftrun.base import clock, linux, own_process

NO_SNAPSHOTS = "ftrun: No memory snapshots"
NOT_MENDED = re.compile(rf"^({NO_SNAPSHOTS}|ftrun: .*cannot be replaced alone)")
END_S, LOOK_S = 30.0, 0.05


@dataclass(slots=True)
class Heard:
    """The launchers' results. ``told``: reasons why a death was not repaired, with times."""

    exit_code: int = 0
    is_late: bool = False
    told: list[tuple[float, str]] = field(default_factory=list)


class Launchers:
    """The launchers of one run in ``directory``. When it ends, no process of the run is left.

    Args:
        variables: the environment.
        prefix: begins each output line of a node, with the node's number.
    """

    def __init__(self, directory: Path, variables: Mapping[str, str], prefix: str = "") -> None:
        self._directory, self._variables, self._prefix = directory, variables, prefix
        self._processes: list[subprocess.Popen[str]] = []
        self._lines = queue.SimpleQueue[tuple[int, str]]()
        self._open: set[int] = set()  # nodes whose output has not ended
        self._lost: set[int] = set()

    def __enter__(self) -> Launchers:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def start(self, words: Sequence[str]) -> None:
        """Start the next node's launcher."""
        number = len(self._processes)
        process = own_process.start(
            "ftrun.cli",
            list(words),
            acts_on_signals=True,
            is_tied=True,
            cwd=self._directory,
            env=self._variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._processes.append(process)
        self._open.add(number)

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                self._lines.put((number, line))
            self._lines.put((number, ""))

        threading.Thread(target=read, name="ftrun-check-output", daemon=True).start()

    def kill(self, number: int) -> None:
        """Lose a node: kill its launcher and all its descendants. Its exit code is ignored."""
        self._lost.add(number)
        root = self._processes[number].pid
        left = _directory_of(root)

        def family() -> list[linux.ProcessRow]:
            rows = linux.process_rows()
            found = {root, *linux.descendants(rows, {root})}
            return [row for row in rows if row.pid in found]

        kill_all(family, END_S)
        if left is not None:
            shutil.rmtree(left, ignore_errors=True)

    def watch(
        self, timeout_s: float, look: Callable[[str], None], is_over: Callable[[], bool]
    ) -> Heard:
        """Print the launchers' output until they end.

        Args:
            timeout_s: they are ended after this time.
            look: called with each line, and with "" from time to time.
            is_over: whether to stop, because what is left would only show torchrun's behaviour.
        """
        heard, until = Heard(), clock.now() + timeout_s
        is_ending = False
        while self._open and clock.now() < until:
            line = self._next(heard)
            look(line)
            if not is_ending and (is_over() or line.startswith(NO_SNAPSHOTS)):
                is_ending = True
                self._signal(signal.SIGTERM)
        heard.is_late = bool(self._open)
        if heard.is_late:
            self.end(heard)
        codes = [self._code(x) for n, x in enumerate(self._processes) if n not in self._lost]
        heard.exit_code = next(filter(None, codes), 0)
        return heard

    def end(self, heard: Heard | None = None) -> None:
        """End all that still run, and wait for them."""
        try:
            self._signal(signal.SIGTERM)
            until = clock.now() + END_S
            while self._open and clock.now() < until:
                self._next(heard or Heard())
        finally:  # also if the waiting thread is interrupted
            for process in self._processes:
                process.kill()
                process.wait()

    @staticmethod
    def _code(process: subprocess.Popen[str]) -> int:
        """The exit code of a launcher whose output has ended."""
        try:
            return process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def _next(self, heard: Heard) -> str:
        """The next line, which is printed; "": there was none for a moment."""
        try:
            number, line = self._lines.get(timeout=LOOK_S)
        except queue.Empty:
            return ""
        if not line:
            self._open.discard(number)
            return ""
        print(f"{self._prefix.format(number)}{line}", end="", flush=True)
        if NOT_MENDED.search(line):
            heard.told.append((time.time(), line.removeprefix("ftrun: ").strip().rstrip(".")))
        return line

    def _signal(self, signum: int) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signum)


def _directory_of(pid: int) -> Path | None:
    """The directory of a launcher's socket, which remains if all its processes are killed."""
    with contextlib.suppress(OSError):
        files = {os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()}
        for line in Path("/proc/net/unix").read_text().splitlines():
            *_, inode, path = line.split()
            if f"socket:[{inode}]" in files and path.endswith(f"/{SOCKET_NAME}"):
                return Path(path).parent
    return None
