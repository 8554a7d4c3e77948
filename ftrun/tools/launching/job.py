"""One launched job, seen from the program: starts the host, follows it, ends it in any case.

Ctrl-C in the main thread is forwarded to the host, and the program waits for the job's end; a
second one ends the job at once. SIGTERM and SIGHUP drain the job if the program has no handler for
them. Not here: the host (host.py), the meaning of the records (story.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from ftrun.base import own_process
from ftrun.base.errors import ExitCode, LaunchError, UserError
from ftrun.config.script import Script
from ftrun.tools.launching.outputs import Output
from ftrun.tools.launching.records import Lines, Record

HOST = "ftrun.tools.launching.host"
ORDER = "order.json"
READ_BYTES = 1 << 16
PASSED_ON = (signal.SIGTERM, signal.SIGHUP)
INTERRUPTIONS_MAX = 2
"""After these the host itself is killed; then its spawner's guards end the job."""
HOST_EXIT_S = 60.0
"""From the host's last record to its exit. After that it is killed."""


class Job:
    """A job that ``run`` launches. Leaving the ``with`` block removes its directory (mode 0700).

    ``one_group``: the settings are torchrun's. ``passed_on``: the signal of this program that was
    forwarded; None: none was.
    """

    def __init__(self, *, one_group: bool = False) -> None:
        self._one_group = one_group
        self.passed_on: int | None = None
        try:
            self.directory = Path(tempfile.mkdtemp(prefix="ftrun-launch-"))
        except OSError as error:
            raise UserError(
                f"No temporary directory can be made ({error}). Nothing was started. Set TMPDIR to "
                "one that you may write."
            ) from None
        self._process: subprocess.Popen[bytes] | None = None
        self._interruptions = 0
        self._has_ended = False

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    def run(
        self, script: Script, settings: Mapping[str, Any], listen: Callable[[Record], None]
    ) -> None:
        """Run the job to its end. ``listen`` is called with each record.

        Raises:
            UserError: nothing was started.
            LaunchError: the host has ended without a last record.
            BaseException: KeyboardInterrupt, or what a signal handler of the program or ``listen``
                raises; the job has ended by then.
        """
        self._write_order(script, settings)
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._signals())
            outputs = (Output(sys.stdout, 1), Output(sys.stderr, 2))
            for output in outputs:
                stack.callback(output.close)
            read_fd = self._start(outputs)
            stack.callback(os.close, read_fd)
            stack.callback(self._end)
            self._follow(read_fd, outputs, listen)
            status = self._wait()
        if not self._has_ended:
            pid = 0 if self._process is None else self._process.pid
            raise LaunchError(
                ExitCode.BUG,
                f"its agent (pid {pid}) has ended without a word, status {status}; its guards end "
                "the workers",
            )

    def interrupt(self, number: int = signal.SIGINT) -> None:
        """End the job gracefully, from any thread; a second call ends it at once."""
        self._interruptions += 1
        if self._process is None:
            return
        if self._interruptions > INTERRUPTIONS_MAX:
            self._process.kill()
        else:
            self._process.send_signal(number)

    # ------------------------------------------------------------ start and end

    def _write_order(self, script: Script, settings: Mapping[str, Any]) -> None:
        order = {
            "kind": script.kind.value,
            "target": [script.target, *script.args],
            "settings": dict(settings),
            "one_group": self._one_group,
        }
        try:
            (self.directory / ORDER).write_text(json.dumps(order, default=str))
        except OSError as error:
            raise UserError(
                f"{self.directory} cannot be written to ({error.strerror}). Nothing was started."
            ) from None

    def _start(self, outputs: tuple[Output, Output]) -> int:
        """Start the host. Returns the end of the pipe from which its records are read."""
        read_fd, write_fd = os.pipe()
        try:
            self._process = own_process.start(
                HOST,
                [str(self.directory), str(write_fd), str(os.getpid())],
                acts_on_signals=True,
                stdin=subprocess.DEVNULL,
                stdout=outputs[0].fd,
                stderr=outputs[1].fd,
                pass_fds=(write_fd,),
                start_new_session=True,
            )
        except OSError as error:
            os.close(read_fd)
            raise own_process.not_started(error) from None
        finally:
            os.close(write_fd)
            for output in outputs:
                output.started()
        return read_fd

    def _wait(self) -> int:
        assert self._process is not None
        try:
            return self._process.wait(HOST_EXIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _end(self) -> None:
        """End a host that still runs, after an exception."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._wait()

    # ------------------------------------------------------------ meanwhile

    def _follow(
        self, read_fd: int, outputs: tuple[Output, Output], listen: Callable[[Record], None]
    ) -> None:
        lines = Lines()
        raised: BaseException | None = None
        with selectors.DefaultSelector() as selector:
            selector.register(read_fd, selectors.EVENT_READ)
            for output in outputs:
                if output.read_fd >= 0:
                    selector.register(output.read_fd, selectors.EVENT_READ, output)
            is_open = True
            while is_open:
                try:
                    for key, _ in selector.select():
                        if key.data is None:
                            data = os.read(read_fd, READ_BYTES)
                            is_open = bool(data)
                            self._hear(lines.feed(data), listen if raised is None else None)
                        elif not key.data.pump():
                            selector.unregister(key.fd)
                except BaseException as error:  # noqa: BLE001 - raised again when the job has ended
                    raised = raised or error
                    is_ctrl_c = isinstance(error, KeyboardInterrupt)
                    self.interrupt(signal.SIGINT if is_ctrl_c else signal.SIGTERM)
        if raised is not None:
            self._wait()
            raise raised

    def _hear(self, records: list[Record], listen: Callable[[Record], None] | None) -> None:
        for record in records:
            self._has_ended = self._has_ended or record["event"] == "ended"
            if listen is not None:
                listen(record)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """In the main thread: forward signals that would end the program or not reach it.

        While an event loop runs in this thread, asyncio's own handler of SIGINT would only cancel a
        task, which cannot run before the job has ended.
        """
        before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in PASSED_ON:
                if signal.getsignal(number) is signal.SIG_DFL:
                    before[number] = signal.signal(number, self._pass_on)
            if _a_loop_runs_here() and callable(signal.getsignal(signal.SIGINT)):
                before[int(signal.SIGINT)] = signal.signal(
                    signal.SIGINT, signal.default_int_handler
                )
        try:
            yield
        finally:
            for signal_number, handler in before.items():
                signal.signal(signal_number, handler)

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        self.passed_on = number
        self.interrupt(number)


def _a_loop_runs_here() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
