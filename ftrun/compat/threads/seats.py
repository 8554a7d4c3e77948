"""Seats for Managers in threads: starts the agent of this process, and ends it.

An agent lives from the first seat of its lighthouse to the last. Called from the Managers' threads,
one at a time.

Not here: the agent (agent.py), a Manager's side of its seat (training/seats.py).
"""

from __future__ import annotations

import os
import socket
import threading
from functools import partial
from typing import ClassVar

from ftrun.base.addresses import LOOPBACK, is_loopback, join_address, parse_address
from ftrun.compat.background import BackgroundLoop
from ftrun.compat.threads.agent import ThreadAgent
from ftrun.compat.threads.seat import LighthouseHere, SeatWanted, ThreadSeat
from ftrun.core.ids import WorkerKey
from ftrun.training.seats import SeatAsked


def take_seat(asked: SeatAsked) -> ThreadSeat:
    """Assign a seat to the Manager. The first seat of a lighthouse starts the agent.

    Raises:
        UserError: the arguments fit no seat, or the lighthouse refuses.
        PeerError: the lighthouse does not answer.
    """
    wanted = SeatWanted.of(asked)
    host, port = parse_address(wanted.lighthouse, "lighthouse_addr")
    with _Process.lock:
        _Process.forget_after_fork()
        agent = _Process.agents.get(port)
        if agent is None or agent.is_over:
            here = _Process.lighthouses.get(port) if _is_here(host) else None
            agent = _started(wanted, join_address(host, port), here)
            _Process.agents[port] = agent
        try:
            given = agent.run(agent.take(wanted))
            return agent.seat(given, wanted, partial(_leave, port, agent))
        finally:
            _close_if_empty(port, agent)


def offer(port: int, lighthouse: LighthouseHere) -> None:
    """Let threads of this process use its lighthouse at this port."""
    _Process.lighthouses[port] = lighthouse


def withdraw(port: int) -> None:
    """The lighthouse at this port is shut down: an agent in this process loses it.

    The garbage collector may call this in any thread, so it never waits.
    """
    _Process.lighthouses.pop(port, None)
    agent = _Process.agents.pop(port, None) if _Process.pid == os.getpid() else None
    if agent is not None:
        agent.begin_without_lighthouse()


class _Process:
    """The lighthouses of this process by port; the agents by their lighthouse's port, one per job.

    ``lock``: guards the tables, and serialises taking and leaving seats.
    """

    lock = threading.RLock()
    pid = os.getpid()
    agents: ClassVar[dict[int, ThreadAgent]] = {}
    lighthouses: ClassVar[dict[int, LighthouseHere]] = {}

    @classmethod
    def forget_after_fork(cls) -> None:
        """Drop all agents after a fork, which has none of its parent's threads."""
        if cls.pid != os.getpid():
            cls.pid, cls.agents = os.getpid(), {}


def _is_here(host: str) -> bool:
    return is_loopback(host) or host in (socket.gethostname(), "0.0.0.0", "::", LOOPBACK)


def _started(wanted: SeatWanted, address: str, here: LighthouseHere | None) -> ThreadAgent:
    loop = BackgroundLoop("ftrun-threads")
    agent: ThreadAgent | None = None
    try:
        agent = ThreadAgent(wanted, address, here, loop)
        agent.run(agent.start())
    except BaseException:
        if agent is not None:
            agent.run(agent.close())
        loop.close()
        raise
    return agent


def _close_if_empty(port: int, agent: ThreadAgent) -> None:
    """End an agent without a seat. Under the lock, so that no seat is taken meanwhile."""
    if agent.seats:
        return
    if _Process.agents.get(port) is agent:
        del _Process.agents[port]
    agent.end()


def _leave(port: int, agent: ThreadAgent, key: WorkerKey, failure: str) -> None:
    """A Manager is closed. If it was the last one its agent ends."""
    with _Process.lock:
        if _Process.pid != os.getpid():
            return  # a fork's copy
        agent.run(agent.leave(key, failure))
        _close_if_empty(port, agent)
