"""The lighthouse that an agent runs for itself: a child process, restarted when it dies.

A restarted one gets the same state directory and, if they are free, the same ports. Not here: what
a lighthouse does (lighthouse/).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from ftrun import clock
from ftrun.agent.env_markers import GUARD_NAME
from ftrun.core.agent.failures import signal_name
from ftrun.errors import ExitCode
from ftrun.protocol.embedding import (
    ANY_PORT,
    ServiceAddress,
    child_environment,
    read_address,
    withdraw_address,
)
from ftrun.protocol.frames import CHUNK_BYTES

READY_WORDS = b"lighthouse ready"
STOP_S = 2.0
BACKOFF_FIRST_S = 0.05
BACKOFF_LAST_S = 5.0
HEALTHY_S = 10.0
LINES_KEPT_BYTES = 16 * 1024


class EmbeddedLighthouse:
    """Runs ``python -m ftrun.lighthouse`` until ``stop``.

    ``on_end`` gets how a child has ended, and False if a restart would end in the same way.
    """

    def __init__(
        self,
        state_dir: Path,
        token: str,
        guard_id: str,
        log_path: Path,
        on_ready: Callable[[ServiceAddress], None],
        on_end: Callable[[str, bool], None],
    ) -> None:
        self._state_dir = state_dir
        self._token = token
        self._guard_id = guard_id
        self._log_path = log_path
        self._on_ready = on_ready
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        self._stderr_fd = -1
        self._received = bytearray()
        self._address = ServiceAddress(ANY_PORT, ANY_PORT)
        self._failures = 0
        self._started_at = 0.0
        self._ready = False
        self._stopping = False
        self._ended = asyncio.Event()
        self._retry: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int:
        """The pid of the child that runs now, or 0."""
        return 0 if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the child; ``on_ready`` follows, or ``on_end`` and a restart."""
        self._retry = None
        self._ready = False
        self._received.clear()
        self._ended.clear()
        self._started_at = clock.now()
        withdraw_address(self._state_dir)
        token_read, token_write = os.pipe()
        stderr_read, stderr_write = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ftrun.lighthouse"],
            env=self._environment(token_read),
            stdin=subprocess.DEVNULL,
            stdout=stderr_write,
            stderr=stderr_write,
            pass_fds=(token_read,),
            start_new_session=True,
        )
        os.close(token_read)
        os.close(stderr_write)
        with os.fdopen(token_write, "wb") as pipe, contextlib.suppress(OSError):
            pipe.write(self._token.encode())
        self._watch(stderr_read)

    async def stop(self) -> None:
        """End the child: by SIGTERM, and after ``STOP_S`` by SIGKILL."""
        self._stopping = True
        if self._retry is not None:
            self._retry.cancel()
            return
        if self._process is None:
            return
        self._process.terminate()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._ended.wait(), STOP_S)
        if not self._ended.is_set():
            self._process.kill()
            await self._ended.wait()

    def _environment(self, token_fd: int) -> dict[str, str]:
        added = child_environment(
            self._state_dir,
            token_fd,
            parent_pid=os.getpid(),
            bind=self._address.grpc,
            http=self._address.http,
            log_dir=self._log_path.parent,
        )
        return {**os.environ, **added, GUARD_NAME: self._guard_id}

    def _watch(self, stderr_fd: int) -> None:
        assert self._process is not None
        os.set_blocking(stderr_fd, False)
        self._stderr_fd = stderr_fd
        self._pidfd = os.pidfd_open(self._process.pid)
        self._loop.add_reader(stderr_fd, self._read)
        self._loop.add_reader(self._pidfd, self._exited)

    def _read(self) -> None:
        try:
            data = os.read(self._stderr_fd, CHUNK_BYTES)
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(self._stderr_fd)
            return
        self._received += data
        with contextlib.suppress(OSError), open(self._log_path, "ab") as log:
            log.write(data)
        if not self._ready and READY_WORDS in self._received:
            self._ready = True
            self._published()
        del self._received[:-LINES_KEPT_BYTES]

    def _published(self) -> None:
        self._address = read_address(self._state_dir)
        self._on_ready(self._address)

    def _exited(self) -> None:
        assert self._process is not None
        self._read()
        for fd in (self._pidfd, self._stderr_fd):
            self._loop.remove_reader(fd)
            os.close(fd)
        status = self._process.wait()
        self._process = None
        self._ended.set()
        if self._stopping:
            return
        if status == ExitCode.USAGE and self._address.grpc == ANY_PORT:
            self._on_end(self._why(status), False)
            return
        if not self._ready:
            # Another process may have taken the ports.
            self._address = ServiceAddress(ANY_PORT, ANY_PORT)
        if clock.now() - self._started_at >= HEALTHY_S:
            self._failures = 0
        delay_s = min(BACKOFF_LAST_S, BACKOFF_FIRST_S * 2.0**self._failures)
        self._failures = min(self._failures + 1, 16)
        self._retry = self._loop.call_later(delay_s, self.start)
        self._on_end(self._why(status), True)

    def _why(self, status: int) -> str:
        if status < 0:
            return f"died: {signal_name(-status)}"
        lines = self._received.decode(errors="replace").strip().splitlines()
        last = f": {lines[-1]}" if lines else ""
        return f"ended with exit code {status}{last}"
