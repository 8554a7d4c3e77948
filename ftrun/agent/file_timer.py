"""The named pipe in which torch's ``FileTimerClient`` reports a script's timers to its launcher.

Under torchrun a thread of the agent reads it, and kills the agent too when a timer expires. Here
the event loop reads it, and an expired timer is a failure of its replica like a hang.
``TORCHELASTIC_ENABLE_FILE_TIMER=1`` asks for it; ``TORCHELASTIC_TIMER_FILE`` names the pipe.

Not here: when a timer expires (core/agent/script_timers.py), the consequences
(core/agent/hangs.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import signal
import stat
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftrun.base import clock
from ftrun.base.errors import UserError
from ftrun.core.agent.events import ScriptTimerReleased, ScriptTimerSet
from ftrun.core.ids import WorkerKey

ENABLE_VARIABLE = "TORCHELASTIC_ENABLE_FILE_TIMER"
FILE_VARIABLE = "TORCHELASTIC_TIMER_FILE"
PIPE_NAME = "timers"
READ_BYTES = 1 << 16
LINE_BYTES_MAX = 1 << 16
SCOPE_CHARS_MAX = 400
LEFT_S_MAX = 1e9
UNPLACED_MAX = 256

TimerEvent = ScriptTimerSet | ScriptTimerReleased


@dataclass(frozen=True, slots=True)
class _Request:
    """One line of the pipe. ``expires_at``: seconds since the epoch; below 0: a release."""

    pid: int
    scope: str
    expires_at: float
    number: int


def timer_path(environ: Mapping[str, str], runtime_dir: Path) -> Path | None:
    """The path of this agent's pipe; None: timers are not enabled."""
    if environ.get(ENABLE_VARIABLE) != "1":
        return None
    given = environ.get(FILE_VARIABLE)
    return Path(given) if given else runtime_dir / PIPE_NAME


def check_timer_file(environ: Mapping[str, str]) -> None:
    """Check that a pipe can be created at the user's path.

    Raises:
        UserError: something else is there, another launcher reads it, or there is no directory.
    """
    path = timer_path(environ, Path())
    if path is None or not environ.get(FILE_VARIABLE):
        return
    if not path.parent.is_dir():
        raise _refusal(path, "its directory does not exist")
    try:
        is_pipe = stat.S_ISFIFO(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if not is_pipe:
        raise _refusal(path, "it is there already, and is no named pipe")
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
    except OSError as error:
        if error.errno == errno.ENXIO:  # without a reader: an ended launcher has left it
            return
        raise _refusal(path, error.strerror or str(error)) from None
    raise _refusal(path, "another launcher reads it")


def _refusal(path: Path, why: str) -> UserError:
    return UserError(
        f"{FILE_VARIABLE} {path}: {why}. Nothing was started. Unset it: then each agent makes a "
        "pipe of its own and hands its path to the workers."
    )


class FileTimer:
    """Reads the pipe.

    ``find``: returns the worker of a pid, or None; ``emit``: called with each event.
    """

    def __init__(
        self,
        path: Path,
        find: Callable[[int], WorkerKey | None],
        emit: Callable[[TimerEvent], None],
    ) -> None:
        self.path = path
        self._find = find
        self._emit = emit
        self._rest = b""
        self._unplaced: deque[_Request] = deque(maxlen=UNPLACED_MAX)
        self._loop = asyncio.get_running_loop()
        path.unlink(missing_ok=True)
        os.mkfifo(path, mode=0o600)
        # Open for writing too, so that the pipe has no end between two writers.
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._loop.add_reader(self._fd, self._read)

    def close(self) -> None:
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
        self.path.unlink(missing_ok=True)

    def worker_started(self) -> None:
        """A worker's pid is known now. Its first requests may have arrived before."""
        waiting = list(self._unplaced)
        self._unplaced.clear()
        for request in waiting:
            self._place(request)

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._rest += os.read(self._fd, READ_BYTES)
        *lines, self._rest = self._rest.split(b"\n")
        if len(self._rest) > LINE_BYTES_MAX:
            self._rest = b""
        for line in lines:
            request = _parse(line)
            if request is not None:
                self._place(request)

    def _place(self, request: _Request) -> None:
        key = self._find(request.pid)
        if key is None:
            self._unplaced.append(request)
        elif request.expires_at < 0:
            self._emit(ScriptTimerReleased(key, request.pid, request.scope))
        else:
            left_s = min(request.expires_at - clock.wall().timestamp(), LEFT_S_MAX)
            timer = ScriptTimerSet(key, request.pid, request.scope, left_s, request.number)
            self._emit(timer)


def worker_of(pid: int, workers: list[tuple[WorkerKey, int]]) -> WorkerKey | None:
    """The worker that is this process, or that has started it: a worker leads its own session."""
    try:
        leader = os.getsid(pid)
    except OSError:
        return None
    return next((key for key, own in workers if own in (pid, leader)), None)


def _parse(line: bytes) -> _Request | None:
    """Parse a line; None: it is no request. Any process of this user can write into the pipe."""
    try:
        fields: dict[str, Any] = json.loads(line)
        number = int(fields["signal"])
        return _Request(
            pid=int(fields["pid"]),
            scope=str(fields["scope_id"])[:SCOPE_CHARS_MAX],
            expires_at=float(fields["expiration_time"]),
            number=number if 0 < number < signal.NSIG else 0,
        )
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
