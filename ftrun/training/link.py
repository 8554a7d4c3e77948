"""The worker's link to its agent: one thread receives, any thread may send.

The receiving thread also ticks the step machine once a second, so that its deadlines are checked.

Not here: the meaning of a message (core/worker/machine.py).
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

from ftrun.base.errors import PeerError, ProtocolError
from ftrun.core.messages import FromWorker, WorkerHello
from ftrun.protocol.frames import FrameSocket
from ftrun.training.context import WorkerContext

log = logging.getLogger(__name__)

TICK_S = 1.0


class AgentLink:
    """Frames to and from the agent.

    Args:
        context: identifies this worker, and the socket of its agent.
        deliver: called in the link thread with every message, and with None at every tick.
        lost: called once, by the receiving thread, if the agent goes away.

    Raises:
        PeerError: the agent cannot be reached.
    """

    def __init__(
        self,
        context: WorkerContext,
        deliver: Callable[[Any | None], None],
        lost: Callable[[PeerError], None],
    ) -> None:
        self._deliver = deliver
        self._lost = lost
        self._closing = threading.Event()
        self._frames = _connect(context)
        self._frames.send(WorkerHello(context.key, os.getpid(), context.token))
        self._thread = threading.Thread(target=self._run, name="ftrun-link", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def send(self, message: FromWorker) -> None:
        """Send to the lighthouse, through the agent. Does nothing once the agent is gone."""
        try:
            self._frames.send(message)
        except ProtocolError as error:
            log.warning("a message was not sent: %s", error)
        except PeerError as error:
            if not self._closing.is_set():
                log.warning("could not reach the agent: %s", error)
            # Half a frame may be out: end the stream. Then the receiving thread calls ``lost``.
            self._frames.shut_down()

    def close(self) -> None:
        self._closing.set()
        self._frames.close()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(TICK_S)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                message = self._frames.receive(TICK_S)
            except PeerError as error:
                if not self._closing.is_set():
                    self._lost(error)
                return
            self._deliver(message)


def _connect(context: WorkerContext) -> FrameSocket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(context.connect_timeout_s)
    try:
        sock.connect(context.socket_path)
    except OSError as error:
        sock.close()
        raise PeerError(
            f"replica {context.replica_id} cannot reach its agent: {error}. The agent restarts the "
            "worker while it lives; otherwise start the job again."
        ) from error
    return FrameSocket(sock)
