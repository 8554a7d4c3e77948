"""The spawner's launch: the first thing that a run does, for nothing takes as long as torch.

So what the user asked for is checked, and the agent's own libraries are loaded, while torch is
being imported. What goes wrong meanwhile ends the spawner again. Not here: what is said to it
(process.py), what it does (spawner.py).
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
    """A spawner that imports torch already, and that nobody has spoken to yet.

    ``guard_id``: the random marker that every process of the job carries in its environment.
    ``channel``, ``stores``: this end of its two socket pairs, for whoever takes it over.
    """

    def __init__(self) -> None:
        self.guard_id = os.urandom(GUARD_BYTES).hex()
        self.channel, theirs = socket.socketpair()
        self.stores, their_stores = socket.socketpair()
        command = [sys.executable, "-m", "ftrun.agent.spawner", "--parent", str(os.getpid())]
        command += ["--channel", str(theirs.fileno()), "--stores", str(their_stores.fileno())]
        command += ["--title", "." * TITLE_CHARS]
        with theirs, their_stores:
            self.process = subprocess.Popen(
                command,
                env=spawner_environment(self.guard_id),
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), their_stores.fileno()),
                start_new_session=True,
            )

    def end(self) -> None:
        """End it, if the agent has not done so or has never come to it."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def spawner_environment(guard_id: str) -> dict[str, str]:
    """The environment of the spawner, and so the base of every worker's.

    The libraries' threads are held at one because forking beside threads is unsafe; a worker gets
    its own number after the fork.
    """
    return {
        **os.environ,
        **SINGLE_THREADED,
        # Asked whether there is CUDA, torch looks by NVML: no context, so that forking stays safe.
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        env_markers.GUARD_NAME: guard_id,
        env_markers.OWNER_NAME: env_markers.NO_OWNER,
    }
