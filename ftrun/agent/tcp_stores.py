"""The store process: the node's TCPStores, and the third guard.

TCPStores have threads, which the spawner must never have, so the stores are in this process: one
for the rendezvous of the quorums' process groups, and one per incarnation of a replica group for
MASTER_ADDR and MASTER_PORT. Each binds port 0 and publishes its port, unless --master-port sets
one.

The store process is the guard of last resort (P1): it is the spawner's parent and a subreaper. When
the agent and the spawner have both ended, the remaining processes are its descendants, and it kills
them. Not here: which group gets which store (fleet.py).
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from ftrun.agent import sweep
from ftrun.agent.channel import Channel
from ftrun.base import linux
from ftrun.process_groups.store import WORLD_KEYS

SWEEP_DEADLINE_S = 4.0
BACKLOG = 1024
OPEN_TIMEOUT_S = 60.0
WORLD_STORE = "world"
"""The store of all replicas, at the script's MASTER_ADDR and MASTER_PORT."""
LOOK_MS = 200
DESCRIPTORS_PER_STORE = 16
"""A TCPStore of torch 2.13 takes 10, and one more for each worker."""


@dataclass(frozen=True, slots=True)
class Guards:
    """The pidfds of the other two guards."""

    agent: int
    spawner: int


class StoreProcess:
    """Holds the stores and watches both other guards. The process ends when ``run`` returns."""

    def __init__(self, channel: Channel, host: str, guard_id: str, guards: Guards) -> None:
        self._channel = channel
        self._host = host
        self._guard_id = guard_id
        self._guards = guards
        self._stores: dict[str, Any] = {}
        self._unmade: dict[str, Any] = {}  # the world's store, until a world is created there
        self._leaves = False

    def run(self) -> None:
        """Serve until the spawner and the agent (or its channel) have ended; then sweep."""
        held_back = sweep.hold_back_descriptors()
        linux.look_names_up_in_files_only()
        self._open("quorum")
        poll = select.poll()
        alive = {self._guards.agent, self._guards.spawner}
        for fd in (*alive, self._channel.fileno()):
            poll.register(fd, select.POLLIN)
        while self._guards.spawner in alive or not (
            self._channel.closed or self._guards.agent not in alive
        ):
            for fd, _ in poll.poll(LOOK_MS if WORLD_STORE in self._unmade else None):
                if fd in alive:
                    poll.unregister(fd)
                    alive.discard(fd)
                elif not self._serve():
                    poll.unregister(fd)
            self._look()
        for fd in held_back:
            os.close(fd)
        if not self._leaves:
            sweep.kill_all(self._whole_job, SWEEP_DEADLINE_S)

    def _serve(self) -> bool:
        """Carry out the agent's requests. False: the agent has closed its channel."""
        for frame in self._channel.receive():
            if frame.message["op"] == "leave":
                self._leaves = True
                continue
            name = str(frame.message["name"])
            if frame.message["op"] == "open":
                self._open(name, frame.message["port"])
            else:
                self._stores.pop(name, None)
        return not self._channel.closed

    def _open(self, name: str, port: int = 0) -> None:
        try:
            store = open_store(self._host, port)
        except (OSError, RuntimeError) as error:  # RuntimeError: torch's own errors
            self._send({"op": "unusable", "reason": _why_no_store(self._host, error)})
            return
        self._stores[name] = store
        if name == WORLD_STORE:
            self._unmade[name] = store
        self._send({"op": "store", "name": name, "port": store.port})

    def _look(self) -> None:
        """Report once to the agent that a process other than a worker has created a world.

        A worker's own world of all replicas has no such key (inject/zero_edit/world/).
        """
        store = self._unmade.get(WORLD_STORE)
        if store is not None and any(store.check([key]) for key in WORLD_KEYS):
            self._unmade.clear()
            self._send({"op": "other world"})

    def _send(self, message: dict[str, Any]) -> None:
        """Send to the agent. If the agent has ended, the spawner or the sweep ends this process."""
        try:
            self._channel.send(message)
        except OSError:
            self._channel.closed = True

    def _whole_job(self) -> list[linux.ProcessRow]:
        own = os.getpid()
        return sweep.job_processes(self._guard_id, own, frozenset({own}))


def _why_no_store(host: str, error: Exception) -> str:
    """One line for the agent: the first line of torch's text, without the backtrace."""
    words = getattr(error, "strerror", None) or str(error).strip().partition("\n")[0]
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"no TCPStore can be opened at {host} ({words}). Its process may have {soft} files open; "
        "if that is too few, raise ulimit -n"
    )


def open_store(host: str, port: int) -> Any:
    """A TCPStore that listens on ``host`` only; torch's own socket would use every interface.

    ``port`` 0: any.

    Raises:
        OSError, RuntimeError: the system or torch refuses.
    """
    from torch._C._distributed_c10d import TCPStore

    _see_that_there_is_room()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    port = listener.getsockname()[1]
    return TCPStore(
        host,
        port,
        is_master=True,
        timeout=timedelta(seconds=OPEN_TIMEOUT_S),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )


def _see_that_there_is_room() -> None:
    """Check the descriptors first: torch without one retries for minutes and prints backtraces.

    Raises:
        OSError: this process may not open as many descriptors as a store needs.
    """
    with contextlib.ExitStack() as held:
        for _ in range(DESCRIPTORS_PER_STORE):
            held.callback(os.close, os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
