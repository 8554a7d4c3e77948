"""A lighthouse as a child process: of an agent; or of a keeper or a door, for the nodes of a job.

It is restarted when it dies, with the same state directory and, if they are free, the same ports. A
keeper's lighthouse is one of several, and is ready even while it stands by. Not here: what a
lighthouse does (lighthouse/).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ftrun.agent.env_markers import GUARD_NAME
from ftrun.agent.helper_output import HelperOutput
from ftrun.base import clock, own_process
from ftrun.base.errors import ExitCode
from ftrun.core.agent.lighthouse_starts import LighthouseStarts
from ftrun.protocol.embedding import (
    GOES_ON_WORDS,
    ORDER_FD,
    PARENT_PID,
    Embedding,
    ServiceAddress,
    read_address,
    withdraw_address,
)

READY_WORDS = (b"lighthouse ready", b"This one stands by")
STOP_S = 2.0


class EmbeddedLighthouse:
    """Runs ``ftrun/lighthouse/__main__.py`` until ``stop``.

    ``on_end``: called with the way in which a child has ended, and the time until the next start;
    None: there is none.
    """

    def __init__(
        self,
        embedding: Embedding,
        guard_id: str,
        log_path: Path,
        on_ready: Callable[[ServiceAddress], None],
        on_end: Callable[[str, float | None], None],
    ) -> None:
        log_dir = str(log_path.parent.absolute())
        self._embedding = replace(embedding, log_dir=log_dir)
        self._bind = ServiceAddress(embedding.bind, embedding.http)
        self._state_dir = Path(embedding.state_dir)
        self._guard_id = guard_id
        self._log_path = log_path
        self._on_ready = on_ready
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        self._stop_fd = -1
        self._output: HelperOutput | None = None
        self._address = self._bind
        self.starts = LighthouseStarts()
        self._started_at = 0.0
        self._ready = False
        self._stopping = False
        self._ended = asyncio.Event()
        self._retry: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start the child; ``on_ready`` follows, or ``on_end`` and a restart."""
        self._retry = None
        self._ready = False
        self._ended.clear()
        self._started_at = clock.now()
        if not self._embedding.contends:
            withdraw_address(self._state_dir)
        order_read, order_write = os.pipe()
        stderr_read, stderr_write = os.pipe()
        self._process = own_process.start(
            "ftrun.lighthouse.__main__",
            env=self._environment(order_read),
            stdin=subprocess.DEVNULL,
            stdout=stderr_write,
            stderr=stderr_write,
            pass_fds=(order_read,),
            start_new_session=True,
        )
        os.close(order_read)
        os.close(stderr_write)
        with contextlib.suppress(OSError):
            order = replace(self._embedding, bind=self._address.grpc, http=self._address.http)
            os.write(order_write, order.order())
        self._stop_fd = order_write
        self._output = HelperOutput(stderr_read, self._received)
        self._pidfd = os.pidfd_open(self._process.pid)
        self._loop.add_reader(self._pidfd, self._exited)

    @property
    def pid(self) -> int:
        """The child's pid; 0: there is no child now."""
        return self._process.pid if self._process is not None else 0

    @property
    def has_left_agents(self) -> bool:
        """Whether nodes trained on when the child ended."""
        return self._output is not None and GOES_ON_WORDS.encode() in self._output.kept

    async def stop(self, limit_s: float = STOP_S) -> None:
        """End the child: close its pipe, and after ``limit_s`` send SIGKILL."""
        self._stopping = True
        if self._retry is not None:
            self._retry.cancel()
            return
        if self._process is None:
            return
        self._close_pipe()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._ended.wait(), limit_s)
        if not self._ended.is_set():
            self._process.kill()
            await self._ended.wait()

    def _environment(self, order_fd: int) -> dict[str, str]:
        added = {ORDER_FD: str(order_fd), PARENT_PID: str(os.getpid()), GUARD_NAME: self._guard_id}
        return {**os.environ, **added}

    def _close_pipe(self) -> None:
        if self._stop_fd >= 0:
            os.close(self._stop_fd)
            self._stop_fd = -1

    def _received(self, data: bytes) -> None:
        with contextlib.suppress(OSError), open(self._log_path, "ab") as log:
            log.write(data)
        kept = self._output.kept if self._output is not None else b""
        if not self._ready and any(words in kept for words in READY_WORDS):
            self._ready = True
            self._published()

    def _published(self) -> None:
        if not self._embedding.contends:
            self._address = read_address(self._state_dir)
        self._on_ready(self._address)

    def _exited(self) -> None:
        assert self._process is not None
        assert self._output is not None
        self._output.read()
        self._output.close()
        self._close_pipe()
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        status = self._process.wait()
        self._process = None
        self._ended.set()
        if self._stopping:
            return
        if self._embedding.once and status == ExitCode.OK:
            return self._on_end("has ended with its job", None)
        is_hopeless = status == ExitCode.USAGE and self._address == self._bind
        if not self._ready:
            # Another process may have taken the ports.
            self._address = self._bind
        lived_s = clock.now() - self._started_at
        delay_s = self.starts.ended(lived_s, was_ready=self._ready, is_hopeless=is_hopeless)
        if delay_s is not None:
            self._retry = self._loop.call_later(delay_s, self.start)
        self._on_end(self._output.ending(status), delay_s)
