"""From the spawner's fork to the script: whose the process is, what it lets go, what it waits for.

A worker knows its part from the start. A standby waits for it at the end of a socket, with all
done that every part needs; the wait ends with the part, or with the spawner.

Not here: the fork itself (spawner.py), what makes a fork look fresh (inject/bootstrap.py).
"""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ftrun import linux
from ftrun.agent.channel import Channel
from ftrun.agent.env_markers import OWNER_NAME
from ftrun.core.ids import WorkerKey
from ftrun.inject import bootstrap
from ftrun.inject.bootstrap import WorkerTask
from ftrun.training.context import WorkerContext


@dataclass(frozen=True, slots=True)
class ChildSetup:
    """What a fork of the spawner starts with. ``inherited``: the spawner's own descriptors."""

    spawner_pid: int
    token: str
    out_fd: int
    err_fd: int
    inherited: tuple[int, ...]


def become_worker(setup: ChildSetup, assignment: dict[str, Any]) -> None:
    """Run the script as the worker that ``assignment``, a StartWorker, names."""
    _detach(setup)
    bootstrap.prepare(assignment["threads"])
    _run(setup.token, assignment)


def become_standby(setup: ChildSetup, name: str, threads: int, waiting: socket.socket) -> None:
    """Get ready, wait for a part, and run the script; end if the spawner closes its end."""
    _detach(setup)
    linux.title_process(f"ftrun {name}")
    bootstrap.prepare(threads)
    channel = Channel(waiting)
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    while not channel.closed:
        poll.poll()
        for frame in channel.receive():
            channel.close()
            _run(setup.token, frame.message)
    os._exit(0)


def _detach(setup: ChildSetup) -> None:
    """Be the leader of a session, with no descriptor and no signal handler of the spawner's."""
    if not linux.die_with_parent(setup.spawner_pid):
        os._exit(0)
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    for fd, standard in ((null, 0), (setup.out_fd, 1), (setup.err_fd, 2)):
        os.dup2(fd, standard)
    close((null, setup.out_fd, setup.err_fd, *setup.inherited))


def close(fds: Iterable[int]) -> None:
    """Close them all."""
    for fd in fds:
        os.close(fd)


def open_pipes() -> tuple[int, ...]:
    """Two pipes, and a descriptor in reserve: the pidfd must not lack one after the fork.

    Raises:
        OSError: there are not as many; then none of them is open.
    """
    fds: list[int] = []
    try:
        fds += os.pipe2(os.O_CLOEXEC)
        fds += os.pipe2(os.O_CLOEXEC)
        fds.append(os.dup(fds[0]))
    except OSError:
        close(fds)
        raise
    return tuple(fds)


def _run(token: str, assignment: dict[str, Any]) -> None:
    key = WorkerKey(**assignment["key"])
    linux.write_own_environment(OWNER_NAME, key.incarnation)
    words = " ".join([assignment["target"], *assignment["args"]])
    linux.title_process(f"ftrun worker {key.replica_id}.{key.group_rank}: {words}")
    bootstrap.run(
        WorkerTask(
            context=WorkerContext(key=key, token=token, **assignment["context"]),
            target=assignment["target"],
            is_module=assignment["is_module"],
            args=tuple(assignment["args"]),
            environment=assignment["environment"],
            inject=assignment["inject"],
        )
    )
