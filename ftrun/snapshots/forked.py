"""The writer's process as a fork of its worker, made before the script: most of torch is there.

An interpreter of its own imports torch and its checkpoints for 3 s of a core, at each start and
restart of a worker. Until its trainer needs it the fork waits, and shares the worker's memory.

Not here: its orders (process.py), its work (writer.py).
"""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import NoReturn

from ftrun.base import linux
from ftrun.base.own_process import FOR_THE_JOB

WORDS_BYTES_MAX = 256
FDS_MAX = 8
TITLE = "ftrun snapshots"


class Forked:
    """A child of this process that waits for what it is to do. It dies with this process.

    Raises:
        OSError: the system's refusal.
    """

    def __init__(self) -> None:
        self._sock, theirs = socket.socketpair()
        self.parent = os.getpid()
        with theirs:
            self.pid = os.fork()
            if self.pid == 0:
                self._sock.close()
                _wait(theirs, self.parent)
        self._pidfd = os.pidfd_open(self.pid)
        self._end = select.poll()
        self._end.register(self._pidfd, select.POLLIN)
        self._has_ended = False

    def become(self, module: str, fds: Sequence[int]) -> None:
        """Have it call ``main`` of ``module`` as ``own_process.start`` would.

        Its arguments are the pid of this process and the numbers that ``fds`` have there.

        Raises:
            OSError: it has ended.
        """
        with self._sock:
            socket.send_fds(self._sock, [module.encode()], list(fds))

    def kill(self) -> None:
        """End it now. From any thread."""
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def poll(self) -> int | None:
        """0 when it has ended, else None, as of a ``Popen``."""
        if not self._has_ended and self._end.poll(0):
            self._has_ended = True
            with contextlib.suppress(ChildProcessError):  # the script has waited for any child
                os.waitpid(self.pid, 0)
        return 0 if self._has_ended else None

    def wait(self, timeout_s: float) -> None:
        """Wait for its end.

        Raises:
            TimeoutExpired: it has not ended.
        """
        if not self._has_ended and not self._end.poll(timeout_s * 1000):
            raise subprocess.TimeoutExpired(TITLE, timeout_s)
        self.poll()


class _Process:
    """The fork that this process has in reserve."""

    reserve: Forked | None = None


def have_one() -> None:
    """Fork, in a process with one thread. Without a fork the writer starts as an interpreter."""
    with contextlib.suppress(OSError):
        _Process.reserve = Forked()


def take() -> Forked | None:
    """The fork in reserve, once; None: no fork is left, or this is another process."""
    reserve, _Process.reserve = _Process.reserve, None
    return reserve if reserve is not None and reserve.parent == os.getpid() else None


def _wait(sock: socket.socket, parent: int) -> NoReturn:
    for number in FOR_THE_JOB:
        signal.signal(number, signal.SIG_IGN)
    if linux.die_with_parent(parent):
        linux.title_process(TITLE)
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        os.dup2(null, 0)
        os.dup2(null, 1)
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        module, fds, *_ = socket.recv_fds(sock, WORDS_BYTES_MAX, FDS_MAX)
        if fds:
            sys.argv = ["ftrun", str(parent), *map(str, fds)]
            importlib.import_module(module.decode()).main()
    os._exit(0)
