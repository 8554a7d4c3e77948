"""The trainer's end of the writer's process (writer.py): its start, orders, answers and end.

Used by one background thread of a worker, but for ``kill``. Every wait has a deadline. Not here:
what is ordered (training/snapshots.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

from ftrun import clock
from ftrun.errors import PeerError
from ftrun.snapshots.memory import SharedMemory

START_TIMEOUT_S = 120.0
END_TIMEOUT_S = 5.0
ANSWER_BYTES_MAX = 1 << 16
_PROGRAM = (
    "import sys; sys.path[:] = filter(None, sys.path); "  # for Pythons that know no safe path
    "from ftrun.snapshots.writer import main; sys.exit(main())"
)
_ROOT = str(Path(__file__).resolve().parents[2])


class WriterProcess:
    """A running writer. It dies with this process.

    Raises:
        PeerError: it did not start.
    """

    def __init__(self, memory: SharedMemory) -> None:
        self._rest = b""
        try:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-c", _PROGRAM, str(os.getpid()), str(memory.fd)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[memory.fd],
                env=_environment(),
            )
        except OSError as error:
            raise PeerError(f"its process cannot be started: {error.strerror}") from error
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
        assert self._process.stdin is not None
        try:
            line = json.dumps([kind, order], allow_nan=False)
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise PeerError("the process that writes it has ended") from error
        answer = self._answer(clock.now() + timeout_s)
        if "error" in answer:
            raise PeerError(str(answer["error"]))
        return answer

    def _answer(self, deadline: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        while b"\n" not in self._rest:
            left_s = deadline - clock.now()
            if left_s <= 0 or not poller.poll(left_s * 1000):
                self.kill()
                raise PeerError("the process that writes it did not answer in time")
            data = os.read(fd, ANSWER_BYTES_MAX)
            if not data or len(self._rest) > ANSWER_BYTES_MAX:
                self.kill()
                raise PeerError("the process that writes it has ended")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    @property
    def lives(self) -> bool:
        """It has not ended."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End it now. From any thread."""
        self._process.kill()

    def close(self) -> None:
        """End it and free its pipes."""
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_TIMEOUT_S)
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()


def _environment() -> dict[str, str]:
    """The worker's, with this ftrun, and without modules of the script's directory."""
    paths = filter(None, [os.environ.get("PYTHONPATH"), _ROOT])
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONSAFEPATH": "1",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
