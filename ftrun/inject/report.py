"""Sends one message of a worker's bootstrap to the agent, with or without a Manager.

Not here: the Manager's own link (training/link.py).
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Any

from ftrun.base.errors import PeerError
from ftrun.training.context import WorkerContext

TIMEOUT_S = 1.0
FAILURE_TIMEOUT_S = 10.0
"""For the report of a failure. The verdict needs it, and an agent may be slow on a busy machine."""


def send_to_agent(here: WorkerContext, message: Any, timeout_s: float = TIMEOUT_S) -> None:
    """Send ``message`` and wait until the agent has read it, which is before it sees this exit.

    Without an agent nothing happens. Each of the four waits is limited to ``timeout_s``.
    """
    # Imported only for a message, so that a worker's first line does not wait for it.
    from ftrun.core.messages import WorkerHello
    from ftrun.protocol.frames import FrameSocket

    with contextlib.suppress(OSError, PeerError):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(timeout_s)
        sock.connect(here.socket_path)
        frames = FrameSocket(sock)
        try:
            frames.send(WorkerHello(here.key, os.getpid(), here.token), timeout_s)
            frames.send(message, timeout_s)
            frames.receive(timeout_s)
        finally:
            frames.close()
