"""The trainer's end of the writer's process (writer.py): its start, orders, answers and end.

Used by one background thread of a worker, except ``kill``. Every wait has a deadline. Not here:
what is ordered (training/snapshots.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
from typing import Any

from ftrun.base import clock, own_process
from ftrun.base.errors import PeerError
from ftrun.snapshots.forked import Forked, take
from ftrun.snapshots.memory import SharedMemory

WRITER = "ftrun.snapshots.writer"
START_TIMEOUT_S = 120.0
END_TIMEOUT_S = 5.0
ANSWER_BYTES_MAX = 1 << 16


class WriterProcess:
    """A running writer. It dies with this process.

    Raises:
        PeerError: it did not start.
    """

    def __init__(self, memory: SharedMemory) -> None:
        self._rest = b""
        self._answers, answers = os.pipe()
        orders, self._orders = os.pipe()
        try:
            self._process = _started([memory.fd, orders, answers])
        except OSError as error:
            os.close(self._answers)
            os.close(self._orders)
            raise PeerError(f"its process cannot be started: {error.strerror}") from error
        finally:
            os.close(answers)
            os.close(orders)
        try:
            self._answer(clock.now() + START_TIMEOUT_S)
        except PeerError:
            self.close()
            raise

    def write(self, order: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Have a snapshot written; its path, size and duration.

        Raises:
            PeerError: it could not be written, or the process has ended.
        """
        return self.ask("whole", order, timeout_s)

    def ask(self, kind: str, order: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Have one order of writer.py's table carried out.

        Raises:
            PeerError: it could not be, or the process has ended.
        """
        rest = memoryview(json.dumps([kind, order], allow_nan=False).encode() + b"\n")
        try:
            while rest:
                rest = rest[os.write(self._orders, rest) :]
        except OSError as error:
            raise PeerError("the process that writes it has ended") from error
        answer = self._answer(clock.now() + timeout_s)
        if "error" in answer:
            raise PeerError(str(answer["error"]))
        return answer

    def _answer(self, deadline: float) -> dict[str, Any]:
        poller = select.poll()
        poller.register(self._answers, select.POLLIN)
        while b"\n" not in self._rest:
            left_s = deadline - clock.now()
            if left_s <= 0 or not poller.poll(left_s * 1000):
                self.kill()
                raise PeerError("the process that writes it did not answer in time")
            data = os.read(self._answers, ANSWER_BYTES_MAX)
            if not data or len(self._rest) > ANSWER_BYTES_MAX:
                self.kill()
                raise PeerError("the process that writes it has ended")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """End it now. From any thread."""
        self._process.kill()

    def close(self) -> None:
        """End it and free its pipes."""
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_TIMEOUT_S)
        os.close(self._answers)
        os.close(self._orders)


def _started(fds: list[int]) -> subprocess.Popen[bytes] | Forked:
    """The fork in reserve, or an interpreter of its own if no fork is left."""
    reserve = take()
    if reserve is not None:
        with contextlib.suppress(OSError):  # it was killed, or the script has closed descriptors
            reserve.become(WRITER, fds)
            return reserve
    return own_process.start(
        WRITER,
        list(map(str, (os.getpid(), *fds))),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=fds,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )
