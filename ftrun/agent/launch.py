"""The spawner's launch: the first act of a run, because importing torch takes longest.

Meanwhile the agent checks the user's options and loads its own libraries; an error there ends the
spawner again. Not here: messages to it (process.py), its work (spawner.py).
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from ftrun.agent import env_markers

TITLE_CHARS = 240
GUARD_BYTES = 16
SINGLE_THREADED = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
}


class SpawnerLaunch:
    """A spawner that imports torch already and has received no message yet.

    ``guard_id``: the random marker that every process of the job carries in its environment.
    ``channel``, ``stores``: this end of its two socket pairs, for process.py.
    """

    def __init__(self) -> None:
        self.guard_id = os.urandom(GUARD_BYTES).hex()
        self.channel, theirs = socket.socketpair()
        self.stores, their_stores = socket.socketpair()
        command = [sys.executable, "-m", "ftrun.agent.spawner", "--parent", str(os.getpid())]
        command += ["--channel", str(theirs.fileno()), "--stores", str(their_stores.fileno())]
        command += ["--title", "." * TITLE_CHARS]
        passed = [theirs.fileno(), their_stores.fileno()]
        stdin_fd = shareable_stdin()
        if stdin_fd is not None:
            command += ["--stdin", str(stdin_fd)]
            passed.append(stdin_fd)
        with theirs, their_stores:
            self.process = subprocess.Popen(
                command,
                env=spawner_environment(self.guard_id),
                stdin=subprocess.DEVNULL,
                pass_fds=passed,
                start_new_session=True,
            )
        if stdin_fd is not None:
            os.close(stdin_fd)

    def end(self) -> None:
        """Kill the spawner, unless the agent has ended it already."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def shareable_stdin() -> int | None:
    """A copy of standard input for a worker; None if none may read it.

    A terminal belongs to the shell while this process is in its background. A worker has a session
    of its own, so the kernel would not stop it, and it would take the shell's keystrokes.
    """
    try:
        if os.isatty(0) and os.tcgetpgrp(0) != os.getpgrp():
            return None
        return os.dup(0)
    except OSError:
        return None


def spawner_environment(guard_id: str) -> dict[str, str]:
    """The environment of the spawner, and so the base of every worker's.

    The libraries get one thread because a fork of a process with threads is unsafe; a worker gets
    its own number after the fork.
    """
    return {
        **os.environ,
        **SINGLE_THREADED,
        # Makes torch check for CUDA by NVML, without a context, so that forking stays safe.
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        env_markers.GUARD_NAME: guard_id,
        env_markers.OWNER_NAME: env_markers.NO_OWNER,
    }
