"""The launch of the spawner. It comes first in a run, because importing torch takes longest.

Meanwhile the agent checks the user's options and loads its own libraries. An error or a signal then
ends the spawner. Not here: messages to it (process.py), its work (spawner.py).
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
from typing import Any

from ftrun.agent import env_markers
from ftrun.base import own_process
from ftrun.base.errors import ExitCode
from ftrun.base.own_process import FOR_THE_JOB

TITLE_CHARS = 240
GUARD_BYTES = 16
END_S = 2.0
SINGLE_THREADED = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
}


class SpawnerLaunch:
    """A spawner that is importing torch and has received no message yet.

    Attributes:
        guard_id: the random marker that every process of the job has in its environment.
        channel, stores: this end of the two socket pairs, for process.py.
        parked: the standbys that the spawner has from the start.
        guards: the markers of all launches that exist ``beside`` each other: one may wait while the
            job of another ends.
        starting: the lock that these launches share; a process is started inside it. Until its exec
            a new process has the environment of this process, not its own marker, so a sweep takes
            the lock before it looks for processes.
    """

    def __init__(self, beside: SpawnerLaunch | None = None) -> None:
        self.parked: tuple[str, ...] = ()
        self._is_configured = False
        self.guard_id = os.urandom(GUARD_BYTES).hex()
        self.guards: set[str] = set() if beside is None else beside.guards
        self.starting: threading.Lock = threading.Lock() if beside is None else beside.starting
        self.channel, theirs = socket.socketpair()
        self.stores, their_stores = socket.socketpair()
        stdin_fd, stderr_fd = shareable_stdin(), os.dup(2)
        passed = {"channel": theirs.fileno(), "stores": their_stores.fileno(), "stderr": stderr_fd}
        if stdin_fd is not None:
            passed["stdin"] = stdin_fd
        words = ["--parent", str(os.getpid()), "--title", "." * TITLE_CHARS]
        words += [f"--{name}={fd}" for name, fd in passed.items()]
        words += [f"--{name}={numbers}" for name, numbers in _signals_as_started().items()]
        with theirs, their_stores, self.starting:
            self.guards.add(self.guard_id)
            self.process = own_process.start(
                "ftrun.agent.spawner",
                words,
                forks=True,
                env=spawner_environment(self.guard_id),
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=list(passed.values()),
                start_new_session=True,
            )
        os.close(stderr_fd)
        if stdin_fd is not None:
            os.close(stdin_fd)

    def configure(self, message: dict[str, Any], parked: int = 0, threads: int = 0) -> None:
        """Send the configuration, the first time only; perhaps long before a job uses the spawner.

        ``parked``: how many standbys it is to keep ready; ``threads``: the threads of each.
        """
        from ftrun.agent.channel import encode  # not needed while torch is being imported

        if self._is_configured:
            return
        self._is_configured = True
        self.parked = tuple(f"parked-{number}" for number in range(1, parked + 1))
        orders = [{"op": "standby", "name": name, "threads": threads} for name in self.parked]
        with contextlib.suppress(OSError):  # it has ended: the agent notices
            for order in ({"op": "configure", **message}, *orders):
                self.channel.sendall(encode(order))

    def end(self) -> None:
        """Kill the spawner, unless the agent has ended it."""
        self.guards.discard(self.guard_id)
        if self._is_configured:  # it may have forked then, and its child ends first
            self.channel.close()
            self.stores.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(END_S)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.process.stderr is not None:
            self.process.stderr.close()


def handle_signals() -> None:
    """Handle signals until the agent installs its own handlers.

    No worker runs yet, so SIGUSR1 and SIGUSR2, which would end this process, cannot be passed on.
    They get handlers and not SIG_IGN, which the workers would inherit.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, leave)
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, frame: None)


def leave(number: int, _frame: object) -> None:
    """Handle SIGINT and SIGTERM during the start.

    It raises no KeyboardInterrupt: if one passes through an ``exec`` of text, as in dataclasses,
    CPython 3.11 ends the process by SIGINT even though the exception was caught.
    """
    raise SystemExit(ExitCode.INTERRUPTED if number == signal.SIGINT else ExitCode.PREEMPTED)


def _signals_as_started() -> dict[str, str]:
    """The signals that ftrun's parent ignores or blocks; workers do the same, as under torchrun."""
    numbers = (signal.SIGUSR1, signal.SIGUSR2)
    found = {
        "ignored": [number for number in numbers if signal.getsignal(number) is signal.SIG_IGN],
        "blocked": FOR_THE_JOB & signal.pthread_sigmask(signal.SIG_BLOCK, ()),
    }
    return {name: ",".join(str(int(number)) for number in found[name]) for name in found}


def shareable_stdin() -> int | None:
    """A copy of standard input for a worker; None if no worker may read it.

    While this process is in the background, the terminal belongs to the shell. A worker has its own
    session, so the kernel would not stop it, and it would read keystrokes meant for the shell.
    """
    try:
        if os.isatty(0) and os.tcgetpgrp(0) != os.getpgrp():
            return None
        return os.dup(0)
    except OSError:
        return None


def spawner_environment(guard_id: str) -> dict[str, str]:
    """The environment of the spawner, from which every worker's is made.

    Libraries get one thread, because a fork of a process with threads is unsafe. A worker sets its
    own number of threads after the fork.
    """
    return {
        **os.environ,
        **SINGLE_THREADED,
        # torch then checks for CUDA by NVML, without a context, so that forking stays safe
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        env_markers.GUARD_NAME: guard_id,
        env_markers.OWNER_NAME: env_markers.NO_OWNER,
    }
